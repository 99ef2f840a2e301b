// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls, and accesses to memory that may not be there.

use std::arch::global_asm;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Makes a system call with any arguments. Returns what the kernel returned: a negative errno for a
/// failure.
///
/// # Safety
///
/// The call must not touch memory of this process that Rust code uses.
pub(crate) unsafe fn syscall(number: i64, args: [u64; 6]) -> i64 {
    // SAFETY: By the requirements.
    let result =
        unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
    if result == -1 {
        -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        result
    }
}

// A fault between play_access and play_access_failed goes on at the latter.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl play_access",
    ".globl play_access_failed",
    ".globl play_load",
    ".globl play_store_half",
    ".globl play_load_half",
    "play_access:",
    "mov qword ptr [rdi], rsi",
    "xor eax, eax",
    "ret",
    "play_load:",
    "mov rax, qword ptr [rdi]",
    "mov qword ptr [rsi], rax",
    "xor eax, eax",
    "ret",
    "play_store_half:",
    "mov dword ptr [rdi], esi",
    "xor eax, eax",
    "ret",
    "play_load_half:",
    "mov eax, dword ptr [rdi]",
    "mov dword ptr [rsi], eax",
    "xor eax, eax",
    "ret",
    "play_access_failed:",
    "mov eax, 1",
    "ret",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl play_access",
    ".globl play_access_failed",
    ".globl play_load",
    ".globl play_store_half",
    ".globl play_load_half",
    "play_access:",
    "str x1, [x0]",
    "mov w0, #0",
    "ret",
    "play_load:",
    "ldr x2, [x0]",
    "str x2, [x1]",
    "mov w0, #0",
    "ret",
    "play_store_half:",
    "str w1, [x0]",
    "mov w0, #0",
    "ret",
    "play_load_half:",
    "ldr w2, [x0]",
    "str w2, [x1]",
    "mov w0, #0",
    "ret",
    "play_access_failed:",
    "mov w0, #1",
    "ret",
);

extern "C" {
    fn play_access(addr: u64, value: u64) -> u32;
    fn play_load(addr: u64, value: *mut u64) -> u32;
    fn play_store_half(addr: u64, value: u32) -> u32;
    fn play_load_half(addr: u64, value: *mut u32) -> u32;
    fn play_access_failed();
}

/// Stores a word of the program's memory; tells whether that was possible.
pub(crate) fn store(addr: u64, value: u64) -> bool {
    // SAFETY: The address is in the pool or in a mapping that a call has made, of which Rust code
    // knows nothing; a fault makes the function return 1.
    unsafe { play_access(addr, value) == 0 }
}

/// Loads a word of the program's memory.
pub(crate) fn load(addr: u64) -> Option<u64> {
    let mut value = 0;
    // SAFETY: As for store(); the value is written to memory of ours.
    (unsafe { play_load(addr, &mut value) } == 0).then_some(value)
}

/// Stores half a word, as [`store`] does.
pub(crate) fn store_half(addr: u64, value: u32) -> bool {
    // SAFETY: As for store().
    unsafe { play_store_half(addr, value) == 0 }
}

/// Loads half a word, as [`load`] does.
pub(crate) fn load_half(addr: u64) -> Option<u32> {
    let mut value = 0;
    // SAFETY: As for load().
    (unsafe { play_load_half(addr, &mut value) } == 0).then_some(value)
}

#[cfg(target_arch = "x86_64")]
type Register = i64;
#[cfg(target_arch = "aarch64")]
type Register = u64;

extern "C" fn on_fault(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    let first = play_access as *const () as usize;
    let failed = play_access_failed as *const () as usize;
    // SAFETY: The kernel passes a context that is ours to change.
    let registers = unsafe { &mut (*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let at = &mut registers.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let at = &mut registers.pc;
    if (first..failed).contains(&(*at as usize)) {
        *at = failed as Register;
    } else {
        // SAFETY: The instruction is executed again, and then ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

extern "C" fn on_signal(_: libc::c_int) {}

/// Has faults of store() and load() tell their callers, and SIGUSR1 interrupt calls.
pub(crate) fn catch_signals() {
    // SAFETY: The actions are initialized, and the handlers only change the context.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_flags = libc::SA_SIGINFO;
        action.sa_sigaction = on_fault as *const () as usize;
        libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
        action.sa_flags = 0;
        action.sa_sigaction = on_signal as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut());
    }
}

/// Has the thread run on one processor, or on any.
pub(crate) fn run_on(processor: Option<u64>) {
    // SAFETY: Zeros are a set without processors, and the set is valid for the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for number in 0..64 {
            if processor.is_none_or(|wanted| wanted == number) {
                libc::CPU_SET(number as usize, &mut set);
            }
        }
        libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Waits until a child has ended, at most so long. SIGCHLD must be blocked.
pub(crate) fn wait_for_child(most: Duration) {
    let time = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(most.subsec_nanos() as i32),
    };
    // SAFETY: Set and time are valid.
    unsafe { libc::sigtimedwait(&only_sigchld(), ptr::null_mut(), &time) };
}

/// Blocks SIGCHLD, so that one which has come can be waited for.
pub(crate) fn block_sigchld() {
    // SAFETY: The set is valid.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &only_sigchld(), ptr::null_mut()) };
}

fn only_sigchld() -> libc::sigset_t {
    // SAFETY: Zeros are a set, which the calls change.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

/// Waits until a number is no longer `seen`, at most so long.
pub(crate) fn wait(number: &AtomicU32, seen: u32, most: Duration) {
    let time = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(most.subsec_nanos() as i32),
    };
    // SAFETY: Number and time are valid.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            number.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            &time,
        );
    }
}

/// Stores a number that others wait for, and wakes them.
pub(crate) fn advance(number: &AtomicU32, to: u32) {
    number.store(to, Ordering::SeqCst);
    // SAFETY: The number is valid.
    unsafe { libc::syscall(libc::SYS_futex, number.as_ptr(), libc::FUTEX_WAKE, 64) };
}

/// Opens a file.
pub(crate) fn open(path: impl AsRef<Path>, flags: i32) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_ref().as_os_str().as_encoded_bytes())?;
    // SAFETY: The path is a string.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    own(fd)
}

/// Does something with the real user id of a user, and the rights of root.
pub(crate) fn as_user<T>(user: u32, what: impl Fn() -> T) -> T {
    const AS_IT_IS: u32 = u32::MAX;
    // SAFETY: The calls have no pointers.
    unsafe { libc::setresuid(user, AS_IT_IS, AS_IT_IS) };
    let result = what();
    // SAFETY: As above.
    unsafe { libc::setresuid(0, AS_IT_IS, AS_IT_IS) };
    result
}

/// Takes a descriptor that a call has returned.
pub(crate) fn own(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: The descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The descriptors from here on are the player's: programs do not close them.
pub(crate) const OURS: RawFd = 700;

/// Moves a descriptor to where no program uses it.
pub(crate) fn keep(fd: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: The call makes a descriptor.
    own(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, OURS) })
}

/// Calls ioctl with a struct. Returns a negative errno for a failure.
pub(crate) fn ioctl<T>(fd: RawFd, request: u64, argument: &mut T) -> i64 {
    // SAFETY: The struct is ours, and of the size that the request has.
    unsafe {
        syscall(
            libc::SYS_ioctl,
            [fd as u64, request, ptr::from_mut(argument) as u64, 0, 0, 0],
        )
    }
}

/// Maps memory that a child shares; nobody unmaps it.
pub(crate) fn map_shared(length: usize) -> io::Result<*mut u8> {
    map(0, length, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
}

/// Maps memory; `addr` is 0 for anywhere.
pub(crate) fn map(addr: u64, length: usize, flags: i32, fd: RawFd) -> io::Result<*mut u8> {
    // SAFETY: A new mapping, or one in place of the pool.
    let at = unsafe {
        libc::mmap(
            addr as *mut libc::c_void,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(at.cast())
}
