// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap info`: shows what there is, and what is missing.

use std::io::Write;

use pinmap::Device;

use crate::args::{InfoOptions, Target};
use crate::details::{Details, Entry};
use crate::report::Report;
use crate::sysfs::Sysfs;
use crate::{report_json, text, Result};

/// Writes the report. Fails after that if what is needed is not allowed.
pub(crate) fn run(options: &InfoOptions, out: &mut impl Write) -> Result<()> {
    let sysfs = Sysfs::system();
    let devices = match &options.device {
        Some(target) => vec![one(&sysfs, target, options.need)?],
        None => all(&sysfs, options.need)?,
    };
    let mut report = Report::new(&sysfs, devices);
    if options.json {
        writeln!(out, "{}", report_json::render(&report, options.need)?)?;
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
    report.check_memory(need)?;
    if !options.json {
        let need = crate::size::format(need);
        writeln!(out, "{need} more can be registered{}", text::taken(found))?;
    }
    Ok(())
}

/// The device that was asked for, which must be usable.
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

/// All devices, whether or not this user can use them.
fn all(sysfs: &Sysfs, need: Option<u64>) -> Result<Vec<Entry>> {
    let nodes = Device::list()?.into_iter();
    let entry = |node: pinmap::DeviceNode| {
        let details = Device::open(&node.path).and_then(|device| Details::of(&device, need));
        Entry::new(sysfs, node.path.display().to_string(), node.pci, details)
    };
    Ok(nodes.map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::COMFORT;
    use crate::sysfs::tests::Fake;
    use pinmap::inspect::Memlock;

    #[test]
    fn a_device_that_cannot_be_opened_is_shown_with_the_reason() {
        let fake = Fake::new(Some("pinmap"), &[]);
        let error = Device::open("/dev/null").expect_err("no device");
        let entry = Entry::new(&fake.sysfs(), "/dev/pinmap0".into(), Fake::PCI, Err(error));
        let report = Report::new(&fake.sysfs(), vec![entry]);
        let json = report_json::render(&report, Some(1)).expect("JSON");
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
            let json = report_json::render(&report, None).expect("JSON");
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
        let report = Report::new(&Fake::new(None, &[]).sysfs(), Vec::new());
        let json = report_json::render(&report, None).expect("JSON");
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
    fn a_container_without_sys_knows_nothing() {
        let report = Report::new(&Sysfs::at("/nonexistent"), Vec::new());
        let mut text = Vec::new();
        text::write(&report, &mut text).expect("written");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains("unknown, without /sys"), "{text}");
        assert!(text.contains("/sys is not mounted here"), "{text}");
        assert!(
            !text.contains("modprobe") && !text.contains("none"),
            "{text}"
        );
    }

    #[test]
    fn more_than_there_is_cannot_be_registered() {
        let mut report = Report::new(&Fake::new(None, &[]).sysfs(), Vec::new());
        report.memlock = Memlock {
            limit: None,
            used: 0,
        };
        report.memory = 1 << 30;
        let enough = |need| {
            let json = report_json::render(&report, Some(need)).expect("JSON");
            json.contains("\"enough\": true")
        };
        assert!(report.check_memory(1 << 30).is_ok() && enough(1 << 30));
        let error = report.check_memory(100 << 40).expect_err("too much");
        assert!(!enough(100 << 40));
        assert_eq!(
            error.to_string(),
            "100 TiB cannot be registered: this machine has 1 GiB of memory"
        );
    }
}
