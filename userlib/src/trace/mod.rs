// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces: what streams and queues did, by the device's clock. See
//! [`inspect::trace`](crate::inspect::trace).

mod layout;
pub(crate) mod recorder;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memmap2::MmapOptions;
use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};

use crate::queue::format::Direction;
use crate::sys::map::Map;

use layout::{activity, chunk, code, header, text};

/// The environment variable that names the file of traces, for the programs that are traced.
pub const PATH_VARIABLE: &str = "PINMAP_TRACE";

/// Seals of a file of traces: a program that shrank it would end all others that have
/// it mapped.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK;

/// A file of traces, in memory. Dropped, it is gone, and programs record nothing more.
#[derive(Debug)]
pub struct Trace {
    file: File,
    /// The length of the file, which no program can change.
    len: u64,
    map: Map,
}

/// The contents of a [file of traces](Trace) so far.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Contents {
    /// The contexts that were opened, in no particular order.
    pub contexts: Vec<Context>,
    /// The queues, also those of streams, in no particular order.
    pub queues: Vec<QueueRecord>,
    /// How many activities were not recorded, because the file was full or a program could not
    /// register memory for them.
    pub lost: u64,
}

/// A context: a device that a program has opened.
///
/// ```no_run
/// # fn f(trace: &pinmap::inspect::trace::Trace) -> pinmap::Result<()> {
/// for context in trace.read().contexts {
///     println!("{} ({}) has opened {}", context.command, context.process, context.node.display());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// The process.
    pub process: u32,
    /// The name of the process, of which the kernel keeps 15 bytes.
    pub command: String,
    /// The id of the context. The driver's tracepoints call the context by it.
    pub id: u64,
    /// The node by which the device was opened.
    pub node: PathBuf,
    /// The PCI function, as text.
    pub pci: String,
}

/// A queue, with what it did.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct QueueRecord {
    /// The context.
    pub context: Context,
    /// The id of the queue, unique in the context.
    pub id: u64,
    /// The priority.
    pub priority: u32,
    /// The device's clock beside the CPU's.
    pub clock: Clock,
    /// How many copy engines the device has. They come first among the engines.
    pub copy_engines: u32,
    /// How many kernels it runs at once. The slots of the compute engine come after the others.
    pub compute_slots: u32,
    /// Activities that were submitted, in this order.
    pub activities: Vec<Activity>,
}

/// A reading of a device's clock, between two of the CPU's (`CLOCK_MONOTONIC`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    /// The CPU's clock just before.
    pub before: Duration,
    /// The device's clock, which started when the device did.
    pub device: Duration,
    /// The CPU's clock just after.
    pub after: Duration,
}

/// A piece of work of a queue: a packet. Times are the device's, unless stated otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// The kind of the activity.
    pub kind: ActivityKind,
    /// When it was submitted, by the CPU's clock (`CLOCK_MONOTONIC`).
    pub submitted: Duration,
    /// How many packets of the queue were executed when it was done.
    pub position: u64,
    /// When an engine began with it for the last time, that is, after its faults. `None` if the
    /// device does not tell.
    pub begun: Option<Duration>,
    /// When it was done. `None` if it never was.
    pub ended: Option<Duration>,
    /// The engine, if the device tells.
    pub engine: Option<u32>,
}

/// The kind of an [activity](Activity).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActivityKind {
    /// A copy, or a part of one that took several packets.
    Copy {
        /// Between which memories.
        direction: Direction,
        /// The length.
        bytes: u64,
    },
    /// A fill, or a part of one.
    Fill {
        /// The length.
        bytes: u64,
    },
    /// A kernel, by the name that it has in errors.
    Kernel(String),
    /// A wait for another queue of the device, by an event or a fence.
    WaitQueue {
        /// The context of that queue.
        context: u64,
        /// The id.
        queue: u64,
        /// The [position](Activity::position) that it must reach.
        position: u64,
    },
    /// A wait for a number in memory.
    WaitValue {
        /// The least number that ends the wait.
        value: u64,
    },
    /// A store of a number to memory.
    WriteValue {
        /// The number.
        value: u64,
    },
    /// A host function, for which the queue waits.
    HostFunction,
    /// A packet that the program made itself.
    #[default]
    RawPacket,
}

impl Trace {
    /// Makes a file of traces of at most `bytes`, which take memory only as they are used. Each
    /// queue takes 64 KiB, with room for 480 activities, and each further 480 activities as much.
    ///
    /// # Errors
    ///
    /// Errors of `memfd_create()` and `mmap()`.
    pub fn create(bytes: u64) -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create("pinmap-trace", flags)?);
        let bytes = bytes.max(chunk::LEN as u64 + header::LEN as u64);
        file.set_len(bytes)?;
        let seals = SEALS | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let map = Map::new(MmapOptions::new().len(header::LEN).map_raw(&file)?);
        let words = map.words();
        words[header::SIZE].store(bytes, Ordering::Relaxed);
        words[header::USED].store(header::LEN as u64, Ordering::Relaxed);
        words[header::MAGIC].store(header::MAGIC_VALUE, Ordering::Release);
        Ok(Self {
            file,
            len: bytes,
            map,
        })
    }

    /// The path that programs of this user find the file by, as long as this value exists.
    pub fn path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Reads what has been recorded. Programs may go on meanwhile.
    pub fn read(&self) -> Contents {
        let words = self.map.words();
        let load = |word: usize| words[word].load(Ordering::Acquire);
        let end = load(header::USED).min(self.len);
        let mut contents = Contents {
            lost: load(header::LOST),
            ..Contents::default()
        };
        let mut at = header::LEN as u64;
        while at < end {
            let Some(map) = self.chunk(at) else { break };
            let words = map.words();
            let load = |word: usize| words[word].load(Ordering::Acquire);
            // A program may have been killed before it filled this in.
            match load(chunk::KIND) {
                chunk::CONTEXT => contents.contexts.push(context(words)),
                chunk::QUEUE => contents.add(words),
                _ => {}
            }
            at += chunk::LEN as u64;
        }
        contents
    }

    fn chunk(&self, at: u64) -> Option<Map> {
        map_chunk(&self.file, self.len, at)
    }
}

/// Maps the chunk at `at`, a number that every traced program can change, of a file that has `len`
/// bytes and keeps them. `None`: there is no chunk, or no memory to map it.
fn map_chunk(file: &File, len: u64, at: u64) -> Option<Map> {
    let chunks = at.checked_sub(header::LEN as u64)?;
    if chunks % chunk::LEN as u64 != 0 || at.checked_add(chunk::LEN as u64)? > len {
        return None;
    }
    let mut options = MmapOptions::new();
    let map = options.offset(at).len(chunk::LEN).map_raw(file);
    map.ok().map(Map::new)
}

impl Contents {
    /// Adds a chunk of a queue: the first one, or a further one.
    fn add(&mut self, words: &[AtomicU64]) {
        let load = |word: usize| words[word].load(Ordering::Relaxed);
        let (context, id) = (context(words), load(chunk::QUEUE_ID));
        let known = self
            .queues
            .iter_mut()
            .find(|queue| (&queue.context, queue.id) == (&context, id));
        let queue = match known {
            Some(queue) => queue,
            None => {
                let nanos = |word| Duration::from_nanos(load(word));
                let number = |word| u32::try_from(load(word)).unwrap_or(u32::MAX);
                self.queues.push(QueueRecord {
                    context,
                    id,
                    priority: number(chunk::PRIORITY),
                    clock: Clock {
                        before: nanos(chunk::BEFORE),
                        device: nanos(chunk::DEVICE_TIME),
                        after: nanos(chunk::AFTER),
                    },
                    copy_engines: number(chunk::COPY_ENGINES),
                    compute_slots: number(chunk::COMPUTE_SLOTS),
                    activities: Vec::new(),
                });
                match self.queues.last_mut() {
                    Some(queue) => queue,
                    None => return,
                }
            }
        };
        let records = words[chunk::HEADER..].chunks_exact(activity::WORDS);
        queue.activities.extend(records.map_while(read_activity));
    }
}

fn context(words: &[AtomicU64]) -> Context {
    let load = |word: usize| words[word].load(Ordering::Relaxed);
    Context {
        process: u32::try_from(load(chunk::PROCESS)).unwrap_or(0),
        command: text::load(&words[chunk::COMMAND]),
        id: load(chunk::CONTEXT_ID),
        node: text::load(&words[chunk::NODE]).into(),
        pci: text::load(&words[chunk::PCI]),
    }
}

/// Reads a record. `None`: there is none yet.
fn read_activity(words: &[AtomicU64]) -> Option<Activity> {
    let code = words[activity::CODE].load(Ordering::Acquire);
    let load = |word: usize| words[word].load(Ordering::Relaxed);
    let (first, second) = (load(activity::FIRST), load(activity::SECOND));
    let copy = |direction| ActivityKind::Copy {
        direction,
        bytes: first,
    };
    let kind = match code & code::KINDS {
        code::TO_DEVICE => copy(Direction::ToDevice),
        code::TO_HOST => copy(Direction::ToHost),
        code::INSIDE => copy(Direction::Inside),
        code::FILL => ActivityKind::Fill { bytes: first },
        code::KERNEL => ActivityKind::Kernel(text::load(&words[activity::NAME])),
        code::WAIT_QUEUE => ActivityKind::WaitQueue {
            context: load(activity::THIRD),
            queue: first,
            position: second,
        },
        code::WAIT_VALUE => ActivityKind::WaitValue { value: first },
        code::WRITE_VALUE => ActivityKind::WriteValue { value: first },
        code::HOST_FUNCTION => ActivityKind::HostFunction,
        code::RAW_PACKET => ActivityKind::RawPacket,
        _ => return None,
    };
    // The device stores little-endian.
    let device = |word| u64::from_le(load(word));
    let some = |nanos: u64| (nanos != 0).then(|| Duration::from_nanos(nanos));
    let time = some(device(activity::TIME));
    let is_stamp = code & code::STAMP != 0;
    let begun = some(device(activity::BEGUN)).filter(|_| is_stamp);
    let engine = u32::try_from(device(activity::ENGINE)).ok();
    Some(Activity {
        kind,
        submitted: Duration::from_nanos(load(activity::SUBMITTED)),
        position: load(activity::POSITION),
        begun,
        ended: match begun {
            Some(_) => some(device(activity::ENDED)),
            None => time,
        },
        engine: engine.filter(|_| begun.is_some()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a chunk in, as a program does.
    fn take(trace: &Trace, kind: u64) -> Map {
        let used = &trace.map.words()[header::USED];
        let at = used.fetch_add(chunk::LEN as u64, Ordering::Relaxed);
        let map = trace.chunk(at).expect("mapped");
        let words = map.words();
        words[chunk::PROCESS].store(77, Ordering::Relaxed);
        words[chunk::CONTEXT_ID].store(3, Ordering::Relaxed);
        text::store(&words[chunk::COMMAND], "a long name of a program");
        text::store(&words[chunk::PCI], "0000:00:10.0");
        words[chunk::KIND].store(kind, Ordering::Release);
        map
    }

    /// A program can store anything to the file. None of it makes others access what is not there.
    #[test]
    fn wrong_numbers_in_the_file_are_not_believed() {
        let trace = Trace::create(1 << 20).expect("made");
        let words = trace.map.words();
        take(&trace, chunk::CONTEXT);
        words[header::SIZE].store(1 << 40, Ordering::Relaxed);
        for used in [1 << 40, u64::MAX, 1 << 20] {
            words[header::USED].store(used, Ordering::Relaxed);
            assert_eq!(trace.read().contexts.len(), 1);
        }
        for at in [0, 4095, 4099, 8192, (1 << 20) - 4096, 1 << 40, u64::MAX] {
            assert!(trace.chunk(at).is_none(), "{at}");
        }
        trace.file.set_len(4096).expect_err("it is sealed");
    }

    #[test]
    fn what_programs_store_is_read() {
        let trace = Trace::create(1 << 20).expect("made");
        assert_eq!(trace.read(), Contents::default());
        take(&trace, chunk::CONTEXT);
        // This one was killed too early.
        take(&trace, 0);
        for number in 0..2 {
            let map = take(&trace, chunk::QUEUE);
            let words = &map.words()[chunk::HEADER..];
            for (word, value) in [
                (activity::TIME, 40),
                (activity::BEGUN, 20),
                (activity::ENDED, 30),
                (activity::ENGINE, 1),
                (activity::SUBMITTED, 10),
                (activity::POSITION, 1 + number),
                (activity::FIRST, 4096),
                (activity::CODE, code::TO_HOST | code::STAMP),
            ] {
                words[word].store(value, Ordering::Relaxed);
            }
            let next = &words[activity::WORDS..];
            text::store(&next[activity::NAME], "sum");
            next[activity::TIME].store(50, Ordering::Relaxed);
            next[activity::CODE].store(code::KERNEL, Ordering::Relaxed);
        }
        let contents = trace.read();
        assert_eq!(contents.contexts.len(), 1);
        let context = &contents.contexts[0];
        assert_eq!((context.process, context.id), (77, 3));
        assert_eq!(
            (&*context.command, &*context.pci),
            ("a long name of a", "0000:00:10.0")
        );
        assert_eq!(contents.queues.len(), 1, "two chunks of one queue");
        let nanos = Duration::from_nanos;
        let copy = Activity {
            kind: ActivityKind::Copy {
                direction: Direction::ToHost,
                bytes: 4096,
            },
            submitted: nanos(10),
            position: 2,
            begun: Some(nanos(20)),
            ended: Some(nanos(30)),
            engine: Some(1),
        };
        let kernel = Activity {
            kind: ActivityKind::Kernel("sum".to_owned()),
            ended: Some(nanos(50)),
            ..Activity::default()
        };
        assert_eq!(contents.queues[0].activities[2..], [copy, kernel]);
    }
}
