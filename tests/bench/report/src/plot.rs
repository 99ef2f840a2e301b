// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plots: time against size on two logarithmic axes, with one line for each system; and bars that
//! show how many times as long as pinmap the others take.

use std::fmt::Write;

use crate::record::{median, Case, Record};

const SYSTEMS: [(&str, &str); 5] = [
    ("pinmap", "#0b62a4"),
    ("iommufd", "#c0392b"),
    ("vfio", "#7d3c98"),
    ("udmabuf", "#1e8449"),
    ("floor", "#7f8c8d"),
];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;

fn begin(title: &str) -> String {
    format!(
        "<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    )
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
    );
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// Returns a power of ten of nanoseconds in words.
fn decade(exponent: i32) -> String {
    let names = ["ns", "us", "ms", "s"];
    let unit = names.get((exponent / 3) as usize).copied().unwrap_or("s");
    format!("{} {unit}", 10_i32.pow((exponent % 3) as u32))
}

/// Plots time against size of all systems, for one operation on one kind of memory.
fn curves(records: &[Record], like: &Case) -> Option<String> {
    let mine: Vec<&Record> = records
        .iter()
        .filter(|record| {
            let case = &record.case;
            case.operation == like.operation && case.kind == like.kind && case.label == like.label
        })
        .collect();
    let sizes = || mine.iter().map(|record| record.case.bytes() as f64);
    let times = || mine.iter().map(|record| record.median.max(1) as f64);
    let (least, most) = (
        sizes().fold(f64::MAX, f64::min),
        sizes().fold(0.0, f64::max),
    );
    if least >= most {
        return None;
    }
    let low = times().fold(f64::MAX, f64::min).log10().floor();
    let high = times().fold(0.0, f64::max).log10().ceil();
    let x = |bytes: f64| LEFT + (bytes / least).ln() / (most / least).ln() * (WIDTH - LEFT - RIGHT);
    let y = |ns: f64| HEIGHT - BOTTOM - (ns.log10() - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut out = begin(&format!(
        "{} of {} ({})",
        like.operation, like.kind, like.label
    ));
    for exponent in low as i32..=high as i32 {
        let at = y(10_f64.powi(exponent));
        line(&mut out, (LEFT, at), (WIDTH - RIGHT, at), "#dddddd");
        text(&mut out, LEFT - 6.0, at + 4.0, "end", &decade(exponent));
    }
    let mut named: Vec<&str> = Vec::new();
    for record in &mine {
        if !named.contains(&&*record.case.size) {
            named.push(&record.case.size);
            let at = x(record.case.bytes() as f64);
            line(
                &mut out,
                (at, HEIGHT - BOTTOM),
                (at, HEIGHT - BOTTOM + 4.0),
                "#333333",
            );
            text(
                &mut out,
                at,
                HEIGHT - BOTTOM + 18.0,
                "middle",
                &record.case.size,
            );
        }
    }
    for (system, colour) in SYSTEMS {
        let mut points: Vec<(f64, f64)> = mine
            .iter()
            .filter(|record| record.system == system)
            .map(|record| (record.case.bytes() as f64, record.median.max(1) as f64))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(last) = points.last() else { continue };
        let path: Vec<String> = points
            .iter()
            .map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        let _ = writeln!(out, "<g fill=\"{colour}\">");
        text(&mut out, x(last.0) + 6.0, y(last.1) + 4.0, "start", system);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// Plots how many times as long as pinmap the others take, for each kind of memory.
fn bars(records: &[Record], like: &Case) -> Option<String> {
    let mut out = begin(&format!(
        "{} of {} ({}): times as long as pinmap (logarithmic)",
        like.operation, like.size, like.label
    ));
    let rows: Vec<(&Case, &str, &str, f64)> = records
        .iter()
        .filter(|record| {
            let case = &record.case;
            record.system == "pinmap"
                && case.operation == like.operation
                && case.size == like.size
                && case.label == like.label
        })
        .flat_map(|ours| {
            SYSTEMS[1..].iter().filter_map(|&(system, colour)| {
                let theirs = median(records, &ours.case, system)?;
                Some((
                    &ours.case,
                    system,
                    colour,
                    theirs as f64 / ours.median.max(1) as f64,
                ))
            })
        })
        .collect();
    let most = rows.iter().map(|row| row.3).fold(2.0, f64::max);
    let least = rows.iter().map(|row| row.3).fold(0.5, f64::min);
    let x = |ratio: f64| {
        LEFT + 80.0 + (ratio / least).ln() / (most / least).ln() * (WIDTH - LEFT - RIGHT - 80.0)
    };
    let step = (HEIGHT - TOP - BOTTOM) / rows.len().max(1) as f64;
    for (i, (case, system, colour, ratio)) in rows.iter().enumerate() {
        let y = TOP + step * i as f64;
        let (from, to) = (x(1.0).min(x(*ratio)), x(1.0).max(x(*ratio)));
        let _ = writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
             fill=\"{colour}\"/>",
            to - from,
            step * 0.8
        );
        text(
            &mut out,
            LEFT + 74.0,
            y + step * 0.7,
            "end",
            &format!("{} {system}", case.kind),
        );
        text(
            &mut out,
            x(most) + 6.0,
            y + step * 0.7,
            "start",
            &format!("{ratio:.2}"),
        );
    }
    line(
        &mut out,
        (x(1.0), TOP),
        (x(1.0), HEIGHT - BOTTOM),
        "#333333",
    );
    text(
        &mut out,
        x(1.0),
        HEIGHT - BOTTOM + 18.0,
        "middle",
        "as long as pinmap",
    );
    out.push_str("</svg>\n");
    (!rows.is_empty()).then_some(out)
}

/// Returns all plots, by their file names.
pub(crate) fn plots(records: &[Record]) -> Vec<(String, String)> {
    let mut plots: Vec<(String, String)> = Vec::new();
    let mut add = |name: String, svg: Option<String>| {
        if let Some(svg) = svg.filter(|_| !plots.iter().any(|(other, _)| *other == name)) {
            plots.push((name, svg));
        }
    };
    for record in records {
        let case = &record.case;
        if !["register", "release"].contains(&&*case.operation) {
            continue;
        }
        add(
            format!("{}-{}-{}.svg", case.operation, case.kind, case.label),
            curves(records, case),
        );
        add(
            format!("ratio-{}-{}-{}.svg", case.operation, case.size, case.label),
            bars(records, case),
        );
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_system_has_a_line_and_a_bar() {
        let mut records = Vec::new();
        for (size, system, ns) in [
            ("4KiB", "pinmap", 10),
            ("4KiB", "vfio", 30),
            ("1MiB", "pinmap", 99),
            ("1MiB", "vfio", 400),
        ] {
            let line = format!(
                "{{\"case\": \"register/{size}/thp/cm-on\", \"system\": \
                                \"{system}\", \"median_ns\": {ns}, \"q1_ns\": 0, \"q3_ns\": 0, \
                                \"rounds\": 1}}"
            );
            records.push(line.parse().unwrap());
        }
        let plots = plots(&records);
        let names: Vec<&str> = plots.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            names,
            [
                "register-thp-cm-on.svg",
                "ratio-register-4KiB-cm-on.svg",
                "ratio-register-1MiB-cm-on.svg"
            ]
        );
        assert_eq!(plots[0].1.matches("<polyline").count(), 2);
        assert!(plots[1].1.contains(">3.00<"));
    }
}
