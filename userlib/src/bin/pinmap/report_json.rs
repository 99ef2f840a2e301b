// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of `pinmap info` as JSON.

use std::ops::RangeInclusive;
use std::time::Duration;

use pinmap::{BarInfo, GpuInfo, Link, Preflight, Reserved, Total, Totals};

use crate::json::Json;
use crate::report::{Details, Entry, Report};
use crate::text;

/// The report as one value; with `need`, whether so many bytes more can be registered.
pub(crate) fn render(report: &Report, need: Option<u64>) -> Json {
    let used = report.used_known.then_some(report.memlock.used);
    let mut memlock = vec![
        ("limit", report.memlock.limit.into()),
        ("used", used.into()),
        ("hint", report.raise().into()),
    ];
    if let Some(need) = need {
        let enough = match &report.preflight {
            Some(found) => found.is_ok(),
            None => report.memlock.check(need).is_ok(),
        };
        memlock.extend([("needed", need.into()), ("enough", enough.into())]);
    }
    Json::Object(vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned().into()),
        ("driver_loaded", report.driver_loaded.into()),
        ("iommus", Json::list(report.iommus.iter().cloned())),
        ("memlock", Json::Object(memlock)),
        ("preflight", report.preflight.as_ref().map(preflight).into()),
        ("devices", Json::list(report.devices.iter().map(entry))),
        ("hint", report.hint.clone().into()),
    ])
}

/// What registering as much as is needed would take, or why it would fail.
fn preflight(result: &pinmap::Result<Preflight>) -> Json {
    Json::Object(match result {
        Ok(found) => vec![
            ("memlock_needed", found.memlock_needed.into()),
            ("memlock_allowed", found.memlock_allowed.into()),
            ("registrations_needed", found.registrations_needed.into()),
            ("registrations_allowed", found.registrations_allowed.into()),
        ],
        Err(error) => vec![
            ("error", error.to_string().into()),
            ("hint", error.hint().map(str::to_owned).into()),
        ],
    })
}

fn entry(entry: &Entry) -> Json {
    let id = |number: Option<u32>| number.map(|number| format!("{number:04x}"));
    let mut fields = vec![
        ("node", entry.node.clone().into()),
        ("pci", entry.pci.to_string().into()),
        ("vendor", id(entry.id.map(|id| id.0)).into()),
        ("device", id(entry.id.map(|id| id.1)).into()),
        (
            "class",
            entry.class.map(|class| format!("{class:06x}")).into(),
        ),
        ("iommu", entry.iommu.clone().into()),
        ("iommu_group", entry.iommu_group.into()),
    ];
    match &entry.details {
        Ok(known) => fields.extend(details(known)),
        Err(error) => fields.push(("error", error.to_string().into())),
    }
    Json::Object(fields)
}

fn details(
    Details {
        info,
        reserved: ranges,
        gpu: engines,
        totals: all,
        ..
    }: &Details,
) -> Vec<(&'static str, Json)> {
    let bars = (0u32..).zip(&info.bars);
    vec![
        ("kind", text::kind(info.kind).into()),
        ("gone", info.gone.into()),
        ("owned", info.owned.into()),
        ("coherent", info.coherent.into()),
        ("reset", info.can_reset.into()),
        ("address_bits", info.address_bits().into()),
        ("aperture", Json::Object(range(&info.aperture))),
        ("reserved", Json::list(ranges.iter().map(reserved))),
        ("page_sizes", Json::list(info.page_sizes.iter())),
        ("max_registrations", info.max_registrations.into()),
        ("vectors", info.vectors.into()),
        ("gpu", engines.as_ref().map(gpu).into()),
        ("totals", all.as_ref().map(totals).into()),
        (
            "bars",
            Json::list(bars.filter_map(|(number, info)| Some(bar(number, info.as_ref()?)))),
        ),
    ]
}

fn totals(totals: &Totals) -> Json {
    let total = |total: Total| {
        Json::Object(vec![
            ("number", total.number.into()),
            ("bytes", total.bytes.into()),
        ])
    };
    Json::Object(vec![
        // Without the one that asks.
        ("programs", totals.contexts.saturating_sub(1).into()),
        ("pinned", total(totals.pinned)),
        ("allocated", total(totals.allocated)),
        ("vram", total(totals.vram)),
        ("shared", total(totals.shared)),
        ("mapped", total(totals.mapped)),
        ("stale", total(totals.stale)),
    ])
}

fn range(range: &RangeInclusive<u64>) -> Vec<(&'static str, Json)> {
    vec![
        ("first", Json::address(*range.start())),
        ("last", Json::address(*range.end())),
    ]
}

fn reserved(reserved: &Reserved) -> Json {
    let mut fields = range(&reserved.range);
    fields.push(("kind", text::reserved_kind(reserved.kind).into()));
    Json::Object(fields)
}

fn gpu(info: &GpuInfo) -> Json {
    let link = |link: Link| {
        Json::Object(vec![
            ("bytes_per_second", link.bandwidth.into()),
            ("latency_ns", nanos(link.latency).into()),
        ])
    };
    Json::Object(vec![
        ("queues", info.queues.into()),
        ("queues_at_once", info.slots.into()),
        ("contexts_at_once", info.vmids.into()),
        ("copy_engines", info.copy_engines.into()),
        ("kernels_at_once", info.compute_slots.into()),
        ("max_priority", info.max_priority.into()),
        ("memory", info.vram_len.into()),
        ("memory_free", info.vram_free.into()),
        ("max_run_ns", nanos(info.max_run).into()),
        ("link", link(info.link)),
        ("memory_link", link(info.vram)),
    ])
}

/// In nanoseconds; the driver counts in no more.
fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn bar(number: u32, bar: &BarInfo) -> Json {
    let hole = |(offset, len): (u64, u64)| {
        Json::Object(vec![("offset", offset.into()), ("length", len.into())])
    };
    Json::Object(vec![
        ("number", number.into()),
        ("length", bar.len.into()),
        ("mappable", bar.mappable.into()),
        ("prefetchable", bar.prefetchable.into()),
        ("64bit", bar.is_64bit.into()),
        ("hole", bar.hole.map(hole).into()),
    ])
}
