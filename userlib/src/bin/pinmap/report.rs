// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap info`: what there is, and what is missing.

use std::fs;
use std::io::Write;

use memmap2::MmapOptions;
use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use pinmap::{
    Access, Device, GpuInfo, Info, Kind, Memlock, PciAddress, Preflight, RegisterOptions, Reserved,
    Totals,
};

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
    /// What the driver says of registering what is needed; none: nobody asks, or it cannot be asked.
    pub(crate) preflight: Option<pinmap::Result<Preflight>>,
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
    /// Whether what is needed could be registered.
    pub(crate) preflight: Option<pinmap::Result<Preflight>>,
}

/// With less to be locked, it is said how to get more.
pub(crate) const COMFORT: u64 = 64 << 20;

impl Details {
    fn of(device: &Device, need: Option<u64>) -> pinmap::Result<Self> {
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
            preflight: need.and_then(|need| preflight(device, need)),
        })
    }
}

/// What registering so many bytes would take; none if there is no address space for them.
fn preflight(device: &Device, need: u64) -> Option<pinmap::Result<Preflight>> {
    // Nobody touches them: only the addresses are needed.
    let len = usize::try_from(need).ok()?;
    let map = MmapOptions::new().len(len).no_reserve_swap().map_anon();
    let addr = map.as_ref().ok()?.as_ptr() as usize;
    // The device may be somebody else's now.
    let options = RegisterOptions::new(Access::ReadWrite).unmapped();
    Some(device.preflight(addr, len.checked_next_multiple_of(PAGE)?, options))
}

/// The driver counts in pages, of that size wherever it runs.
const PAGE: usize = 4096;

/// Writes the report; an error after that says what is not as demanded.
pub(crate) fn run(options: &InfoOptions, out: &mut impl Write) -> Result<()> {
    let sysfs = Sysfs::system();
    let devices = match &options.device {
        Some(target) => vec![one(&sysfs, target, options.need)?],
        None => all(&sysfs, options.need)?,
    };
    let mut report = Report::new(&sysfs, devices);
    if options.json {
        writeln!(out, "{}", report_json::render(&report, options.need))?;
    } else {
        text::write(&report, out)?;
    }
    let Some(need) = options.need else {
        return Ok(());
    };
    let found = report.preflight.take().transpose()?;
    if found.is_none() {
        report.memlock.check(need)?;
    }
    if !options.json {
        let need = crate::size::format(need);
        writeln!(out, "{need} more can be registered{}", text::taken(found))?;
    }
    Ok(())
}

/// The device that was asked for, which must be there.
fn one(sysfs: &Sysfs, target: &Target, need: Option<u64>) -> Result<Entry> {
    let device = target.open()?;
    let details = Details::of(&device, need)?;
    Ok(Entry::new(
        sysfs,
        device.path().display().to_string(),
        details.info.pci,
        Ok(details),
    ))
}

fn all(sysfs: &Sysfs, need: Option<u64>) -> Result<Vec<Entry>> {
    let nodes = Device::list()?.into_iter();
    let entry = |node: pinmap::DeviceNode| {
        let details = Device::open(&node.path).and_then(|device| Details::of(&device, need));
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
    fn new(sysfs: &Sysfs, mut devices: Vec<Entry>) -> Self {
        let driver_loaded = sysfs.driver_loaded();
        // The driver counts for this user; all devices say the same.
        let known = devices
            .iter()
            .find_map(|entry| Some(entry.details.as_ref().ok()?.info.memlock));
        let preflight = devices
            .iter_mut()
            .find_map(|entry| entry.details.as_mut().ok()?.preflight.take());
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
            preflight,
            devices,
            hint,
        }
    }
}

impl Report {
    /// How to be allowed to lock more, if that is not much.
    pub(crate) fn raise(&self) -> Option<String> {
        let refused = self.memlock.check(COMFORT).err()?;
        refused.hint().map(str::to_owned)
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
    fn a_low_limit_is_shown_with_the_way_to_raise_it() {
        let mut report = Report::new(&Sysfs::at("/nonexistent"), Vec::new());
        let mut shown = |limit| {
            report.memlock = Memlock { limit, used: 0 };
            let mut text = Vec::new();
            text::write(&report, &mut text).expect("written");
            let json = report_json::render(&report, None).to_string();
            (String::from_utf8(text).expect("text"), json)
        };
        let (text, json) = shown(Some(8 << 20));
        for shown in [text, json] {
            assert!(
                shown.contains("ulimit -l 65536") && shown.contains("LimitMEMLOCK=67108864"),
                "{shown}"
            );
        }
        for limit in [None, Some(COMFORT)] {
            let (text, json) = shown(limit);
            assert!(
                !text.contains("ulimit") && !json.contains("ulimit"),
                "{text}{json}"
            );
        }
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
