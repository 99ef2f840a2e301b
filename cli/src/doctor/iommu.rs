// SPDX-License-Identifier: MIT OR Apache-2.0
//! The IOMMU: whether one is in use, and if not, why.

use super::system::System;
use super::Finding;

const WHAT: &str = "IOMMU";

/// The ACPI tables that describe IOMMUs, and the boot parameters that switch those on.
const TABLES: [(&str, &str, &str); 3] = [
    ("DMAR", "Intel VT-d", "intel_iommu=on"),
    ("IVRS", "AMD-Vi", "amd_iommu=on"),
    ("VIOT", "virtio-iommu", ""),
];

/// The boot parameters that switch an IOMMU off.
const OFF: [&str; 4] = ["iommu=off", "intel_iommu=off", "amd_iommu=off", "noiommu"];

/// Examines the IOMMU.
pub(super) fn examine(system: &System) -> Vec<Finding> {
    let names = system.sysfs().iommus();
    if names.is_empty() {
        return vec![missing(system)];
    }
    let mut findings = vec![Finding::good(WHAT, names.join(", "))];
    findings.extend(interrupts(system));
    findings
}

fn missing(system: &System) -> Finding {
    let off: Vec<_> = OFF
        .into_iter()
        .filter(|word| system.booted_with(word))
        .collect();
    if !off.is_empty() {
        return Finding::wrong(
            WHAT,
            format!(
                "switched off by `{}` on the kernel's command line",
                off.join(" ")
            ),
            "take that out in the boot loader's configuration, and restart",
        );
    }
    let tables = system.list("sys/firmware/acpi/tables");
    let described = TABLES
        .into_iter()
        .find(|(table, ..)| tables.iter().any(|name| name == table));
    match described {
        Some((table, name, "")) => Finding::wrong(
            WHAT,
            unused(name, table),
            "boot a kernel with a driver for it (CONFIG_VIRTIO_IOMMU)",
        ),
        Some((table, name, on)) => Finding::wrong(
            WHAT,
            unused(name, table),
            format!(
                "add `{on}` to the kernel's command line and restart; if that does not help, the \
                 kernel lacks its driver"
            ),
        ),
        None => Finding::wrong(
            WHAT,
            "none: neither the kernel nor the firmware shows one, and without it a device could \
             reach all memory",
            "switch on VT-d (Intel) or AMD-Vi in the firmware's set-up and restart; to a virtual \
             machine give one (QEMU: `-device intel-iommu,intremap=on,caching-mode=on`)",
        ),
    }
}

/// An IOMMU that only the firmware knows.
fn unused(name: &str, table: &str) -> String {
    format!(
        "the firmware describes one ({name}, ACPI table {table}), and the kernel does not use it"
    )
}

/// Examines whether interrupts are isolated. A bound function shows that they are, or that the user
/// has accepted that they are not.
fn interrupts(system: &System) -> Option<Finding> {
    let bound = system.list("sys/bus/pci/drivers/pinmap");
    if bound.iter().any(|name| name.contains(':')) {
        return None;
    }
    let remapped = system
        .read("proc/interrupts")
        .is_some_and(|text| text.contains("IR-"));
    (!remapped).then(|| {
        Finding::note(
            "interrupts",
            "no interrupt is remapped now, so the driver may refuse to bind",
            "switch on interrupt remapping (x2APIC) in the firmware's set-up; or load the driver \
             with `allow_unsafe_interrupts=1`, which lets whoever drives the device raise any \
             interrupt",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Fake;
    use super::super::Level;
    use super::*;

    fn fix_of(files: &[(&str, &str)]) -> (String, String) {
        let findings = examine(&Fake::new(files).system());
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].level, Level::Wrong);
        (
            findings[0].text.clone(),
            findings[0].fix.clone().unwrap_or_default(),
        )
    }

    #[test]
    fn what_switches_it_off_is_named() {
        for (line, word) in [
            ("quiet intel_iommu=off root=/dev/vda", "intel_iommu=off"),
            ("iommu=off\n", "iommu=off"),
            ("amd_iommu=off splash", "amd_iommu=off"),
        ] {
            // The boot parameter counts, whatever the firmware has.
            let (text, fix) = fix_of(&[
                ("proc/cmdline", line),
                ("sys/firmware/acpi/tables/DMAR", ""),
            ]);
            assert!(text.contains(&format!("by `{word}`")), "{text}");
            assert!(fix.contains("boot loader"), "{fix}");
        }
    }

    #[test]
    fn what_the_firmware_has_is_switched_on() {
        for (table, name, on) in [
            ("DMAR", "Intel VT-d", "`intel_iommu=on`"),
            ("IVRS", "AMD-Vi", "`amd_iommu=on`"),
            ("VIOT", "virtio-iommu", "CONFIG_VIRTIO_IOMMU"),
        ] {
            let path = format!("sys/firmware/acpi/tables/{table}");
            let (text, fix) = fix_of(&[
                ("sys/firmware/acpi/tables/FACP", ""),
                (&path, ""),
                ("proc/cmdline", "quiet intel_iommu=sm_on"),
            ]);
            assert!(text.contains(name) && text.contains(table), "{text}");
            assert!(fix.contains(on), "{fix}");
        }
    }

    #[test]
    fn interrupts_are_looked_at_until_a_function_is_bound() {
        let fake = Fake::new(&[
            ("sys/class/iommu/dmar0/x", ""),
            ("proc/interrupts", " 24: 0 PCI-MSI-0000:00:10.0 edu\n"),
        ]);
        let findings = examine(&fake.system());
        assert_eq!(findings[0], Finding::good(WHAT, "dmar0"));
        assert_eq!(findings[1].level, Level::Note);
        let fix = findings[1].fix.as_deref().unwrap_or_default();
        assert!(fix.contains("allow_unsafe_interrupts=1"), "{fix}");
        fake.write("sys/bus/pci/drivers/pinmap/0000:00:10.0", "");
        assert_eq!(examine(&fake.system()).len(), 1);
        let fake = Fake::new(&[
            ("sys/class/iommu/dmar0/x", ""),
            ("proc/interrupts", " 24: 0 IR-PCI-MSI-0000:00:10.0 edu\n"),
        ]);
        assert_eq!(examine(&fake.system()).len(), 1);
    }

    #[test]
    fn without_anything_the_firmware_is_to_blame() {
        let findings = examine(&System::at("/nonexistent"));
        assert_eq!(findings.len(), 1);
        let fix = findings[0].fix.as_deref().unwrap_or_default();
        assert!(fix.contains("VT-d") && fix.contains("AMD-Vi"), "{fix}");
    }
}
