// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap bind` and `pinmap unbind`: give a PCI function to the driver, and take it back.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use nix::libc::O_NONBLOCK;
use pinmap::PciAddress;

use crate::sysfs::{Function, Sysfs};
use crate::Result;

/// The name of the driver.
pub(crate) const DRIVER: &str = "pinmap";
/// Describes a bridge in messages.
pub(crate) const BRIDGE: &str = "a bridge, on which other parts of the system may rely";

/// Gives a function to the driver.
pub(crate) fn bind(sysfs: &Sysfs, pci: PciAddress, out: &mut impl Write) -> Result<()> {
    let function = find(sysfs, pci)?;
    if !sysfs.driver_loaded() {
        return Err("the driver is not loaded: load it with `modprobe pinmap`".into());
    }
    let before = function.driver();
    if before.as_deref() != Some(DRIVER) {
        let log = KernelLog::from_now();
        let rule = function.driver_override();
        function
            .set_driver_override(Some(DRIVER))
            .map_err(|e| denied(pci, "bind", &e))?;
        if let Err(error) = take(&function, before.is_some()) {
            // Undone. The rule comes first, so that the old driver is allowed to bind again.
            let _ = function.set_driver_override(rule.as_deref());
            let _ = function.probe();
            return Err(refused(&function, pci, error.as_ref(), log).into());
        }
    }
    let device = function
        .device()
        .ok_or("the driver has the function, but made no device for it")?;
    let was = match before.as_deref() {
        None => String::new(),
        Some(DRIVER) => " (as before)".to_owned(),
        Some(other) => format!(" (before: {other})"),
    };
    writeln!(out, "{pci} is /dev/{device}{was}")?;
    if function.is_bridge() {
        writeln!(
            out,
            "note: it is {BRIDGE}, and whoever may use /dev/{device} may now change its registers; \
             `pinmap unbind {pci}` gives it back"
        )?;
    }
    Ok(())
}

/// Makes the function change to our driver. The error is `None` if the driver did not take it.
fn take(function: &Function, has_driver: bool) -> Result<(), Option<io::Error>> {
    if has_driver {
        function.unbind()?;
    }
    let probed = function.probe();
    match function.driver().as_deref() {
        Some(DRIVER) => Ok(()),
        _ => Err(probed.err()),
    }
}

/// Says why the driver did not take the function.
fn refused(
    function: &Function,
    pci: PciAddress,
    error: Option<&io::Error>,
    log: Option<KernelLog>,
) -> String {
    let mut text = format!("the driver did not take {pci}");
    if let Some(error) = error {
        text += &format!(" ({error})");
    }
    match log.and_then(|log| log.about(pci)) {
        Some(line) => text += &format!("; the kernel says: {line}"),
        None => text += &format!("; `dmesg | grep {pci}` may show why"),
    }
    match function.driver() {
        Some(driver) => text + &format!("; {driver} has it again"),
        None => text + "; no driver has it now",
    }
}

/// Takes a function away from the driver.
pub(crate) fn unbind(sysfs: &Sysfs, pci: PciAddress, out: &mut impl Write) -> Result<()> {
    let function = find(sysfs, pci)?;
    let rule = function.driver_override();
    let driver = function.driver();
    let ours = driver.as_deref() == Some(DRIVER);
    if !ours && rule.as_deref() != Some(DRIVER) {
        let has = driver.map_or("no driver has it".to_owned(), |name| {
            format!("{name} has it")
        });
        return Err(format!("{pci} is not bound to pinmap: {has}").into());
    }
    // The rule comes first, or the driver would get the function again at once.
    if rule.as_deref() == Some(DRIVER) {
        function
            .set_driver_override(None)
            .map_err(|e| denied(pci, "unbind", &e))?;
    }
    if ours {
        function.unbind().map_err(|e| denied(pci, "unbind", &e))?;
    }
    // It is no failure if no driver wants the function.
    let _ = function.probe();
    match function.driver() {
        Some(driver) if driver == DRIVER => Err(format!(
            "{pci} was bound to pinmap again: take its id out of \
             /sys/bus/pci/drivers/pinmap/remove_id first"
        )
        .into()),
        Some(driver) => Ok(writeln!(out, "{pci} is back with {driver}")?),
        None => Ok(writeln!(out, "{pci} has no driver now")?),
    }
}

pub(crate) fn find(sysfs: &Sysfs, pci: PciAddress) -> Result<Function, String> {
    let missing =
        || format!("there is no PCI function {pci}: `lspci -D` shows those that there are");
    sysfs.function(pci).ok_or_else(missing)
}

pub(crate) fn denied(pci: PciAddress, verb: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("only root can {verb} {pci}: try `sudo pinmap {verb} {pci}`")
        }
        _ => format!("cannot {verb} {pci}: {error}"),
    }
}

/// The messages of the kernel from some moment on.
struct KernelLog(File);

impl KernelLog {
    /// Begins now. Returns `None` if this user may not read the messages.
    fn from_now() -> Option<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(O_NONBLOCK)
            .open("/dev/kmsg")
            .ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self(file))
    }

    /// The message about a function that tells most.
    fn about(mut self, pci: PciAddress) -> Option<String> {
        // One read is one record.
        let mut record = vec![0; 8192];
        let mut lines = Vec::new();
        loop {
            match self.0.read(&mut record) {
                Ok(0) => break,
                Ok(len) => lines.extend(line_about(&record[..len], pci)),
                // The record was overwritten. The next read returns a newer one.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        telling(lines)
    }
}

/// The text of a record of the kernel's log after the address of the function, if it has that.
fn line_about(record: &[u8], pci: PciAddress) -> Option<String> {
    let record = String::from_utf8_lossy(record);
    let (_, text) = record.split_once(';')?;
    let (_, about) = text.lines().next()?.split_once(&format!("{pci}: "))?;
    Some(about.to_owned())
}

/// Chooses the lines that tell a reason. A line that says only that probing failed is used alone.
fn telling(mut lines: Vec<String>) -> Option<String> {
    let last = lines.last().cloned();
    lines.retain(|line| !line.starts_with("probe with driver"));
    if lines.is_empty() {
        last
    } else {
        Some(lines.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::Fake;

    fn error(result: Result<()>) -> String {
        result.expect_err("a failure").to_string()
    }

    #[test]
    fn what_is_missing_is_told() {
        let fake = Fake::new(None, &[]);
        let other = PciAddress {
            device: 1,
            ..Fake::PCI
        };
        let out = &mut Vec::new();
        assert!(error(bind(&fake.sysfs(), other, out)).contains("no PCI function 0000:00:01.0"));
        assert!(error(bind(&fake.sysfs(), Fake::PCI, out)).contains("modprobe pinmap"));
        assert!(error(unbind(&fake.sysfs(), Fake::PCI, out)).contains("no driver has it"));
    }

    #[test]
    fn what_the_driver_refuses_goes_back() {
        // In a made-up sysfs, no driver takes the function.
        let fake = Fake::new(Some("e1000e"), &["pinmap"]);
        let error = error(bind(&fake.sysfs(), Fake::PCI, &mut Vec::new()));
        assert!(
            error.starts_with("the driver did not take 0000:00:10.0"),
            "{error}"
        );
        assert!(error.contains("e1000e has it again"), "{error}");
        assert_eq!(fake.function().driver_override(), None);
        assert_eq!(fake.read("bus/pci/drivers/e1000e/unbind"), "0000:00:10.0");
        assert_eq!(fake.read("bus/pci/drivers_probe"), "0000:00:10.0");
    }

    #[test]
    fn a_bridge_is_noted() {
        for (class, noted) in [("0x060000", true), ("0x00ff00", false)] {
            let fake = Fake::new(Some("pinmap"), &[]);
            fake.write("bus/pci/devices/0000:00:10.0/class", class);
            fake.write("bus/pci/devices/0000:00:10.0/misc/pinmap3/dev", "10:120");
            let mut out = Vec::new();
            bind(&fake.sysfs(), Fake::PCI, &mut out).expect("bound");
            let out = String::from_utf8(out).expect("text");
            assert!(
                out.starts_with("0000:00:10.0 is /dev/pinmap3 (as before)\n"),
                "{out}"
            );
            assert_eq!(out.contains("a bridge"), noted, "{out}");
        }
    }

    #[test]
    fn another_drivers_function_is_left_alone() {
        let fake = Fake::new(Some("e1000e"), &["pinmap"]);
        let error = error(unbind(&fake.sysfs(), Fake::PCI, &mut Vec::new()));
        assert!(error.contains("e1000e has it"), "{error}");
        assert_eq!(fake.read("bus/pci/drivers_probe"), "");
    }

    #[test]
    fn a_rule_without_a_driver_is_lifted() {
        let fake = Fake::new(None, &["pinmap"]);
        fake.function()
            .set_driver_override(Some("pinmap"))
            .expect("written");
        let mut out = Vec::new();
        unbind(&fake.sysfs(), Fake::PCI, &mut out).expect("unbound");
        assert_eq!(out, b"0000:00:10.0 has no driver now\n");
        assert_eq!(fake.function().driver_override(), None);
    }

    #[test]
    fn a_driver_that_stays_is_told() {
        let fake = Fake::new(Some("pinmap"), &[]);
        let error = error(unbind(&fake.sysfs(), Fake::PCI, &mut Vec::new()));
        assert!(error.contains("remove_id"), "{error}");
    }

    #[test]
    fn the_kernels_line_is_found() {
        let record = b"3,1042,5000,-;pinmap 0000:00:10.0: no IOMMU\n SUBSYSTEM=pci\n";
        assert_eq!(line_about(record, Fake::PCI).as_deref(), Some("no IOMMU"));
        assert_eq!(
            line_about(b"3,1042,5000,-;usb 1-1: reset\n", Fake::PCI),
            None
        );
        assert_eq!(line_about(b"garbage 0000:00:10.0: x", Fake::PCI), None);
    }

    #[test]
    fn the_reason_is_preferred() {
        let failed = "probe with driver pinmap failed with error -1".to_owned();
        let reason = "refused: its IOMMU group has other members".to_owned();
        let member = "member of its IOMMU group: 0000:00:1f.0".to_owned();
        let all = vec![reason.clone(), member.clone(), failed.clone()];
        assert_eq!(telling(all), Some(format!("{reason}, {member}")));
        assert_eq!(telling(vec![failed.clone()]), Some(failed));
        assert_eq!(telling(Vec::new()), None);
    }

    #[test]
    fn only_root_may() {
        let error = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(denied(Fake::PCI, "bind", &error).contains("sudo pinmap bind 0000:00:10.0"));
    }
}
