// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces: what is recorded of queues, and what `pinmap trace` makes of it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pinmap::accelerator;
use pinmap::accelerator::{Direction, StreamOptions};
use pinmap::inspect::trace::{Activity, ActivityKind, QueueRecord, Trace, PATH_VARIABLE};
use pinmap_testgpu::{packet, IncrementF32};
use serde_json::Value;

use crate::command::run;
use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::lent::faulting;
use crate::setup::{become_user, device, pattern};
use crate::streams::until;

/// Has this process traced from now on, before it has opened a device.
pub(crate) fn traced(bytes: u64) -> Result<Trace, Box<dyn std::error::Error>> {
    let trace = Trace::create(bytes)?;
    std::env::set_var(PATH_VARIABLE, trace.path());
    Ok(trace)
}

fn times(activity: &Activity) -> (Duration, Duration) {
    let times = activity.begun.zip(activity.ended);
    times.unwrap_or_else(|| panic!("no times: {activity:?}"))
}

/// Checks that no engine did two things at once.
fn check_engines<'a>(activities: impl Iterator<Item = &'a Activity>) {
    let mut engines = BTreeMap::<u32, Vec<_>>::new();
    for activity in activities.filter(|activity| activity.begun.is_some()) {
        let engine = activity.engine.expect("an engine began with it");
        engines.entry(engine).or_default().push(times(activity));
    }
    for (engine, mut times) in engines {
        times.sort();
        for pair in times.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "engine {engine}: {pair:?}");
        }
    }
}

pub(crate) fn trace_tells_what_queues_did() -> Outcome {
    const LEN: usize = 1 << 20;
    let trace = traced(64 << 20)?;
    let gpu = gpu()?;
    let (up, down) = (
        gpu.stream(StreamOptions::new())?,
        gpu.stream(StreamOptions::new().priority(1))?,
    );
    let copied = gpu.event()?;
    let (mut host, mut local) = (gpu.alloc::<f32>(LEN)?, gpu.alloc_vram::<f32>(LEN)?);
    let (before, counted) = (gpu.info()?.time, gpu.counters()?);
    accelerator::scope(|scope| {
        let (up, down) = (scope.on(&up), scope.on(&down));
        let (mut host, mut local) = (host.slice_mut(), local.slice_mut());
        up.copy(&host, &mut local)?;
        up.record(&copied)?;
        up.call(|| std::thread::sleep(Duration::from_millis(1)))?;
        down.wait_event(&copied)?;
        down.launch(IncrementF32 { data: &mut local })?;
        down.copy(&local, &mut host)
    })?;
    down.scope(|work| work.fill(local.slice_mut(), 7.0))?;
    let (after, counters) = (gpu.info()?.time, gpu.counters()?);
    assert!(host.iter().all(|&number| number == 1.0));

    let contents = trace.read();
    assert_eq!(contents.lost, 0);
    assert!(!contents.contexts.is_empty());
    let queue = |id| contents.queues.iter().find(|queue| queue.id == id);
    let queue = |id| queue(id).ok_or_else(|| format!("no queue {id}: {contents:?}"));
    let (up, down): (&QueueRecord, &QueueRecord) = (queue(up.id())?, queue(down.id())?);
    assert_eq!((up.priority, down.priority), (0, 1));
    assert_eq!(up.context.process, std::process::id());
    assert_eq!(up.context.node, gpu.device().path());
    assert_eq!(up.context.pci, gpu.device().info()?.pci.to_string());

    let kinds = |stream: &QueueRecord| -> Vec<ActivityKind> {
        let activities = stream.activities.iter();
        activities.map(|activity| activity.kind.clone()).collect()
    };
    let bytes = 4 * LEN as u64;
    let copy = |direction| ActivityKind::Copy { direction, bytes };
    assert_eq!(
        kinds(up),
        [copy(Direction::ToDevice), ActivityKind::HostFunction]
    );
    let upload = &up.activities[0];
    let mut downs = kinds(down);
    // The event may have been reached before, and then there is nothing to wait for.
    if let ActivityKind::WaitQueue {
        queue, position, ..
    } = downs[0]
    {
        assert!(queue == up.id && position >= upload.position);
        assert!(down.activities[0].ended >= upload.ended);
        downs.remove(0);
    }
    let increment = ActivityKind::Kernel("increment_f32".to_owned());
    let download = copy(Direction::ToHost);
    assert_eq!(downs, [increment, download, ActivityKind::Fill { bytes }]);

    let all = || up.activities.iter().chain(&down.activities);
    for activity in all() {
        let (begun, ended) = times(activity);
        let (before, after) = (Duration::from_nanos(before), Duration::from_nanos(after));
        assert!(before <= begun && begun <= ended && ended <= after);
        // The device began after it was told, by the CPU's clock, too.
        let clock = up.clock;
        assert!(clock.before <= clock.after);
        assert!(begun + clock.after >= activity.submitted + clock.device);
    }
    let waits = Duration::from_millis(1);
    let function = up.activities[1].ended.zip(upload.ended);
    assert!(function.is_some_and(|(end, before)| end - before >= waits));
    check_engines(all());
    assert_eq!((up.copy_engines, upload.engine), (2, Some(0)));
    // What the engines themselves have counted.
    for (engine, (counters, before)) in
        (0..).zip(counters.copy_engines.iter().zip(&counted.copy_engines))
    {
        let of_engine = all().filter(|activity| activity.engine == Some(engine));
        let moved: u64 = of_engine
            .map(|activity| match activity.kind {
                ActivityKind::Copy { bytes, .. } => 2 * bytes,
                ActivityKind::Fill { bytes } => bytes,
                _ => 0,
            })
            .sum();
        assert_eq!(counters.since(before).bytes(), moved, "engine {engine}");
    }
    Ok(())
}

/// The device writes the records itself, so they are there when the program is killed.
pub(crate) fn trace_outlives_the_program() -> Outcome {
    drop(gpu()?);
    let trace = Trace::create(64 << 20)?;
    let mut child = Command::new("pinmap")
        .arg("demo")
        .env(PATH_VARIABLE, trace.path())
        .stdout(std::process::Stdio::null())
        .spawn()?;
    let done = || -> usize {
        let queues = trace.read().queues;
        let all = queues.iter().flat_map(|stream| &stream.activities);
        all.filter(|activity| activity.ended.is_some()).count()
    };
    until("work is recorded", || done() >= 10)?;
    let seen = done();
    child.kill()?;
    child.wait()?;
    assert!(done() >= seen);
    let contents = trace.read();
    assert!(contents
        .queues
        .iter()
        .all(|stream| stream.context.process == child.id()));
    assert!(contents
        .queues
        .iter()
        .all(|stream| stream.context.command == "pinmap"));
    Ok(())
}

/// Whoever starts a program that has more rights does not choose a file that it writes to.
pub(crate) fn trace_not_of_privileged_programs() -> Outcome {
    const USER: u32 = 1000;
    drop(gpu()?);
    let program = file("privileged");
    let (_, example, _) = run("which zero_copy")?;
    fs::copy(example.trim(), &program)?;
    for (mode, is_traced) in [(0o755, true), (0o4755, false)] {
        fs::set_permissions(&program, Permissions::from_mode(mode))?;
        let trace = Trace::create(1 << 20)?;
        let mut command = Command::new(&program);
        if !is_traced {
            command.uid(USER);
        }
        let output = command.env(PATH_VARIABLE, trace.path()).output()?;
        assert!(output.status.success(), "{output:?}");
        assert_eq!(!trace.read().contexts.is_empty(), is_traced);
    }
    fs::remove_file(program)?;
    Ok(())
}

pub(crate) fn trace_that_is_full_loses_records_only() -> Outcome {
    const FILLS: u64 = 1000;
    // Contexts and queues take 64 KiB each, and there is a page for all.
    let room = |chunks: u64| 4096 + (chunks << 16);
    let trace = traced(room(2))?;
    let gpu = gpu()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut local = gpu.alloc_vram::<u64>(512)?;
    for value in 1..=FILLS {
        stream.scope(|work| work.fill(local.slice_mut(), value))?;
    }
    let mut host = gpu.alloc::<u64>(512)?;
    stream.scope(|work| work.copy(&local, &mut host))?;
    assert_eq!(host[511], FILLS);
    let contents = trace.read();
    let recorded = contents
        .queues
        .iter()
        .map(|stream| stream.activities.len() as u64);
    let recorded: u64 = recorded.sum();
    assert!(recorded <= 480, "{recorded}");
    assert!(recorded + contents.lost == FILLS + 1, "{recorded}");
    Ok(())
}

/// Work that fits a ring without a trace fits it with one.
#[allow(unsafe_code)]
pub(crate) fn trace_leaves_small_rings_alone() -> Outcome {
    const LONGEST: usize = 52;
    const MANY: usize = 700;
    let trace = traced(1 << 20)?;
    let stream = gpu()?.stream(StreamOptions::new().packets(64))?;
    for count in [1, LONGEST / 2, LONGEST / 2 + 1, LONGEST] {
        let packets = vec![packet::nop(); count];
        // SAFETY: The packets write nothing.
        stream.scope(|work| unsafe { work.nonblocking().submit_packets(&packets) })?;
    }
    // The ring is full again and again.
    stream.scope(|work| {
        (0..MANY).try_for_each(|_| {
            // SAFETY: As above.
            unsafe { work.submit_packets(&[packet::nop()]) }
        })
    })?;
    let contents = trace.read();
    assert_eq!(contents.queues[0].activities.len(), 1 + LONGEST / 2 + MANY);
    assert_eq!(contents.lost as usize, LONGEST / 2 + 1 + LONGEST);
    let mut raw = contents.queues[0].activities.iter();
    assert!(
        raw.all(|activity| activity.kind == ActivityKind::RawPacket && activity.ended.is_some())
    );
    Ok(())
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pinmap-{name}"))
}

/// The trace of a program that succeeds, and what is told about it.
fn trace_of(program: &str) -> Result<(Value, String), Box<dyn std::error::Error>> {
    let output = file("trace.json");
    let (status, out, err) = run(&format!("pinmap trace -o {} {program}", output.display()))?;
    assert_eq!(status, Some(0), "{out}{err}");
    let trace = serde_json::from_slice(&fs::read(&output)?)?;
    fs::remove_file(output)?;
    assert!(!Path::new("/sys/kernel/tracing/instances")
        .read_dir()?
        .any(|_| true));
    Ok((trace, err))
}

/// The events of a kind, in the words of the Trace Event Format.
fn events<'a>(trace: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let events = trace["traceEvents"].as_array().expect("events");
    events.iter().filter(move |event| event["ph"] == kind)
}

fn number(event: &Value, key: &str) -> f64 {
    event[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key}: {event}"))
}

/// The name of the track of an event.
fn track<'a>(trace: &'a Value, event: &Value) -> &'a str {
    let is_its = |name: &&Value| {
        name["name"] == "thread_name" && name["pid"] == event["pid"] && name["tid"] == event["tid"]
    };
    let name = events(trace, "M").find(is_its);
    name.and_then(|name| name["args"]["name"].as_str())
        .unwrap_or_else(|| panic!("no track: {event}"))
}

pub(crate) fn command_trace() -> Outcome {
    drop(gpu()?);
    let input = file("trace-input");
    fs::write(&input, pattern(3, 200_001))?;
    let (trace, err) = trace_of(&format!("program-two_streams {}", input.display()))?;
    fs::remove_file(input)?;
    assert!(err.contains("queues (0 not finished)"), "{err}");
    let mut tracks = BTreeMap::<String, Vec<(f64, f64)>>::new();
    for slice in events(&trace, "X") {
        let (begin, length) = (number(slice, "ts"), number(slice, "dur"));
        let name = format!("{} {}", slice["pid"], track(&trace, slice));
        tracks
            .entry(name)
            .or_default()
            .push((begin, begin + length));
    }
    // Slices of a track are one after another, up to a rounded nanosecond. Calls of a thread hold
    // others.
    for (name, slices) in tracks.iter().filter(|(name, _)| !name.contains("thread")) {
        let in_order = slices.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 0.002);
        assert!(in_order, "{name}: {slices:?}");
    }
    let has = |part: &str| tracks.keys().any(|name| name.contains(part));
    for part in ["copy engine 0", "copy engine 1", "compute slot", "queue "] {
        assert!(has(part), "{part}: {:?}", tracks.keys());
    }
    let named = |name: &str| {
        events(&trace, "X")
            .filter(|slice| slice["name"] == name)
            .count()
    };
    // On the track of the queue, and on that of the engine.
    assert_eq!((named("increment_f32"), named("crc32c")), (4, 2));
    assert_eq!((named("copy to device"), named("copy to host")), (6, 4));
    // Each arrow leads from something to a later wait for it.
    let ends: Vec<_> = events(&trace, "f").collect();
    assert_eq!(events(&trace, "s").count(), ends.len());
    assert_eq!(
        named("wait for queue 0") + named("wait for queue 1"),
        ends.len()
    );
    for end in ends {
        let begin = events(&trace, "s").find(|begin| begin["id"] == end["id"]);
        let begin = begin.ok_or("an arrow without a begin")?;
        assert!(number(begin, "ts") <= number(end, "ts") && begin["tid"] != end["tid"]);
    }
    // The driver's part.
    assert!(named("register") >= 3 && named("release") >= 3);
    Ok(())
}

pub(crate) fn command_trace_shows_faults() -> Outcome {
    let gpu = faulting()?;
    let totals = || gpu.device().totals().map(|totals| totals.faults.served);
    let before = totals()?;
    let (trace, err) = trace_of("turns 6")?;
    let served = totals()? - before;
    let faults: Vec<_> = events(&trace, "X")
        .filter(|slice| slice["name"] == "fault")
        .collect();
    assert_eq!(faults.len() as u64, served, "{err}");
    assert!(served > 0);
    assert!(events(&trace, "C").count() > 0, "{err}");
    let work = events(&trace, "X").filter(|slice| slice["args"]["engine"].is_number());
    let ends = work.map(|slice| number(slice, "ts") + number(slice, "dur"));
    let end = ends.fold(0.0, f64::max);
    let uncertain = &trace["otherData"]["device_clock_uncertainty_ns"];
    let uncertain = uncertain.as_object().and_then(|all| all.values().next());
    let uncertain = uncertain.and_then(Value::as_f64).ok_or("no clock")? / 1000.0;
    for fault in faults {
        assert!(
            track(&trace, fault).starts_with("faults of queue"),
            "{fault}"
        );
        // Work is done when its faults are served. The driver's times are whole microseconds.
        let begin = number(fault, "ts");
        assert!(begin <= end + uncertain + 1.0, "{fault} {end}");
    }
    Ok(())
}

/// Queues and engines are for the program's user to see; calls and faults only for root.
pub(crate) fn command_trace_without_root() -> Outcome {
    let node = gpu()?.device().path().to_owned();
    become_user(Some(&node))?;
    let output = file("trace-of-a-user.json");
    let (status, out, err) = run(&format!("pinmap trace -o {} zero_copy", output.display()))?;
    assert_eq!(status, Some(0), "{out}{err}");
    let trace: Value = serde_json::from_slice(&fs::read(&output)?)?;
    fs::remove_file(output)?;
    let tracks: Vec<_> = events(&trace, "X")
        .map(|slice| track(&trace, slice))
        .collect();
    let has = |part: &str| tracks.iter().any(|track| track.contains(part));
    assert!(has("queue ") && has("compute slot"), "{tracks:?}");
    assert!(!has("thread ") && !has("faults of"), "{tracks:?}");
    Ok(())
}

pub(crate) fn command_trace_of_a_flat_device() -> Outcome {
    drop(device()?);
    let (trace, _) = trace_of("pinmap copy-test --size 5000")?;
    let registers: Vec<_> = events(&trace, "X")
        .filter(|slice| slice["name"] == "register")
        .collect();
    assert_eq!(registers.len(), 2, "{registers:?}");
    assert_eq!(registers[0]["args"]["bytes"], 8192);
    Ok(())
}

pub(crate) fn command_trace_ends_as_the_program() -> Outcome {
    let output = file("trace.json");
    let of = |program: &str| run(&format!("pinmap trace -o {} {program}", output.display()));
    let (status, _, err) = of("sleep nonsense")?;
    assert_eq!(status, Some(1));
    assert!(err.contains("opened no device"), "{err}");
    assert_eq!(of("grep x /no/such/file")?.0, Some(2));
    let (status, _, err) = of("/no/such/program")?;
    assert_eq!(status, Some(1));
    assert!(err.contains("cannot run /no/such/program"), "{err}");
    fs::remove_file(&output)?;
    let (status, _, err) = run("pinmap trace -o /no/such/file true")?;
    assert_eq!(status, Some(1));
    assert!(err.contains("cannot write /no/such/file"), "{err}");
    Ok(())
}
