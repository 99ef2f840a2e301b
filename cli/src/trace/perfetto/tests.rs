// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of traces for Perfetto.

use super::*;
use crate::trace::kernel::tests::event;
use pinmap::inspect::trace::Clock;

const MICRO: u64 = 1000;

fn activity(kind: ActivityKind, position: u64, times: [u64; 3], engine: u32) -> Activity {
    let [submitted, begun, ended] = times.map(|micros| Duration::from_nanos(micros * MICRO));
    let mut activity = Activity::default();
    activity.kind = kind;
    activity.position = position;
    activity.submitted = submitted;
    activity.begun = Some(begun);
    activity.ended = Some(ended);
    activity.engine = Some(engine);
    activity
}

fn queue(id: u64, activities: Vec<Activity>) -> QueueRecord {
    let mut queue = QueueRecord::default();
    queue.context.process = 77;
    queue.context.command = "program".to_owned();
    queue.context.id = 3;
    queue.context.pci = "0000:00:10.0".to_owned();
    queue.context.node = "/dev/pinmap0".into();
    queue.id = id;
    // The device's clock is 1,000 microseconds behind.
    queue.clock = Clock {
        before: Duration::from_micros(1998),
        device: Duration::from_micros(1000),
        after: Duration::from_micros(2002),
    };
    queue.copy_engines = 2;
    queue.activities = activities;
    queue
}

fn drawn(contents: &Contents, kernel: &KernelEvents) -> (Value, Summary) {
    let mut out = Vec::new();
    let summary = write(contents, kernel, &mut out).expect("written");
    (serde_json::from_slice(&out).expect("JSON"), summary)
}

fn of_kind<'a>(trace: &'a Value, kind: &'a str) -> Vec<&'a Value> {
    let events = trace["traceEvents"].as_array().expect("events");
    events.iter().filter(|event| event["ph"] == kind).collect()
}

#[test]
fn queues_engines_and_waits_are_drawn() {
    let copy = ActivityKind::Copy {
        direction: Direction::ToDevice,
        bytes: 4000,
    };
    let wait = ActivityKind::WaitQueue {
        context: 3,
        queue: 0,
        position: 3,
    };
    let kernel = ActivityKind::Kernel("sum".to_owned());
    let mut contents = Contents::default();
    contents.queues = vec![
        queue(0, vec![activity(copy, 1, [2000, 1010, 1014], 0)]),
        queue(
            1,
            vec![
                activity(wait, 1, [2001, 1001, 1015], 2),
                activity(kernel, 2, [2002, 1016, 1020], 2),
            ],
        ),
    ];
    let (trace, summary) = drawn(&contents, &KernelEvents::default());
    assert_eq!(
        (summary.queues, summary.activities, summary.flows),
        (2, 3, 1)
    );
    assert_eq!(
        trace["otherData"]["device_clock_uncertainty_ns"]["0000:00:10.0"],
        2000
    );
    let slices: Vec<_> = of_kind(&trace, "X")
        .into_iter()
        .map(|slice| {
            let number = |key: &str| slice[key].as_f64().expect("a number");
            let name = slice["name"].as_str().expect("a name");
            (name, slice["pid"] == 77, number("ts"), number("dur"))
        })
        .collect();
    // The wait begins the trace, when it was submitted; the copy took 4 microseconds.
    let expected = [
        ("wait for queue 0", true, 0.0, 14.0),
        ("copy to device", false, 9.0, 4.0),
        ("copy to device", true, 9.0, 4.0),
        ("sum", false, 15.0, 4.0),
        ("sum", true, 15.0, 4.0),
    ];
    assert_eq!(slices, expected);
    let (from, to) = (&of_kind(&trace, "s")[0], &of_kind(&trace, "f")[0]);
    assert_eq!((&from["ts"], &to["ts"]), (&json!(12.999), &json!(14.0)));
    assert_eq!(from["id"], to["id"]);
    let names = of_kind(&trace, "M");
    let has = |name: &str| names.iter().any(|event| event["args"]["name"] == name);
    for name in [
        "program (77)",
        "copy engine 0",
        "compute slot 0",
        "/dev/pinmap0 (0000:00:10.0)",
    ] {
        assert!(has(name), "{name}: {names:?}");
    }
    let copy = of_kind(&trace, "X")[2];
    assert_eq!(copy["args"]["gigabytes_per_second"], 1.0);
    assert_eq!(copy["args"]["waited_us"], 10.0);
}

#[test]
fn devices_that_tell_less_are_drawn_too() {
    let mut spin = activity(
        ActivityKind::Kernel("spin".to_owned()),
        1,
        [2000, 0, 1020],
        0,
    );
    (spin.begun, spin.engine) = (None, None);
    let mut never = activity(ActivityKind::RawPacket, 2, [2000, 0, 0], 0);
    (never.begun, never.ended, never.engine) = (None, None, None);
    let mut contents = Contents::default();
    contents.queues = vec![queue(5, vec![spin, never])];
    let (trace, summary) = drawn(&contents, &KernelEvents::default());
    assert_eq!(summary.unfinished, 1);
    let slices = of_kind(&trace, "X");
    assert_eq!((slices.len(), &slices[0]["dur"]), (1, &json!(20.0)));
    assert_eq!(of_kind(&trace, "i")[0]["name"], "raw packet, not finished");
}

#[test]
fn allocations_are_named_by_the_address_that_they_got() {
    let mut contents = Contents::default();
    contents.queues = vec![queue(1, Vec::new())];
    // Programs have opened the device many times.
    contents.queues[0].context.id = 0x1b9d;
    let about = "device=0000:00:10.0 context=7069 handle=1";
    let line = format!(
        "a-77 [0] .. 5.000100: pinmap_map: {about} addr=0x0 device_addr=0x7f00 bytes=8192 runs=1"
    );
    let kernel = KernelEvents {
        events: vec![event(&line)],
        lost: 0,
    };
    let (trace, _) = drawn(&contents, &kernel);
    let expected = json!({ "bytes": 8192, "device_addr": "0x7f00", "runs": 1 });
    assert_eq!(of_kind(&trace, "X")[0]["args"], expected);
}

#[test]
fn the_driver_is_drawn_for_these_programs_only() {
    let mut contents = Contents::default();
    contents.queues = vec![queue(1, Vec::new())];
    let about = "device=0000:00:10.0 context=3 handle=1";
    let lines = [
        format!("a-77 [0] .. 5.000100: pinmap_register: {about} addr=0x7f00 bytes=8192 ns=4000"),
        format!("k-12 [0] .. 5.000120: pinmap_fault_served: {about} access=read ns=2000 pages=4"),
        format!("k-12 [0] .. 5.000130: pinmap_migrate: {about} bytes=4096 to=device rule=touched"),
        format!("k-12 [0] .. 5.000140: pinmap_migrate: {about} bytes=8192 to=host rule=home"),
        "b-9 [0] .. 5.0: pinmap_register: device=0000:00:10.0 context=4 ns=1".to_owned(),
    ];
    let kernel = KernelEvents {
        events: lines.iter().map(|line| event(line)).collect(),
        lost: 1,
    };
    let (trace, summary) = drawn(&contents, &kernel);
    assert_eq!((summary.faults, summary.migrations), (1, 2));
    assert_eq!(trace["otherData"]["driver_events_lost"], 1);
    let slices = of_kind(&trace, "X");
    assert_eq!(slices.len(), 2, "{slices:?}");
    assert_eq!(
        (&slices[0]["ts"], &slices[0]["dur"]),
        (&json!(0.0), &json!(4.0))
    );
    assert_eq!(slices[1]["args"]["pages"], 4);
    // Each has a track of its own.
    let names = of_kind(&trace, "M");
    let named = names.iter().filter(|name| name["name"] == "thread_name");
    let mut named: Vec<_> = named.map(|name| name["args"]["name"].as_str()).collect();
    named.sort_unstable();
    assert!(named.contains(&Some("faults of queue 1")), "{named:?}");
    assert!(named.contains(&Some("thread 77")), "{named:?}");
    let sums: Vec<_> = of_kind(&trace, "C")
        .iter()
        .map(|event| &event["args"])
        .collect();
    assert_eq!(sums[1], &json!({ "to device": 4096, "to host": 8192 }));
}
