// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plots: time against size, with a curve for each system or way; and bars that show how many times
//! as long as pinmap the others take, and how fast memory moves beside a copy.

use pinmap_plots::{Axis, Bar, Bars, Curve, Curves, Point, Result};

use crate::moving;
use crate::record::{median, Case, Record};
use crate::table::SYSTEMS;

/// Returns the systems or ways whose times against size are drawn, and whose clock tells them.
fn compared(operation: &str) -> Option<(&'static [&'static str], &'static str)> {
    match operation {
        "register" | "release" => Some((&SYSTEMS, "the CPU's clock")),
        "use-once" | "use-10-times" => {
            Some((&["zero-copy", "explicit-copy"], "the device's clock"))
        }
        _ => None,
    }
}

/// Plots time against size of all systems, for one operation on one kind of memory.
fn curves(records: &[Record], like: &Case) -> Option<Curves> {
    let (systems, clock) = compared(&like.operation)?;
    let alike = |record: &&Record| {
        let case = &record.case;
        case.operation == like.operation && case.kind == like.kind && case.label == like.label
    };
    let mine: Vec<&Record> = records.iter().filter(alike).collect();
    let sizes = || mine.iter().map(|record| record.case.bytes() as f64);
    let first = sizes().next()?;
    if sizes().all(|size| size == first) {
        return None;
    }
    let time = |ns: u64| ns.max(1) as f64;
    let curve = |system: &&str| {
        let measured = mine.iter().filter(|record| record.system == *system);
        let points = measured.map(|record| Point {
            x: record.case.bytes() as f64,
            y: time(record.median),
            spread: Some((time(record.q1), time(record.q3))),
        });
        let mut points: Vec<_> = points.collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Curve {
            name: (*system).to_owned(),
            points,
        }
    };
    let curves: Vec<_> = systems.iter().map(curve).collect();
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let ends = |point: &Point| [point.spread.map(|spread| spread.0), Some(point.y)];
    let lows = all().flat_map(ends).flatten();
    let highs = all().filter_map(|point| Some(point.spread?.1));
    Some(Curves {
        title: format!("{}: {}, mode {}", like.operation, like.kind, like.label),
        x: Axis::bytes("size of the memory", sizes()),
        y: Axis::nanoseconds(
            format!("median time and quartiles, by {clock}"),
            lows.chain(highs),
        ),
        curves,
    })
}

/// Plots how many times as long as pinmap the others take, for each kind of memory.
fn ratios(records: &[Record], like: &Case) -> Option<Bars> {
    let alike = |record: &&Record| {
        let case = &record.case;
        record.system == "pinmap"
            && case.operation == like.operation
            && case.size == like.size
            && case.label == like.label
    };
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for ours in records.iter().filter(alike) {
        for (kind, system) in SYSTEMS.iter().enumerate().skip(1) {
            let Some(theirs) = median(records, &ours.case, system) else {
                continue;
            };
            let ratio = theirs.max(1) as f64 / ours.median.max(1) as f64;
            bars.push(bar(bars.len(), kind, ratio));
            rows.push(format!("{} {system}", ours.case.kind));
        }
    }
    beside_one(
        format!("{}: {}, mode {}", like.operation, like.size, like.label),
        "median time, as a multiple of pinmap's",
        rows,
        SYSTEMS.map(str::to_owned).into(),
        bars,
    )
}

/// Plots how fast memory moves, beside what it is measured against.
fn speeds(records: &[Record]) -> Option<Bars> {
    let (mut rows, mut kinds, mut bars) = (Vec::new(), Vec::<String>::new(), Vec::new());
    for (ours, other) in moving::pairs(records) {
        let known = kinds.iter().position(|kind| *kind == other.system);
        let kind = known.unwrap_or_else(|| {
            kinds.push(other.system.clone());
            kinds.len() - 1
        });
        let ratio = other.median.max(1) as f64 / ours.median.max(1) as f64;
        bars.push(bar(bars.len(), kind, ratio));
        rows.push(format!("{} {}", ours.case.kind, ours.case.size));
    }
    beside_one(
        "memory that moves (managed)".to_owned(),
        "speed, as a multiple of that of what the legend names",
        rows,
        kinds,
        bars,
    )
}

/// A bar from 1 to a ratio.
fn bar(row: usize, kind: usize, ratio: f64) -> Bar {
    Bar {
        row,
        kind,
        from: 1.0,
        to: ratio,
        text: format!("{ratio:.2}"),
    }
}

fn beside_one(
    title: String,
    axis: &str,
    rows: Vec<String>,
    kinds: Vec<String>,
    bars: Vec<Bar>,
) -> Option<Bars> {
    (!bars.is_empty()).then(|| Bars {
        title,
        x: Axis::ratios(axis, bars.iter().map(|bar| bar.to)),
        rows,
        kinds,
        bars,
        line: Some(1.0),
    })
}

/// Returns all plots, by their file names.
pub(crate) fn plots(records: &[Record]) -> Result<Vec<(String, String)>> {
    let mut plots: Vec<(String, String)> = Vec::new();
    for record in records {
        let case = &record.case;
        let name = format!("{}-{}-{}.svg", case.operation, case.kind, case.label);
        if !plots.iter().any(|(other, _)| *other == name) {
            if let Some(curves) = curves(records, case) {
                plots.push((name, curves.draw()?));
            }
        }
        let name = format!("ratio-{}-{}-{}.svg", case.operation, case.size, case.label);
        let is_ours = ["register", "release"].contains(&&*case.operation);
        if is_ours && !plots.iter().any(|(other, _)| *other == name) {
            if let Some(ratios) = ratios(records, case) {
                plots.push((name, ratios.draw()?));
            }
        }
    }
    if let Some(speeds) = speeds(records) {
        plots.push(("managed.svg".to_owned(), speeds.draw()?));
    }
    Ok(plots)
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;

    fn record(case: &str, system: &str, ns: u64) -> Record {
        let (q1, q3) = (ns - ns / 10, ns + ns / 10);
        let line = format!(
            "{{\"case\": \"{case}\", \"system\": \"{system}\", \"median_ns\": {ns}, \
             \"q1_ns\": {q1}, \"q3_ns\": {q3}, \"rounds\": 1}}"
        );
        line.parse().unwrap()
    }

    fn texts(svg: &str) -> Vec<String> {
        let svg = Document::parse(svg).unwrap();
        let texts = svg.descendants().filter(|node| node.has_tag_name("text"));
        texts
            .filter_map(|node| Some(node.text()?.trim().to_owned()))
            .collect()
    }

    #[test]
    fn each_system_has_a_curve_and_a_bar() {
        let records = [
            record("register/4KiB/thp/cm-on", "pinmap", 10),
            record("register/4KiB/thp/cm-on", "vfio", 30),
            record("register/1MiB/thp/cm-on", "pinmap", 99),
            record("register/1MiB/thp/cm-on", "vfio", 400),
            // of one size: no curve
            record("pair/4KiB/4k-natural/cm-on", "pinmap", 5),
            record("use-once/4KiB/gpu/testgpu", "zero-copy", 5),
            record("use-once/64KiB/gpu/testgpu", "zero-copy", 50),
            record("use-once/4KiB/gpu/testgpu", "explicit-copy", 9),
            record("managed/to-host/64MiB", "managed", 100),
            record("managed/to-host/64MiB", "copy", 79),
        ];
        let plots = plots(&records).unwrap();
        let names: Vec<&str> = plots.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            names,
            [
                "register-thp-cm-on.svg",
                "ratio-register-4KiB-cm-on.svg",
                "ratio-register-1MiB-cm-on.svg",
                "use-once-gpu-testgpu.svg",
                "managed.svg"
            ]
        );
        for (plot, expected) in [
            (
                0,
                &[
                    "register: thp, mode cm-on",
                    "pinmap",
                    "vfio",
                    "4 KiB",
                    "100 ns",
                ][..],
            ),
            (1, &["register: 4KiB, mode cm-on", "thp vfio", "3.00"]),
            (2, &["thp vfio", "4.04"]),
            (3, &["zero-copy", "explicit-copy", "64 KiB"]),
            (4, &["to-host 64MiB", "copy", "0.79"]),
        ] {
            let texts = texts(&plots[plot].1);
            for text in expected {
                assert!(texts.iter().any(|other| other == text), "{text}: {texts:?}");
            }
        }
    }
}
