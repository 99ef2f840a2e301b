// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of `pinmap info` as JSON.
//!
//! The structs are the objects of the output, in its order. Addresses are strings, because many
//! readers keep only 53 bits of a number.

use std::ops::RangeInclusive;
use std::time::Duration;

use pinmap::accelerator::{AcceleratorInfo, Link};
use pinmap::inspect::{BarInfo, Preflight, Reserved, Total, Totals};
use serde::Serialize;

use crate::details::{Details, Entry};
use crate::report::Report;
use crate::{names, words};

#[derive(Serialize)]
struct ReportJson<'a> {
    version: &'a str,
    driver_loaded: bool,
    iommus: &'a [String],
    memlock: MemlockJson,
    preflight: Option<PreflightJson>,
    devices: Vec<EntryJson<'a>>,
    hint: Option<&'a str>,
}

#[derive(Serialize)]
struct MemlockJson {
    limit: Option<u64>,
    used: Option<u64>,
    hint: Option<String>,
    #[serde(flatten)]
    need: Option<NeedJson>,
}

/// Only there if `--need` was given.
#[derive(Serialize)]
struct NeedJson {
    needed: u64,
    enough: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PreflightJson {
    Possible {
        memlock_needed: u64,
        memlock_allowed: Option<u64>,
        registrations_needed: u64,
        registrations_allowed: u64,
    },
    Refused {
        error: String,
        hint: Option<String>,
    },
}

#[derive(Serialize)]
struct EntryJson<'a> {
    node: &'a str,
    pci: String,
    vendor: Option<String>,
    device: Option<String>,
    /// From the database of PCI names.
    name: Option<String>,
    class: Option<String>,
    iommu: Option<&'a str>,
    iommu_group: Option<u32>,
    #[serde(flatten)]
    details: DetailsJson,
}

#[derive(Serialize)]
#[serde(untagged)]
enum DetailsJson {
    Known(Box<DeviceJson>),
    Unknown { error: String },
}

#[derive(Serialize)]
struct DeviceJson {
    kind: String,
    gone: bool,
    owned: bool,
    coherent: bool,
    reset: bool,
    managed: bool,
    address_bits: u32,
    aperture: RangeJson,
    reserved: Vec<ReservedJson>,
    page_sizes: Vec<u64>,
    max_registrations: u32,
    vectors: u32,
    gpu: Option<GpuJson>,
    totals: TotalsJson,
    bars: Vec<BarJson>,
}

#[derive(Serialize)]
struct RangeJson {
    first: String,
    last: String,
}

#[derive(Serialize)]
struct ReservedJson {
    #[serde(flatten)]
    range: RangeJson,
    kind: String,
}

#[derive(Serialize)]
struct GpuJson {
    queues: u32,
    queues_at_once: u32,
    contexts_at_once: u32,
    copy_engines: u32,
    kernels_at_once: u32,
    max_priority: u32,
    memory: u64,
    memory_free: u64,
    max_run_ns: u64,
    link: LinkJson,
    memory_link: LinkJson,
}

#[derive(Debug, Serialize)]
pub(crate) struct LinkJson {
    bytes_per_second: Option<u64>,
    latency_ns: u64,
}

#[derive(Serialize)]
struct TotalsJson {
    /// The number of programs, not counting this one.
    programs: u32,
    pinned: TotalJson,
    allocated: TotalJson,
    vram: TotalJson,
    shared: TotalJson,
    mapped: TotalJson,
    managed: TotalJson,
    stale: TotalJson,
    faults_served: u64,
    faults_failed: u64,
}

#[derive(Serialize)]
struct TotalJson {
    number: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct BarJson {
    number: u32,
    length: u64,
    mappable: bool,
    prefetchable: bool,
    #[serde(rename = "64bit")]
    is_64bit: bool,
    hole: Option<HoleJson>,
}

#[derive(Serialize)]
struct HoleJson {
    offset: u64,
    length: u64,
}

/// The report as JSON; with `need`, also whether that many bytes more can be registered.
pub(crate) fn render(report: &Report, need: Option<u64>) -> serde_json::Result<String> {
    let enough = |need| {
        let allowed = match &report.preflight {
            Some(found) => found.is_ok(),
            None => report.memlock.check(need).is_ok(),
        };
        allowed && report.check_memory(need).is_ok()
    };
    serde_json::to_string_pretty(&ReportJson {
        version: env!("CARGO_PKG_VERSION"),
        driver_loaded: report.driver_loaded,
        iommus: &report.iommus,
        memlock: MemlockJson {
            limit: report.memlock.limit,
            used: report.used_known.then_some(report.memlock.used),
            hint: report.raise(),
            need: need.map(|needed| NeedJson {
                needed,
                enough: enough(needed),
            }),
        },
        preflight: report.preflight.as_ref().map(preflight),
        devices: report.devices.iter().map(entry).collect(),
        hint: report.hint.as_deref(),
    })
}

fn preflight(result: &pinmap::Result<Preflight>) -> PreflightJson {
    match result {
        Ok(found) => PreflightJson::Possible {
            memlock_needed: found.memlock_needed,
            memlock_allowed: found.memlock_allowed,
            registrations_needed: found.registrations_needed,
            registrations_allowed: found.registrations_allowed,
        },
        Err(error) => PreflightJson::Refused {
            error: error.to_string(),
            hint: error.hint().map(str::to_owned),
        },
    }
}

fn entry(entry: &Entry) -> EntryJson<'_> {
    let id = |number: Option<u32>| number.map(|number| format!("{number:04x}"));
    EntryJson {
        node: &entry.node,
        pci: entry.pci.to_string(),
        vendor: id(entry.id.map(|id| id.0)),
        device: id(entry.id.map(|id| id.1)),
        name: entry.id.and_then(names::of),
        class: entry.class.map(|class| format!("{class:06x}")),
        iommu: entry.iommu.as_deref(),
        iommu_group: entry.iommu_group,
        details: match &entry.details {
            Ok(known) => DetailsJson::Known(Box::new(device(known))),
            Err(error) => DetailsJson::Unknown {
                error: error.to_string(),
            },
        },
    }
}

fn device(details: &Details) -> DeviceJson {
    let info = &details.info;
    let bars = (0u32..).zip(&info.bars);
    DeviceJson {
        kind: words::kind(info.kind),
        gone: info.gone,
        owned: info.owned,
        coherent: info.coherent,
        reset: info.can_reset,
        managed: info.managed,
        address_bits: info.address_bits(),
        aperture: range(&info.aperture),
        reserved: details.reserved.iter().map(reserved).collect(),
        page_sizes: info.page_sizes.iter().collect(),
        max_registrations: info.max_registrations,
        vectors: info.vectors,
        gpu: details.gpu.as_ref().map(gpu),
        totals: totals(&details.totals),
        bars: bars
            .filter_map(|(number, info)| Some(bar(number, info.as_ref()?)))
            .collect(),
    }
}

fn totals(totals: &Totals) -> TotalsJson {
    let total = |Total { number, bytes }| TotalJson { number, bytes };
    TotalsJson {
        programs: totals.contexts.saturating_sub(1),
        pinned: total(totals.pinned),
        allocated: total(totals.allocated),
        vram: total(totals.vram),
        shared: total(totals.shared),
        mapped: total(totals.mapped),
        managed: total(totals.managed),
        stale: total(totals.stale),
        faults_served: totals.faults.served,
        faults_failed: totals.faults.failed,
    }
}

fn range(range: &RangeInclusive<u64>) -> RangeJson {
    RangeJson {
        first: format!("{:#x}", range.start()),
        last: format!("{:#x}", range.end()),
    }
}

fn reserved(reserved: &Reserved) -> ReservedJson {
    ReservedJson {
        range: range(&reserved.range),
        kind: words::reserved_kind(reserved.kind),
    }
}

pub(crate) fn link(link: Link) -> LinkJson {
    LinkJson {
        bytes_per_second: link.bandwidth,
        latency_ns: nanos(link.latency),
    }
}

fn gpu(info: &AcceleratorInfo) -> GpuJson {
    GpuJson {
        queues: info.queues,
        queues_at_once: info.slots,
        contexts_at_once: info.vmids,
        copy_engines: info.copy_engines,
        kernels_at_once: info.compute_slots,
        max_priority: info.max_priority,
        memory: info.vram_len,
        memory_free: info.vram_free,
        max_run_ns: nanos(info.max_run),
        link: link(info.link),
        memory_link: link(info.vram),
    }
}

/// A time in nanoseconds, in which the driver counts it.
pub(crate) fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn bar(number: u32, bar: &BarInfo) -> BarJson {
    BarJson {
        number,
        length: bar.len,
        mappable: bar.mappable,
        prefetchable: bar.prefetchable,
        is_64bit: bar.is_64bit,
        hole: bar.hole.map(|(offset, length)| HoleJson { offset, length }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form of the output is a promise to programs that read it.
    #[test]
    fn objects_keep_their_form() {
        let reserved = ReservedJson {
            range: range(&(0xfee0_0000..=0xfeef_ffff)),
            kind: "MSI".to_owned(),
        };
        let text = serde_json::to_string_pretty(&reserved).expect("JSON");
        let expected =
            "{\n  \"first\": \"0xfee00000\",\n  \"last\": \"0xfeefffff\",\n  \"kind\": \"MSI\"\n}";
        assert_eq!(text, expected);
        let memlock = |need| MemlockJson {
            limit: None,
            used: Some(u64::MAX),
            hint: None,
            need,
        };
        let text = serde_json::to_string(&memlock(None)).expect("JSON");
        let plain = "{\"limit\":null,\"used\":18446744073709551615,\"hint\":null}";
        assert_eq!(text, plain);
        let need = NeedJson {
            needed: 1,
            enough: true,
        };
        let text = serde_json::to_string(&memlock(Some(need))).expect("JSON");
        assert!(
            text.ends_with("\"hint\":null,\"needed\":1,\"enough\":true}"),
            "{text}"
        );
        let unknown = DetailsJson::Unknown {
            error: "a \"quoted\" word".to_owned(),
        };
        let text = serde_json::to_string(&unknown).expect("JSON");
        assert_eq!(text, "{\"error\":\"a \\\"quoted\\\" word\"}");
    }
}
