// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares instructions for each page, which do not vary with the machine, with recorded ones.

use std::error::Error;
use std::fs;
use std::path::Path;

use crate::record::{median, Case, Record};
use crate::table::SYSTEMS;

/// Ratio to the recorded count that is still accepted.
const TOLERANCE: f64 = 1.05;

/// Returns whether a count varies by chance: among few scattered pages, some are neighbours.
fn varies(record: &Record) -> bool {
    let (kind, bytes) = (&*record.case.kind, record.case.bytes());
    bytes > 4096 && (kind == "4k-natural" || kind == "4k-scattered" && bytes < 1 << 20)
}

/// Returns the instructions a page of what took so many altogether.
fn of_a_page(case: &Case, instructions: u64) -> f64 {
    let pages = (case.bytes() / 4096).max(1);
    instructions as f64 / pages as f64
}

/// Returns case and instructions a page for each record of pinmap.
fn lines(records: &[Record]) -> Vec<(&Case, f64)> {
    records
        .iter()
        .filter(|record| record.system == "pinmap")
        .filter(|record| !varies(record))
        .map(|record| (&record.case, of_a_page(&record.case, record.median)))
        .collect()
}

fn parse(text: &str) -> Vec<(&str, f64)> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(case, count)| Some((case, count.trim().parse().ok()?)))
        .collect()
}

/// Compares with the recorded counts, or records them. Returns `false` if one takes more.
pub(crate) fn check(records: &[Record], path: &Path, record: bool) -> Result<bool, Box<dyn Error>> {
    let now = lines(records);
    if record {
        let mut text = String::from(
            "# SPDX-License-Identifier: MIT OR Apache-2.0\n\
             # Instructions a page: scripts/bench --count --record\n",
        );
        for (case, count) in &now {
            text.push_str(&format!("{case} {count:.2}\n"));
        }
        fs::write(path, text)?;
        return Ok(true);
    }
    let text = fs::read_to_string(path)?;
    let recorded = parse(&text);
    let mut good = true;
    // With --others there are records of theirs.
    let others: Vec<&str> = SYSTEMS[1..]
        .iter()
        .filter(|system| records.iter().any(|record| record.system == **system))
        .copied()
        .collect();
    let titles = others.iter().map(|system| format!("{system:>12}"));
    let titles: String = titles.collect();
    println!("{:44}{:>12}{:>12}{titles}", "case", "now", "recorded");
    for (case, count) in &now {
        let name = case.to_string();
        let before = recorded
            .iter()
            .find(|(recorded, _)| *recorded == name)
            .map(|(_, before)| *before);
        let worse = before.is_some_and(|before| *count > before * TOLERANCE);
        good &= !worse;
        let before = before.map_or("-".into(), |before| format!("{before:.2}"));
        let theirs = others.iter().map(|system| {
            let count = median(records, case, system).map(|count| of_a_page(case, count));
            let count = count.map_or("-".into(), |count| format!("{count:.2}"));
            format!("{count:>12}")
        });
        println!(
            "{name:44}{count:>12.2}{before:>12}{}{}",
            theirs.collect::<String>(),
            if worse { "  more than 5 % more" } else { "" }
        );
    }
    for (case, _) in &recorded {
        if !now.iter().any(|(name, _)| name.to_string() == *case) {
            good = false;
            println!("{case:44}{:>12}", "missing");
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(ns: u64) -> Record {
        format!(
            "{{\"case\": \"register/64KiB/thp/cm-on\", \"system\": \"pinmap\", \"median_ns\": \
                 {ns}, \"q1_ns\": 0, \"q3_ns\": 0, \"rounds\": 1}}"
        )
        .parse()
        .unwrap()
    }

    #[test]
    fn five_percent_more_is_too_much() {
        let path = std::env::temp_dir().join(format!("bench-counts-{}", std::process::id()));
        assert!(check(&[counted(1600)], &path, true).unwrap());
        assert!(check(&[counted(1679)], &path, false).unwrap());
        assert!(!check(&[counted(1696)], &path, false).unwrap());
        assert!(
            !check(&[], &path, false).unwrap(),
            "what is missing is no success"
        );
        fs::remove_file(path).unwrap();
    }
}
