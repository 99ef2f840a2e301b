// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's tracepoints, from an instance of tracefs of our own.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Uid;

/// Where tracefs is mounted.
const TRACEFS: &str = "/sys/kernel/tracing";
/// Room for events, in KiB for each processor.
const BUFFER: &str = "8192";

/// Says what to do if tracefs cannot be used.
pub(super) fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "`mount -t tracefs nodev /sys/kernel/tracing` makes it appear, as root of the host"
        }
        io::ErrorKind::PermissionDenied if !Uid::effective().is_root() => "run this as root",
        _ => "in a container or under lockdown, run this as root of the host",
    }
}

/// An instance that gathers the driver's events. Removed when dropped.
#[derive(Debug)]
pub(super) struct Instance(PathBuf);

/// An event of the driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Event {
    /// The name of the tracepoint, without `pinmap_`.
    pub(super) name: String,
    /// The thread.
    pub(super) thread: u32,
    /// When it was, by `CLOCK_MONOTONIC`, to a microsecond.
    pub(super) time: Duration,
    fields: HashMap<String, String>,
}

/// Events, and how many were overwritten before they were read.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) events: Vec<Event>,
    pub(super) lost: u64,
}

impl Instance {
    /// Begins to gather, as root.
    pub(super) fn start() -> io::Result<Self> {
        Self::start_in(Path::new(TRACEFS))
    }

    fn start_in(tracefs: &Path) -> io::Result<Self> {
        let name = format!("pinmap-{}", std::process::id());
        let instance = Self(tracefs.join("instances").join(name));
        fs::create_dir(&instance.0)?;
        for (file, value) in [
            ("trace_clock", "mono"),
            ("buffer_size_kb", BUFFER),
            ("events/pinmap/enable", "1"),
        ] {
            fs::write(instance.0.join(file), value)?;
        }
        Ok(instance)
    }

    /// Ends gathering, and returns what there is.
    pub(super) fn end(self) -> io::Result<Events> {
        fs::write(self.0.join("tracing_on"), "0")?;
        let text = fs::read(self.0.join("trace"))?;
        let mut events = Events {
            events: String::from_utf8_lossy(&text)
                .lines()
                .filter_map(parse)
                .collect(),
            lost: 0,
        };
        for processor in fs::read_dir(self.0.join("per_cpu"))? {
            let stats = fs::read_to_string(processor?.path().join("stats"))?;
            let overrun = stats.lines().find_map(|line| line.strip_prefix("overrun:"));
            events.lost += overrun.map_or(0, |count| count.trim().parse().unwrap_or(0));
        }
        Ok(events)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It is removed together with its files. If that fails, root can do it.
        let _ = fs::remove_dir(&self.0);
    }
}

impl Event {
    /// A field, as the tracepoint prints it.
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }

    /// A field that is an address. `None` also for 0, which stands for none: memory of the driver's
    /// has no address of the program's, and memory that is not mapped none of the device's.
    pub(super) fn address(&self, field: &str) -> Option<&str> {
        self.text(field).filter(|&text| text != "0x0")
    }

    /// A field that is a decimal number.
    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.text(field)?.parse().ok()
    }
}

/// Parses a line such as
/// `  kworker/0:1-12  [000] .....  5.000042: pinmap_migrate: device=0000:00:10.0 bytes=4096`.
fn parse(line: &str) -> Option<Event> {
    if line.starts_with('#') {
        return None;
    }
    let (head, rest) = line.split_once(": pinmap_")?;
    let (name, fields) = rest.split_once(": ")?;
    let (seconds, fraction) = head.split_whitespace().next_back()?.split_once('.')?;
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    let thread = head.split(" [").next()?.rsplit_once('-')?.1.trim();
    let fields = fields.split_whitespace();
    Some(Event {
        name: name.to_owned(),
        thread: thread.parse().ok()?,
        time: Duration::from_secs(seconds.parse().ok()?) + Duration::from_nanos(nanos),
        fields: fields
            .filter_map(|field| field.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An event from a line of tracefs.
    pub(in crate::trace) fn event(line: &str) -> Event {
        parse(line).expect(line)
    }

    #[test]
    fn lines_of_tracefs_are_understood() {
        let line = "     kworker/u8:3-a-57      [001] d..1.    12.000345: pinmap_fault_served: \
                    device=0000:00:10.0 context=3 handle=2 device_addr=0x7f00 access=read ns=120";
        let event = event(line);
        assert_eq!((event.name.as_str(), event.thread), ("fault_served", 57));
        assert_eq!(event.time, Duration::from_nanos(12_000_345_000));
        assert_eq!(event.number("context"), Some(3));
        assert_eq!(event.text("access"), Some("read"));
        assert_eq!(event.number("access"), None);
        for line in [
            "# tracer: nop",
            "",
            "x-1 [000] ..... 1.0: sched_switch: a=b",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_remedy_is_one_that_helps() {
        let root = std::env::temp_dir().join(format!("pinmap-no-tracefs-{}", std::process::id()));
        let error = Instance::start_in(&root).expect_err("there is none");
        assert!(remedy(&error).contains("mount -t tracefs"), "{error}");
        let denied = remedy(&io::ErrorKind::PermissionDenied.into());
        assert_eq!(denied == "run this as root", !Uid::effective().is_root());
    }

    #[test]
    fn an_instance_is_set_up_and_removed() {
        let root = std::env::temp_dir().join(format!("pinmap-tracefs-{}", std::process::id()));
        let instances = root.join("instances");
        fs::create_dir_all(&instances).expect("made");
        // There is no directory events/pinmap in an ordinary directory.
        assert!(Instance::start_in(&root).is_err());
        let made = instances.join(format!("pinmap-{}", std::process::id()));
        assert_eq!(
            fs::read(made.join("trace_clock")).expect("written"),
            b"mono"
        );
        fs::remove_dir_all(&root).expect("removed");
    }
}
