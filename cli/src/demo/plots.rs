// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plots of the demo.

use std::fs;
use std::path::Path;
use std::time::Duration;

use pinmap_plots::{Axis, Bar, Bars, Curve, Curves, Point};

use super::report::{ManagedReport, Report, SizeRow, StepKind, Streams, Times};
use super::table::time;
use crate::size;
use crate::Result;

/// Makes the directory for the plots.
pub(crate) fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()).into())
}

/// Writes all plots, and returns their names.
pub(crate) fn write(report: &Report, directory: &Path) -> Result<Vec<&'static str>> {
    let mut names = Vec::new();
    for (name, svg) in draw(report)? {
        let path = directory.join(name);
        fs::write(&path, svg)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        names.push(name);
    }
    Ok(names)
}

/// Draws what there is, by the names of the files.
fn draw(report: &Report) -> Result<Vec<(&'static str, String)>> {
    let mut plots = Vec::new();
    if let Some(result) = &report.streams {
        plots.push(("streams.svg", streams(result).draw()?));
    }
    let device = sizes(&report.sizes, "device", |times| times.device_ns);
    plots.push(("sizes-device.svg", device.draw()?));
    let wall = sizes(&report.sizes, "CPU", |times| times.wall_ns);
    plots.push(("sizes-wall.svg", wall.draw()?));
    if let Some(result) = &report.managed {
        plots.push(("managed.svg", loads(result).draw()?));
        plots.push(("moves.svg", moves(result).draw()?));
    }
    Ok(plots)
}

/// Draws the work of each stream, in the first quarter of the serial run.
fn streams(result: &Streams) -> Bars {
    let serial = result.runs.first().map_or(0, |run| run.device_ns);
    let until = millis(serial / 4);
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for run in &result.runs {
        begin_group(&mut rows);
        let first = rows.len();
        for stream in 0..run.streams {
            rows.push(match stream {
                0 => format!("{}: {:.0} ms", run.name, millis(run.device_ns)),
                _ => String::new(),
            });
        }
        let drawn = run
            .steps
            .iter()
            .filter(|step| millis(step.begin_ns) < until);
        bars.extend(drawn.map(|step| Bar {
            row: first + step.stream,
            kind: step.step as usize,
            from: millis(step.begin_ns),
            to: millis(step.end_ns).min(until),
            text: String::new(),
        }));
    }
    let kinds = StepKind::ALL.map(|step| match step {
        StepKind::CopyIn => "copied in",
        StepKind::Work => "worked on",
        StepKind::CopyOut => "copied out",
    });
    Bars {
        title: format!(
            "{} chunks of {}: the beginning, and the time of all",
            result.chunks,
            size::format(result.chunk_bytes as u64)
        ),
        x: Axis::linear("ms by the device's clock", [until]),
        rows,
        kinds: kinds.map(str::to_owned).into(),
        bars,
        line: None,
    }
}

/// The time of the same work on host memory and on a copy in the device's memory.
fn sizes(rows: &[SizeRow], clock: &str, by: fn(&Times) -> u64) -> Curves {
    let mut uses: Vec<u32> = rows.iter().map(|row| row.uses).collect();
    uses.dedup();
    let time = |row: &SizeRow, copied| by(if copied { &row.copy } else { &row.zero_copy }) as f64;
    let curve = |uses: u32, copied: bool| {
        let mine = rows.iter().filter(|row| row.uses == uses);
        let points = mine.map(|row| Point {
            x: row.bytes as f64,
            y: time(row, copied).max(1.0),
            spread: None,
        });
        let name = if copied { "copy" } else { "zero-copy" };
        Curve {
            name: match uses {
                1 => format!("{name}, used once"),
                _ => format!("{name}, used {uses} times"),
            },
            points: points.collect(),
        }
    };
    let curves = uses
        .into_iter()
        .flat_map(|uses| [curve(uses, false), curve(uses, true)]);
    let curves: Vec<_> = curves.collect();
    let times = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|point| point.y);
    Curves {
        title: "adding 1 to floats in host memory (zero-copy) or in a copy".to_owned(),
        x: Axis::bytes(
            "size of the floats",
            rows.iter().map(|row| row.bytes as f64),
        ),
        y: Axis::nanoseconds(format!("median time by the {clock}'s clock"), times),
        curves,
    }
}

/// The times of memory that both use, in all ways.
fn loads(result: &ManagedReport) -> Bars {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for load in &result.loads {
        begin_group(&mut rows);
        let times = [
            load.managed_wall_ns,
            load.prefetched_wall_ns,
            load.zero_copy_wall_ns,
            load.copy_wall_ns,
        ];
        for (kind, ns) in times.into_iter().enumerate() {
            bars.push(Bar {
                row: rows.len(),
                kind,
                from: 0.0,
                to: millis(ns),
                text: time(Duration::from_nanos(ns)),
            });
            rows.push(match kind {
                0 => load.used.to_owned(),
                _ => String::new(),
            });
        }
    }
    Bars {
        title: format!(
            "{} of floats, used in four ways",
            size::format(result.bytes as u64)
        ),
        x: Axis::linear(
            "ms by the CPU's clock, median",
            bars.iter().map(|bar| bar.to),
        ),
        rows,
        kinds: ["managed", "prefetched", "zero-copy", "copy"]
            .map(str::to_owned)
            .into(),
        bars,
        line: None,
    }
}

/// Where the memory is while both sides take turns.
fn moves(result: &ManagedReport) -> Bars {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for moves in &result.moves {
        for pair in moves.moments.windows(2) {
            let [from, to] = pair else { continue };
            let there = from.to_device_bytes.saturating_sub(from.home_bytes);
            bars.push(Bar {
                row: rows.len(),
                kind: match there {
                    0 => 2,
                    there if there < result.bytes as u64 => 1,
                    _ => 0,
                },
                from: millis(from.wall_ns),
                to: millis(to.wall_ns),
                text: String::new(),
            });
        }
        rows.push(format!("{}: {:.0} ms", moves.advice, millis(moves.wall_ns)));
    }
    let kinds = ["on the device", "partly there", "on the host"];
    Bars {
        title: format!(
            "where {} are that device and CPU use in turn, by advice",
            size::format(result.bytes as u64)
        ),
        x: Axis::linear("ms by the CPU's clock", bars.iter().map(|bar| bar.to)),
        rows,
        kinds: kinds.map(str::to_owned).into(),
        bars,
        line: None,
    }
}

/// Leaves an empty row after the rows so far, if any, so that the next group stands apart.
fn begin_group(rows: &mut Vec<String>) {
    if !rows.is_empty() {
        rows.push(String::new());
    }
}

fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::super::report::tests::example;
    use super::*;

    fn texts(svg: &str) -> Vec<String> {
        let svg = Document::parse(svg).expect("XML");
        let texts = svg.descendants().filter(|node| node.has_tag_name("text"));
        texts
            .filter_map(|node| Some(node.text()?.trim().to_owned()))
            .collect()
    }

    #[test]
    fn each_measurement_has_a_plot_with_its_series() {
        let plots = draw(&example()).expect("drawn");
        for ((name, svg), (expected, parts)) in plots.iter().zip([
            (
                "streams.svg",
                &[
                    "serial: 80 ms",
                    "two streams: 40 ms",
                    "copied in",
                    "worked on",
                    "copied out",
                ][..],
            ),
            (
                "sizes-device.svg",
                &[
                    "zero-copy, used once",
                    "copy, used 10 times",
                    "median time by the device's clock",
                ],
            ),
            (
                "sizes-wall.svg",
                &["copy, used once", "median time by the CPU's clock"],
            ),
            (
                "managed.svg",
                &[
                    "by the device once",
                    "prefetched",
                    "zero-copy",
                    "copy",
                    "12.0 ms",
                ],
            ),
            (
                "moves.svg",
                &[
                    "no advice: 9 ms",
                    "to be on the host: 9 ms",
                    "on the device",
                    "partly there",
                ],
            ),
        ]) {
            assert_eq!(*name, expected);
            let texts = texts(svg);
            for part in parts {
                assert!(texts.iter().any(|text| text == part), "{part}: {texts:?}");
            }
        }
        assert_eq!(plots.len(), 5);
    }

    #[test]
    fn what_was_not_measured_is_not_drawn() {
        let mut report = example();
        (report.streams, report.managed) = (None, None);
        let names: Vec<_> = draw(&report)
            .expect("drawn")
            .into_iter()
            .map(|plot| plot.0)
            .collect();
        assert_eq!(names, ["sizes-device.svg", "sizes-wall.svg"]);
    }

    #[test]
    fn memory_that_came_home_is_not_on_the_device() {
        let plot = moves(example().managed.as_ref().expect("measured"));
        let bars = plot
            .bars
            .iter()
            .map(|bar| (bar.row, &*plot.kinds[bar.kind], bar.from, bar.to));
        let expected = [
            (0, "on the host", 0.0, 3.0),
            (0, "on the device", 3.0, 6.0),
            (0, "partly there", 6.0, 9.0),
            (1, "on the host", 0.0, 6.0),
        ];
        assert_eq!(bars.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn groups_of_rows_have_a_gap_between_them() {
        let measured = || example().managed.zip(example().streams).expect("measured");
        let (mut managed, runs) = measured();
        managed.loads.extend(measured().0.loads);
        for plot in [loads(&managed), streams(&runs)] {
            let named = |row: &usize| !plot.rows[*row].is_empty();
            let groups: Vec<_> = (0..plot.rows.len()).filter(named).collect();
            assert!(groups.len() > 1, "{:?}", plot.rows);
            for first in &groups[1..] {
                assert!(plot.bars.iter().all(|bar| bar.row != first - 1), "{plot:?}");
            }
        }
    }

    #[test]
    fn files_are_written_where_they_are_wanted() {
        let directory = std::env::temp_dir().join(format!("pinmap-plots-{}", std::process::id()));
        make(&directory).expect("made");
        let names = write(&example(), &directory).expect("written");
        for name in &names {
            assert!(texts(&fs::read_to_string(directory.join(name)).expect(name)).len() > 5);
        }
        fs::remove_dir_all(directory).expect("removed");
        let error = make(Path::new("/proc/self/plots")).expect_err("no directory");
        assert!(
            error
                .to_string()
                .starts_with("cannot make /proc/self/plots: "),
            "{error}"
        );
    }
}
