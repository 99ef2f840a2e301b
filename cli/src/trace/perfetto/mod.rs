// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace as Perfetto opens it, in the Trace Event Format of Chrome.
//!
//! The time axis is `CLOCK_MONOTONIC` from the first event on. Times of a device are moved onto it
//! by one constant for each device, so the distances between them are the device's own.
//!
//! Format: "Trace Event Format", <https://perfetto.dev/docs/getting-started/other-formats>.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use pinmap::accelerator::Direction;
use pinmap::inspect::trace::{Activity, ActivityKind, Contents, Context, QueueRecord};
use serde::Serialize;
use serde_json::{json, Map, Value};

use crate::{size, Result};

use super::kernel::{Event as KernelEvent, Events as KernelEvents};

/// The first number for a group of tracks that is no process: above all process ids.
const FIRST_GROUP: u32 = 1 << 24;
/// The track of a device's migrations.
const MIGRATIONS: u64 = 1 << 20;

/// Counts the contents of a trace.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) queues: usize,
    pub(super) activities: usize,
    /// Activities that were never done.
    pub(super) unfinished: usize,
    pub(super) flows: usize,
    pub(super) faults: usize,
    pub(super) migrations: usize,
}

/// An event of the format. Times are in microseconds.
#[derive(Debug, Serialize)]
struct Event {
    name: String,
    ph: char,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    display_time_unit: &'static str,
    other_data: Value,
    trace_events: Vec<Event>,
}

/// A place for slices: a thread, in the words of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Track {
    group: u32,
    number: u64,
}

/// A time on the axis, in nanoseconds. A device's clock may have started after the CPU's.
type Nanos = i128;

#[derive(Default)]
struct Timeline {
    events: Vec<Event>,
    groups: BTreeMap<u32, String>,
    tracks: BTreeMap<Track, String>,
    summary: Summary,
    flows: u64,
}

/// A device: what to add to its clock, how uncertain that is, and the group of its tracks.
#[derive(Debug, Clone, Copy)]
struct Device {
    offset: Nanos,
    uncertainty: Duration,
    group: u32,
}

/// An activity that was placed on the axis.
struct Placed {
    begin: Nanos,
    end: Nanos,
    position: u64,
}

/// Writes a trace.
pub(super) fn write(
    contents: &Contents,
    kernel: &KernelEvents,
    out: &mut impl Write,
) -> Result<Summary> {
    let devices = devices(contents);
    let mut timeline = Timeline::default();
    let placed: BTreeMap<_, _> = contents
        .queues
        .iter()
        .map(|queue| {
            let key = (queue.context.pci.as_str(), queue.context.id, queue.id);
            (key, timeline.queue(queue, &devices))
        })
        .collect();
    for queue in &contents.queues {
        timeline.flows(queue, &placed);
    }
    timeline.kernel(contents, kernel, &devices);
    timeline.finish();
    let uncertainty = devices.iter().map(|(pci, device)| {
        let nanos = json!(device.uncertainty.as_nanos() as u64);
        ((*pci).to_owned(), nanos)
    });
    let file = File {
        display_time_unit: "ns",
        other_data: json!({
            "clock": "CLOCK_MONOTONIC, from the first event on",
            "device_clock_uncertainty_ns": uncertainty.collect::<Map<_, _>>(),
            "activities_lost": contents.lost,
            "driver_events_lost": kernel.lost,
        }),
        trace_events: timeline.events,
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.flush()?;
    Ok(timeline.summary)
}

/// The devices by their PCI functions. Of all readings of a device's clock the closest pair counts.
fn devices(contents: &Contents) -> BTreeMap<&str, Device> {
    let mut devices: BTreeMap<&str, Device> = BTreeMap::new();
    let all = contents.contexts.iter().map(|context| &context.pci);
    let all = all.chain(contents.queues.iter().map(|queue| &queue.context.pci));
    for (index, pci) in all.collect::<BTreeSet<_>>().into_iter().enumerate() {
        let queues = contents.queues.iter();
        let clocks = queues.filter(|queue| queue.context.pci == *pci);
        let clock = clocks
            .map(|queue| queue.clock)
            .min_by_key(|clock| clock.after.saturating_sub(clock.before));
        let clock = clock.unwrap_or_default();
        let width = clock.after.saturating_sub(clock.before);
        let middle = nanos(clock.before + width / 2);
        let device = Device {
            offset: middle - nanos(clock.device),
            uncertainty: width / 2,
            group: FIRST_GROUP + index as u32,
        };
        devices.insert(pci, device);
    }
    devices
}

fn nanos(time: Duration) -> Nanos {
    time.as_nanos() as Nanos
}

/// Arguments of an event from a JSON object, without those that have no value.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(mut map) => {
            map.retain(|_, value| !value.is_null());
            map
        }
        _ => Map::new(),
    }
}

/// The number of the track of a queue, whose ids begin anew in each context, or of its faults.
/// Viewers keep 32 bits of it, and threads have the numbers below.
fn queue_number(context: u64, queue: u64, faults: bool) -> u64 {
    let context = (context & 0x7fff) << 16;
    (1 << 31) | context | (u64::from(faults) << 15) | (queue & 0x7fff)
}

fn queue_track(queue: &QueueRecord) -> Track {
    Track {
        group: queue.context.process,
        number: queue_number(queue.context.id, queue.id, false),
    }
}

/// The name of an activity, and what else is known of it.
fn describe(activity: &Activity) -> (String, Map<String, Value>) {
    match &activity.kind {
        ActivityKind::Copy { direction, bytes } => {
            let name = match direction {
                Direction::ToDevice => "copy to device",
                Direction::ToHost => "copy to host",
                Direction::Inside => "copy",
            };
            (name.to_owned(), object(json!({ "bytes": bytes })))
        }
        ActivityKind::Fill { bytes } => ("fill".to_owned(), object(json!({ "bytes": bytes }))),
        ActivityKind::Kernel(name) => (name.clone(), Map::new()),
        ActivityKind::WaitQueue {
            queue, position, ..
        } => {
            let args = json!({ "queue": queue, "position": position });
            (format!("wait for queue {queue}"), object(args))
        }
        ActivityKind::WaitValue { value } => (
            "wait for a value".to_owned(),
            object(json!({ "value": value })),
        ),
        ActivityKind::WriteValue { value } => (
            "write a value".to_owned(),
            object(json!({ "value": value })),
        ),
        ActivityKind::HostFunction => ("host function".to_owned(), Map::new()),
        ActivityKind::RawPacket => ("raw packet".to_owned(), Map::new()),
        other => (format!("{other:?}"), Map::new()),
    }
}

/// Whether the queue itself waits, so that no engine works.
fn is_wait(kind: &ActivityKind) -> bool {
    matches!(
        kind,
        ActivityKind::WaitQueue { .. }
            | ActivityKind::WaitValue { .. }
            | ActivityKind::HostFunction
    )
}

impl Timeline {
    fn slice(&mut self, track: Track, name: &str, (begin, end): (Nanos, Nanos), args: Value) {
        self.push(track, name, 'X', begin, object(args), Map::new());
        if let Some(event) = self.events.last_mut() {
            event.dur = Some((end - begin).max(0) as f64 / 1e3);
        }
    }

    fn instant(&mut self, track: Track, name: &str, at: Nanos, args: Value) {
        let scope = object(json!({ "s": "t" }));
        self.push(track, name, 'i', at, object(args), scope);
    }

    fn push(
        &mut self,
        track: Track,
        name: &str,
        ph: char,
        at: Nanos,
        args: Map<String, Value>,
        more: Map<String, Value>,
    ) {
        self.events.push(Event {
            name: name.to_owned(),
            ph,
            // Nanoseconds until the origin is known.
            ts: at as f64,
            dur: None,
            pid: track.group,
            tid: track.number,
            args,
            more,
        });
    }

    fn name(&mut self, context: &Context, track: Track, name: String) {
        let Context {
            process, command, ..
        } = context;
        let group = format!("{command} ({process})");
        self.groups.entry(*process).or_insert(group);
        self.tracks.entry(track).or_insert(name);
    }

    /// Draws the activities of a queue, on its own track and on those of the engines.
    fn queue(&mut self, queue: &QueueRecord, devices: &BTreeMap<&str, Device>) -> Vec<Placed> {
        let context = &queue.context;
        let Some(device) = devices.get(context.pci.as_str()).copied() else {
            return Vec::new();
        };
        let track = queue_track(queue);
        let node = context.node.display();
        let name = format!("queue {} of {node}, priority {}", queue.id, queue.priority);
        self.name(context, track, name);
        self.summary.queues += 1;
        let mut placed: Vec<Placed> = Vec::new();
        for activity in &queue.activities {
            self.summary.activities += 1;
            let (name, mut args) = describe(activity);
            let submitted = nanos(activity.submitted);
            let Some(ended) = activity.ended else {
                self.summary.unfinished += 1;
                self.instant(
                    track,
                    &format!("{name}, not finished"),
                    submitted,
                    args.into(),
                );
                continue;
            };
            let end = nanos(ended) + device.offset;
            // The queue came to it when it was submitted, or later when what was before was done.
            let before = placed.last().map_or(Nanos::MIN, |placed| placed.end);
            let reached = submitted.max(before).min(end);
            let begun = activity.begun.filter(|_| !is_wait(&activity.kind));
            let begin = begun.map_or(reached, |begun| nanos(begun) + device.offset);
            let begin = begin.clamp(before.min(end), end);
            let micros = |nanos: Nanos| json!(nanos as f64 / 1e3);
            args.insert("waited_us".to_owned(), micros((begin - reached).max(0)));
            args.insert("submitted_before_us".to_owned(), micros(begin - submitted));
            if let (Some(bytes), true) = (args.get("bytes").and_then(Value::as_f64), end > begin) {
                let rate = bytes / (end - begin) as f64;
                args.insert("gigabytes_per_second".to_owned(), json!(rate));
            }
            if let (Some(engine), false) = (activity.engine, is_wait(&activity.kind)) {
                args.insert("engine".to_owned(), json!(engine));
                let mut on_engine = args.clone();
                on_engine.insert("process".to_owned(), json!(context.process));
                on_engine.insert("queue".to_owned(), json!(queue.id));
                let on = self.engine(queue, device.group, engine);
                self.slice(on, &name, (begin, end), on_engine.into());
            }
            self.slice(track, &name, (begin, end), args.into());
            placed.push(Placed {
                begin,
                end,
                position: activity.position,
            });
        }
        placed
    }

    /// The track of an engine.
    fn engine(&mut self, queue: &QueueRecord, group: u32, engine: u32) -> Track {
        let number = engine.into();
        let track = Track { group, number };
        let name = match engine.checked_sub(queue.copy_engines) {
            None => format!("copy engine {engine}"),
            Some(slot) => format!("compute slot {slot}"),
        };
        self.device_group(&queue.context, group);
        self.tracks.entry(track).or_insert(name);
        track
    }

    fn device_group(&mut self, context: &Context, group: u32) {
        let (node, pci) = (context.node.display(), &context.pci);
        let name = format!("{node} ({pci})");
        self.groups.entry(group).or_insert(name);
    }

    /// Draws an arrow to each wait from what it waited for.
    fn flows(&mut self, queue: &QueueRecord, placed: &BTreeMap<(&str, u64, u64), Vec<Placed>>) {
        let pci = queue.context.pci.as_str();
        let key = |context, queue| (pci, context, queue);
        let Some(own) = placed.get(&key(queue.context.id, queue.id)) else {
            return;
        };
        for activity in &queue.activities {
            let ActivityKind::WaitQueue {
                context,
                queue: other,
                position,
                ..
            } = activity.kind
            else {
                continue;
            };
            let at = |placed: &&Placed| placed.position == activity.position;
            let Some(wait) = own.iter().find(at) else {
                continue;
            };
            let others = placed.get(&key(context, other));
            let cause = others.and_then(|all| all.iter().rfind(|p| p.position <= position));
            let Some(cause) = cause else { continue };
            self.flows += 1;
            self.summary.flows += 1;
            let from = Track {
                group: queue.context.process,
                number: queue_number(context, other, false),
            };
            let id = json!({ "id": self.flows, "cat": "wait" });
            let into = json!({ "id": self.flows, "cat": "wait", "bp": "e" });
            // Each end lies inside of its slice.
            let begin = (cause.end - 1).max(cause.begin);
            let end = wait.end.max(begin);
            self.push(from, "wait", 's', begin, Map::new(), object(id));
            self.push(
                queue_track(queue),
                "wait",
                'f',
                end,
                Map::new(),
                object(into),
            );
        }
    }

    /// Draws what the driver did for the programs.
    fn kernel(
        &mut self,
        contents: &Contents,
        kernel: &KernelEvents,
        devices: &BTreeMap<&str, Device>,
    ) {
        let contexts = contents.contexts.iter();
        let contexts = contexts.chain(contents.queues.iter().map(|queue| &queue.context));
        let contexts: BTreeMap<_, _> = contexts
            .map(|context| ((context.pci.as_str(), context.id), context))
            .collect();
        let mut moved = BTreeMap::<&str, [u64; 2]>::new();
        for event in &kernel.events {
            let key = event.text("device").zip(event.number("context"));
            let Some(context) = key.and_then(|key| contexts.get(&key)) else {
                continue;
            };
            let pci = context.pci.as_str();
            let Some(device) = devices.get(pci) else {
                continue;
            };
            let at = nanos(event.time);
            let taken = event.number("ns").map_or(0, Nanos::from);
            let bytes = event.number("bytes").unwrap_or(0);
            match event.name.as_str() {
                "fault_served" | "fault_failed" | "fault" => {
                    self.summary.faults += usize::from(event.name != "fault");
                    self.fault(context, event, (at - taken, at));
                }
                // The end of the service tells how long it took.
                "fault_begin" => {}
                "migrate" => {
                    self.summary.migrations += 1;
                    let moved = moved.entry(pci).or_default();
                    let home = event.text("to") == Some("host");
                    moved[usize::from(home)] += bytes;
                    self.device_group(context, device.group);
                    self.migration(event, device.group, *moved);
                }
                name => {
                    let track = Track {
                        group: context.process,
                        number: event.thread.into(),
                    };
                    self.name(context, track, format!("thread {}", event.thread));
                    let args = json!({
                        "bytes": bytes,
                        "addr": event.address("addr"),
                        "device_addr": event.address("device_addr"),
                        "runs": event.number("runs"),
                    });
                    self.slice(track, name, (at - taken, at), args);
                }
            }
        }
    }

    fn fault(&mut self, context: &Context, event: &KernelEvent, (begin, end): (Nanos, Nanos)) {
        let queue = event.number("handle").unwrap_or(0);
        let track = Track {
            group: context.process,
            number: queue_number(context.id, queue, true),
        };
        self.name(context, track, format!("faults of queue {queue}"));
        let args = json!({
            "address": event.text("device_addr"),
            "access": event.text("access"),
            "pages": event.number("pages"),
            "retries": event.number("retries"),
            "reason": event.text("reason"),
        });
        let name = match event.name.as_str() {
            "fault" => return self.instant(track, "the queue stops", end, args),
            "fault_failed" => "fault, not served",
            _ => "fault",
        };
        self.slice(track, name, (begin, end), args);
    }

    fn migration(&mut self, event: &KernelEvent, group: u32, moved: [u64; 2]) {
        let track = Track {
            group,
            number: MIGRATIONS,
        };
        let to = event.text("to").unwrap_or("?");
        let bytes = event.number("bytes").unwrap_or(0);
        let name = format!("{} to {to}", size::format(bytes));
        let args = json!({
            "bytes": bytes,
            "addr": event.text("addr"),
            "cause": event.text("cause"),
            "rule": event.text("rule"),
        });
        let at = nanos(event.time);
        self.tracks.entry(track).or_insert("migrations".to_owned());
        self.instant(track, &name, at, args);
        let [there, home] = moved;
        let sums = object(json!({ "to device": there, "to host": home }));
        self.push(track, "migrated bytes", 'C', at, sums, Map::new());
    }

    /// Moves the origin to the first event, orders the events, and names groups and tracks.
    fn finish(&mut self) {
        let first = self.events.iter().map(|event| event.ts);
        let first = first.fold(f64::INFINITY, f64::min);
        for event in &mut self.events {
            event.ts = (event.ts - first) / 1e3;
        }
        // A slice comes before those that it holds.
        self.events.sort_by(|a, b| {
            let lengths = b.dur.unwrap_or(0.0).total_cmp(&a.dur.unwrap_or(0.0));
            a.ts.total_cmp(&b.ts).then(lengths)
        });
        let named = |name: &str, kind: &str, track: Track| Event {
            name: kind.to_owned(),
            ph: 'M',
            ts: 0.0,
            dur: None,
            pid: track.group,
            tid: track.number,
            args: object(json!({ "name": name })),
            more: Map::new(),
        };
        let groups = self.groups.iter().map(|(&group, name)| {
            let track = Track { group, number: 0 };
            named(name, "process_name", track)
        });
        let tracks = self.tracks.iter();
        let tracks = tracks.map(|(&track, name)| named(name, "thread_name", track));
        let names: Vec<_> = groups.chain(tracks).collect();
        self.events.splice(0..0, names);
    }
}
