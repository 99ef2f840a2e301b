// SPDX-License-Identifier: MIT OR Apache-2.0
//! The IOMMU: whether one is in use, and if not, why.

use super::system::System;
use super::Finding;

const WHAT: &str = "IOMMU";

/// Tells what a kernel lacks that does not use an IOMMU.
enum On {
    /// A boot parameter switches it on.
    Parameter(&'static str),
    /// The kernel was built without this option.
    Option(&'static str),
}

/// The ACPI tables that describe IOMMUs.
const TABLES: [(&str, &str, On); 4] = [
    ("DMAR", "Intel VT-d", On::Parameter("intel_iommu=on")),
    ("IVRS", "AMD-Vi", On::Parameter("amd_iommu=on")),
    ("VIOT", "virtio-iommu", On::Option("CONFIG_VIRTIO_IOMMU")),
    ("IORT", "Arm's SMMU", On::Option(SMMU)),
];

/// The options of the kernel for Arm's IOMMUs.
const SMMU: &str = "CONFIG_ARM_SMMU_V3, or CONFIG_ARM_SMMU for version 2";

/// Where device trees have IOMMUs.
const TREES: [&str; 3] = [
    "sys/firmware/devicetree/base",
    "sys/firmware/devicetree/base/soc",
    "sys/firmware/devicetree/base/soc@0",
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
    if let Some((table, name, on)) = described {
        let fix = match on {
            On::Option(option) => format!("boot a kernel with a driver for it ({option})"),
            On::Parameter(on) => format!(
                "add `{on}` to the kernel's command line and restart; if that does not help, the \
                 kernel lacks its driver"
            ),
        };
        return Finding::wrong(WHAT, unused(name, table), fix);
    }
    in_device_tree(system).unwrap_or_else(|| {
        Finding::wrong(
            WHAT,
            "none: neither the kernel nor the firmware shows one, and without it a device could \
             reach all memory",
            "switch on VT-d (Intel), AMD-Vi, or SMMU (Arm) in the firmware's set-up and restart; \
             to a virtual machine give one (QEMU: `-device \
             intel-iommu,intremap=on,caching-mode=on`, or `-machine virt,iommu=smmuv3`)",
        )
    })
}

/// An IOMMU that only the device tree knows.
fn in_device_tree(system: &System) -> Option<Finding> {
    let nodes = TREES.into_iter().flat_map(|tree| {
        let names = system.list(tree);
        names.into_iter().map(move |name| format!("{tree}/{name}"))
    });
    let is_iommu = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("iommu@") || name.starts_with("smmu")
    };
    let nodes: Vec<_> = nodes.filter(is_iommu).collect();
    // A node without a status is as good as one that says "okay".
    let status = |path: &str| system.read(format!("{path}/status")).unwrap_or_default();
    let is_off = |path: &String| status(path).starts_with("disabled");
    let name = nodes.iter().find(|path| !is_off(path)).or(nodes.first())?;
    let node = name.trim_start_matches(TREES[0]);
    let fix = if is_off(name) {
        "set its `status` to \"okay\", and name it in the property `iommu-map` of the PCI host \
         bridge, by an overlay or in the firmware's set-up"
            .to_owned()
    } else {
        format!(
            "the property `iommu-map` of the PCI host bridge has to name it; and the kernel needs \
             a driver for it ({SMMU})"
        )
    };
    let off = if is_off(name) { ", switched off" } else { "" };
    let text = format!("the device tree has one ({node}{off}), and the kernel does not use it");
    Some(Finding::wrong(WHAT, text, fix))
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
    let interrupts = system.read("proc/interrupts").unwrap_or_default();
    // Remapped on x86, and by Arm's GIC with an ITS, which tells functions apart.
    if interrupts.contains("IR-") || interrupts.contains("ITS-") {
        return None;
    }
    let on = if interrupts.contains("GIC") {
        "the interrupt controller needs an ITS, which boards with a GICv2m lack"
    } else {
        "switch on interrupt remapping (x2APIC) in the firmware's set-up"
    };
    Some(Finding::note(
        "interrupts",
        "no interrupt is remapped now, so the driver may refuse to bind",
        format!(
            "{on}; or load the driver with `allow_unsafe_interrupts=1`, which lets whoever drives \
             the device raise any interrupt"
        ),
    ))
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
            ("IORT", "Arm's SMMU", "CONFIG_ARM_SMMU_V3"),
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
    fn what_the_device_tree_has_is_switched_on() {
        let pci = "sys/firmware/devicetree/base/pcie@1/reg";
        let off = [
            (pci, ""),
            (
                "sys/firmware/devicetree/base/soc/iommu@2/status",
                "disabled\0",
            ),
        ];
        let (text, fix) = fix_of(&off);
        assert!(text.contains("/soc/iommu@2, switched off"), "{text}");
        assert!(
            fix.contains("\"okay\"") && fix.contains("iommu-map"),
            "{fix}"
        );
        let (text, fix) = fix_of(&[
            off[0],
            off[1],
            (
                "sys/firmware/devicetree/base/smmuv3@3/compatible",
                "arm,smmu-v3\0",
            ),
        ]);
        assert!(text.contains("(/smmuv3@3)"), "{text}");
        assert!(
            fix.contains("iommu-map") && fix.contains("CONFIG_ARM_SMMU_V3"),
            "{fix}"
        );
        let (_, fix) = fix_of(&[(pci, "")]);
        assert!(fix.contains("iommu=smmuv3"), "{fix}");
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
        for remapped in [
            "IR-PCI-MSI-0000:00:10.0 edu",
            "ITS-PCI-MSI-0000:00:10.0 edu",
        ] {
            let fake = Fake::new(&[
                ("sys/class/iommu/dmar0/x", ""),
                ("proc/interrupts", &format!(" 24: 0 {remapped}\n")),
            ]);
            assert_eq!(examine(&fake.system()).len(), 1);
        }
        let fake = Fake::new(&[
            ("sys/class/iommu/smmu3.0x9050000/x", ""),
            (
                "proc/interrupts",
                " 24: 0 GICv2m-PCI-MSI-0000:00:10.0 edu\n",
            ),
        ]);
        let fix = examine(&fake.system())[1].fix.clone().unwrap_or_default();
        assert!(fix.contains("ITS"), "{fix}");
    }

    #[test]
    fn without_anything_the_firmware_is_to_blame() {
        let findings = examine(&System::at("/nonexistent"));
        assert_eq!(findings.len(), 1);
        let fix = findings[0].fix.as_deref().unwrap_or_default();
        assert!(fix.contains("VT-d") && fix.contains("AMD-Vi"), "{fix}");
    }
}
