// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares what `pinmap demo --json` tells with what the device counted meanwhile.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use crate::command::run;
use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::setup::is_slow;

/// Checks that each object has the fields that docs/using.md tells, and no other.
fn check_fields(json: &Value) {
    let manual = include_str!("../../../docs/using.md");
    let table = manual.split_once("| object | its fields |\n|---|---|\n");
    let (_, rows) = table.expect("a table of the objects");
    for row in rows.lines().take_while(|line| line.starts_with('|')) {
        let (objects, fields) = row.split_once(" | ").expect("two cells");
        let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2);
        let fields: BTreeSet<_> = quoted(fields).collect();
        let mut objects: Vec<_> = quoted(objects).collect();
        if objects.is_empty() {
            objects.push("");
        }
        for object in objects {
            let mut value = json;
            for name in object.split('.').filter(|name| !name.is_empty()) {
                value = &value[name];
                if let Value::Array(items) = value {
                    value = &items[0];
                }
            }
            // Null: the device has no such thing.
            if let Some(value) = value.as_object() {
                let names: BTreeSet<_> = value.keys().map(String::as_str).collect();
                assert_eq!(names, fields, "{object}");
            }
        }
    }
}

pub(crate) fn command_demo() -> Outcome {
    let gpu = gpu()?;
    if is_slow() {
        return skip("it would take minutes here");
    }
    let (info, before) = (gpu.info()?, gpu.counters()?);
    let plots = PathBuf::from("/tmp/demo-plots");
    let (status, out, err) = run(&format!("pinmap demo --json --svg {}", plots.display()))?;
    let after = gpu.counters()?;
    let json: Value =
        serde_json::from_str(&out).map_err(|error| format!("{error}: {out} {err}"))?;
    let number = |value: &Value| value.as_u64().ok_or_else(|| format!("no number: {value}"));
    let list = |value: &Value| {
        let list = value.as_array().cloned();
        list.ok_or_else(|| format!("no list: {value}"))
    };

    // On a busy machine times may be other than they should be, and then the command says so.
    let bad = list(&json["checks"])?
        .into_iter()
        .filter(|check| check["good"] != true);
    let bad: Vec<_> = bad.map(|check| check["what"].to_string()).collect();
    assert_eq!(json["good"], bad.is_empty(), "{bad:?}");
    assert_eq!(status, Some(i32::from(!bad.is_empty())), "{bad:?} {err}");
    assert!(
        bad.iter()
            .all(|what| what.contains("faster") || what.contains("streams")),
        "{bad:?}"
    );

    check_fields(&json);
    assert_eq!(json["device"]["node"], gpu.device().to_string());
    assert_eq!(json["device"]["memory_bytes"], info.vram_len);
    let managed = gpu.device().info()?.managed;
    let in_place = list(&json["in_place"])?;
    let pinned: Vec<_> = in_place
        .iter()
        .map(|work| (work["memory"].as_str(), work["pinned_bytes"].as_u64()))
        .collect();
    assert_eq!(pinned[0], (Some("allocated"), Some(4096)));
    assert!(matches!(pinned[1], (Some("registered"), Some(4096 | 8192))));
    let last = managed.then_some(&(Some("managed"), Some(0)));
    assert_eq!(pinned.get(2), last);
    for work in in_place {
        assert_eq!(work["addr"], work["device_addr"]);
        assert_eq!(work["first"][9], 10.0);
    }
    let copied = &json["mapped_copy"];
    assert_eq!(copied["addr"], copied["device_addr"]);
    assert_eq!(copied["first"][9], 9);
    assert_eq!(json["counters"]["copied_bytes"], 0);

    // Each size was worked on at least twice in each way: the first run is not counted.
    let (mut by_engines, mut by_kernels) = (0, number(&json["counters"]["host_read_bytes"])?);
    for row in list(&json["sizes"])? {
        let (bytes, uses) = (number(&row["bytes"])?, number(&row["uses"])?);
        by_engines += 2 * bytes;
        by_kernels += 2 * bytes * uses;
        for way in ["zero_copy", "copy"] {
            let (device, wall) = (
                number(&row[way]["device_ns"])?,
                number(&row[way]["wall_ns"])?,
            );
            assert!(device > 0 && wall > 0, "{row}");
        }
        assert_eq!(row["right"], true, "{row}");
    }
    let streams = &json["streams"];
    for run in list(&streams["runs"])? {
        by_engines += number(&streams["chunks"])? * number(&streams["chunk_bytes"])?;
        let steps = list(&run["steps"])?;
        assert_eq!(steps.len() as u64, 3 * number(&streams["chunks"])?);
        let mut ends = vec![0; number(&run["streams"])? as usize];
        for step in steps {
            let end = &mut ends[number(&step["stream"])? as usize];
            let begin = number(&step["begin_ns"])?;
            assert!(*end <= begin, "a stream does two steps at a time: {step}");
            *end = number(&step["end_ns"])?;
            assert!(begin <= *end, "{step}");
        }
        assert_eq!(ends.into_iter().max(), Some(number(&run["device_ns"])?));
    }
    let copied = after.copied().since(&before.copied());
    let computed = after.computed().since(&before.computed());
    assert!(
        copied.host_read >= by_engines,
        "{} of {by_engines}",
        copied.host_read
    );
    assert!(
        copied.host_written >= by_engines,
        "{} of {by_engines}",
        copied.host_written
    );
    assert!(
        computed.host_read >= by_kernels,
        "{} of {by_kernels}",
        computed.host_read
    );

    assert_eq!(json["managed"].is_object(), managed);
    let mut names = vec!["streams", "sizes-device", "sizes-wall"];
    if managed {
        names.extend(["managed", "moves"]);
        for moves in list(&json["managed"]["moves"])? {
            let moments = list(&moves["moments"])?;
            let last = moments.last().ok_or("no moments")?;
            assert_eq!(moves["to_device_bytes"], last["to_device_bytes"]);
            assert_eq!(moves["wall_ns"], last["wall_ns"]);
        }
    }
    for name in names {
        let svg = std::fs::read_to_string(plots.join(format!("{name}.svg")))?;
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{name}"
        );
    }
    Ok(std::fs::remove_dir_all(plots)?)
}
