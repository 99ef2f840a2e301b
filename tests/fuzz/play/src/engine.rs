// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices' engines: packets of the test GPU, and transfers of QEMU's edu and of the test FPGA.

use crate::memory::PAGE;
use crate::sys::{self, syscall};
use crate::uapi as u;
use std::mem::size_of;
use std::os::fd::RawFd;

/// A packet of the test GPU, from an operation and three words.
pub(crate) fn packet(opcode: u64, one: u64, two: u64, three: u64) -> [u64; 8] {
    let (kernel, word) = (opcode >> 32, [opcode, one, two, three, 0, 0, 0, 0]);
    match (opcode as u32, kernel) {
        (3, _) => [opcode, one, three, 0, 0, 0, 0, 0],
        (5 | 6, _) => [opcode, one & !7, two, 0, 0, 0, 0, 0],
        (7, _) => [opcode, one & !7, 0, 0, 0, 0, 0, 0],
        (4, 3) => [opcode, one & !3, three / 4, 0, 0, 0, 0, 0],
        (4, 10) => [opcode, one & !7, (three / 8).min(8), 1, 1, 0, 0, 0],
        (4, 9) => [opcode, three, 0, 0, 0, 0, 0, 0],
        (1 | 8, _) => [opcode, 0, 0, 0, 0, 0, 0, 0],
        _ => word,
    }
}

pub(crate) fn submit(fd: RawFd, queue: u64, packets: &[[u64; 8]]) -> i64 {
    let mut args = u::pinmap_queue_submit {
        size: size_of::<u::pinmap_queue_submit>() as u32,
        queue,
        packets: packets.as_ptr() as u64,
        count: packets.len() as u32,
        ..Default::default()
    };
    sys::ioctl(fd, u::request(u::PINMAP_CMD_QUEUE_SUBMIT), &mut args)
}

/// Has a flat device read or write memory, with a buffer of its own, or one that the driver
/// allocates for it.
pub(crate) fn transfer(fd: RawFd, device_addr: u64, length: u64, write: u64) -> u64 {
    let mut info = u::pinmap_info {
        size: size_of::<u::pinmap_info>() as u32,
        ..Default::default()
    };
    if sys::ioctl(fd, u::request(u::PINMAP_CMD_GET_INFO), &mut info) != 0
        || info.out_kind != u::PINMAP_KIND_FLAT
    {
        return u64::MAX;
    }
    let Some(bar) = map(fd, info.out_bars[0].offset) else {
        return u64::MAX;
    };
    let result = match info.out_vendor {
        0x10ee => fpga(fd, bar, device_addr, length, write != 0),
        _ => edu(bar, device_addr, length, write != 0),
    };
    unmap(bar);
    result.map_or(u64::MAX, |()| 0)
}

fn map(fd: RawFd, offset: u64) -> Option<u64> {
    // SAFETY: A new mapping.
    let at = unsafe { syscall(libc::SYS_mmap, [0, PAGE, 3, 1, fd as u64, offset]) };
    (at >= 0).then_some(at as u64)
}

fn unmap(at: u64) {
    // SAFETY: The mapping is one that map() made.
    unsafe { syscall(libc::SYS_munmap, [at, PAGE, 0, 0, 0, 0]) };
}

/// Waits until something is so, for a tenth of a second.
fn wait(is: impl Fn() -> bool) -> bool {
    (0..500).any(|_| {
        is() || {
            // SAFETY: The call has no pointers. It may fail where copying fails.
            unsafe { libc::usleep(200) };
            false
        }
    })
}

/// Has an edu transfer memory, as its documentation says (docs/specs/edu.rst of QEMU). Its buffer
/// stays as it is when the next program comes, so what is read goes to another half than what is
/// written comes from.
fn edu(bar: u64, device_addr: u64, length: u64, write: bool) -> Option<()> {
    let [source, target, count, command] = [0x80, 0x88, 0x90, 0x98];
    const BUFFER: u64 = 0x40000;
    const HALF: u64 = PAGE / 2;
    let idle = || wait(|| sys::load(bar + command).is_none_or(|busy| busy & 1 == 0));
    idle().then_some(())?;
    let (from, to) = if write {
        (BUFFER + HALF, device_addr)
    } else {
        (device_addr, BUFFER)
    };
    let store = |register: u64, value: u64| sys::store(bar + register, value).then_some(());
    store(source, from)?;
    store(target, to)?;
    store(count, length.min(HALF))?;
    store(command, 1 | if write { 2 } else { 0 })?;
    idle().then_some(())
}

/// Has the test FPGA copy memory (tests/devices/testfpga/FPGA.md). Its ring, of which one
/// descriptor is used, and its buffer are in a page that the driver allocates.
fn fpga(fd: RawFd, bar: u64, device_addr: u64, length: u64, write: bool) -> Option<()> {
    const BUFFER: u64 = 2048;
    let mut alloc = u::pinmap_alloc {
        size: size_of::<u::pinmap_alloc>() as u32,
        length: PAGE,
        ..Default::default()
    };
    let mut mapped = u::pinmap_map {
        size: size_of::<u::pinmap_map>() as u32,
        flags: u::PINMAP_MAP_WRITE,
        address_bits: 40,
        ..Default::default()
    };
    if sys::ioctl(fd, u::request(u::PINMAP_CMD_ALLOC), &mut alloc) != 0 {
        return None;
    }
    mapped.handle = alloc.out_handle;
    let page = (sys::ioctl(fd, u::request(u::PINMAP_CMD_MAP), &mut mapped) == 0)
        .then(|| map(fd, alloc.out_offset))
        .flatten();
    if let Some(page) = page {
        run_fpga(bar, page, mapped.device_addr, |buffer| {
            let (own, bytes) = (buffer + BUFFER, length.min(BUFFER));
            if write {
                (own, device_addr, bytes)
            } else {
                (device_addr, own, bytes)
            }
        });
        unmap(page);
    }
    let mut release = u::pinmap_release {
        size: size_of::<u::pinmap_release>() as u32,
        handle: alloc.out_handle,
        ..Default::default()
    };
    sys::ioctl(fd, u::request(u::PINMAP_CMD_RELEASE), &mut release);
    page.map(|_| ())
}

/// Has the FPGA execute a descriptor of `what`, which makes source, target and length of the
/// address that the device has for the page of the ring.
fn run_fpga(bar: u64, page: u64, ring: u64, what: impl Fn(u64) -> (u64, u64, u64)) -> Option<()> {
    let [status, base, length, tail, control] = [0x4, 0x10, 0x18, 0x1c, 0x24];
    let store = |register: u64, value: u32| sys::store_half(bar + register, value).then_some(());
    let stopped = || wait(|| sys::load_half(bar + status).is_none_or(|it| it & 1 == 0));
    let (from, to, bytes) = what(ring);
    for (word, value) in [from, to, bytes, 0].into_iter().enumerate() {
        sys::store(page + 8 * word as u64, value).then_some(())?;
    }
    store(control, 0)?;
    stopped().then_some(())?;
    sys::store(bar + base, ring).then_some(())?;
    store(length, 2)?;
    store(control, 1)?;
    store(tail, 1)?;
    wait(|| sys::load_half(page + 24) != Some(0));
    store(control, 0)?;
    stopped().then_some(())
}
