// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of memory that moves, beside what it is measured against.

use std::fmt::Write;

use crate::record::{median, Case, Record};
use crate::table::time;

/// Cases, and what the ratio of the other time to ours is to be at least.
const GOALS: [(&str, f64); 11] = [
    ("to-device", 0.8),
    ("to-host", 0.8),
    ("to-device-by-2MiB", 0.7),
    ("to-host-by-2MiB", 0.7),
    ("cpu-reads", 0.4),
    ("kernel-reads", 0.5),
    ("kernel-writes", 0.5),
    ("kept-on-host", 0.95),
    ("turns", 10.0),
    ("through-prefetched", 0.5),
    ("through-faults", 0.25),
];

fn goal(case: &Case) -> Option<f64> {
    let kind = case.kind.strip_prefix("4k-").unwrap_or(&case.kind);
    let goal = GOALS.iter().find(|(name, _)| *name == kind);
    goal.map(|(_, least)| *least)
}

/// Returns our record of each case, and the one that it is measured against.
pub(crate) fn pairs(records: &[Record]) -> impl Iterator<Item = (&Record, &Record)> {
    let is_moving = |record: &&Record| record.case.operation == "managed";
    let ours = records
        .iter()
        .filter(is_moving)
        .filter(|record| record.system == "managed");
    ours.filter_map(move |ours| {
        let other = records.iter().filter(is_moving).find(|other| {
            other.case == ours.case && !["managed", "floor"].contains(&&*other.system)
        });
        Some((ours, other?))
    })
}

/// Makes a table with a line for each case: our time, the other's, and the other's divided by ours.
pub(crate) fn table(records: &[Record]) -> String {
    let mut out = format!(
        "\n{:36}{:>10}   {:12}{:>10}{:>8}{:>10}{:>10}\n",
        "memory that moves", "managed", "against", "", "ratio", "at least", "floor"
    );
    for (ours, other) in pairs(records) {
        let ratio = other.median as f64 / ours.median.max(1) as f64;
        let least = goal(&ours.case).map_or(String::new(), |least| {
            format!("{least}{}", if ratio < least { " -" } else { " +" })
        });
        let floor = median(records, &ours.case, "floor").map_or(String::new(), time);
        let _ = writeln!(
            out,
            "{:36}{:>10}   {:12}{:>10}{ratio:>8.2}{least:>10}{floor:>10}",
            ours.case.to_string(),
            time(ours.median),
            other.system,
            time(other.median),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(case: &str, system: &str, ns: u64) -> Record {
        format!(
            "{{\"case\": \"{case}\", \"system\": \"{system}\", \"median_ns\": {ns}, \
             \"q1_ns\": 0, \"q3_ns\": 0, \"rounds\": 1}}"
        )
        .parse()
        .unwrap()
    }

    #[test]
    fn the_ratio_is_that_of_speeds() {
        let records = [
            record("managed/to-host/64MiB", "managed", 100),
            record("managed/to-host/64MiB", "copy", 79),
            record("managed/4k-cpu-reads/64MiB", "managed", 100),
            record("managed/4k-cpu-reads/64MiB", "copy", 41),
            record("managed/4k-cpu-reads/64MiB", "floor", 90),
            record("use-once/64MiB/thp/gpu", "copy", 5),
        ];
        let table = table(&records);
        let lines: Vec<&str> = table.trim().lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("0.79") && lines[1].contains("0.8 -"));
        assert!(lines[2].contains("0.4 +") && lines[2].ends_with("90.0 ns"));
    }
}
