// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that the demo measures and checks, as `--json` prints it and `--svg` draws it.
//!
//! The structs are the objects of the output, in its order. Their form is a promise to programs
//! that read it. Addresses are strings, because many readers keep only 53 bits of a number.

use pinmap::accelerator::AcceleratorInfo;
use pinmap_samples::work;
use pinmap_samples::zero_copy::{Increment, Memory, FLOATS};
use serde::Serialize;

use super::checks::Check;
use crate::report_json::{link, nanos, LinkJson};

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    /// Whether all checks are right.
    pub(crate) good: bool,
    pub(crate) device: DeviceReport,
    /// One program, with memory of each kind.
    pub(crate) in_place: Vec<InPlace>,
    pub(crate) mapped_copy: MappedCopy,
    pub(crate) counters: Counters,
    /// Null if the link has no limit, so that there is nothing to overlap.
    pub(crate) streams: Option<Streams>,
    /// Work on host memory (zero-copy), and the same on a copy in the device's memory.
    pub(crate) sizes: Vec<SizeRow>,
    /// Null if the kernel lets no driver follow the memory of programs.
    pub(crate) managed: Option<ManagedReport>,
    pub(crate) checks: Vec<Check>,
    /// How long the whole demo took.
    pub(crate) wall_ns: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct DeviceReport {
    pub(crate) node: String,
    pub(crate) copy_engines: u32,
    pub(crate) kernels_at_once: u32,
    pub(crate) memory_bytes: u64,
    /// The model of the bus to host memory.
    pub(crate) link: LinkJson,
    /// The model of the device's own memory.
    pub(crate) memory_link: LinkJson,
}

impl DeviceReport {
    pub(crate) fn new(node: String, info: &AcceleratorInfo) -> Self {
        Self {
            node,
            copy_engines: info.copy_engines,
            kernels_at_once: info.compute_slots,
            memory_bytes: info.vram_len,
            link: link(info.link),
            memory_link: link(info.vram),
        }
    }
}

/// Floats in host memory to which the device added 1.
#[derive(Debug, Serialize)]
pub(crate) struct InPlace {
    /// How the program has them: `allocated`, `registered`, or `managed`.
    pub(crate) memory: &'static str,
    pub(crate) floats: u16,
    /// The first ten results.
    pub(crate) first: Vec<f32>,
    pub(crate) addr: String,
    pub(crate) device_addr: String,
    pub(crate) pinned_bytes: u64,
    pub(crate) faults_served: u64,
}

impl InPlace {
    pub(crate) fn new(memory: Memory, work: &Increment) -> Self {
        Self {
            memory: memory.name(),
            floats: FLOATS,
            first: work.floats.iter().take(10).copied().collect(),
            addr: format!("{:#x}", work.addr),
            device_addr: format!("{:#x}", work.device_addr),
            pinned_bytes: work.pinned,
            faults_served: work.faults,
        }
    }
}

/// Ints that the device copied from one mapped buffer to another, both write-combined if possible.
#[derive(Debug, Serialize)]
pub(crate) struct MappedCopy {
    pub(crate) ints: usize,
    /// The first ten results.
    pub(crate) first: Vec<i32>,
    /// Where the results are.
    pub(crate) addr: String,
    pub(crate) device_addr: String,
}

/// Counters of the device, while it worked in place and between mapped buffers.
#[derive(Debug, Serialize)]
pub(crate) struct Counters {
    /// By the copy engines.
    pub(crate) copied_bytes: u64,
    /// By kernels, from host memory.
    pub(crate) host_read_bytes: u64,
    /// By kernels, to host memory.
    pub(crate) host_written_bytes: u64,
}

/// Times of the same chunks one step at a time, and by one, two and three streams.
#[derive(Debug, Serialize)]
pub(crate) struct Streams {
    pub(crate) chunks: usize,
    pub(crate) chunk_bytes: usize,
    pub(crate) runs: Vec<StreamRun>,
}

#[derive(Debug, Serialize)]
pub(crate) struct StreamRun {
    pub(crate) name: &'static str,
    pub(crate) streams: usize,
    pub(crate) device_ns: u64,
    /// The time as a fraction of that of the serial run.
    pub(crate) of_serial: f64,
    pub(crate) steps: Vec<StreamStep>,
}

/// A step of a chunk. It begins when the one before it in the stream has ended, so waiting for an
/// engine is part of it.
#[derive(Debug, Serialize)]
pub(crate) struct StreamStep {
    /// Index of the stream.
    pub(crate) stream: usize,
    pub(crate) step: StepKind,
    /// Time since the run began, by the device's clock.
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepKind {
    CopyIn,
    Work,
    CopyOut,
}

impl StepKind {
    /// All of them, in the order of a chunk.
    pub(crate) const ALL: [Self; 3] = [Self::CopyIn, Self::Work, Self::CopyOut];
}

/// A size and a number of uses. The times are medians.
#[derive(Debug, Serialize)]
pub(crate) struct SizeRow {
    pub(crate) bytes: u64,
    /// How often the data is used.
    pub(crate) uses: u32,
    pub(crate) zero_copy: Times,
    pub(crate) copy: Times,
    /// Whether every float is right in the end.
    pub(crate) right: bool,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Times {
    pub(crate) device_ns: u64,
    pub(crate) wall_ns: u64,
}

impl From<work::Times> for Times {
    fn from(times: work::Times) -> Self {
        Self {
            device_ns: nanos(times.device),
            wall_ns: nanos(times.wall),
        }
    }
}

/// Memory that device and CPU use in turn.
#[derive(Debug, Serialize)]
pub(crate) struct ManagedReport {
    pub(crate) bytes: usize,
    pub(crate) loads: Vec<LoadReport>,
    pub(crate) moves: Vec<Moves>,
}

/// The times of a load in all ways, by the CPU's clock. They are medians.
#[derive(Debug, Serialize)]
pub(crate) struct LoadReport {
    pub(crate) used: &'static str,
    /// How many turns each side has.
    pub(crate) turns: u16,
    /// How often the device uses the data in its turn.
    pub(crate) uses: u16,
    pub(crate) managed_wall_ns: u64,
    pub(crate) prefetched_wall_ns: u64,
    pub(crate) zero_copy_wall_ns: u64,
    pub(crate) copy_wall_ns: u64,
}

/// How pages moved, with some advice.
#[derive(Debug, Serialize)]
pub(crate) struct Moves {
    pub(crate) advice: &'static str,
    pub(crate) wall_ns: u64,
    pub(crate) to_device_bytes: u64,
    pub(crate) home_bytes: u64,
    /// The beginning, the end, and each time at which more had moved.
    pub(crate) moments: Vec<MomentReport>,
}

/// How much had moved at some time since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct MomentReport {
    pub(crate) wall_ns: u64,
    pub(crate) to_device_bytes: u64,
    pub(crate) home_bytes: u64,
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use pinmap::accelerator::Link;
    use serde_json::Value;

    use super::*;

    /// A made-up report.
    pub(in crate::demo) fn example() -> Report {
        let no_limit = || {
            link(Link {
                bandwidth: None,
                latency: Duration::ZERO,
            })
        };
        let ms = 1_000_000;
        let run = |name, streams: usize| StreamRun {
            name,
            streams,
            device_ns: 80 * ms / streams as u64,
            of_serial: 1.0 / streams as f64,
            steps: (0..3 * streams as u64)
                .map(|n| StreamStep {
                    stream: n as usize / 3,
                    step: StepKind::ALL[n as usize % 3],
                    begin_ns: (n % 3) * 8 * ms,
                    end_ns: (n % 3 + 1) * 8 * ms,
                })
                .collect(),
        };
        let times = |ns| Times {
            device_ns: ns,
            wall_ns: 2 * ns,
        };
        let sizes = [(4, 1), (64 << 20, 1), (4, 10), (64 << 20, 10)];
        let moment = |millis: u64, there: u64, home: u64| MomentReport {
            wall_ns: millis * ms,
            to_device_bytes: there << 20,
            home_bytes: home << 20,
        };
        let moves = |advice, moments: &[MomentReport]| Moves {
            advice,
            wall_ns: 9 * ms,
            to_device_bytes: 4 << 20,
            home_bytes: 3 << 20,
            moments: moments.to_vec(),
        };
        Report {
            version: "1.2.3",
            good: true,
            device: DeviceReport {
                node: "/dev/pinmap0".to_owned(),
                copy_engines: 2,
                kernels_at_once: 4,
                memory_bytes: 1 << 28,
                link: no_limit(),
                memory_link: no_limit(),
            },
            in_place: vec![InPlace {
                memory: "managed",
                floats: 1024,
                first: vec![1.0, 2.0],
                addr: "0x1000".to_owned(),
                device_addr: "0x1000".to_owned(),
                pinned_bytes: 0,
                faults_served: 1,
            }],
            mapped_copy: MappedCopy {
                ints: 128,
                first: vec![0, 1],
                addr: "0x2000".to_owned(),
                device_addr: "0x2000".to_owned(),
            },
            counters: Counters {
                copied_bytes: 0,
                host_read_bytes: 4608,
                host_written_bytes: 4608,
            },
            streams: Some(Streams {
                chunks: 32,
                chunk_bytes: 8 << 20,
                runs: vec![run("serial", 1), run("two streams", 2)],
            }),
            sizes: sizes
                .iter()
                .map(|&(bytes, uses)| SizeRow {
                    bytes,
                    uses,
                    zero_copy: times(bytes * u64::from(uses)),
                    copy: times(bytes * 2),
                    right: true,
                })
                .collect(),
            managed: Some(ManagedReport {
                bytes: 4 << 20,
                loads: vec![LoadReport {
                    used: "by the device once",
                    turns: 1,
                    uses: 1,
                    managed_wall_ns: 12 * ms,
                    prefetched_wall_ns: 9 * ms,
                    zero_copy_wall_ns: 5 * ms,
                    copy_wall_ns: 7 * ms,
                }],
                moves: vec![
                    moves(
                        "no advice",
                        &[
                            moment(0, 0, 0),
                            moment(3, 4, 0),
                            moment(6, 4, 3),
                            moment(9, 4, 3),
                        ],
                    ),
                    moves("to be on the host", &[moment(0, 0, 0), moment(6, 0, 0)]),
                ],
            }),
            checks: vec![Check {
                what: "the two are equal".to_owned(),
                good: true,
                timed: false,
            }],
            wall_ns: 9,
        }
    }

    /// The names of the fields, with those of nested objects behind a point; of lists, those of the
    /// first element.
    fn names(value: &Value, prefix: &str, all: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    all.push(format!("{prefix}{name}"));
                    names(field, &format!("{prefix}{name}."), all);
                }
            }
            Value::Array(elements) => {
                if let Some(first) = elements.first() {
                    names(first, prefix, all);
                }
            }
            _ => {}
        }
    }

    /// The fields of docs/using.md: its table of objects has their paths in the first column, and
    /// their fields in the second.
    fn documented() -> Vec<String> {
        let document = include_str!("../../../docs/using.md");
        let table = document
            .split_once("| object | its fields |\n")
            .expect("table")
            .1;
        let mut all = Vec::new();
        for row in table.lines().skip(1).take_while(|row| row.starts_with('|')) {
            let quoted = |cell: &str| -> Vec<String> {
                cell.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(str::to_owned)
                    .collect()
            };
            let cells: Vec<_> = row.split('|').collect();
            let mut objects: Vec<_> = quoted(cells[1]).iter().map(|o| format!("{o}.")).collect();
            if objects.is_empty() {
                objects.push(String::new());
            }
            for object in objects {
                all.extend(
                    quoted(cells[2])
                        .iter()
                        .map(|field| format!("{object}{field}")),
                );
            }
        }
        all
    }

    /// Programs that read the output rely on the names of its fields.
    #[test]
    fn fields_are_those_that_are_documented() {
        let text = serde_json::to_string(&example()).expect("JSON");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let (mut all, mut expected) = (Vec::new(), documented());
        names(&json, "", &mut all);
        all.sort_unstable();
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert_eq!(json["streams"]["runs"][1]["steps"][4]["step"], "work");
        assert_eq!(json["streams"]["runs"][1]["steps"][4]["stream"], 1);
        assert_eq!(json["sizes"][3]["zero_copy"]["device_ns"], 671_088_640);
        assert!(json["device"]["link"]["bytes_per_second"].is_null());
    }
}
