// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI functions: what keeps the driver from binding to one.

use pinmap::PciAddress;

use super::system::System;
use super::Finding;
use crate::bind::BRIDGE;
use crate::sysfs::Function;

const DRIVER: &str = "pinmap";

/// Examines one function, or those that the driver has.
pub(super) fn examine(system: &System, pci: Option<PciAddress>) -> Vec<Finding> {
    match pci {
        Some(pci) => one(system, pci),
        None => all(system),
    }
}

fn all(system: &System) -> Vec<Finding> {
    const WHAT: &str = "functions";
    let bound: Vec<_> = system
        .list("sys/bus/pci/drivers/pinmap")
        .into_iter()
        .filter(|name| name.contains(':'))
        .collect();
    if !bound.is_empty() {
        return vec![Finding::good(
            WHAT,
            format!("the driver has {}", bound.join(", ")),
        )];
    }
    vec![Finding::wrong(
        WHAT,
        "the driver has no PCI function",
        "`pinmap bind BDF`, as root, where `lspci -D` shows the BDF; `pinmap doctor BDF` says \
         whether it can be had",
    )]
}

fn one(system: &System, pci: PciAddress) -> Vec<Finding> {
    const WHAT: &str = "function";
    let sysfs = system.sysfs();
    let Some(function) = sysfs.function(pci) else {
        return vec![Finding::wrong(
            WHAT,
            format!("there is no PCI function {pci}"),
            "`lspci -D` shows those that there are",
        )];
    };
    let driver = function.driver();
    let bridge = function.is_bridge().then(|| {
        Finding::note(
            WHAT,
            format!("{pci} is {BRIDGE}"),
            "give it to the driver only if you know that nothing needs it",
        )
    });
    if driver.as_deref() == Some(DRIVER) {
        let good = Finding::good(WHAT, format!("the driver has {pci}"));
        return [good].into_iter().chain(bridge).collect();
    }
    let mut findings = group(system, &function, pci);
    let has = match &driver {
        Some(name) => format!("{name} has {pci}"),
        None => format!("no driver has {pci}"),
    };
    let fix = if findings.is_empty() {
        format!("`pinmap bind {pci}`, as root")
    } else {
        "first see to the group".to_owned()
    };
    findings.extend(bridge);
    findings.push(Finding::wrong(WHAT, has, fix));
    findings
}

/// Finds out what is wrong with the IOMMU group of a function.
fn group(system: &System, function: &Function, pci: PciAddress) -> Vec<Finding> {
    const WHAT: &str = "IOMMU group";
    let Some(number) = function.iommu_group() else {
        return vec![Finding::wrong(
            WHAT,
            format!("{pci} is in none: no IOMMU translates its DMA"),
            "switch the IOMMU on, or take a function that one translates for",
        )];
    };
    let mut findings = Vec::new();
    let dir = format!("sys/kernel/iommu_groups/{number}");
    let own = pci.to_string();
    let others: Vec<_> = system
        .list(format!("{dir}/devices"))
        .into_iter()
        .filter(|name| *name != own)
        .map(|name| describe(system, &name))
        .collect();
    if !others.is_empty() {
        findings.push(Finding::wrong(
            WHAT,
            format!(
                "{pci} shares group {number} with {}: the IOMMU cannot keep them apart, so the \
                 driver refuses it",
                others.join(", ")
            ),
            "put the card into another slot, behind a port or a switch with ACS; functions of one \
             chip often cannot be had apart",
        ));
    }
    let regions = system
        .read(format!("{dir}/reserved_regions"))
        .unwrap_or_default();
    if let Some(region) = regions
        .lines()
        .find(|line| line.split_whitespace().nth(2) == Some("direct"))
    {
        findings.push(Finding::wrong(
            WHAT,
            format!(
                "the firmware keeps memory mapped for {pci} ({region}), so the driver refuses it"
            ),
            "switch off in the firmware's set-up what uses the function (legacy USB, remote \
             management), or take another one",
        ));
    }
    findings
}

/// A member of a group: its address, and its driver.
fn describe(system: &System, name: &str) -> String {
    let function = name
        .parse()
        .ok()
        .and_then(|pci| system.sysfs().function(pci));
    match function.and_then(|function| function.driver()) {
        Some(driver) => format!("{name} ({driver})"),
        None => format!("{name} (no driver)"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Fake;
    use super::super::Level;
    use super::*;

    const FUNCTION: &str = "sys/bus/pci/devices/0000:00:10.0";

    /// The findings about a function in group 7, which has these members.
    fn found(fake: &Fake, driver: Option<&str>, members: &[&str]) -> Vec<Finding> {
        fake.write(&format!("{FUNCTION}/vendor"), "0x1234\n");
        fake.link(
            &format!("{FUNCTION}/iommu_group"),
            "sys/kernel/iommu_groups/7",
        );
        for member in members {
            fake.write(&format!("sys/kernel/iommu_groups/7/devices/{member}"), "");
        }
        if let Some(driver) = driver {
            let driver = format!("sys/bus/pci/drivers/{driver}");
            fake.link(&format!("{FUNCTION}/driver"), &driver);
        }
        examine(&fake.system(), "0000:00:10.0".parse().ok())
    }

    #[test]
    fn a_function_of_another_driver_is_told() {
        let findings = found(&Fake::new(&[]), Some("vfio-pci"), &["0000:00:10.0"]);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].text, "vfio-pci has 0000:00:10.0");
        assert_eq!(
            findings[0].fix.as_deref(),
            Some("`pinmap bind 0000:00:10.0`, as root")
        );
    }

    #[test]
    fn a_function_of_ours_is_well() {
        let findings = found(&Fake::new(&[]), Some("pinmap"), &["0000:00:10.0"]);
        let good = Finding::good("function", "the driver has 0000:00:10.0");
        assert_eq!(findings, [good]);
    }

    #[test]
    fn a_bridge_is_noted() {
        for driver in [None, Some("pinmap")] {
            let fake = Fake::new(&[(&format!("{FUNCTION}/class"), "0x060400\n")]);
            let findings = found(&fake, driver, &["0000:00:10.0"]);
            let notes: Vec<_> = findings
                .iter()
                .filter(|finding| finding.level == Level::Note)
                .collect();
            assert_eq!(notes.len(), 1, "{findings:?}");
            assert!(notes[0].text.contains("a bridge"), "{findings:?}");
        }
    }

    #[test]
    fn company_is_named_with_its_drivers() {
        let fake = Fake::new(&[("sys/bus/pci/devices/0000:00:10.1/vendor", "0x1234\n")]);
        fake.link(
            "sys/bus/pci/devices/0000:00:10.1/driver",
            "sys/bus/pci/drivers/snd_hda_intel",
        );
        let members = ["0000:00:10.0", "0000:00:10.1", "0000:00:10.2"];
        let findings = found(&fake, None, &members);
        assert_eq!(findings.len(), 2);
        for part in [
            "shares group 7",
            "0000:00:10.1 (snd_hda_intel), 0000:00:10.2 (no driver)",
        ] {
            assert!(findings[0].text.contains(part), "{}", findings[0].text);
        }
        assert_eq!(findings[1].text, "no driver has 0000:00:10.0");
        assert_eq!(findings[1].fix.as_deref(), Some("first see to the group"));
    }

    #[test]
    fn memory_of_the_firmware_is_told() {
        let path = "sys/kernel/iommu_groups/7/reserved_regions";
        let msi = "0x00000000fee00000 0x00000000feefffff msi\n";
        let direct = "0x000000007f000000 0x000000007fffffff direct\n";
        let fake = Fake::new(&[(path, &format!("{direct}{msi}"))]);
        let findings = found(&fake, None, &["0000:00:10.0"]);
        assert_eq!((findings.len(), findings[0].level), (2, Level::Wrong));
        assert!(findings[0].text.contains("0x000000007f000000"));
        let fake = Fake::new(&[(path, msi)]);
        assert_eq!(found(&fake, None, &["0000:00:10.0"]).len(), 1);
    }

    #[test]
    fn a_function_that_is_not_there_is_told() {
        let pci = "0000:00:10.0".parse().expect("an address");
        let findings = examine(&System::at("/nonexistent"), Some(pci));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].text.contains("no PCI function 0000:00:10.0"));
    }
}
