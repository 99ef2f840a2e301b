// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signatures: a kernel that is locked down, as with Secure Boot, or that was told to, loads only
//! modules that are signed with a key that it knows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::system::System;
use super::Finding;

/// The end of a module that is signed (`MODULE_SIG_STRING` of the kernel).
const SIGNED: &[u8] = b"~Module signature appended~\n";

/// The public key with which DKMS signs modules.
const DKMS_KEY: &str = "var/lib/dkms/mok.pub";

/// Where the firmware tells whether Secure Boot is on: four bytes of attributes, and 1 or 0.
const SECURE_BOOT: &str =
    "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Why the kernel loads only modules that are signed; `None` if it loads any.
pub(super) fn demanded(system: &System) -> Option<String> {
    let lockdown = system.read("sys/kernel/security/lockdown");
    let locked = lockdown.is_some_and(|modes| !modes.contains("[none]"));
    let enforced = system.read("sys/module/module/parameters/sig_enforce");
    if locked && secure_boot(system) {
        Some("Secure Boot has locked the kernel down".to_owned())
    } else if locked {
        Some("the kernel is locked down".to_owned())
    } else if enforced.as_deref() == Some("Y") {
        Some("the kernel was booted with module.sig_enforce".to_owned())
    } else {
        None
    }
}

fn secure_boot(system: &System) -> bool {
    let mut bytes = Vec::new();
    let file = File::open(system.path(SECURE_BOOT));
    file.is_ok_and(|mut file| file.read_to_end(&mut bytes).is_ok()) && bytes.last() == Some(&1)
}

/// Whether a module that is installed is signed; `None` if that cannot be seen.
fn is_signed(system: &System, module: &str) -> Option<bool> {
    if !module.ends_with(".ko") {
        // It is compressed.
        return None;
    }
    let mut file = File::open(system.path(module)).ok()?;
    file.seek(SeekFrom::End(-i64::try_from(SIGNED.len()).ok()?))
        .ok()?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).ok()?;
    Some(end == SIGNED)
}

/// The finding about a module that is not loaded, where the kernel demands a signature.
pub(super) fn unloaded(system: &System, module: &str, why: &str) -> Finding {
    const WHAT: &str = "driver";
    if is_signed(system, module) == Some(false) {
        return Finding::wrong(
            WHAT,
            format!("the module is not signed, and {why}: it loads signed modules only"),
            "install pinmap-dkms, which signs the module, or sign it with a key that the machine \
             trusts",
        );
    }
    let key = if system.path(DKMS_KEY).exists() {
        format!("`mokutil --import /{DKMS_KEY}`, which is DKMS's key")
    } else {
        "`mokutil --import KEY`, with the key that signed it".to_owned()
    };
    Finding::wrong(
        WHAT,
        format!("the module is not loaded, and {why}: it loads a module if it knows its key"),
        format!(
            "`modprobe pinmap`, as root; if that is refused, {key}; boot, confirm the key in the \
             menu that comes up, and try again"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Fake;
    use super::*;

    const LOCKDOWN: &str = "sys/kernel/security/lockdown";
    const MODULE: &str = "lib/modules/7.3.4/updates/pinmap.ko";

    #[test]
    fn kernels_that_demand_signatures_say_so() {
        let demanded = |fake: &Fake| super::demanded(&fake.system());
        let fake = Fake::new(&[(LOCKDOWN, "[none] integrity confidentiality\n")]);
        assert_eq!(demanded(&fake), None);
        fake.write("sys/module/module/parameters/sig_enforce", "N\n");
        assert_eq!(demanded(&fake), None);
        fake.write("sys/module/module/parameters/sig_enforce", "Y\n");
        assert!(demanded(&fake).is_some_and(|why| why.contains("sig_enforce")));
        fake.write(LOCKDOWN, "none [integrity] confidentiality\n");
        assert_eq!(
            demanded(&fake).as_deref(),
            Some("the kernel is locked down")
        );
        fake.write(SECURE_BOOT, "\u{6}\0\0\0\0");
        assert!(demanded(&fake).is_some_and(|why| !why.contains("Secure Boot")));
        fake.write(SECURE_BOOT, "\u{6}\0\0\0\u{1}");
        assert!(demanded(&fake).is_some_and(|why| why.contains("Secure Boot")));
        assert_eq!(super::demanded(&System::at("/nonexistent")), None);
    }

    #[test]
    fn what_to_do_depends_on_the_module() {
        let fake = Fake::new(&[(MODULE, "\u{7f}ELF and more than the end of a signed one")]);
        let fix = |module| {
            let finding = unloaded(&fake.system(), module, "the kernel is locked down");
            (finding.text, finding.fix.unwrap_or_default())
        };
        let (text, advice) = fix(MODULE);
        assert!(text.contains("is not signed"), "{text}");
        assert!(advice.contains("pinmap-dkms"), "{advice}");
        fake.write(MODULE, "\u{7f}ELF ~Module signature appended~\n");
        let (text, advice) = fix(MODULE);
        assert!(text.contains("not loaded"), "{text}");
        assert!(advice.contains("--import KEY"), "{advice}");
        fake.write(DKMS_KEY, "");
        let (_, advice) = fix(MODULE);
        assert!(
            advice.contains("--import /var/lib/dkms/mok.pub"),
            "{advice}"
        );
        // It cannot be seen in a compressed one.
        let (text, _) = fix("lib/modules/7.3.4/updates/dkms/pinmap.ko.xz");
        assert!(text.contains("not loaded"), "{text}");
    }
}
