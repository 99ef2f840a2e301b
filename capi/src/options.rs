// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options and answers: structures whose size the program tells, so that they can grow.

use std::ptr;

use nix::errno::Errno;

use pinmap::ErrorKind;
use pinmap_dynamic::{Error, Result};

/// The device may only read the memory.
pub const PINMAP_READ_ONLY: u32 = 1 << 0;
/// Takes the whole pages around the range. What else lies in the first and in the last page is then
/// in the device's reach, too. Without it the range must be whole pages.
pub const PINMAP_ROUND_OUTWARDS: u32 = 1 << 1;
/// All devices of this driver that the process has open reach the memory.
pub const PINMAP_PORTABLE: u32 = 1 << 2;
/// The CPU writes the memory write-combined: fast to write, slow to read.
pub const PINMAP_WRITE_COMBINED: u32 = 1 << 3;
/// Fails if the device cannot have the memory at the address that it has for the CPU.
pub const PINMAP_SAME_ADDRESS: u32 = 1 << 4;
/// The device gets the memory at device_address, or not at all.
pub const PINMAP_AT_ADDRESS: u32 = 1 << 5;
/// The memory is allocated on the NUMA node that is named.
pub const PINMAP_ON_NODE: u32 = 1 << 6;

/// How memory is registered, allocated or mapped. What is not named is 0:
///
///     struct pinmap_memory_options options = {
///         .size = sizeof(options), .flags = PINMAP_READ_ONLY, .address_bits = 40,
///     };
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct MemoryOptions {
    /// sizeof(struct pinmap_memory_options)
    pub size: u32,
    /// PINMAP_READ_ONLY and others.
    pub flags: u32,
    /// The device drives only so many bits of addresses. 0: as many as it says itself.
    pub address_bits: u32,
    /// The NUMA node, with PINMAP_ON_NODE.
    pub node: u32,
    /// The address that the device is to have, with PINMAP_AT_ADDRESS.
    pub device_address: u64,
}

/// How a stream is made. What is not named is 0.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct StreamOptions {
    /// sizeof(struct pinmap_stream_options)
    pub size: u32,
    /// Between packets, the device prefers streams of a higher priority. 0 is the lowest.
    pub priority: u32,
    /// How many packets can wait for the device: a power of two from 64 to 65,536. 0: 256.
    pub packets: u32,
    /// 0
    pub reserved: u32,
}

/// How a kernel is launched. What is not named is 0, but for `blocks` and `threads`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct LaunchOptions {
    /// sizeof(struct pinmap_launch_options)
    pub size: u32,
    /// 0
    pub reserved: u32,
    /// The blocks of the grid, in x, y and z; 0 in y or z is 1.
    pub blocks: [u32; 3],
    /// The threads of a block, in x, y and z; at most 1,024.
    pub threads: [u32; 3],
    /// The memory that the threads of a block share, if it is more than that of the arguments.
    pub shared_bytes: u64,
    /// The stack of a thread. 0: 4,096.
    pub stack_bytes: u64,
    /// The room for what the threads print. 0: 65,536.
    pub print_bytes: u64,
}

/// How a channel of AMD's DMA core is taken. What is not named is 0.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct XdmaOptions {
    /// sizeof(struct pinmap_xdma_options)
    pub size: u32,
    /// 1: waits poll memory to which the core writes, and never sleep. The channel then takes no
    /// interrupt vector, and has no file descriptor.
    pub polled: u32,
    /// How many descriptors a transfer can have. 0: 1024.
    pub descriptors: u32,
    /// How many bytes a descriptor has at most, a multiple of 64 below 2^28: a channel is stopped
    /// after a descriptor. 0: as many as it can have.
    pub piece: u32,
}

/// Options that C hands over, of which the first member is their size.
///
/// # Safety
///
/// The type consists of integers only, without padding, and the first is a `u32`.
pub(crate) unsafe trait Sized32: Copy + Default {}

// SAFETY: Four words and a double word.
unsafe impl Sized32 for MemoryOptions {}
// SAFETY: Four words.
unsafe impl Sized32 for StreamOptions {}
// SAFETY: Eight words and three double words.
unsafe impl Sized32 for LaunchOptions {}
// SAFETY: Four words.
unsafe impl Sized32 for XdmaOptions {}

/// The options at `from`, or the default ones. A program that was compiled with a newer header may
/// use what this library does not know only as 0.
///
/// # Safety
///
/// The pointer is NULL, or that of a structure whose first member is its size.
pub(crate) unsafe fn options<T: Sized32>(from: *const T) -> Result<T> {
    let mut options = T::default();
    if from.is_null() {
        return Ok(options);
    }
    // SAFETY: The first member, as the caller promises.
    let size = unsafe { from.cast::<u32>().read() } as usize;
    let (known, bytes) = (size_of::<T>(), from.cast::<u8>());
    if size < size_of::<u32>() || size > 4096 {
        return Err(
            Error::invalid(format!("the options have a size of {size} bytes"))
                .with_hint("the member `size` is the size of the structure"),
        );
    }
    for offset in known..size {
        // SAFETY: Inside of the structure.
        if unsafe { bytes.add(offset).read() } != 0 {
            let text = format!("this library knows {known} bytes of the options, of {size}");
            return Err(Error::new(Errno::E2BIG, ErrorKind::InvalidInput, text)
                .with_hint("the program was compiled for a newer version of libpinmap"));
        }
    }
    // SAFETY: Integers can have any bytes, and both structures have so many.
    unsafe {
        ptr::copy_nonoverlapping(bytes, (&raw mut options).cast::<u8>(), size.min(known));
    }
    Ok(options)
}

/// Stores an answer of which the program knows `size` bytes. What it knows and this library does
/// not is 0.
///
/// # Safety
///
/// `to` is NULL, or can be written for `size` bytes. The answer is plain data without padding.
pub(crate) unsafe fn answer<T: Copy>(to: *mut T, size: usize, answer: &T) -> Result<()> {
    if to.is_null() || size == 0 {
        return Err(Error::invalid("there is no room for the answer"));
    }
    let known = size_of::<T>();
    // SAFETY: As the caller promises.
    unsafe {
        ptr::copy_nonoverlapping(
            ptr::from_ref(answer).cast::<u8>(),
            to.cast(),
            size.min(known),
        );
        if size > known {
            to.cast::<u8>().add(known).write_bytes(0, size - known);
        }
    }
    Ok(())
}

impl MemoryOptions {
    /// Refuses flags that do not suit what is made, and values without their flag.
    pub(crate) fn check(&self, allowed: u32) -> Result<()> {
        let unknown = self.flags & !allowed;
        if unknown != 0 {
            return Err(Error::invalid(format!(
                "the flags {unknown:#x} have no meaning here"
            )));
        }
        if self.flags & PINMAP_AT_ADDRESS == 0 && self.device_address != 0 {
            return Err(Error::invalid("device_address goes with PINMAP_AT_ADDRESS"));
        }
        if self.flags & PINMAP_ON_NODE == 0 && self.node != 0 {
            return Err(Error::invalid("node goes with PINMAP_ON_NODE"));
        }
        Ok(())
    }

    pub(crate) fn access(&self) -> pinmap::Access {
        if self.flags & PINMAP_READ_ONLY == 0 {
            pinmap::Access::ReadWrite
        } else {
            pinmap::Access::Read
        }
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Newer {
        known: StreamOptions,
        more: u32,
    }

    #[test]
    fn options_grow() {
        // SAFETY: NULL is for the default ones.
        let none = unsafe { options::<StreamOptions>(ptr::null()) }.expect("the default ones");
        assert_eq!((none.priority, none.packets), (0, 0));
        let mut newer = Newer {
            known: StreamOptions::default(),
            more: 0,
        };
        newer.known.priority = 3;
        // SAFETY: The sizes below are those of the structure, or less.
        let read = |newer: &Newer| unsafe { options(&raw const newer.known) };
        newer.known.size = size_of::<Newer>() as u32;
        assert_eq!(read(&newer).expect("nothing new is used").priority, 3);
        newer.more = 1;
        assert!(read(&newer).is_err());
        // An older program knows less.
        newer.known.packets = 7;
        newer.known.size = 8;
        let known = read(&newer).expect("what is known");
        assert_eq!((known.priority, known.packets), (3, 0));
        newer.known.size = 0;
        assert!(read(&newer).is_err());
    }

    #[test]
    fn answers_fit_the_program() {
        let given = StreamOptions {
            size: 1,
            priority: 2,
            packets: 3,
            reserved: 4,
        };
        let mut words = [9u32; 6];
        // SAFETY: There is room for so much.
        unsafe { answer(words.as_mut_ptr().cast(), 8, &given) }.expect("room");
        assert_eq!(words, [1, 2, 9, 9, 9, 9]);
        // SAFETY: As above.
        unsafe { answer(words.as_mut_ptr().cast(), 20, &given) }.expect("room");
        assert_eq!(words, [1, 2, 3, 4, 0, 9]);
    }
}
