// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a program, and their threads, which make the calls that they are handed.

use crate::calls::{How, Own};
use crate::engine::{packet, submit, transfer};
use crate::memory::{Pattern, PAGE, POOL};
use crate::player::{Shared, STOP};
use crate::program::{Program, Step, Value, MOST_STEPS};
use crate::sys::{self, syscall, OURS};
use crate::uapi as u;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// The values that a step gives: what it returned, and what an ioctl wrote.
pub(crate) const VALUES: usize = 8;

/// Things that all processes of a program have.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) program: &'a Program,
    pub(crate) shared: &'a Shared,
    pub(crate) pattern: Pattern,
    /// The nodes of the devices: flat, paged, flat.
    pub(crate) nodes: &'a [Option<String>; 3],
    /// The kernel's records of coverage, one for each thread.
    pub(crate) areas: &'a [OwnedFd],
    /// Both ends of a pair of sockets.
    pub(crate) sockets: &'a [RawFd; 2],
}

/// The kernel's request to record what the current thread executes.
const KCOV_ENABLE: u64 = 0x6364;

impl Stage<'_> {
    /// Is the first thread of a process; ends the process.
    pub(crate) fn process(self, main: usize) -> ! {
        sys::catch_signals();
        // What a thread says when it panics is for the player's error output; the process ends.
        thread::scope(|scope| {
            if self.program.steps.iter().any(|step| step.actor == main + 1) {
                let _ = thread::Builder::new()
                    .stack_size(64 << 10)
                    .spawn_scoped(scope, move || self.thread(main + 1));
            }
            self.thread(main);
            // The other thread may wait in the kernel.
            self.leave()
        })
    }

    fn leave(self) -> ! {
        if let Some((addr, value)) = self.pattern.foreign_in_pool() {
            self.shared.find(&format!(
                "the memory at {addr:#x} has {value:#x} of another program"
            ));
        }
        // SAFETY: Nothing needs to be done at the end of the process.
        unsafe { libc::_exit(0) }
    }

    /// Makes the calls that are for one thread.
    fn thread(self, me: usize) {
        let thread = Thread {
            stage: self,
            me,
            fail: sys::open("/proc/thread-self/fail-nth", libc::O_RDWR)
                .and_then(sys::keep)
                .ok(),
        };
        // SAFETY: The call has no requirements.
        let id = unsafe { libc::gettid() };
        self.shared.threads[me].store(id as u32, Ordering::SeqCst);
        if let Some(area) = self.areas.get(me) {
            // SAFETY: The request has no struct.
            unsafe {
                syscall(
                    libc::SYS_ioctl,
                    [area.as_raw_fd() as u64, KCOV_ENABLE, 0, 0, 0, 0],
                )
            };
        }
        let post = &self.shared.post[me];
        let mut seen = self.shared.done[me].load(Ordering::SeqCst);
        loop {
            let next = post.load(Ordering::SeqCst);
            if next == seen {
                sys::wait(post, seen, Duration::from_secs(60));
                continue;
            }
            if next == STOP {
                break;
            }
            seen = next;
            let first = self.shared.first[me].load(Ordering::SeqCst);
            for index in first..next {
                if let Some(step) = self.program.steps.get(index as usize) {
                    thread.step(index as usize, step);
                }
            }
            self.shared.done[me].store(seen, Ordering::SeqCst);
            let ended = &self.shared.ended;
            sys::advance(ended, ended.load(Ordering::SeqCst).wrapping_add(1));
        }
    }
}

struct Thread<'a> {
    stage: Stage<'a>,
    me: usize,
    fail: Option<OwnedFd>,
}

impl Thread<'_> {
    fn fail_at(&self, number: u32) {
        if let Some(fail) = &self.fail {
            let text = number.to_string();
            // Failing is what it is for; without the file nothing fails.
            for _ in 0..8 {
                // SAFETY: The text is a buffer of this length.
                let written =
                    unsafe { libc::pwrite(fail.as_raw_fd(), text.as_ptr().cast(), text.len(), 0) };
                if written > 0 || number != 0 {
                    break;
                }
            }
        }
    }

    /// Makes a call.
    fn step(&self, index: usize, step: &Step) {
        let mut args = [0; 12];
        for (to, value) in args.iter_mut().zip(&step.args) {
            *to = self.value(*value);
        }
        let shared = self.stage.shared;
        let set = |out: usize, value: u64| shared.values[index][out].store(value, Ordering::SeqCst);
        let six = [args[0], args[1], args[2], args[3], args[4], args[5]];
        match step.what().how {
            How::Syscall(number) => {
                if number == libc::SYS_close && args[0] >= OURS as u64 {
                    return;
                }
                let mut six = six;
                if number == libc::SYS_memfd_create {
                    six[0] = c"play".as_ptr() as u64;
                }
                self.begin(step);
                // SAFETY: Addresses are those of the pool, or of what calls have mapped. A call
                // that unmaps memory of ours by luck ends the process, which is allowed.
                let result = unsafe { syscall(number, six) };
                self.end(step);
                set(0, result as u64);
            }
            How::Ioctl(request, size) => {
                let mut bytes = [0u64; 160];
                let put = |bytes: &mut [u64; 160], offset: usize, count: usize, value: u64| {
                    if offset + count <= 1280 {
                        // SAFETY: The range is inside of the array.
                        let at = unsafe { bytes.as_mut_ptr().cast::<u8>().add(offset) };
                        // SAFETY: Little-endian, the first bytes are the low ones.
                        unsafe { at.copy_from(value.to_le_bytes().as_ptr(), count) };
                    }
                };
                put(&mut bytes, 0, 4, size as u64);
                for (arg, value) in step.what().args.iter().zip(args).skip(1) {
                    put(&mut bytes, arg.offset, arg.bytes, value);
                }
                if let Some((offset, word)) = step.bytes {
                    put(
                        &mut bytes,
                        offset,
                        if offset % 8 == 0 { 8 } else { 4 },
                        word,
                    );
                }
                self.begin(step);
                let result = sys::ioctl(args[0] as RawFd, request, &mut bytes);
                self.end(step);
                set(0, result as u64);
                for (number, out) in step.what().outs.iter().enumerate() {
                    let word = bytes[out.offset / 8] >> (out.offset % 8 * 8);
                    set(
                        number + 1,
                        if out.bytes == 4 {
                            u64::from(word as u32)
                        } else {
                            word
                        },
                    );
                }
            }
            How::Own(own) => {
                self.begin(step);
                let result = self.own(own, index, step, &args);
                self.end(step);
                set(0, result);
            }
            How::World(_) => {}
        }
    }

    fn begin(&self, step: &Step) {
        if step.fail != 0 {
            self.fail_at(step.fail);
        }
    }

    fn end(&self, step: &Step) {
        if step.fail != 0 {
            self.fail_at(0);
        }
    }

    fn value(&self, value: Value) -> u64 {
        match value {
            Value::Number(number) => number,
            Value::Pool(distance) => POOL.wrapping_add(distance),
            Value::Result(step, out) if step < MOST_STEPS && out < VALUES => {
                self.stage.shared.values[step][out].load(Ordering::SeqCst)
            }
            Value::Result(..) => 0,
        }
    }

    fn own(&self, own: Own, index: usize, step: &Step, args: &[u64; 12]) -> u64 {
        let Stage {
            shared,
            pattern,
            nodes,
            sockets,
            ..
        } = self.stage;
        match own {
            Own::Open => {
                let Some(node) = nodes.get(args[0] as usize).and_then(Option::as_ref) else {
                    return u64::MAX;
                };
                sys::open(node, libc::O_RDWR).map_or(u64::MAX, |fd| into_raw(fd) as u64)
            }
            Own::Fill => pattern.fill(index, args[0], args[1]),
            Own::Load => {
                if let Some((addr, value)) = pattern.foreign(args[0], args[1]) {
                    shared.find(&format!(
                        "step {index} reads {value:#x} of another program at {addr:#x}"
                    ));
                }
                0
            }
            Own::Store => (0..8)
                .take_while(|word| sys::store((args[0] & !7) + word * 8, args[1 + *word as usize]))
                .count() as u64,
            Own::Fork => self.fork(),
            Own::Exit => self.stage.leave(),
            Own::Exec => {
                let path = c"/bin/true".as_ptr();
                let arguments = [path, std::ptr::null()];
                // SAFETY: Path and arguments are strings.
                unsafe { libc::execv(path, arguments.as_ptr()) };
                0
            }
            Own::Send => send(sockets[self.me / 2], args[0] as RawFd) as u64,
            Own::Receive => receive(sockets[self.me / 2]) as u64,
            Own::Submit => {
                let [queue, opcode, one, two, three] =
                    [args[1], args[2], args[3], args[4], args[5]];
                let packet = packet(opcode, one, two, three);
                submit(args[0] as RawFd, queue, &[packet]) as u64
            }
            Own::Copy => self.copy(index, step, args),
            Own::Transfer => transfer(args[0] as RawFd, args[1], args[2], args[3]),
        }
    }

    /// Makes the second process, once. Its first thread is the one that is forked.
    fn fork(&self) -> u64 {
        let shared = self.stage.shared;
        if self.me >= 2 || shared.second.swap(1, Ordering::SeqCst) != 0 {
            return 0;
        }
        // SAFETY: The child calls what is sound after a fork of a process with threads: glibc keeps
        // its own locks whole.
        match unsafe { libc::fork() } {
            0 => self.stage.process(2),
            child => child as u64,
        }
    }

    /// Has the device copy memory, and compares, where nothing but a fault of the driver's can
    /// make a difference.
    fn copy(&self, index: usize, step: &Step, args: &[u64; 12]) -> u64 {
        let (fd, queue) = (args[0] as RawFd, args[1]);
        let (to, from, length) = (args[2] & !7, args[3] & !7, args[4].min(2 * PAGE) & !63);
        let fence = match step.args[1] {
            Value::Result(step, 1) => self.value(Value::Result(step, 5)),
            _ => 0,
        };
        let written = self.stage.pattern.fill(index, from, length);
        let value = index as u64 + 1;
        let packets = [
            packet(2, from, to, length),
            packet(5, fence, value, 0),
            packet(8, 0, 0, 0),
        ];
        if submit(fd, queue, &packets) != 0 {
            return u64::MAX;
        }
        let mut wait = u::pinmap_queue_wait {
            size: size_of::<u::pinmap_queue_wait>() as u32,
            queue,
            value,
            timeout_ns: 300_000_000,
            ..Default::default()
        };
        if sys::ioctl(fd, u::request(u::PINMAP_CMD_QUEUE_WAIT), &mut wait) != 0 {
            return u64::MAX;
        }
        let apart = to.abs_diff(from) >= length;
        if !apart || written != length || !can_compare(self.stage.program, index) {
            return 0;
        }
        for offset in (0..length).step_by(64) {
            let (Some(wanted), Some(found)) = (sys::load(from + offset), sys::load(to + offset))
            else {
                return 0;
            };
            if wanted != found {
                self.stage.shared.find(&format!(
                    "step {index}: {:#x} has {found:#x} after a copy of {wanted:#x}",
                    to + offset
                ));
                return 1;
            }
        }
        0
    }
}

/// Whether CPU and device see the same memory in a step: nothing else runs, and the device has all
/// of its mappings by MANAGE, or by REGISTER at the addresses of the CPU, which no call moved.
fn can_compare(program: &Program, index: usize) -> bool {
    let before = &program.steps[..index];
    let has = |name: &str| before.iter().any(|step| step.what().name == name);
    let registers = has("PINMAP_CMD_REGISTER");
    let identity = before.iter().all(|step| {
        step.what().name != "PINMAP_CMD_REGISTER"
            || matches!(step.args[1], Value::Number(flags) if flags & 0xe == 8)
    });
    let elsewhere = ["MAP", "REGISTER_FD", "REGISTER_BUFFERS", "IMPORT"]
        .iter()
        .any(|name| has(&format!("PINMAP_CMD_{name}")));
    // What a device was told to do may go on after its step.
    let others = ["submit", "transfer", "PINMAP_CMD_QUEUE_SUBMIT"];
    let others = others.iter().any(|name| has(name));
    program.is_sequential()
        && program.steps.iter().all(|step| step.actor == 0)
        && identity
        && !elsewhere
        && !others
        && !has("knob")
        && !has("mmap_device")
        && !(registers && before.iter().any(|step| step.what().moves_memory()))
}

fn into_raw(fd: OwnedFd) -> RawFd {
    use std::os::fd::IntoRawFd;
    fd.into_raw_fd()
}

const SPACE: usize = 64;

fn message(control: &mut [u64; SPACE / 8], byte: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: Zeros are a message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = byte;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: The function only computes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    message
}

/// Sends a descriptor (SCM_RIGHTS).
fn send(socket: RawFd, fd: RawFd) -> i64 {
    let (mut control, mut text) = ([0; SPACE / 8], [0u8; 1]);
    let mut byte = libc::iovec {
        iov_base: text.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let message = message(&mut control, &mut byte);
    // SAFETY: The message has room for one header with a descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(socket, &message, libc::MSG_DONTWAIT) as i64
    }
}

/// Receives a descriptor, if there is one.
fn receive(socket: RawFd) -> i64 {
    let (mut control, mut text) = ([0; SPACE / 8], [0u8; 1]);
    let mut byte = libc::iovec {
        iov_base: text.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut message = message(&mut control, &mut byte);
    // SAFETY: The message has room for one header with a descriptor, which is read if it is there.
    unsafe {
        if libc::recvmsg(socket, &mut message, libc::MSG_DONTWAIT) < 0 {
            return -1;
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() {
            return -1;
        }
        i64::from(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned())
    }
}
