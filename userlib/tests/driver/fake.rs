// SPDX-License-Identifier: MIT OR Apache-2.0
//! A made-up driver, so that the crate can be tested without a real one.
//!
//! The `ioctl()` of this program replaces that of the C library. For the file of a [`Fake`] it
//! answers as the driver would. Nothing is ever executed; what was submitted to a queue counts as
//! done once it is waited for.

mod answer;
mod buffers;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::memfd::{memfd_create, MFdFlags};
use pinmap::accelerator::Accelerator;
use pinmap::Device;

use crate::machine::Machine;
use crate::pages::Pages;
use crate::sys;

const PAGE: u64 = 4096;

/// A paged device with its driver. Its [`State`] stays for ever: threads of the crate may end work
/// after the test.
pub(crate) struct Fake {
    file: File,
}

/// The fate of a device whose IOMMU has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// The driver cuts the device off: it is gone.
    Gone,
    /// The driver cannot cut the device off.
    Here,
}

#[derive(Default)]
struct State {
    gone: bool,
    /// Taking memory back from the device fails, with this consequence.
    broken: Option<After>,
    /// Length of the part of the file that is in use.
    length: u64,
    next: u64,
    registered: BTreeMap<u64, (u64, u64)>,
    /// Handles that were released, or whose memory was lost.
    ended: Vec<u64>,
    /// The offsets of the queues' fences in the file, by queue.
    queues: BTreeMap<u64, u64>,
    /// How many registrations were ever made.
    registrations: usize,
    /// Whether the device can fault.
    faults: bool,
    /// The managed ranges, as address and length, by handle.
    managed: BTreeMap<u64, (u64, u64)>,
    /// Managed ranges whose memory stays on the host, by handle.
    on_host: Vec<u64>,
    /// Managed ranges that are windows, by handle.
    windows: Vec<u64>,
    pages: Pages,
    /// Queues cannot be destroyed, nor waited for.
    stuck: bool,
    /// The device is no test GPU.
    foreign: bool,
    /// How many registrations there may be at once. `None`: any number.
    room: Option<usize>,
    /// Pages that can only be read.
    read_only: Vec<u64>,
    /// How many calls have registered or released something, or were to.
    calls: usize,
    /// The device does not snoop the CPU's caches: what was maintained for it, as flags, offset and
    /// length.
    synced: Option<Vec<(u32, u64, u64)>>,
    /// A device that executes packets, if there is one.
    machine: Option<Machine>,
}

/// The states of all made-up drivers, by their files.
static FAKES: Mutex<BTreeMap<u64, State>> = Mutex::new(BTreeMap::new());

fn fakes() -> MutexGuard<'static, BTreeMap<u64, State>> {
    FAKES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    pub(crate) fn new() -> Self {
        let file = memfd_create(c"pinmap-fake", MFdFlags::MFD_CLOEXEC).expect("a memfd");
        let fake = Self { file: file.into() };
        let state = State {
            length: PAGE,
            next: 1,
            ..State::default()
        };
        fakes().insert(fake.name(), state);
        fake
    }

    /// Has a device execute what is submitted, and asks it something.
    pub(crate) fn machine<T>(&self, ask: impl FnOnce(&mut Machine, &[(u64, u64)]) -> T) -> T {
        self.with(|state| {
            let reach = state.reach_of_device();
            let file = || self.file.try_clone().expect("a descriptor");
            let machine = state.machine.get_or_insert_with(|| Machine::new(file()));
            ask(machine, &reach)
        })
    }

    fn name(&self) -> u64 {
        self.file.metadata().expect("a file").ino()
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(fakes().get_mut(&self.name()).expect("it is there"))
    }

    pub(crate) fn open(&self) -> Device {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Device::open(path).expect("a device")
    }

    pub(crate) fn accelerator(&self) -> Accelerator {
        pinmap_testgpu::accelerator(&self.open()).expect("a paged device")
    }

    /// Makes taking memory back from the device fail from now on.
    pub(crate) fn break_iommu(&self, after: After) {
        self.with(|state| state.broken = Some(after));
    }

    /// How many registrations there are, and how many were ever made.
    pub(crate) fn registrations(&self) -> (usize, usize) {
        self.with(|state| (state.registered.len(), state.registrations))
    }

    /// The device addresses of what is registered, with the lengths.
    pub(crate) fn registered(&self) -> Vec<(u64, u64)> {
        self.with(|state| state.registered.values().copied().collect())
    }

    /// How many calls have registered or released something, or were to, since this was asked last.
    pub(crate) fn calls(&self) -> usize {
        self.with(|state| std::mem::take(&mut state.calls))
    }

    /// Limits how many registrations there may be at once.
    pub(crate) fn limit_registrations(&self, room: usize) {
        self.with(|state| state.room = Some(room));
    }

    /// Makes the device one that does not snoop the CPU's caches, or tells for what the caches were
    /// maintained since then, and since this was asked last.
    pub(crate) fn synced(&self) -> Vec<(u32, u64, u64)> {
        self.with(|state| state.synced.replace(Vec::new()).unwrap_or_default())
    }

    /// Has a page refused for writing.
    pub(crate) fn make_read_only(&self, addr: usize) {
        self.with(|state| state.read_only.push(addr as u64 / PAGE * PAGE));
    }

    /// Releases a registration behind the back of the crate, as a process can that has inherited
    /// the file.
    pub(crate) fn release_behind_the_back(&self, index: usize) {
        self.with(|state| {
            let handle = *state.registered.keys().nth(index).expect("a handle");
            state.registered.remove(&handle);
            state.ended.push(handle);
        });
    }

    /// Lets the device fault from now on.
    pub(crate) fn let_fault(&self) {
        self.with(|state| state.faults = true);
    }

    /// The managed ranges, as address and length.
    pub(crate) fn managed(&self) -> Vec<(u64, u64)> {
        self.with(|state| state.managed.values().copied().collect())
    }

    /// Makes the device another one than the test GPU.
    pub(crate) fn be_foreign(&self) {
        self.with(|state| state.foreign = true);
    }

    /// Has a window be in the way of every other one.
    pub(crate) fn refuse_windows(&self) {
        self.with(|state| {
            let handle = state.handle();
            state.managed.insert(handle, (0, u64::MAX));
            state.windows.push(handle);
        });
    }

    /// How many managed ranges have memory that stays on the host.
    pub(crate) fn on_host(&self) -> usize {
        self.with(|state| {
            let managed = &state.managed;
            state
                .on_host
                .iter()
                .filter(|handle| managed.contains_key(handle))
                .count()
        })
    }

    /// How many calls have asked where managed memory is.
    pub(crate) fn asked(&self) -> usize {
        self.with(|state| state.pages.asked())
    }

    /// Makes destroying queues, and waiting for them, fail from now on.
    pub(crate) fn get_stuck(&self) {
        self.with(|state| state.stuck = true);
    }

    /// Overwrites the fences of all queues, as a raw packet can: they say that everything is done.
    pub(crate) fn forge_fences(&self) {
        self.with(|state| {
            for &offset in state.queues.values() {
                let all = u64::MAX.to_le_bytes();
                self.file.write_all_at(&all, offset).expect("a fence");
            }
        });
    }

    /// How many queues there are.
    pub(crate) fn queues(&self) -> usize {
        self.with(|state| state.queues.len())
    }
}

impl State {
    fn handle(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Returns what the device reaches.
    fn reach_of_device(&self) -> Vec<(u64, u64)> {
        let ranges = self.registered.values().chain(self.managed.values());
        ranges.copied().collect()
    }

    /// Takes room in the file, and returns its offset.
    fn space(&mut self, file: &File, length: u64) -> u64 {
        let offset = self.length;
        self.length += length.next_multiple_of(PAGE);
        file.set_len(self.length).expect("a longer file");
        offset
    }

    fn find(&self, handle: u64) -> Result<(u64, u64), Errno> {
        match self.registered.get(&handle) {
            Some(range) => Ok(*range),
            None if self.ended.contains(&handle) => Err(Errno::ESTALE),
            None => Err(Errno::ENOENT),
        }
    }

    /// Registers memory, and returns the handle.
    fn register(
        &mut self,
        flags: u32,
        addr: u64,
        length: u64,
        fail: &mut sys::pinmap_fail,
    ) -> Result<u64, Errno> {
        let mut refuse = |reason, errno| {
            (fail.reason, fail.addr) = (reason, addr);
            Err(errno)
        };
        let inside = |&page: &u64| (addr..addr + length).contains(&page);
        if flags & sys::PINMAP_REGISTER_WRITE != 0 && self.read_only.iter().any(inside) {
            return refuse(sys::PINMAP_FAIL_PERMISSION, Errno::EFAULT);
        }
        if self.room.is_some_and(|room| self.registered.len() >= room) {
            return refuse(sys::PINMAP_FAIL_OBJECTS, Errno::ENOSPC);
        }
        let mut others = self.registered.values();
        if others.any(|&(start, len)| addr < start + len && start < addr + length) {
            return refuse(sys::PINMAP_FAIL_OVERLAP, Errno::EEXIST);
        }
        let handle = self.handle();
        self.registered.insert(handle, (addr, length));
        self.registrations += 1;
        Ok(handle)
    }

    fn manage(&mut self, args: &mut sys::pinmap_manage) -> Result<(), Errno> {
        if !self.faults {
            return Err(Errno::EOPNOTSUPP);
        }
        let range = match args.flags & sys::PINMAP_MANAGE_ALL {
            0 => (args.addr, args.length),
            _ => (0, u64::MAX),
        };
        // Windows are in the way of windows, and other ranges in that of other ranges.
        let is_window = args.flags & sys::PINMAP_MANAGE_WINDOW != 0;
        let alike = |handle| self.windows.contains(handle) == is_window;
        let mut others = self.managed.iter().filter(|(handle, _)| alike(handle));
        if others.any(|(_, &(start, len))| range.0 < start + len && start < range.0 + range.1) {
            args.fail.reason = match is_window {
                true => sys::PINMAP_FAIL_WINDOW,
                false => sys::PINMAP_FAIL_OVERLAP,
            };
            return Err(Errno::EEXIST);
        }
        args.out_handle = self.handle();
        self.managed.insert(args.out_handle, range);
        if is_window {
            self.windows.push(args.out_handle);
        }
        if args.flags & sys::PINMAP_MANAGE_HOST != 0 {
            self.on_host.push(args.out_handle);
        }
        Ok(())
    }

    /// Fails unless a range is managed.
    fn check_managed(&self, addr: u64, length: u64) -> Result<(), Errno> {
        let mut ranges = self.managed.values();
        let inside = |&(start, len): &(u64, u64)| {
            start <= addr
                && addr
                    .checked_add(length)
                    .is_some_and(|end| end - start <= len)
        };
        match ranges.any(inside) {
            true => Ok(()),
            false => Err(Errno::ENOENT),
        }
    }

    fn release(&mut self, handle: u64) -> Result<(), Errno> {
        if self.managed.remove(&handle).is_some() {
            return Ok(());
        }
        // Handles of allocations are not recorded.
        let known = self.find(handle);
        if known == Err(Errno::ENOENT) {
            return Ok(());
        }
        known?;
        self.registered.remove(&handle);
        self.ended.push(handle);
        match self.broken {
            None => Ok(()),
            Some(after) => {
                self.gone = after == After::Gone;
                Err(Errno::EIO)
            }
        }
    }

    /// Stores a fence of a queue.
    fn reach(&self, file: &File, queue: u64, fence: u32, value: u64) -> Result<(), Errno> {
        let offset = self.queues.get(&queue).ok_or(Errno::ESTALE)? + 8 * u64::from(fence);
        file.write_all_at(&value.to_le_bytes(), offset)
            .map_err(|_| Errno::EIO)
    }
}
