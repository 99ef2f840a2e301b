// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of `pinmap info` as text.

use std::io::{self, Write};

use pinmap::accelerator::AcceleratorInfo;
use pinmap::inspect::{BarInfo, FaultTotals, Memlock, Preflight, Reserved, Total, Totals};
use pinmap::Info;

use crate::details::{Details, Entry};
use crate::limit::COMFORT;
use crate::names;
use crate::report::Report;
use crate::size::format as bytes;
use crate::words::{count, kind, reserved_kind};

/// Writes the report.
pub(crate) fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    const UNKNOWN: &str = "unknown, without /sys";
    let loaded = match (report.has_sysfs, report.driver_loaded) {
        (false, _) => UNKNOWN,
        (true, true) => "loaded",
        (true, false) => "not loaded",
    };
    line(out, "driver", loaded)?;
    let iommus = match &*report.iommus {
        _ if !report.has_sysfs => UNKNOWN.to_owned(),
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    line(out, "IOMMU", iommus)?;
    line(
        out,
        "locked memory",
        memlock(report.memlock, report.used_known),
    )?;
    if let Some(raise) = report.raise() {
        line(out, "", format!("for {}, {raise}", bytes(COMFORT)))?;
    }
    for entry in &report.devices {
        writeln!(out)?;
        device(entry, out)?;
    }
    match &report.hint {
        Some(hint) => writeln!(out, "\nno devices: {hint}"),
        None => Ok(()),
    }
}

/// Writes a line with a name and a value.
fn line(out: &mut impl Write, name: &str, value: impl AsRef<str>) -> io::Result<()> {
    writeln!(out, "{name:<18}{}", value.as_ref())
}

fn device(entry: &Entry, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{}  {}", entry.node, entry.pci)?;
    if let Some((vendor, device)) = entry.id {
        write!(out, "  {vendor:04x}:{device:04x}")?;
    }
    if let Some(class) = entry.class {
        write!(out, "  class {class:06x}")?;
    }
    writeln!(out)?;
    if let Some(name) = entry.id.and_then(names::of) {
        line(out, "  name", name)?;
    }
    if let Some(group) = entry.iommu_group {
        let name = entry.iommu.as_deref().unwrap_or("unknown");
        line(out, "  IOMMU", format!("{name}, group {group}"))?;
    }
    match &entry.details {
        Ok(Details {
            info,
            reserved,
            gpu,
            totals,
            ..
        }) => {
            details(info, reserved, out)?;
            if let Some(gpu) = gpu {
                engines(gpu, out)?;
                line(out, "  managed memory", managed(info.managed))?;
            }
            line(out, "  in use", in_use(totals))?;
            match totals.faults {
                FaultTotals {
                    served: 0,
                    failed: 0,
                    ..
                } => Ok(()),
                faults => line(
                    out,
                    "  faults",
                    format!("{} served, {} failed", faults.served, faults.failed),
                ),
            }
        }
        Err(error) => line(out, "  not usable", error.to_string()),
    }
}

fn details(info: &Info, ranges: &[Reserved], out: &mut impl Write) -> io::Result<()> {
    let state = match (info.gone, info.owned) {
        (true, _) => "gone",
        (false, true) => "a program owns it now",
        (false, false) => "free",
    };
    line(out, "  kind", format!("{}, {state}", kind(info.kind)))?;
    let (first, last) = (info.aperture.start(), info.aperture.end());
    line(
        out,
        "  addresses",
        format!("{first:#x} to {last:#x} ({} bits)", info.address_bits()),
    )?;
    for Reserved { range, kind, .. } in ranges {
        let kind = reserved_kind(*kind);
        line(
            out,
            "  reserved",
            format!("{:#x} to {:#x} ({kind})", range.start(), range.end()),
        )?;
    }
    let sizes: Vec<_> = info.page_sizes.iter().map(bytes).collect();
    line(out, "  page sizes", sizes.join(", "))?;
    line(
        out,
        "  caches",
        if info.coherent {
            "coherent"
        } else {
            "not coherent"
        },
    )?;
    line(
        out,
        "  registrations",
        format!("at most {} for a program", info.max_registrations),
    )?;
    let vectors = match info.vectors {
        0 => "none".to_owned(),
        n => count(n.into(), "vector"),
    };
    line(out, "  interrupts", vectors)?;
    line(out, "  reset", if info.can_reset { "yes" } else { "no" })?;
    for (number, bar) in info.bars.iter().enumerate() {
        if let Some(bar) = bar {
            line(out, &format!("  BAR {number}"), describe(bar))?;
        }
    }
    Ok(())
}

fn engines(info: &AcceleratorInfo, out: &mut impl Write) -> io::Result<()> {
    line(
        out,
        "  queues",
        format!(
            "{}, of which {} at once, in {} address spaces",
            info.queues, info.slots, info.vmids
        ),
    )?;
    line(
        out,
        "  engines",
        format!(
            "{}, {} at once",
            count(info.copy_engines.into(), "copy engine"),
            count(info.compute_slots.into(), "kernel")
        ),
    )?;
    line(
        out,
        "  memory",
        format!("{}, {} free", bytes(info.vram_len), bytes(info.vram_free)),
    )
}

/// Says whether devices reach memory that nobody registered.
fn managed(is_possible: bool) -> &'static str {
    match is_possible {
        true => "yes: the device can reach any memory of a program",
        false => "no: the kernel was built without CONFIG_HMM_MIRROR",
    }
}

/// Returns the phrase that says how much programs have in use. This program is not counted.
fn in_use(totals: &Totals) -> String {
    let programs = match totals.contexts.saturating_sub(1) {
        0 => "by no program".to_owned(),
        n => format!("by {}", count(n.into(), "program")),
    };
    let kinds = [
        ("registered", totals.pinned),
        ("allocated", totals.allocated),
        ("of the device's memory", totals.vram),
        ("shared", totals.shared),
        ("mapped", totals.mapped),
        ("managed", totals.managed),
        ("stale", totals.stale),
    ];
    let some = |(what, total): (&str, Total)| {
        (total.number != 0).then(|| format!("{} {what} ({})", bytes(total.bytes), total.number))
    };
    let parts: Vec<_> = [programs]
        .into_iter()
        .chain(kinds.into_iter().filter_map(some))
        .collect();
    parts.join(", ")
}

/// Describes a BAR.
fn describe(bar: &BarInfo) -> String {
    let width = if bar.is_64bit { ", 64 bits" } else { "" };
    let how = match (bar.mappable, bar.prefetchable) {
        (false, _) => "cannot be mapped",
        (true, true) => "write-combined",
        (true, false) => "uncached",
    };
    let hole = match bar.hole {
        Some((offset, len)) => format!(", without {} at {offset:#x} (MSI-X)", bytes(len)),
        None => String::new(),
    };
    format!("{}, {how}{width}{hole}", bytes(bar.len))
}

/// Describes the limit of locked memory.
fn memlock(memlock: Memlock, used_known: bool) -> String {
    let allowed = match memlock.limit {
        Some(limit) => format!("{} allowed (RLIMIT_MEMLOCK)", bytes(limit)),
        None => "no limit".to_owned(),
    };
    if used_known {
        format!("{allowed}, {} used", bytes(memlock.used))
    } else {
        allowed
    }
}

/// How much of the limits would be used.
pub(crate) fn taken(found: Option<Preflight>) -> String {
    let Some(found) = found else {
        return String::new();
    };
    let locked = match found.memlock_allowed {
        Some(allowed) => format!(
            "{} of {} locked",
            bytes(found.memlock_needed),
            bytes(allowed)
        ),
        None => format!("{} locked, without a limit", bytes(found.memlock_needed)),
    };
    format!(
        ": {locked}, {} of {} registrations of a program",
        found.registrations_needed, found.registrations_allowed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told() {
        let limited = Memlock {
            limit: Some(8 << 20),
            used: 4096,
        };
        assert_eq!(
            memlock(limited, true),
            "8 MiB allowed (RLIMIT_MEMLOCK), 4 KiB used"
        );
        assert_eq!(memlock(limited, false), "8 MiB allowed (RLIMIT_MEMLOCK)");
        assert_eq!(
            memlock(
                Memlock {
                    limit: None,
                    used: 0
                },
                true
            ),
            "no limit, 0 bytes used"
        );
    }

    #[test]
    fn what_is_in_use_is_told() {
        let mut totals = Totals::default();
        totals.contexts = 1;
        assert_eq!(in_use(&totals), "by no program");
        totals.contexts = 3;
        totals.pinned = Total {
            number: 2,
            bytes: 8192,
        };
        assert_eq!(in_use(&totals), "by 2 programs, 8 KiB registered (2)");
    }
}
