// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables that people read.

use std::fmt::Write;

use crate::record::{median, Case, Record};

/// The systems that are measured on the same pages.
pub(crate) const SYSTEMS: [&str; 5] = ["pinmap", "iommufd", "vfio", "udmabuf", "floor"];

/// Formats a time with three significant digits.
pub(crate) fn time(ns: u64) -> String {
    let ns = ns as f64;
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// Returns each case once, in the order of measurement.
fn cases(records: &[Record]) -> Vec<&Case> {
    let mut cases: Vec<&Case> = Vec::new();
    for record in records {
        if !cases.contains(&&record.case) {
            cases.push(&record.case);
        }
    }
    cases
}

/// Makes a table with one line for each case: the medians, and how many times as long as pinmap the
/// others take.
pub(crate) fn table(records: &[Record]) -> String {
    let mut out = format!("{:44}", "case");
    for system in SYSTEMS {
        let _ = write!(out, "{system:>10}");
    }
    out.push_str("   iommufd/x   vfio/x   x/floor     q1..q3 of pinmap\n");
    let beside_peers = |case: &&Case| {
        let mut all = records.iter().filter(|record| record.case == **case);
        all.all(|record| SYSTEMS.contains(&&*record.system) && record.case.operation != "managed")
    };
    for case in cases(records).into_iter().filter(beside_peers) {
        let ours = records
            .iter()
            .find(|record| record.case == *case && record.system == "pinmap");
        let _ = write!(out, "{:44}", case.to_string());
        for system in SYSTEMS {
            let text = median(records, case, system).map_or("-".into(), time);
            let _ = write!(out, "{text:>10}");
        }
        let ratio = |above: &str, below: &str| {
            let (above, below) = (median(records, case, above)?, median(records, case, below)?);
            Some(format!("{:.2}", above as f64 / below.max(1) as f64))
        };
        for (above, below, width) in [
            ("iommufd", "pinmap", 12),
            ("vfio", "pinmap", 9),
            ("pinmap", "floor", 10),
        ] {
            let text = ratio(above, below).unwrap_or("-".into());
            let _ = write!(out, "{text:>width$}");
        }
        if let Some(ours) = ours {
            let _ = write!(out, "     {}..{}", time(ours.q1), time(ours.q3));
        }
        out.push('\n');
    }
    out
}

/// Makes a table of the ways of one system, a line each, with how many times as long as the first
/// it takes.
pub(crate) fn ways(records: &[Record]) -> String {
    let mut out = String::new();
    for record in records {
        if SYSTEMS.contains(&&*record.system) || record.case.operation == "managed" {
            continue;
        }
        if out.is_empty() {
            let _ = writeln!(
                out,
                "\n{:44}{:24}{:>10}{:>9}     q1..q3",
                "case", "way", "median", "x first"
            );
        }
        let first = records.iter().find(|first| first.case == record.case);
        let first = first.map_or(1, |first| first.median.max(1));
        let _ = writeln!(
            out,
            "{:44}{:24}{:>10}{:>9.2}     {}..{}",
            record.case.to_string(),
            record.system,
            time(record.median),
            record.median as f64 / first as f64,
            time(record.q1),
            time(record.q3)
        );
    }
    out
}

/// Makes a table of what one more page costs pinmap, between one size and the next.
pub(crate) fn slopes(records: &[Record]) -> String {
    let mut out = String::from(
        "\nslope: what one more page takes (4 KiB or 2 MiB), between neighbouring sizes\n",
    );
    let ours: Vec<&Record> = records
        .iter()
        .filter(|record| {
            record.system == "pinmap" && ["register", "release"].contains(&&*record.case.operation)
        })
        .collect();
    for first in &ours {
        let alike = |record: &&&Record| {
            let (a, b) = (&record.case, &first.case);
            a.operation == b.operation
                && a.kind == b.kind
                && a.label == b.label
                && a.bytes() > b.bytes()
        };
        let Some(next) = ours
            .iter()
            .filter(alike)
            .min_by_key(|record| record.case.bytes())
        else {
            continue;
        };
        if first.case.bytes() < 64 << 20 {
            continue;
        }
        let page = if first.case.kind.starts_with("4k") {
            4096.0
        } else {
            2_097_152.0
        };
        let pages = (next.case.bytes() - first.case.bytes()) as f64 / page;
        let slope = (next.median as f64 - first.median as f64) / pages;
        let _ = writeln!(
            out,
            "{:44}{:>8} to {:<8}{slope:>10.0} ns",
            first.case.to_string(),
            first.case.size,
            next.case.size
        );
    }
    out
}

/// A goal of pinmap: a ratio to another system that is to be reached in all its cases.
struct Goal {
    what: &'static str,
    operation: &'static str,
    kinds: &'static [&'static str],
    label: &'static str,
    above: &'static str,
    below: &'static str,
    least: f64,
}

const SMALL: &[&str] = &["4k-natural", "4k-scattered"];
const LARGE: &[&str] = &["thp", "hugetlb", "memfd-huge"];

const fn goal(
    what: &'static str,
    operation: &'static str,
    kinds: &'static [&'static str],
    label: &'static str,
    above: &'static str,
    least: f64,
) -> Goal {
    Goal {
        what,
        operation,
        kinds,
        label,
        above,
        below: "pinmap",
        least,
    }
}

/// A goal of streams: how many times as long as what it stands beside something may take.
const fn stream(
    what: &'static str,
    operation: &'static str,
    beside: &'static str,
    ours: &'static str,
    most: f64,
) -> Goal {
    Goal {
        what,
        operation,
        kinds: &["packet"],
        label: "testgpu",
        above: beside,
        below: ours,
        least: 1.0 / most,
    }
}

const GOALS: &[Goal] = &[
    goal(
        "register, 4 KiB pages, against iommufd",
        "register",
        SMALL,
        "cm-on",
        "iommufd",
        3.0,
    ),
    goal(
        "register, 4 KiB pages, against VFIO",
        "register",
        SMALL,
        "cm-on",
        "vfio",
        5.0,
    ),
    goal(
        "register, 4 KiB natural, against iommufd",
        "register",
        &["4k-natural"],
        "cm-off",
        "iommufd",
        1.3,
    ),
    goal(
        "register, 4 KiB scattered, against iommufd",
        "register",
        &["4k-scattered"],
        "cm-off",
        "iommufd",
        1.4,
    ),
    goal(
        "register, 4 KiB pages, against VFIO",
        "register",
        SMALL,
        "cm-off",
        "vfio",
        2.5,
    ),
    goal(
        "register, 4 KiB pages, floor against it",
        "register",
        SMALL,
        "cm-off",
        "floor",
        1.0 / 1.3,
    ),
    goal(
        "register, huge pages, against iommufd",
        "register",
        LARGE,
        "",
        "iommufd",
        6.0,
    ),
    goal(
        "register, huge pages, against VFIO",
        "register",
        LARGE,
        "",
        "vfio",
        2.5,
    ),
    goal(
        "release, 4 KiB pages, against iommufd",
        "release",
        SMALL,
        "",
        "iommufd",
        1.8,
    ),
    goal(
        "release, 4 KiB pages, against VFIO",
        "release",
        SMALL,
        "",
        "vfio",
        1.8,
    ),
    goal(
        "release, THP and hugetlb, against iommufd",
        "release",
        &["thp", "hugetlb"],
        "",
        "iommufd",
        100.0,
    ),
    goal(
        "release, huge memfds, against udmabuf",
        "release",
        &["memfd-huge"],
        "",
        "udmabuf",
        1.0,
    ),
    goal(
        "a pair of 4 KiB, against iommufd",
        "pair",
        SMALL,
        "",
        "iommufd",
        1.0,
    ),
    goal(
        "a pair of 4 KiB, against VFIO",
        "pair",
        SMALL,
        "",
        "vfio",
        0.9,
    ),
    stream(
        "a packet of a stream, the ring's against it",
        "stream-submit",
        "ring",
        "stream",
        1.5,
    ),
    stream(
        "many in a row, the ring's against them",
        "stream-submit-in-a-row",
        "ring",
        "stream",
        1.5,
    ),
    stream(
        "recording an event, the ring against it",
        "stream-event",
        "ring",
        "record",
        1.0,
    ),
    stream(
        "submitting a wait, the ring against it",
        "stream-event",
        "ring",
        "submit-a-wait",
        1.0,
    ),
    stream(
        "a host function, the eventfds against it",
        "stream-call",
        "eventfd",
        "there-and-back",
        2.0,
    ),
    stream(
        "behind a packet, the eventfds against it",
        "stream-call",
        "eventfd",
        "behind-a-packet",
        2.0,
    ),
];

/// Returns whether a goal is about cases of this size.
fn has_size(goal: &Goal, case: &Case) -> bool {
    case.bytes() >= 64 << 20 || goal.operation == "pair" || goal.operation.starts_with("stream")
}

/// Makes a table of the goals, each with its lowest ratio over all its cases.
pub(crate) fn goals(records: &[Record]) -> String {
    let mut out = String::from(
        "\ngoals: the smallest ratio over 64 MiB and more (a pair: 4 KiB; a stream: a packet)\n",
    );
    for goal in GOALS {
        let ratios = cases(records).into_iter().filter_map(|case| {
            let wanted = case.operation == goal.operation
                && goal.kinds.contains(&&*case.kind)
                && (case.label == goal.label
                    || goal.label.is_empty() && case.label.starts_with("cm"))
                && has_size(goal, case);
            let above = median(records, case, goal.above).filter(|_| wanted)?;
            Some((
                above as f64 / median(records, case, goal.below)?.max(1) as f64,
                case,
            ))
        });
        let Some((ratio, case)) = ratios.min_by(|a, b| a.0.total_cmp(&b.0)) else {
            continue;
        };
        let verdict = if ratio >= goal.least {
            "reached"
        } else {
            "missed"
        };
        let _ = writeln!(
            out,
            "{:8}{:46}{:8}{ratio:>8.2} of {:<6.2} {case}",
            verdict, goal.what, goal.label, goal.least
        );
    }
    let once = |operation: &str, label: &str| {
        let found = records.iter().find(|record| {
            record.case.operation == operation
                && record.case.label == label
                && record.system == "pinmap"
        })?;
        Some(found.median as f64)
    };
    let mut labels: Vec<&str> = records.iter().map(|record| &*record.case.label).collect();
    labels.dedup();
    for label in labels {
        if let (Some(alloc), Some(touch)) = (once("alloc", label), once("touch-register", label)) {
            let ratio = touch / alloc;
            let verdict = if ratio >= 2.0 { "reached" } else { "missed" };
            let _ = writeln!(
                out,
                "{verdict:8}{:46}{label:8}{ratio:>8.2} of {:<6.2}",
                "alloc and map, against touch and register", 2.0
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [(7, "7.00 ns"), (12_345, "12.3 us"), (456_000_000, "456 ms")] {
            assert_eq!(time(ns), text);
        }
    }

    #[test]
    fn ways_are_compared_with_the_first() {
        let line = |system: &str, ns: u64| -> Record {
            format!(
                "{{\"case\": \"submit/0KiB/packet/testgpu\", \"system\": \"{system}\", \
                     \"median_ns\": {ns}, \"q1_ns\": 0, \"q3_ns\": 0, \"rounds\": 1}}"
            )
            .parse()
            .unwrap()
        };
        let records = [line("ring", 100), line("ioctl", 250)];
        let text = ways(&records);
        assert!(text.contains("ioctl") && text.contains("2.50"), "{text}");
        assert!(!table(&records).contains("submit"));
    }

    #[test]
    fn goals_of_streams_are_multiples_of_what_they_stand_beside() {
        let line = |system: &str, ns: u64| -> Record {
            format!(
                "{{\"case\": \"stream-submit/0KiB/packet/testgpu\", \"system\": \"{system}\", \
                     \"median_ns\": {ns}, \"q1_ns\": 0, \"q3_ns\": 0, \"rounds\": 1}}"
            )
            .parse()
            .unwrap()
        };
        for (ns, verdict) in [(149, "reached"), (151, "missed")] {
            let text = goals(&[line("ring", 100), line("stream", ns)]);
            assert!(text.contains(verdict), "{text}");
            assert_eq!(text.trim().lines().count(), 2, "{text}");
        }
    }

    #[test]
    fn the_worst_case_decides_a_goal() {
        let line = |size: &str, system: &str, ns: u64| -> Record {
            format!(
                "{{\"case\": \"release/{size}/thp/cm-on\", \"system\": \"{system}\", \
                     \"median_ns\": {ns}, \"q1_ns\": 0, \"q3_ns\": 0, \"rounds\": 1}}"
            )
            .parse()
            .unwrap()
        };
        let records = [
            line("64MiB", "pinmap", 10),
            line("64MiB", "iommufd", 2000),
            line("1GiB", "pinmap", 100),
            line("1GiB", "iommufd", 5000),
        ];
        let text = goals(&records);
        assert!(text.contains("missed") && text.contains("50.00"), "{text}");
    }
}
