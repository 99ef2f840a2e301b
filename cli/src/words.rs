// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words that the report has in all of its forms.

use pinmap::inspect::ReservedKind;
use pinmap::Kind;

/// The name of a kind of device.
pub(crate) fn kind(kind: Kind) -> String {
    match kind {
        Kind::Flat => "flat".to_owned(),
        Kind::Paged => "paged".to_owned(),
        Kind::Other(number) => format!("kind {number}"),
        _ => "unknown".to_owned(),
    }
}

/// The name of a kind of reserved range.
pub(crate) fn reserved_kind(kind: ReservedKind) -> String {
    match kind {
        ReservedKind::Msi => "MSI".to_owned(),
        ReservedKind::Platform => "platform".to_owned(),
        ReservedKind::Other(number) => format!("kind {number}"),
        _ => "unknown".to_owned(),
    }
}

/// A number of things, with the word for one of them.
pub(crate) fn count(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    }
}

/// Advice where there is no sysfs.
pub(crate) const NO_SYSFS: &str =
    "/sys is not mounted here, so devices cannot be found; in a container mount it, for instance \
     with `-v /sys:/sys:ro`";

/// Returns advice if there is no device: the steps that are missing, in order.
pub(crate) fn no_device(driver_loaded: bool, iommu: bool) -> String {
    let mut steps = Vec::new();
    if !iommu {
        steps.push(
            "switch the IOMMU on (in the firmware: VT-d, AMD-Vi or SMMU; for Intel also \
             `intel_iommu=on` on the kernel's command line)",
        );
    }
    if !driver_loaded {
        steps.push("load the driver with `modprobe pinmap`");
    }
    steps.push("give it a PCI function with `pinmap bind BDF`, where `lspci -D` shows the BDF");
    steps.join(", then ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_that_are_missing_are_told_in_order() {
        let all = no_device(false, false);
        let [iommu, load, bind] =
            ["intel_iommu", "modprobe", "pinmap bind"].map(|part| all.find(part));
        assert!(iommu < load && load < bind && iommu.is_some(), "{all}");
        let one = no_device(true, true);
        assert!(one.starts_with("give it"), "{one}");
    }

    #[test]
    fn one_is_no_plural() {
        let words = [0, 1, 2].map(|number| count(number, "fault"));
        assert_eq!(words, ["0 faults", "1 fault", "2 faults"]);
    }

    #[test]
    fn kinds_have_names() {
        assert_eq!(
            (kind(Kind::Flat), kind(Kind::Other(7))),
            ("flat".into(), "kind 7".into())
        );
        assert_eq!(reserved_kind(ReservedKind::Msi), "MSI");
    }
}
