// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells whether something is wrong after a program: a complaint in the kernel's log, or something
//! that the program had and that is not back.

use crate::sys;
use crate::uapi as u;
use std::fs;
use std::io::{self, Read};
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

/// Words of the kernel when something is wrong with it, as a list of C.
const COMPLAINTS: &str = include_str!("../../../runner/complaints.h");

fn complaints() -> impl Iterator<Item = &'static str> {
    COMPLAINTS
        .lines()
        .filter_map(|line| line.strip_prefix('"')?.strip_suffix("\","))
}

/// How long all that a program had may take to be back.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many more tables the IOMMU may have than at first: empty ones stay as long as their domain,
/// and each device has a domain of its own.
const TABLES: i64 = 256;

/// An open device.
struct Watch {
    device: OwnedFd,
    /// The attribute that counts the queues, of a paged device.
    queues: Option<fs::File>,
}

/// The oracle.
pub(crate) struct Oracle {
    log: fs::File,
    watches: Vec<Watch>,
    totals: Vec<[u64; 17]>,
    memory: [i64; 2],
    programs: u32,
}

impl std::fmt::Debug for Oracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Oracle")
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}

impl Oracle {
    /// Remembers what is in use now, when there is no program.
    pub(crate) fn new(nodes: &[Option<String>]) -> io::Result<Self> {
        let log = sys::keep(sys::open("/dev/kmsg", libc::O_RDONLY | libc::O_NONBLOCK)?)?;
        let mut oracle = Self {
            log: log.into(),
            watches: Vec::new(),
            totals: Vec::new(),
            memory: [0; 2],
            programs: 0,
        };
        // What the kernel says once only, it says again.
        let _ = fs::write("/sys/kernel/debug/clear_warn_once", "1");
        oracle.read_log();
        oracle.watch(nodes)?;
        oracle.totals = oracle.watches.iter().map(totals).collect();
        oracle.memory = memory();
        Ok(oracle)
    }

    /// Opens the devices, whose totals are asked for. Wanted again when they were bound again or
    /// reset, which takes a while.
    pub(crate) fn watch(&mut self, nodes: &[Option<String>]) -> io::Result<()> {
        self.watches.clear();
        let begun = Instant::now();
        for node in nodes {
            let node = node.as_ref().ok_or(io::ErrorKind::NotFound)?;
            // A context tells the charges of who opened it.
            let open = || sys::as_user(crate::player::USER, || sys::open(node, libc::O_RDWR));
            let watch = loop {
                match open() {
                    Err(_) if begun.elapsed() < PATIENCE => {
                        thread::sleep(Duration::from_millis(5));
                    }
                    result => break result?,
                }
            };
            let name = node.trim_start_matches("/dev/");
            let queues = sys::open(format!("/sys/class/misc/{name}/queues"), libc::O_RDONLY);
            self.watches.push(Watch {
                device: sys::keep(watch)?,
                queues: queues.and_then(sys::keep).ok().map(fs::File::from),
            });
        }
        Ok(())
    }

    /// Whether the driver has given up a device.
    pub(crate) fn is_one_gone(&self) -> bool {
        let gone = u64::from(u::PINMAP_INFO_GONE);
        self.watches
            .iter()
            .any(|watch| totals(watch)[14] & gone != 0)
    }

    /// Closes the devices.
    pub(crate) fn leave(&mut self) {
        self.watches.clear();
    }

    /// Tells what is wrong, if anything is. Each call looks at the log and at what the driver
    /// counts; each sixteenth one, or with `all`, also at what the kernel counts, which takes
    /// longer.
    pub(crate) fn judge(&mut self, all: bool) -> Option<String> {
        let begun = Instant::now();
        self.programs += 1;
        loop {
            if let Some(line) = self.read_log() {
                return Some(format!("the kernel says: {line}"));
            }
            let wrong = self.not_back(all);
            if wrong.is_none() || begun.elapsed() > PATIENCE {
                return wrong;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn not_back(&mut self, all: bool) -> Option<String> {
        for (number, watch) in self.watches.iter().enumerate() {
            let (now, before) = (totals(watch), self.totals[number]);
            if now != before {
                return Some(format!(
                    "of device {number} in use: {now:?}, and before: {before:?}"
                ));
            }
        }
        if all || self.programs % 16 == 0 {
            let now = memory();
            // Others may have had a pin for a moment when the numbers were first asked for.
            self.memory[0] = self.memory[0].min(now[0]);
            let more = now[1] - self.memory[1];
            if now[0] != self.memory[0] || more > TABLES {
                return Some(format!(
                    "pins, pages of the IOMMU's tables: {now:?}, and before: {:?}",
                    self.memory
                ));
            }
        }
        None
    }

    /// Reads what the kernel has said; returns the first complaint.
    fn read_log(&mut self) -> Option<String> {
        let mut line = [0; 2048];
        let mut found = None;
        loop {
            match self.log.read(&mut line) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&line[..length]);
                    let text = text.split_once(';').map_or(&*text, |(_, text)| text);
                    if found.is_none() && complaints().any(|word| text.contains(word)) {
                        found = Some(text.lines().next().unwrap_or_default().to_owned());
                    }
                }
                // Lines were overwritten before they were read: go on with the next.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return found,
            }
        }
    }
}

/// Asks what is in use of a device: contexts, numbers and bytes of each kind of buffer, what is
/// charged to the programs' user, whether the device has an owner or is gone, free VRAM and queues.
fn totals(watch: &Watch) -> [u64; 17] {
    let mut t = u::pinmap_get_totals {
        size: size_of::<u::pinmap_get_totals>() as u32,
        ..Default::default()
    };
    let mut info = u::pinmap_info {
        size: size_of::<u::pinmap_info>() as u32,
        ..Default::default()
    };
    let fd = watch.device.as_raw_fd();
    if sys::ioctl(fd, u::request(u::PINMAP_CMD_GET_TOTALS), &mut t) != 0
        || sys::ioctl(fd, u::request(u::PINMAP_CMD_GET_INFO), &mut info) != 0
    {
        return [u64::MAX; 17];
    }
    let kinds = [
        t.out_pinned,
        t.out_allocated,
        t.out_vram,
        t.out_shared,
        t.out_mapped,
        t.out_managed,
    ];
    let mut all = [0; 17];
    all[0] = t.out_contexts.into();
    for (index, kind) in kinds.iter().enumerate() {
        all[1 + 2 * index] = kind.number;
        all[2 + 2 * index] = kind.bytes;
    }
    all[13] = info.out_memlock_used;
    all[14] = (info.out_flags & (u::PINMAP_INFO_OWNED | u::PINMAP_INFO_GONE)).into();
    let mut gpu = u::pinmap_gpu_info {
        size: size_of::<u::pinmap_gpu_info>() as u32,
        ..Default::default()
    };
    if info.out_kind == u::PINMAP_KIND_PAGED {
        sys::ioctl(fd, u::request(u::PINMAP_CMD_GPU_INFO), &mut gpu);
        all[15] = gpu.out_vram_free;
    }
    if let Some(queues) = &watch.queues {
        let mut text = [0; 16];
        let length = queues.read_at(&mut text, 0).unwrap_or(0);
        let number = std::str::from_utf8(&text[..length]).unwrap_or_default();
        all[16] = number.trim().parse().unwrap_or(u64::MAX);
    }
    all
}

/// Pins that are held, and pages of the IOMMU's tables.
fn memory() -> [i64; 2] {
    // The counters are per CPU; this folds them together.
    let _ = fs::write("/proc/sys/vm/stat_refresh", "1");
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim().parse::<i64>().ok())
            .unwrap_or(0)
    };
    [
        number("nr_foll_pin_acquired ") - number("nr_foll_pin_released "),
        number("nr_iommu_pages "),
    ]
}
