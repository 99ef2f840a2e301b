// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap info`: what there is, and what is missing.

use std::fs;
use std::io::Write;

use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use pinmap::{Device, GpuInfo, Info, Kind, Memlock, PciAddress, Reserved, Totals};

use crate::args::{InfoOptions, Target};
use crate::report_json;
use crate::sysfs::Sysfs;
use crate::text;
use crate::Result;

/// All that is shown.
pub(crate) struct Report {
    pub(crate) driver_loaded: bool,
    /// Names of the IOMMUs.
    pub(crate) iommus: Vec<String>,
    pub(crate) memlock: Memlock,
    /// Whether a device could be asked for it; otherwise what is used is not known.
    pub(crate) used_known: bool,
    pub(crate) devices: Vec<Entry>,
    /// What to do when there is no device.
    pub(crate) hint: Option<String>,
}

/// A device, as far as it can be known.
pub(crate) struct Entry {
    pub(crate) node: String,
    pub(crate) pci: PciAddress,
    /// Vendor and device id, and class.
    pub(crate) id: Option<(u32, u32)>,
    pub(crate) class: Option<u32>,
    pub(crate) iommu: Option<String>,
    pub(crate) iommu_group: Option<u32>,
    /// What the driver says, or why it cannot be asked.
    pub(crate) details: Result<Details, pinmap::Error>,
}

/// What only the driver knows.
pub(crate) struct Details {
    pub(crate) info: Info,
    pub(crate) reserved: Vec<Reserved>,
    /// For a paged device.
    pub(crate) gpu: Option<GpuInfo>,
    /// Of all contexts; none with an older driver.
    pub(crate) totals: Option<Totals>,
}

impl Details {
    fn of(device: &Device) -> pinmap::Result<Self> {
        let info = device.info()?;
        let gpu = match info.kind {
            Kind::Paged => Some(device.gpu()?.info()?),
            _ => None,
        };
        Ok(Self {
            info,
            reserved: device.reserved()?,
            gpu,
            totals: device.totals().ok(),
        })
    }
}

/// Writes the report; an error after that says what is not as demanded.
pub(crate) fn run(options: &InfoOptions, out: &mut impl Write) -> Result<()> {
    let sysfs = Sysfs::system();
    let devices = match &options.device {
        Some(target) => vec![one(&sysfs, target)?],
        None => all(&sysfs)?,
    };
    let report = Report::new(&sysfs, devices);
    if options.json {
        writeln!(out, "{}", report_json::render(&report, options.need))?;
    } else {
        text::write(&report, out)?;
    }
    if let Some(need) = options.need {
        report.memlock.check(need)?;
        if !options.json {
            writeln!(out, "{} more can be registered", crate::size::format(need))?;
        }
    }
    Ok(())
}

/// The device that was asked for, which must be there.
fn one(sysfs: &Sysfs, target: &Target) -> Result<Entry> {
    let device = target.open()?;
    let details = Details::of(&device)?;
    Ok(Entry::new(
        sysfs,
        device.path().display().to_string(),
        details.info.pci,
        Ok(details),
    ))
}

fn all(sysfs: &Sysfs) -> Result<Vec<Entry>> {
    let nodes = Device::list()?.into_iter();
    let entry = |node: pinmap::DeviceNode| {
        let details = Device::open(&node.path).and_then(|device| Details::of(&device));
        Entry::new(sysfs, node.path.display().to_string(), node.pci, details)
    };
    Ok(nodes.map(entry).collect())
}

impl Entry {
    /// Adds what sysfs knows, whoever asks.
    pub(crate) fn new(
        sysfs: &Sysfs,
        node: String,
        pci: PciAddress,
        details: Result<Details, pinmap::Error>,
    ) -> Self {
        let function = sysfs.function(pci);
        let number = |attribute| function.as_ref()?.number(attribute);
        Self {
            node,
            pci,
            id: number("vendor").zip(number("device")),
            class: number("class"),
            iommu: function.as_ref().and_then(|function| function.iommu()),
            iommu_group: function
                .as_ref()
                .and_then(|function| function.iommu_group()),
            details,
        }
    }
}

impl Report {
    fn new(sysfs: &Sysfs, devices: Vec<Entry>) -> Self {
        let driver_loaded = sysfs.driver_loaded();
        // The driver counts for this user; all devices say the same.
        let known = devices
            .iter()
            .find_map(|entry| Some(entry.details.as_ref().ok()?.info.memlock));
        let iommus = sysfs.iommus();
        let hint = devices
            .is_empty()
            .then(|| text::no_device(driver_loaded, !iommus.is_empty()));
        let memlock = known.unwrap_or_else(own_memlock);
        Self {
            driver_loaded,
            iommus,
            memlock,
            used_known: known.is_some(),
            devices,
            hint,
        }
    }
}

/// The limit of this process, where no device can be asked; what is used is not known then.
pub(crate) fn own_memlock() -> Memlock {
    let soft = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
    let exempt = fs::read_to_string("/proc/self/status").is_ok_and(|status| may_lock(&status));
    Memlock {
        limit: (soft != RLIM_INFINITY && !exempt).then_some(soft),
        used: 0,
    }
}

/// Whether a process has `CAP_IPC_LOCK`, by its `/proc/PID/status`.
fn may_lock(status: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << CAP_IPC_LOCK) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::Fake;

    #[test]
    fn a_device_that_cannot_be_opened_is_shown_with_the_reason() {
        let fake = Fake::new(Some("pinmap"), &[]);
        let error = Device::open("/dev/null").expect_err("no device");
        let entry = Entry::new(&fake.sysfs(), "/dev/pinmap0".into(), Fake::PCI, Err(error));
        let report = Report::new(&fake.sysfs(), vec![entry]);
        let json = report_json::render(&report, Some(1)).to_string();
        for part in [
            "\"driver_loaded\": true",
            "\"pci\": \"0000:00:10.0\"",
            "\"error\": \"cannot open /dev/null",
            "\"needed\": 1",
            "\"hint\": null",
        ] {
            assert!(json.contains(part), "{part}: {json}");
        }
        let mut text = Vec::new();
        text::write(&report, &mut text).expect("written");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains("/dev/pinmap0  0000:00:10.0"), "{text}");
        assert!(text.contains("cannot open /dev/null"), "{text}");
    }

    #[test]
    fn no_device_is_explained() {
        let report = Report::new(&Sysfs::at("/nonexistent"), Vec::new());
        let json = report_json::render(&report, None).to_string();
        assert!(
            json.contains("\"devices\": []") && json.contains("modprobe pinmap"),
            "{json}"
        );
        let mut text = Vec::new();
        text::write(&report, &mut text).expect("written");
        let text = String::from_utf8(text).expect("text");
        assert!(
            text.contains("modprobe pinmap") && text.contains("IOMMU"),
            "{text}"
        );
    }

    #[test]
    fn the_capability_is_one_bit() {
        assert!(may_lock("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(may_lock("CapEff:\t0000000000004000\n"));
        assert!(!may_lock("CapEff:\t0000000000002000\n"));
        assert!(!may_lock(""));
    }
}
