// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices for this user: the permission, the limit, and whether registering works.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::libc::{EACCES, EPERM};
use nix::unistd::{Gid, Group, Uid, User};
use pinmap::inspect::Memlock;
use pinmap::{Access, Buffer, Device, DeviceNode, PciAddress, RegisterOptions};

use super::Finding;
use crate::limit::{own_memlock, COMFORT};
use crate::size::format as bytes;

/// With fewer bytes to be locked, hardly anything can be registered.
const LEAST: u64 = 1 << 20;

/// Examines the limit, and all devices or that of one function.
pub(super) fn examine(pci: Option<PciAddress>, need: Option<u64>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut memlock = None;
    for node in Device::list().unwrap_or_default() {
        if pci.is_some_and(|pci| pci != node.pci) {
            continue;
        }
        match Device::open(&node.path) {
            Ok(device) => {
                let asked = device.info().map(|info| info.memlock);
                memlock = memlock.or(asked.ok());
                findings.push(registering(&device));
            }
            Err(error) => findings.push(closed(&node, &error)),
        }
    }
    // The limit comes first, because registering depends on it.
    findings.insert(0, limit(memlock.unwrap_or_else(own_memlock), need));
    findings
}

/// Finds out why a device cannot be opened.
fn closed(node: &DeviceNode, error: &pinmap::Error) -> Finding {
    const WHAT: &str = "permission";
    let path = node.path.display();
    if !matches!(error.errno(), EACCES | EPERM) {
        let fix = error.hint().unwrap_or("`dmesg` may tell more");
        return Finding::wrong("device", error.to_string(), fix);
    }
    let user = User::from_uid(Uid::effective())
        .ok()
        .flatten()
        .map_or_else(|| Uid::effective().to_string(), |user| user.name);
    let text = format!("{user} may not open {path}");
    match group_of(&node.path) {
        None => Finding::wrong(
            WHAT,
            format!("{text}, which belongs to root alone"),
            "install pinmap's udev rule and its group, as root: udev/60-pinmap.rules to \
             /etc/udev/rules.d, udev/pinmap.sysusers.conf to /etc/sysusers.d/pinmap.conf; \
             `systemd-sysusers && udevadm trigger`",
        ),
        Some(group) if group.mem.contains(&user) => Finding::wrong(
            WHAT,
            format!(
                "{text}: {user} is a member of the group {}, but this session is older than that",
                group.name
            ),
            "log out and in again",
        ),
        Some(group) => Finding::wrong(
            WHAT,
            format!("{text}, which is for the group {}", group.name),
            format!(
                "`usermod -a -G {} {user}`, as root, then log in again",
                group.name
            ),
        ),
    }
}

/// The group that may use a node, or `None` if only root may.
fn group_of(node: &Path) -> Option<Group> {
    let metadata = fs::metadata(node).ok()?;
    let gid =
        (metadata.gid() != 0 && metadata.mode() & 0o060 == 0o060).then_some(metadata.gid())?;
    Group::from_gid(Gid::from_raw(gid)).ok()?
}

/// Registers a page, which needs no ownership of the device.
fn registering(device: &Device) -> Finding {
    let register = || -> pinmap::Result<u32> {
        let info = device.info()?;
        let options = RegisterOptions::new(Access::ReadWrite).unmapped();
        let memory = Buffer::<u8>::new(1)?;
        memory
            .register(device, options)
            .map_err(|refused| refused.error)?
            .release()
            .map_err(|refused| refused.error)?;
        Ok(info.address_bits())
    };
    match register() {
        Ok(bits) => Finding::good(
            "device",
            format!("{device} registers memory, at addresses of {bits} bits"),
        ),
        Err(error) => {
            let fix = error.hint().unwrap_or("`dmesg` may tell more").to_owned();
            Finding::wrong("device", error.to_string(), fix)
        }
    }
}

/// Judges the limit by what is needed.
fn limit(memlock: Memlock, need: Option<u64>) -> Finding {
    const WHAT: &str = "locked memory";
    let Some(limit) = memlock.limit else {
        return Finding::good(WHAT, "no limit");
    };
    let text = format!(
        "{} allowed (RLIMIT_MEMLOCK), {} used",
        bytes(limit),
        bytes(memlock.used)
    );
    let raise = |wanted| {
        let refused = memlock.check(wanted).err();
        refused
            .and_then(|error| error.hint().map(str::to_owned))
            .unwrap_or_default()
    };
    let wanted = need.unwrap_or(LEAST);
    if memlock.check(wanted).is_err() {
        let text = format!("{text}; {} more are needed", bytes(wanted));
        return Finding::wrong(WHAT, text, raise(wanted));
    }
    if need.is_none() && memlock.check(COMFORT).is_err() {
        let text = format!("{text}, which is not much");
        return Finding::note(WHAT, text, raise(COMFORT));
    }
    Finding::good(WHAT, text)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn level(limit: Option<u64>, used: u64, need: Option<u64>) -> Level {
        let finding = super::limit(Memlock { limit, used }, need);
        let told = finding
            .fix
            .as_deref()
            .is_none_or(|fix| fix.contains("ulimit -l"));
        assert!(told, "{finding:?}");
        finding.level
    }

    #[test]
    fn the_limit_is_judged_by_what_is_needed() {
        const MIB: u64 = 1 << 20;
        assert_eq!(level(None, 0, None), Level::Good);
        assert_eq!(level(Some(COMFORT), 0, None), Level::Good);
        assert_eq!(level(Some(8 * MIB), 0, None), Level::Note);
        assert_eq!(level(Some(8 * MIB), 7 * MIB + 1, None), Level::Wrong);
        assert_eq!(level(Some(8 * MIB), 0, Some(8 * MIB)), Level::Good);
        assert_eq!(level(Some(8 * MIB), 0, Some(8 * MIB + 1)), Level::Wrong);
        assert_eq!(level(Some(0), 0, None), Level::Wrong);
    }

    #[test]
    fn a_node_of_roots_has_no_group() {
        assert!(group_of(Path::new("/nonexistent")).is_none());
    }
}
