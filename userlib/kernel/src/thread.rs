// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads: who they are, how they wait for each other, print and panic. Section 17 of the
//! device's manual.

use core::arch::asm;
use core::fmt::{self, Write};
use core::panic::PanicInfo;

/// Reads a register that stays as it is while a thread runs. For this crate alone: it would execute
/// whatever else its text has.
macro_rules! csr {
    ($number:literal) => {{
        let value: u64;
        // SAFETY: The device has the register, and reading it has no effect.
        unsafe {
            ::core::arch::asm!(
                concat!("csrr {}, ", $number),
                out(reg) value,
                options(pure, nomem, nostack),
            )
        }
        value
    }};
}

pub(crate) use csr;

/// Numbers in x, y and z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim3 {
    /// The first number.
    pub x: u32,
    /// The second one.
    pub y: u32,
    /// The third one.
    pub z: u32,
}

macro_rules! dims {
    ($($(#[$doc:meta])* $name:ident: $x:literal $y:literal $z:literal;)*) => { $(
        $(#[$doc])*
        pub fn $name() -> Dim3 {
            let (x, y, z) = (csr!($x) as u32, csr!($y) as u32, csr!($z) as u32);
            Dim3 { x, y, z }
        }
    )* };
}

dims! {
    /// The thread in its block.
    thread_idx: "0xcc0" "0xcc1" "0xcc2";
    /// The block in the grid.
    block_idx: "0xcc3" "0xcc4" "0xcc5";
    /// Threads of a block.
    block_dim: "0xcc6" "0xcc7" "0xcc8";
    /// Blocks of the grid.
    grid_dim: "0xcc9" "0xcca" "0xccb";
}

/// Returns the number of the thread in the grid: that of its block, times the threads of a block,
/// plus that of the thread in its block.
pub fn grid_thread() -> usize {
    csr!("0xcce") as usize
}

/// Returns how many threads the grid has.
pub fn grid_threads() -> usize {
    let (blocks, threads) = (grid_dim(), block_dim());
    [
        blocks.x, blocks.y, blocks.z, threads.x, threads.y, threads.z,
    ]
    .iter()
    .fold(1, |all, &count| all * count as usize)
}

/// Returns how many instructions the thread has executed.
pub fn clock64() -> u64 {
    let count;
    // SAFETY: The device has the register, and reading it has no effect.
    unsafe { asm!("csrr {}, 0xc02", out(reg) count) }
    count
}

/// Returns the device's clock in nanoseconds.
pub fn globaltimer() -> u64 {
    let time;
    // SAFETY: As in `clock64`.
    unsafe { asm!("csrr {}, 0xc01", out(reg) time) }
    time
}

/// Waits until each thread of the block is here, or at another call of this, or has ended. What the
/// threads have stored before, all of them see behind it.
pub fn sync_threads() {
    // SAFETY: The call changes nothing but a0.
    unsafe { asm!("ecall", in("a7") 1, out("a0") _) }
}

/// Text so far. One that is longer than this is several messages.
struct Text {
    len: usize,
    bytes: [u8; 256],
}

impl Text {
    fn flush(&mut self) {
        if self.len != 0 {
            let start = self.bytes.as_ptr();
            // SAFETY: The device reads so many bytes there, and the call changes nothing but a0.
            unsafe {
                asm!("ecall", in("a7") 2, inlateout("a0") start => _, in("a1") self.len);
            }
        }
        self.len = 0;
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.len == self.bytes.len() {
                self.flush();
            }
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

#[doc(hidden)]
#[inline(never)]
pub fn print_text(text: fmt::Arguments<'_>) {
    let mut all = Text {
        len: 0,
        bytes: [0; 256],
    };
    // It writes all of it, whatever the formatting of a value returns.
    let _ = all.write_fmt(text);
    all.flush();
}

/// Prints to the standard output of the program, in the order in which the threads come here. A
/// text of more than 256 bytes is several messages.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::print_text(::core::format_args!($($text)*)) };
}

/// Prints a line, as [`print!`].
#[macro_export]
macro_rules! println {
    ($($text:tt)*) => { $crate::print!("{}\n", ::core::format_args!($($text)*)) };
}

/// Stops the launch, having said why. The line is in its report.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let thread = csr!("0xccc");
    let block = csr!("0xccd");
    print_text(format_args!("block {block}, thread {thread} {info}\n"));
    let line = info.location().map_or(0, |location| location.line());
    // SAFETY: The call stops the launch.
    unsafe { asm!("ecall", in("a7") 3, in("a0") line, options(noreturn)) }
}

/// Functions on floating point numbers that `core` has not, and the device has an instruction for.
pub trait Float: Sized {
    /// Returns the square root, or NaN of a negative number.
    fn sqrt(self) -> Self;

    /// Returns `self * factor + summand`, rounded once.
    fn mul_add(self, factor: Self, summand: Self) -> Self;
}

macro_rules! floats {
    ($($type:ty: $sqrt:literal, $mul_add:literal;)*) => { $(
        impl Float for $type {
            fn sqrt(self) -> Self {
                let root;
                // SAFETY: The instruction has no other effect.
                unsafe {
                    asm!($sqrt, out(freg) root, in(freg) self, options(pure, nomem, nostack));
                }
                root
            }

            fn mul_add(self, factor: Self, summand: Self) -> Self {
                let sum;
                // SAFETY: As above.
                unsafe {
                    asm!(
                        $mul_add, out(freg) sum, in(freg) self, in(freg) factor, in(freg) summand,
                        options(pure, nomem, nostack),
                    );
                }
                sum
            }
        }
    )* };
}

floats! {
    f32: "fsqrt.s {}, {}", "fmadd.s {}, {}, {}, {}";
    f64: "fsqrt.d {}, {}", "fmadd.d {}, {}, {}, {}";
}

/// Functions that the compiler calls where it copies, clears and compares. They are volatile, or it
/// would have them call themselves.
#[allow(clippy::missing_safety_doc, reason = "the promises are those of C")]
mod libc {
    #[no_mangle]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
        for i in 0..count {
            // SAFETY: The caller promises that it is there, as in all of these.
            unsafe { to.add(i).write_volatile(from.add(i).read()) };
        }
        to
    }

    #[no_mangle]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
        if to.addr() <= from.addr() {
            // SAFETY: As above; what is read has not been written yet.
            return unsafe { memcpy(to, from, count) };
        }
        for i in (0..count).rev() {
            // SAFETY: As above.
            unsafe { to.add(i).write_volatile(from.add(i).read()) };
        }
        to
    }

    #[no_mangle]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
        for i in 0..count {
            // SAFETY: As above.
            unsafe { to.add(i).write_volatile(byte as u8) };
        }
        to
    }

    #[no_mangle]
    unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
        for i in 0..count {
            // SAFETY: As above.
            let (a, b) = unsafe { (one.add(i).read_volatile(), other.add(i).read_volatile()) };
            if a != b {
                return i32::from(a) - i32::from(b);
            }
        }
        0
    }

    #[no_mangle]
    unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
        // SAFETY: As above.
        unsafe { memcmp(one, other, count) }
    }
}
