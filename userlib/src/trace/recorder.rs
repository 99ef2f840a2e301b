// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording: the side of the program that is traced.
//!
//! Whatever goes wrong here is counted as lost, and the program goes on as if it were not traced.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use memmap2::MmapOptions;
use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::libc::{getauxval, AT_SECURE};
use nix::time::{clock_gettime, ClockId};

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::memory::options::Access;
use crate::memory::raw::RawRegistration;
use crate::queue::fence::Fence;
use crate::queue::format::Direction;
use crate::sys::map::Map;

use super::layout::{activity, chunk, code, header, text};
use super::{map_chunk, PATH_VARIABLE, SEALS};

/// How often the clocks are read beside each other. The closest pair counts.
const READINGS: usize = 8;
/// Records in a chunk.
const RECORDS: usize = (chunk::LEN / 8 - chunk::HEADER) / activity::WORDS;

/// Work that is submitted, for the record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Traced {
    /// A copy, of which each packet but the last does `most` bytes.
    Copy {
        direction: Direction,
        bytes: u64,
        most: u64,
    },
    /// A fill, likewise.
    Fill {
        bytes: u64,
        most: u64,
    },
    /// A kernel, by its name in errors.
    Kernel(&'static str),
    /// A wait for a position of another queue.
    WaitQueue {
        context: u64,
        queue: u64,
        position: u64,
    },
    WaitValue(u64),
    WriteValue(u64),
    HostFunction,
    RawPacket,
    /// Something that is not recorded.
    Nothing,
}

impl Traced {
    /// A wait for this fence, on the device.
    pub(crate) fn wait_for(fence: &Fence) -> Self {
        match fence.handle().recorder() {
            Some(recorder) => Self::WaitQueue {
                context: recorder.context,
                queue: fence.queue(),
                position: fence.value(),
            },
            None => Self::Nothing,
        }
    }

    /// The code of the kind, and up to three numbers.
    fn encode(self, packet: u64) -> Option<(u64, [u64; 3])> {
        let part = |bytes: u64, most: u64| most.min(bytes.saturating_sub(packet * most));
        Some(match self {
            Self::Copy {
                direction,
                bytes,
                most,
            } => {
                let code = match direction {
                    Direction::ToDevice => code::TO_DEVICE,
                    Direction::ToHost => code::TO_HOST,
                    Direction::Inside => code::INSIDE,
                };
                (code, [part(bytes, most), 0, 0])
            }
            Self::Fill { bytes, most } => (code::FILL, [part(bytes, most), 0, 0]),
            Self::Kernel(_) => (code::KERNEL, [0; 3]),
            Self::WaitQueue {
                context,
                queue,
                position,
            } => (code::WAIT_QUEUE, [queue, position, context]),
            Self::WaitValue(value) => (code::WAIT_VALUE, [value, 0, 0]),
            Self::WriteValue(value) => (code::WRITE_VALUE, [value, 0, 0]),
            Self::HostFunction => (code::HOST_FUNCTION, [0; 3]),
            Self::RawPacket => (code::RAW_PACKET, [0; 3]),
            Self::Nothing => return None,
        })
    }
}

/// The file in which this process records.
struct TraceFile {
    file: File,
    /// The length of the file, which no program can reduce.
    len: u64,
    header: Map,
}

/// Records what a queue does. Dropped when the queue is destroyed, and the device does not write
/// any more.
pub(crate) struct Recorder {
    trace: &'static TraceFile,
    device: Device,
    /// The id of the context.
    context: u64,
    /// The first words of each chunk.
    about: Vec<AtomicU64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All chunks of the queue: the device may still write to each.
    chunks: Vec<Chunk>,
    /// Records that are left of the last one.
    left: usize,
    /// A chunk could not be made. Trying again each time would take long.
    failed: bool,
}

/// A chunk to which the device writes.
struct Chunk {
    device_addr: u64,
    /// Dropped before the memory.
    _registration: RawRegistration,
    map: Map,
}

/// The file in which this process records, if it is traced.
fn trace() -> Option<&'static TraceFile> {
    static TRACE: OnceLock<Option<TraceFile>> = OnceLock::new();
    TRACE.get_or_init(TraceFile::open).as_ref()
}

/// The CPU's clock.
fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).ok();
    time.map_or(0, |time| {
        (time.tv_sec() as u64) * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Records that a context was opened.
pub(crate) fn opened(device: &Device) {
    let Some(trace) = trace() else { return };
    let Some(map) = trace.chunk() else { return };
    describe(device, map.words());
    map.words()[chunk::KIND].store(chunk::CONTEXT, Ordering::Release);
}

/// Stores what is known of a context. Returns its id.
fn describe(device: &Device, words: &[AtomicU64]) -> u64 {
    let store = |word: usize, value| words[word].store(value, Ordering::Relaxed);
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd()));
    let about = about.unwrap_or_default();
    let value = |key: &str| {
        let rest = about.lines().find_map(|line| line.strip_prefix(key));
        rest.map_or("", |rest| rest.trim_start_matches(':').trim())
    };
    let id = value("pinmap-client-id").parse().unwrap_or(0);
    let command = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    store(chunk::PROCESS, std::process::id().into());
    store(chunk::CONTEXT_ID, id);
    text::store(&words[chunk::COMMAND], command.trim());
    text::store(&words[chunk::PCI], value("pinmap-pdev"));
    text::store(&words[chunk::NODE], &device.path().to_string_lossy());
    id
}

impl TraceFile {
    /// Opens the file that the environment names, except for a program that has more rights than
    /// its caller.
    fn open() -> Option<Self> {
        // SAFETY: The function has no requirements.
        if unsafe { getauxval(AT_SECURE) } != 0 {
            return None;
        }
        let path = std::env::var_os(PATH_VARIABLE)?;
        Self::of(File::options().read(true).write(true).open(path).ok()?)
    }

    /// Takes a file that is one of traces: nothing is written to another one.
    fn of(file: File) -> Option<Self> {
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).ok()?;
        if !SealFlag::from_bits_retain(seals).contains(SEALS) {
            return None;
        }
        let len = file.metadata().ok()?.len();
        if len < header::LEN as u64 {
            return None;
        }
        let header = Map::new(MmapOptions::new().len(header::LEN).map_raw(&file).ok()?);
        let load = |word: usize| header.words()[word].load(Ordering::Acquire);
        (load(header::MAGIC) == header::MAGIC_VALUE && load(header::SIZE) == len).then_some(Self {
            file,
            len,
            header,
        })
    }

    /// Takes a chunk, whose words are zero.
    fn chunk(&self) -> Option<Map> {
        let used = &self.header.words()[header::USED];
        let at = used.fetch_add(chunk::LEN as u64, Ordering::Relaxed);
        map_chunk(&self.file, self.len, at)
    }

    fn lose(&self, count: u64) {
        self.header.words()[header::LOST].fetch_add(count, Ordering::Relaxed);
    }
}

impl Recorder {
    /// Begins to record what a new queue does, if this process is traced.
    pub(crate) fn of(gpu: &Accelerator, queue: u64, priority: u32) -> Option<Self> {
        let trace = trace()?;
        let device = gpu.device().clone();
        let about: Vec<_> = (0..chunk::HEADER).map(|_| AtomicU64::new(0)).collect();
        let context = describe(&device, &about);
        let store = |word: usize, value| about[word].store(value, Ordering::Relaxed);
        store(chunk::QUEUE_ID, queue);
        store(chunk::PRIORITY, priority.into());
        let mut closest = u64::MAX;
        for _ in 0..READINGS {
            let before = now();
            let Ok(info) = gpu.info() else { continue };
            let after = now();
            if after - before < closest {
                closest = after - before;
                store(chunk::BEFORE, before);
                store(chunk::DEVICE_TIME, info.time);
                store(chunk::AFTER, after);
                store(chunk::COPY_ENGINES, info.copy_engines.into());
                store(chunk::COMPUTE_SLOTS, info.compute_slots.into());
            }
        }
        Some(Self {
            trace,
            device,
            context,
            about,
            state: Mutex::default(),
        })
    }
    /// Counts activities that cannot be recorded.
    pub(crate) fn lose(&self, count: u64) {
        self.trace.lose(count);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records one packet of a piece of work, the `packet`th, behind which the queue will have
    /// executed `position`. Returns the device address at which to have it stamped. `None`: this is
    /// not recorded.
    pub(crate) fn record(
        &self,
        what: Traced,
        packet: u64,
        position: u64,
        stamps: bool,
    ) -> Option<u64> {
        let (code, numbers) = what.encode(packet)?;
        let mut state = self.lock();
        if state.left == 0 && !state.failed {
            match self.chunk() {
                Some(chunk) => {
                    state.chunks.push(chunk);
                    state.left = RECORDS;
                }
                None => state.failed = true,
            }
        }
        let State { chunks, left, .. } = &mut *state;
        let (Some(chunk), true) = (chunks.last(), *left > 0) else {
            self.trace.lose(1);
            return None;
        };
        let first = chunk::HEADER + (RECORDS - *left) * activity::WORDS;
        *left -= 1;
        let words = &chunk.map.words()[first..][..activity::WORDS];
        let store = |word: usize, value| words[word].store(value, Ordering::Relaxed);
        store(activity::SUBMITTED, now());
        store(activity::POSITION, position);
        store(activity::FIRST, numbers[0]);
        store(activity::SECOND, numbers[1]);
        store(activity::THIRD, numbers[2]);
        if let Traced::Kernel(name) = what {
            let name = name.strip_prefix("the kernel ").unwrap_or(name);
            text::store(&words[activity::NAME], name);
        }
        let stamp = if stamps { code::STAMP } else { 0 };
        words[activity::CODE].store(code | stamp, Ordering::Release);
        Some(chunk.device_addr + 8 * first as u64)
    }

    /// Makes a chunk that the device can write to.
    fn chunk(&self) -> Option<Chunk> {
        let map = self.trace.chunk()?;
        // SAFETY: The mapping is this recorder's, and outlives the registration. Its words are
        // accessed as atomics only, here and in the process that reads the file.
        let registration = unsafe {
            let options = Access::ReadWrite.into();
            RawRegistration::new(&self.device, map.addr(), map.len(), options)
        };
        let registration = registration.ok()?;
        let device_addr = registration.device_addr().ok()?;
        for (word, from) in map.words().iter().zip(&self.about) {
            word.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        map.words()[chunk::KIND].store(chunk::QUEUE, Ordering::Release);
        Some(Chunk {
            device_addr,
            _registration: registration,
            map,
        })
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;
    use nix::sys::memfd::{memfd_create, MFdFlags};

    /// The file of a trace, as a traced program opens it.
    fn open(trace: &Trace) -> File {
        let mut options = File::options();
        let file = options.read(true).write(true).open(trace.path());
        file.expect("opened")
    }

    #[test]
    fn chunks_are_taken_where_there_are_some() {
        let trace = Trace::create(1 << 20).expect("made");
        let file = TraceFile::of(open(&trace)).expect("a trace");
        assert!(file.chunk().is_some());
        let words = file.header.words();
        words[header::SIZE].store(1 << 40, Ordering::Relaxed);
        // Another program has stored these there.
        for used in [0, 4099, 1 << 20, 1 << 40, u64::MAX] {
            words[header::USED].store(used, Ordering::Relaxed);
            assert!(file.chunk().is_none(), "{used}");
        }
    }

    /// A file that somebody can shrink would end the program.
    #[test]
    fn other_files_are_not_used() {
        let trace = Trace::create(1 << 20).expect("made");
        let sealed = open(&trace);
        let other = File::from(memfd_create("other", MFdFlags::MFD_CLOEXEC).expect("made"));
        std::io::copy(&mut &sealed, &mut &other).expect("copied");
        assert!(TraceFile::of(other).is_none());
        let null = File::options().read(true).write(true).open("/dev/null");
        assert!(TraceFile::of(null.expect("opened")).is_none());
        assert!(TraceFile::of(sealed).is_some());
    }
}
