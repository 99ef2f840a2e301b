// SPDX-License-Identifier: MIT OR Apache-2.0
//! Register blocks: registers with names, types and access, checked when the program is compiled.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

use nix::errno::Errno;

use crate::error::{Error, Operation, Result};
use crate::sys::barrier::{after_read, before_write};
use crate::sys::word::Word;

use super::{Bar, Direct};

/// Access to a [`Register`] that can be read and written.
#[derive(Debug, Clone, Copy)]
pub enum ReadWrite {}

/// Access to a [`Register`] that can only be read.
#[derive(Debug, Clone, Copy)]
pub enum ReadOnly {}

/// Access to a [`Register`] that can only be written.
#[derive(Debug, Clone, Copy)]
pub enum WriteOnly {}

/// Access by which a register can be read: [`ReadWrite`], [`ReadOnly`].
pub trait Readable: sealed::Access {}

/// Access by which a register can be written: [`ReadWrite`], [`WriteOnly`].
pub trait Writable: sealed::Access {}

mod sealed {
    pub trait Access {}
}

impl sealed::Access for ReadWrite {}
impl sealed::Access for ReadOnly {}
impl sealed::Access for WriteOnly {}
impl Readable for ReadWrite {}
impl Readable for ReadOnly {}
impl Writable for ReadWrite {}
impl Writable for WriteOnly {}

/// A part of a [`Bar`] of `LEN` bytes that registers lie in.
///
/// # Invariants
///
/// The bytes from `start` on are mapped, readable and writable, as long as `bar` exists, and begin
/// at a multiple of 8 bytes in the BAR.
pub struct RegisterBlock<const LEN: usize> {
    start: *mut u8,
    bar: Bar,
}

// SAFETY: It is a mapping with an address in it, and a device's registers are outside of the memory
// model: several threads may access them.
unsafe impl<const LEN: usize> Send for RegisterBlock<LEN> {}
// SAFETY: As for `Send`.
unsafe impl<const LEN: usize> Sync for RegisterBlock<LEN> {}

/// A register: one access for each call, in program order.
///
/// ```no_run
/// pinmap::registers! {
///     struct Timer: 0x10 {
///         0x00 => ticks: ReadOnly<u64>,
///         0x08 => period: ReadWrite<u32>,
///         0x0c => start: WriteOnly<u32>,
///     }
/// }
/// # fn f(bar: &pinmap::Bar) -> pinmap::Result<()> {
/// let timer: Timer = bar.registers(0x1000)?;
/// timer.period().update(|period| period / 2);
/// timer.start().write(1); // `timer.start().read()` does not compile
/// println!("{} ticks", timer.ticks().read());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct Register<'a, T, A> {
    /// # Invariants
    ///
    /// Mapped, readable and writable for `'a`, and aligned.
    at: *mut T,
    block: PhantomData<&'a A>,
}

/// Registers that are declared by [`registers!`](crate::registers).
pub trait Registers: Sized {
    /// Makes the registers at byte `offset` of a BAR. See [`Bar::registers`].
    ///
    /// # Errors
    ///
    /// As for [`Bar::registers`].
    fn at(bar: &Bar, offset: usize) -> Result<Self>;
}

impl Bar {
    /// Returns registers that were declared by [`registers!`](crate::registers), from byte `offset`
    /// on. They are checked here, once.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the registers are not all inside the BAR, lie in its hole, or do not begin at a
    /// multiple of 8 bytes.
    pub fn registers<R: Registers>(&self, offset: usize) -> Result<R> {
        R::at(self, offset)
    }
}

impl<const LEN: usize> RegisterBlock<LEN> {
    /// The block of `LEN` bytes from byte `offset` of a BAR on.
    ///
    /// # Errors
    ///
    /// As for [`Bar::registers`].
    pub fn new(bar: &Bar, offset: usize) -> Result<Self> {
        // INVARIANT: As `at` guarantees, and the BAR is kept.
        Ok(Self {
            start: bar.at("map registers in", offset, 8, LEN)?,
            bar: bar.clone(),
        })
    }

    /// The BAR in which the registers lie.
    pub fn bar(&self) -> &Bar {
        &self.bar
    }

    /// The register at byte `OFFSET` of the block, which is checked at compile time.
    #[inline]
    pub fn register<T: Word, A, const OFFSET: usize>(&self) -> Register<'_, T, A> {
        const {
            assert!(OFFSET % size_of::<T>() == 0, "the register is not aligned");
            assert!(
                OFFSET + size_of::<T>() <= LEN,
                "the register is outside of the block"
            );
        }
        // INVARIANT: Inside the block and aligned, as was checked.
        Register {
            at: self.start.wrapping_add(OFFSET).cast(),
            block: PhantomData,
        }
    }
}

/// Registers of one kind at equal distances, such as the doorbells of a device's queues, or one
/// register, where the offset, the distance or the number is known only at run time.
///
/// Made by [`Bar::register_array`], which checks all of them, once. A clone is the same registers.
///
/// ```no_run
/// use pinmap::{RegisterArray, WriteOnly};
/// # fn f(bar: &pinmap::Bar, queues: usize) -> pinmap::Result<()> {
/// // The device tells how far its doorbells are from each other.
/// let stride = 4 << bar.read::<u32>(0x04)?;
/// let doorbells: RegisterArray<u32, WriteOnly> = bar.register_array(0x1000, stride, queues)?;
/// if let Some(doorbell) = doorbells.get(3) {
///     doorbell.write(1);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct RegisterArray<T, A> {
    /// # Invariants
    ///
    /// `count` registers, `stride` bytes from each other, are mapped and aligned from here on, as
    /// long as `_bar` exists.
    start: Direct,
    stride: usize,
    count: usize,
    _bar: Bar,
    registers: PhantomData<(T, A)>,
}

impl Bar {
    /// Returns `count` registers from byte `offset` on, each `stride` bytes behind the one before.
    ///
    /// # Errors
    ///
    /// `EINVAL`: `count` is 0, the offset or the stride is not a multiple of the size of `T`, or
    /// the registers are not all inside the BAR, or lie in its hole.
    pub fn register_array<T: Word, A>(
        &self,
        offset: usize,
        stride: usize,
        count: usize,
    ) -> Result<RegisterArray<T, A>> {
        let size = size_of::<T>();
        let len = count
            .checked_sub(1)
            .filter(|_| stride != 0 && stride % size == 0)
            .and_then(|before| before.checked_mul(stride)?.checked_add(size));
        let Some(len) = len else {
            let attempt = format!("take {count} registers {stride} bytes apart");
            let cause = format!("there must be one, and the distance a multiple of {size}");
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Bar, attempt, errno, cause));
        };
        let start = self.at("map registers in", offset, size, len)?;
        // INVARIANT: As `at` guarantees, and the BAR is kept.
        Ok(RegisterArray {
            start: Direct { start, len },
            stride,
            count,
            _bar: self.clone(),
            registers: PhantomData,
        })
    }
}

impl<T: Word, A> RegisterArray<T, A> {
    /// The register with a number, counted from 0; `None` if there are not so many.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Register<'_, T, A>> {
        // INVARIANT: One of the registers. Their length was checked, so nothing overflows.
        (index < self.count).then(|| Register {
            at: self.start.start.wrapping_add(index * self.stride).cast(),
            block: PhantomData,
        })
    }
}

impl<const LEN: usize> fmt::Debug for RegisterBlock<LEN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LEN:#x} bytes of {:?}", self.bar)
    }
}

impl<T: Word, A: Readable> Register<'_, T, A> {
    /// Reads the register. Later reads of registered memory see what the device wrote before it
    /// answered.
    #[inline]
    pub fn read(&self) -> T {
        // SAFETY: Mapped and aligned, by the invariant. A device's registers are outside of the
        // memory model.
        let value = unsafe { self.at.read_volatile() };
        after_read();
        value.le_to_cpu()
    }
}

impl<T: Word, A: Writable> Register<'_, T, A> {
    /// Writes the register. When the device sees it, the device also sees everything that was
    /// written to registered memory before. The write is posted: it returns before the device has
    /// it, and a read of any register returns after.
    #[inline]
    pub fn write(&self, value: T) {
        before_write();
        // SAFETY: As in `read`.
        unsafe { self.at.write_volatile(value.cpu_to_le()) };
    }
}

impl<T: Word, A: Readable + Writable> Register<'_, T, A> {
    /// Reads the register, and writes what the function makes of the value: two accesses, between
    /// which others may come.
    #[inline]
    pub fn update(&self, change: impl FnOnce(T) -> T) {
        self.write(change(self.read()));
    }
}

impl<T, A> fmt::Debug for Register<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value is not read: that may have an effect.
        f.write_str("Register")
    }
}

/// Declares the registers of a device: a struct with a method for each register, the offset, the
/// type and the access of which are checked when the program is compiled. An access is one volatile
/// load or store, and nothing else.
///
/// ```
/// use pinmap::{registers, Device};
///
/// registers! {
///     /// Registers of the DMA engine, 0x20 bytes.
///     pub struct Engine: 0x20 {
///         /// Identifies the engine.
///         0x00 => magic: ReadOnly<u32>,
///         /// Address of the descriptors.
///         0x08 => ring: ReadWrite<u64>,
///         /// Starts the engine.
///         0x10 => doorbell: WriteOnly<u32>,
///         0x14 => gain: ReadWrite<f32>,
///     }
/// }
///
/// fn start(device: &Device) -> pinmap::Result<()> {
///     let engine: Engine = device.bar(0)?.registers(0x1000)?;
///     println!("engine {:#x}", engine.magic().read());
///     engine.gain().update(|gain| gain * 2.0);
///     engine.doorbell().write(1);
///     Ok(())
/// }
/// ```
///
/// A register that can only be read cannot be written:
///
/// ```compile_fail,E0599
/// # pinmap::registers! { pub struct Engine: 0x20 { 0x00 => magic: ReadOnly<u32>, } }
/// fn f(engine: &Engine) {
///     engine.magic().write(1);
/// }
/// ```
///
/// A register lies inside the block, at a multiple of its size:
///
/// ```compile_fail,E0080
/// pinmap::registers! { pub struct Engine: 0x20 { 0x1e => magic: ReadOnly<u32>, } }
/// ```
#[macro_export]
macro_rules! registers {
    ($(
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident: $len:literal {
            $(
                $(#[$register_meta:meta])*
                $offset:literal => $register:ident: $access:ident<$type:ty>
            ),* $(,)?
        }
    )+) => { $(
        $(#[$meta])*
        #[derive(Debug)]
        $visibility struct $name($crate::RegisterBlock<$len>);

        impl $crate::Registers for $name {
            fn at(bar: &$crate::Bar, offset: usize) -> $crate::Result<Self> {
                $crate::RegisterBlock::new(bar, offset).map(Self)
            }
        }

        $(const _: () = {
            let size = ::core::mem::size_of::<$type>();
            assert!($offset % size == 0, "the register is not aligned");
            assert!($offset + size <= $len, "the register is outside of the block");
        };)*

        #[allow(dead_code)]
        impl $name {
            $(
                $(#[$register_meta])*
                #[inline]
                $visibility fn $register(&self) -> $crate::Register<'_, $type, $crate::$access> {
                    self.0.register::<$type, $crate::$access, $offset>()
                }
            )*
        }
    )+ };
}

#[cfg(test)]
mod tests {
    use crate::device::bar::tests::bar;

    crate::registers! {
        /// Registers of a test.
        struct Block: 0x18 {
            0x00 => magic: ReadOnly<u32>,
            0x04 => go: WriteOnly<u16>,
            0x08 => addr: ReadWrite<u64>,
            0x14 => gain: ReadWrite<f32>,
        }
    }

    #[test]
    fn registers_are_where_they_are_declared() {
        let bar = bar(0x2000, None);
        bar.write(0x1000, 0xabcd_ef01u32).expect("a write");
        let block: Block = bar.registers(0x1000).expect("registers");
        assert_eq!(block.magic().read(), 0xabcd_ef01);
        block.go().write(0x1234);
        block.addr().write(1);
        block.addr().update(|addr| addr | 0x100);
        block.gain().write(0.5);
        assert_eq!(bar.read::<u16>(0x1004).expect("a read"), 0x1234);
        assert_eq!(bar.read::<u64>(0x1008).expect("a read"), 0x101);
        assert_eq!(bar.read::<f32>(0x1014).expect("a read"), 0.5);
        assert_eq!(block.0.bar().len(), 0x2000);
    }

    #[test]
    fn blocks_stay_inside_and_out_of_the_hole() {
        let bar = bar(0x4000, Some((0x1000, 0x1000)));
        bar.registers::<Block>(0x3fe8).expect("just inside");
        for offset in [0x3ff0, 0xff0, 0x1000, 4] {
            assert!(bar.registers::<Block>(offset).is_err(), "{offset:#x}");
        }
    }

    #[test]
    fn arrays_have_their_stride_and_stay_inside() {
        let bar = bar(0x2000, None);
        let array = |offset, stride, count| {
            bar.register_array::<u32, crate::ReadWrite>(offset, stride, count)
        };
        let doorbells = array(0x1004, 12, 3).expect("inside");
        for index in 0..3 {
            let doorbell = doorbells.get(index).expect("one of three");
            doorbell.write(index as u32 + 7);
            let value: u32 = bar.read(0x1004 + 12 * index).expect("a read");
            assert_eq!((value, doorbell.read()), (index as u32 + 7, value));
        }
        assert!(doorbells.get(3).is_none());
        array(0x1ffc, usize::MAX & !3, 1).expect("the last one");
        for (offset, stride, count) in [
            (0x1000, 4, 0),
            (0x1000, 0, 2),
            (0x1000, 6, 2),
            (0x1002, 4, 2),
            (0x1ffc, 4, 2),
            (0x1000, 8, usize::MAX),
        ] {
            let error = array(offset, stride, count).expect_err("refused");
            let words = format!("{offset:#x} {stride} {count}: {error}");
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{words}");
        }
    }

    #[test]
    fn registers_can_be_shared_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<Block>();
        check::<crate::RegisterArray<u32, crate::WriteOnly>>();
    }
}
