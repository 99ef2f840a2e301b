// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls that a program can make, with the kinds of their arguments and of what they give.
//!
//! The table is all that parsing, printing, running and mutating programs know of a call. A call is
//! one of Linux, one ioctl of the driver, something that a thread does to memory, or something that
//! an administrator does to the machine.

use crate::uapi as u;
use std::mem::{offset_of, size_of};

/// A kind of result, which later calls can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// An open device.
    Device,
    /// A file with pages.
    File,
    /// A dma-buf.
    DmaBuf,
    /// An eventfd.
    EventFd,
    /// The handle of a buffer.
    Handle,
    /// A queue.
    Queue,
    /// An offset for `mmap` of a device.
    Offset,
    /// An address.
    Address,
    /// A value that no other call wants.
    Value,
}

/// Numbers with names.
pub type Names = &'static [(&'static str, u64)];

/// The meaning of an argument, which decides the values that are tried.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Any number; these are likely.
    Number(&'static [u64]),
    /// One of these numbers.
    Choice(Names),
    /// A union of these bits.
    Flags(Names),
    /// A result.
    Made(Made),
    /// An address in the pool, or one that a call has given.
    Address,
    /// A length in bytes.
    Length,
}

/// An argument.
#[derive(Debug, Clone, Copy)]
pub struct Arg {
    /// The argument's name.
    pub name: &'static str,
    /// The argument's meaning.
    pub kind: Kind,
    /// In the struct of an ioctl: its offset in bytes.
    pub offset: usize,
    /// In the struct of an ioctl: its size in bytes.
    pub bytes: usize,
}

/// A field that an ioctl writes.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    /// The field's name.
    pub name: &'static str,
    /// The kind of result.
    pub made: Made,
    /// The offset in bytes.
    pub offset: usize,
    /// The size in bytes.
    pub bytes: usize,
}

/// How a call is made.
#[derive(Debug, Clone, Copy)]
pub enum How {
    /// By the system call with this number.
    Syscall(i64),
    /// By `ioctl` with this request, and a struct of this size. The first argument is the file.
    Ioctl(u64, usize),
    /// By the thread itself.
    Own(Own),
    /// By an administrator, who is not one of the program's processes.
    World(World),
}

/// An action of a thread that is no call of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// Opens a device.
    Open,
    /// Writes a pattern that only this program has.
    Fill,
    /// Reads, and looks for the patterns of other programs.
    Load,
    /// Writes up to eight words.
    Store,
    /// Makes the second process.
    Fork,
    /// Ends the process.
    Exit,
    /// Executes another program.
    Exec,
    /// Sends a descriptor to the other process.
    Send,
    /// Receives it.
    Receive,
    /// Has a queue execute one packet.
    Submit,
    /// Has a queue copy memory, and compares.
    Copy,
    /// Has an edu transfer memory.
    Transfer,
}

/// An action of an administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// Kills a process.
    Kill,
    /// Interrupts a thread.
    Signal,
    /// Takes a device from the driver.
    Unbind,
    /// Gives it back.
    Bind,
    /// Resets a device.
    Reset,
    /// Takes the driver's module out of the kernel, or loads it.
    Module,
    /// Writes one of the test GPU's knobs.
    Knob,
    /// Has the kernel drop clean pages, compact memory, or merge equal pages.
    Memory,
    /// Gives free pages to another user, who notices if they change.
    Use,
    /// Switches swap space on or off.
    Swap,
    /// Limits the memory of the program's cgroup, in bytes; 0: no limit.
    Limit,
}

/// A call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The call's name.
    pub name: &'static str,
    /// How it is made.
    pub how: How,
    /// The arguments.
    pub args: &'static [Arg],
    /// The kind of the value that the call returns.
    pub returns: Made,
    /// Fields that an ioctl writes.
    pub outs: &'static [Out],
    /// How often it is made, beside the others.
    pub weight: u32,
}

const DEVICE: Kind = Kind::Made(Made::Device);
const QUEUE: Kind = Kind::Made(Made::Queue);
const HANDLE: Kind = Kind::Made(Made::Handle);
const FILE: Kind = Kind::Made(Made::File);
const EVENTFD: Kind = Kind::Made(Made::EventFd);
const PLACE: Kind = Kind::Address;
const LENGTH: Kind = Kind::Length;
const NONE: Kind = Kind::Flags(&[]);
const BITS: Kind = Kind::Number(&[0, 0, 0, 32, 48, 39, 12, 64, 65]);
const SMALL: Kind = Kind::Number(&[0, 1, 2, 3, 15, 16, 64]);
const COUNT: Kind = Kind::Number(&[1, 2, 0, 8, 1024, 1025]);
const TIME: Kind = Kind::Number(&[0, 1, 1_000_000, 5_000_000]);
const WORD: Kind = Kind::Number(&[0, 1, 2, 0xfff, 0x1000, 1 << 47, u64::MAX]);
const PROTECTION: Kind = Kind::Flags(&[("READ", 1), ("WRITE", 2), ("EXEC", 4)]);
const PATTERN_FLAGS: Kind = Kind::Flags(&[("WRITE", 1)]);
const DEVICES: Kind = Kind::Choice(&[("paged", 1), ("flat", 0), ("second_flat", 2)]);
const PROCESS: Kind = Kind::Choice(&[("first", 0), ("second", 1)]);
const REGISTER: Kind = Kind::Flags(&[
    ("WRITE", 1),
    ("NO_MAP", 2),
    ("FIXED", 4),
    ("IDENTITY", 8),
    ("PORTABLE", 16),
    ("INTERRUPTIBLE", 32),
]);
const MMAP: Kind = Kind::Choice(&[
    ("PRIVATE | ANONYMOUS | FIXED", 0x32),
    ("SHARED | ANONYMOUS | FIXED", 0x31),
    ("PRIVATE | ANONYMOUS | FIXED | POPULATE", 0x8032),
    ("PRIVATE | ANONYMOUS | FIXED | LOCKED", 0x2032),
    ("PRIVATE | ANONYMOUS | FIXED | HUGETLB", 0x40032),
]);
const MMAP_FILE: Kind = Kind::Choice(&[
    ("SHARED | FIXED", 0x11),
    ("PRIVATE | FIXED", 0x12),
    ("SHARED | FIXED | POPULATE", 0x8011),
]);
const ADVICE: Kind = Kind::Choice(&[
    ("DONTNEED", 4),
    ("FREE", 8),
    ("REMOVE", 9),
    ("DONTFORK", 10),
    ("DOFORK", 11),
    ("MERGEABLE", 12),
    ("UNMERGEABLE", 13),
    ("HUGEPAGE", 14),
    ("NOHUGEPAGE", 15),
    ("WIPEONFORK", 18),
    ("KEEPONFORK", 19),
    ("COLD", 20),
    ("PAGEOUT", 21),
    ("POPULATE_READ", 22),
    ("POPULATE_WRITE", 23),
    ("DONTNEED_LOCKED", 24),
    ("COLLAPSE", 25),
    ("GUARD_INSTALL", 102),
    ("GUARD_REMOVE", 103),
]);
const OPCODE: Kind = Kind::Choice(&[
    ("COPY", 2),
    ("FILL", 3),
    ("NOP", 1),
    ("FENCE_WRITE", 5),
    ("FENCE_WAIT", 6),
    ("TIMESTAMP", 7),
    ("INTERRUPT", 8),
    ("INCREMENT", 4 | (3 << 32)),
    ("ATOMIC_ADD", 4 | (10 << 32)),
    ("SPIN", 4 | (9 << 32)),
    ("WRONG", 77),
]);
const KNOBS: Kind = Kind::Choice(&[
    ("LOSE_INTERRUPTS", 0xa000),
    ("DELAY_NS", 0xa008),
    ("AFTER_UNMAP", 0xa010),
    ("STUCK", 0xa028),
    ("POST_NS", 0xa038),
    ("HOLD", 0xa040),
]);
const MEMORY: Kind = Kind::Choice(&[
    ("compact", 0),
    ("drop_caches", 1),
    ("merge", 2),
    ("unmerge", 3),
]);

const fn arg(name: &'static str, kind: Kind) -> Arg {
    Arg {
        name,
        kind,
        offset: 0,
        bytes: 8,
    }
}

macro_rules! calls {
    ($($name:ident: $how:expr, [$($arg:ident: $kind:expr),*]
        -> $made:ident, $weight:literal;)*) => {
        &[$(Call {
            name: stringify!($name),
            how: $how,
            args: &[$(arg(stringify!($arg), $kind)),*],
            returns: Made::$made,
            outs: &[],
            weight: $weight,
        }),*]
    };
}

/// Calls of Linux, of threads and of the administrator.
const PLAIN: &[Call] = calls! {
    open: How::Own(Own::Open), [device: DEVICES] -> Device, 6;
    close: How::Syscall(libc::SYS_close), [fd: DEVICE] -> Value, 3;
    dup: How::Syscall(libc::SYS_dup), [fd: DEVICE] -> Device, 1;
    mmap: How::Syscall(libc::SYS_mmap), [addr: PLACE, length: LENGTH, prot: PROTECTION,
        flags: MMAP, fd: Kind::Choice(&[("NONE", u64::MAX)]), offset: SMALL] -> Address, 6;
    mmap_file: How::Syscall(libc::SYS_mmap), [addr: PLACE, length: LENGTH, prot: PROTECTION,
        flags: MMAP_FILE, fd: FILE, offset: Kind::Number(&[0, 0x1000, 0x3000])] -> Address, 4;
    mmap_device: How::Syscall(libc::SYS_mmap), [addr: PLACE, length: LENGTH, prot: PROTECTION,
        flags: MMAP_FILE, fd: DEVICE, offset: Kind::Made(Made::Offset)] -> Address, 5;
    munmap: How::Syscall(libc::SYS_munmap), [addr: PLACE, length: LENGTH] -> Value, 4;
    mprotect: How::Syscall(libc::SYS_mprotect), [addr: PLACE, length: LENGTH,
        prot: PROTECTION] -> Value, 3;
    madvise: How::Syscall(libc::SYS_madvise), [addr: PLACE, length: LENGTH,
        advice: ADVICE] -> Value, 8;
    mremap: How::Syscall(libc::SYS_mremap), [old: PLACE, old_length: LENGTH, length: LENGTH,
        flags: Kind::Choice(&[("MAYMOVE | FIXED", 3), ("MAYMOVE | FIXED | DONTUNMAP", 7),
            ("MAYMOVE", 1), ("NONE", 0)]), new: PLACE] -> Address, 4;
    mlock: How::Syscall(libc::SYS_mlock), [addr: PLACE, length: LENGTH] -> Value, 1;
    memfd_create: How::Syscall(libc::SYS_memfd_create), [name: Kind::Choice(&[("NAME", 0)]),
        flags: Kind::Flags(&[("ALLOW_SEALING", 2), ("HUGETLB", 4)])] -> File, 3;
    memfd_secret: How::Syscall(libc::SYS_memfd_secret), [flags: NONE] -> File, 1;
    ftruncate: How::Syscall(libc::SYS_ftruncate), [fd: FILE, length: LENGTH] -> Value, 4;
    fallocate: How::Syscall(libc::SYS_fallocate), [fd: FILE,
        mode: Kind::Choice(&[("NONE", 0), ("PUNCH_HOLE | KEEP_SIZE", 3), ("COLLAPSE", 8)]),
        offset: Kind::Number(&[0, 0x1000, 0x3000]), length: LENGTH] -> Value, 3;
    eventfd: How::Syscall(libc::SYS_eventfd2), [count: SMALL,
        flags: Kind::Flags(&[("NONBLOCK", 0o4000)])] -> EventFd, 2;
    read: How::Syscall(libc::SYS_read), [fd: DEVICE, addr: PLACE, length: LENGTH] -> Value, 1;
    fill: How::Own(Own::Fill), [addr: PLACE, length: LENGTH] -> Value, 10;
    load: How::Own(Own::Load), [addr: PLACE, length: LENGTH] -> Value, 6;
    store: How::Own(Own::Store), [addr: PLACE, w0: WORD, w1: WORD, w2: WORD, w3: WORD, w4: WORD,
        w5: WORD, w6: WORD, w7: WORD] -> Value, 3;
    fork: How::Own(Own::Fork), [] -> Value, 3;
    exit: How::Own(Own::Exit), [] -> Value, 1;
    exec: How::Own(Own::Exec), [] -> Value, 1;
    send: How::Own(Own::Send), [fd: DEVICE] -> Value, 1;
    receive: How::Own(Own::Receive), [] -> Device, 1;
    submit: How::Own(Own::Submit), [fd: DEVICE, queue: QUEUE, opcode: OPCODE, w1: PLACE,
        w2: PLACE, w3: LENGTH] -> Value, 8;
    copy: How::Own(Own::Copy), [fd: DEVICE, queue: QUEUE, to: PLACE, from: PLACE,
        length: LENGTH] -> Value, 10;
    transfer: How::Own(Own::Transfer), [fd: DEVICE, device_addr: PLACE, length: LENGTH,
        flags: PATTERN_FLAGS] -> Value, 5;
    kill: How::World(World::Kill), [process: PROCESS] -> Value, 1;
    signal: How::World(World::Signal), [thread: Kind::Number(&[0, 1, 2, 3])] -> Value, 2;
    unbind: How::World(World::Unbind), [device: DEVICES] -> Value, 1;
    bind: How::World(World::Bind), [device: DEVICES] -> Value, 1;
    reset: How::World(World::Reset), [device: DEVICES] -> Value, 1;
    module: How::World(World::Module), [what: Kind::Choice(&[("unload", 0), ("load", 1)])]
        -> Value, 1;
    knob: How::World(World::Knob), [offset: KNOBS,
        value: Kind::Number(&[0, 1, 2, 10_000, 1_000_000])] -> Value, 1;
    memory: How::World(World::Memory), [what: MEMORY] -> Value, 2;
    swap: How::World(World::Swap), [on: Kind::Choice(&[("on", 1), ("off", 0)])] -> Value, 2;
    limit: How::World(World::Limit), [bytes: Kind::Number(&[0, 1 << 20, 4 << 20, 8 << 20])]
        -> Value, 1;
    others_use: How::World(World::Use), [pages: Kind::Number(&[16, 32, 64])] -> Value, 3;
};

macro_rules! ioctls {
    ($($command:ident $type:ident [$($arg:ident: $kind:expr),*] -> [$($out:ident: $made:ident),*],
        $weight:literal;)*) => {
        &[$(Call {
            name: stringify!($command),
            how: How::Ioctl(u::request(u::$command), size_of::<u::$type>()),
            args: &[arg("fd", DEVICE), $(Arg {
                name: stringify!($arg),
                kind: $kind,
                offset: offset_of!(u::$type, $arg),
                bytes: size_of_field(|s: &u::$type| &s.$arg),
            }),*],
            returns: Made::Value,
            outs: &[$(Out {
                name: stringify!($out),
                made: Made::$made,
                offset: offset_of!(u::$type, $out),
                bytes: 8,
            }),*],
            weight: $weight,
        }),*]
    };
}

const fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The driver's calls.
const DRIVER: &[Call] = ioctls! {
    PINMAP_CMD_GET_INFO pinmap_info [flags: NONE] -> [], 1;
    PINMAP_CMD_GET_RESERVED pinmap_reserved [flags: NONE, index: SMALL] -> [], 1;
    PINMAP_CMD_GET_TOTALS pinmap_get_totals [flags: Kind::Flags(&[("CONTEXT", 1)])] -> [], 1;
    PINMAP_CMD_REGISTER pinmap_register [flags: REGISTER, addr: PLACE, length: LENGTH,
        device_addr: PLACE, address_bits: BITS]
        -> [out_handle: Handle, device_addr: Address], 14;
    PINMAP_CMD_REGISTER_BUFFERS pinmap_register_buffers [flags: REGISTER, buffers: PLACE,
        count: COUNT, address_bits: BITS] -> [], 3;
    PINMAP_CMD_REGISTER_FD pinmap_register_fd [flags: REGISTER, fd: FILE, address_bits: BITS,
        offset: Kind::Number(&[0, 0x1000]), length: LENGTH, device_addr: PLACE]
        -> [out_handle: Handle, device_addr: Address], 5;
    PINMAP_CMD_PREFLIGHT pinmap_preflight [flags: REGISTER, addr: PLACE, length: LENGTH,
        device_addr: PLACE, address_bits: BITS] -> [], 2;
    PINMAP_CMD_GENERATIONS pinmap_generations [flags: NONE] -> [out_offset: Offset], 1;
    PINMAP_CMD_RELEASE pinmap_release [flags: NONE, handle: HANDLE] -> [], 7;
    PINMAP_CMD_RELEASE_BUFFERS pinmap_release_buffers [flags: NONE, handles: PLACE,
        count: COUNT] -> [], 2;
    PINMAP_CMD_QUERY pinmap_query [flags: NONE, handle: HANDLE, addr: PLACE] -> [], 3;
    PINMAP_CMD_MAP pinmap_map [flags: Kind::Flags(&[("WRITE", 1), ("FIXED", 2)]), handle: HANDLE,
        device_addr: PLACE, address_bits: BITS] -> [device_addr: Address], 6;
    PINMAP_CMD_UNMAP pinmap_unmap [flags: NONE, handle: HANDLE, device_addr: PLACE] -> [], 4;
    PINMAP_CMD_SET_EVENTFD pinmap_set_eventfd [flags: NONE,
        source: Kind::Choice(&[("VECTOR", 1), ("EVENTS", 2)]), index: SMALL, fd: EVENTFD]
        -> [], 2;
    PINMAP_CMD_RESET pinmap_reset [flags: NONE] -> [], 2;
    PINMAP_CMD_STAY_AWAKE pinmap_stay_awake [flags: Kind::Flags(&[("ON", 1)])] -> [], 1;
    PINMAP_CMD_ALLOC pinmap_alloc [flags: Kind::Flags(&[("VRAM", 1), ("WRITE_COMBINED", 2),
        ("NODE", 4), ("PORTABLE", 8), ("P2PDMA", 16)]), length: LENGTH, node: SMALL]
        -> [out_handle: Handle, out_offset: Offset], 8;
    PINMAP_CMD_EXPORT pinmap_export [flags: Kind::Flags(&[("WRITE", 1), ("BAR", 2)]),
        handle: HANDLE, length: Kind::Number(&[0, 0x1000])] -> [out_fd: DmaBuf], 4;
    PINMAP_CMD_IMPORT pinmap_import [flags: NONE, fd: Kind::Made(Made::DmaBuf)]
        -> [out_handle: Handle], 4;
    PINMAP_CMD_SYNC pinmap_sync [flags: Kind::Flags(&[("FOR_DEVICE", 1), ("FOR_CPU", 2),
        ("NO_SNOOP", 4)]), handle: HANDLE, offset: Kind::Number(&[0, 0x1000, 1]), length: LENGTH]
        -> [], 2;
    PINMAP_CMD_MANAGE pinmap_manage [flags: Kind::Flags(&[("ALL", 1), ("HOST", 2),
        ("WINDOW", 4)]), addr: PLACE, length: LENGTH] -> [out_handle: Handle], 10;
    PINMAP_CMD_PREFETCH pinmap_prefetch [flags: Kind::Flags(&[("HOST", 1), ("PREFLIGHT", 2)]),
        addr: PLACE, length: LENGTH] -> [], 9;
    PINMAP_CMD_ADVISE pinmap_advise [flags: NONE, addr: PLACE, length: LENGTH,
        advice: Kind::Flags(&[("PREFER_HOST", 1), ("PREFER_DEVICE", 2), ("ACCESSED_BY", 4),
        ("READ_MOSTLY", 8)])] -> [], 5;
    PINMAP_CMD_RESIDENCY pinmap_residency [flags: NONE, addr: PLACE, length: LENGTH, runs: PLACE,
        capacity: COUNT] -> [], 2;
    PINMAP_CMD_STATISTICS pinmap_statistics [flags: NONE, handle: HANDLE] -> [], 1;
    PINMAP_CMD_BUDGET pinmap_budget [flags: Kind::Flags(&[("SET", 1)]), bytes: LENGTH] -> [], 2;
    PINMAP_CMD_GPU_INFO pinmap_gpu_info [flags: NONE] -> [], 1;
    PINMAP_CMD_GPU_COUNTERS pinmap_gpu_counters [flags: NONE] -> [], 1;
    PINMAP_CMD_GPU_WALK pinmap_gpu_walk [flags: NONE, addr: PLACE] -> [], 2;
    PINMAP_CMD_QUEUE_CREATE pinmap_queue_create [flags: Kind::Flags(&[("COPY", 1),
        ("COMPUTE", 2)]), priority: SMALL, packets: Kind::Number(&[64, 1, 128, 63])]
        -> [out_queue: Queue, out_ring_offset: Offset, out_doorbell_offset: Offset,
        out_fence_offset: Offset, out_fence_addr: Address], 6;
    PINMAP_CMD_QUEUE_DESTROY pinmap_queue_destroy [flags: NONE, queue: QUEUE] -> [], 3;
    PINMAP_CMD_QUEUE_WAIT pinmap_queue_wait [flags: NONE, queue: QUEUE, fence: SMALL, value: WORD,
        timeout_ns: TIME] -> [], 3;
    PINMAP_CMD_QUEUE_QUERY pinmap_queue_query [flags: NONE, queue: QUEUE] -> [], 1;
    PINMAP_CMD_QUEUE_SUBMIT pinmap_queue_submit [flags: NONE, queue: QUEUE, packets: PLACE,
        count: COUNT] -> [], 3;
    PINMAP_CMD_QUEUE_NOTIFY pinmap_queue_notify [flags: NONE, queue: QUEUE, fence: SMALL,
        fd: EVENTFD, value: WORD] -> [], 2;
};

/// The number of calls.
pub const COUNT_OF_CALLS: usize = PLAIN.len() + DRIVER.len();

/// The call with a number below [`COUNT_OF_CALLS`].
pub fn call(number: usize) -> &'static Call {
    PLAIN
        .get(number)
        .unwrap_or_else(|| &DRIVER[(number - PLAIN.len()) % DRIVER.len()])
}

impl Call {
    /// The fields that can be a later call's argument: the value that the call returns, and then
    /// what an ioctl writes.
    pub fn makes(&self) -> impl Iterator<Item = (usize, Made)> + '_ {
        [self.returns]
            .into_iter()
            .chain(self.outs.iter().map(|out| out.made))
            .enumerate()
            .filter(|(_, made)| *made != Made::Value)
    }

    /// Whether the call changes what the processes' addresses mean.
    pub fn moves_memory(&self) -> bool {
        let names = [
            "mmap",
            "mmap_file",
            "mmap_device",
            "munmap",
            "mprotect",
            "madvise",
            "mremap",
            "ftruncate",
            "fallocate",
            "fork",
            "exec",
            "memory",
            "unbind",
            "reset",
            "module",
        ];
        names.contains(&self.name)
    }
}
