// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering, allocating, managing, importing and exporting memory.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::slice;

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap::{AllocOptions, DmaBuf, RegisterOptions};
use pinmap_dynamic::{Error, Result};

use crate::device::Device;
use crate::error::{enter, make, refer, status};
use crate::memory::Memory;
use crate::options::{
    options, MemoryOptions, PINMAP_AT_ADDRESS, PINMAP_ON_NODE, PINMAP_PORTABLE, PINMAP_READ_ONLY,
    PINMAP_ROUND_OUTWARDS, PINMAP_SAME_ADDRESS, PINMAP_WRITE_COMBINED,
};

pub(crate) fn register_options(options: &MemoryOptions) -> RegisterOptions {
    let mut register = RegisterOptions::new(options.access());
    if options.has(PINMAP_ROUND_OUTWARDS) {
        register = register.round_outwards();
    }
    if options.has(PINMAP_PORTABLE) {
        register = register.portable();
    }
    if options.has(PINMAP_SAME_ADDRESS) {
        register = register.identity();
    }
    if options.has(PINMAP_AT_ADDRESS) {
        register = register.at(options.device_address);
    }
    if options.address_bits != 0 {
        register = register.address_bits(options.address_bits);
    }
    register
}

/// Registers memory of this program: `length` bytes at `address`. The device can reach it until it
/// is released. Without options (NULL), the device may read and write it, and it must be whole
/// pages.
///
/// The memory must not be given back, with free() for instance, before it is released. If it leaves
/// the address space before that, by munmap() for instance, the device cannot reach it any more,
/// and there is an event PINMAP_EVENT_TYPE_STALE.
///
/// Flags: PINMAP_READ_ONLY, PINMAP_ROUND_OUTWARDS, PINMAP_PORTABLE, PINMAP_SAME_ADDRESS,
/// PINMAP_AT_ADDRESS.
///
/// Errors: EINVAL, the memory is not whole pages, or empty; EFAULT, not all of it is memory that
/// can be pinned; EEXIST, a part of it is registered already, or something else has the device
/// address; ENOMEM, the user may not lock so much; EBUSY, another program owns the device; ENOSPC,
/// the device can have no such address; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_register(
    device: *const Device,
    address: *mut c_void,
    length: usize,
    memory_options: *const MemoryOptions,
) -> *mut Memory {
    const FLAGS: u32 = PINMAP_READ_ONLY
        | PINMAP_ROUND_OUTWARDS
        | PINMAP_PORTABLE
        | PINMAP_SAME_ADDRESS
        | PINMAP_AT_ADDRESS;
    make(|| {
        // SAFETY: A device and options, by the rules of C.
        let (device, given) = unsafe { (refer(device, "device")?, options(memory_options)?) };
        given.check(FLAGS)?;
        let (device, first) = (&device.device, address.cast());
        let register = register_options(&given);
        // SAFETY: The program has the memory until it is released, by the rules of C, which has no
        // references.
        let memory = unsafe { pinmap_dynamic::Memory::register(device, first, length, register)? };
        Ok(Memory(memory))
    })
}

/// A piece of memory of the program.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Range {
    /// The first byte.
    pub address: *mut c_void,
    /// The length in bytes.
    pub length: usize,
}

/// Registers several pieces of memory, as pinmap_register() does each of them: all or none, by one
/// call of the driver for up to 1024 of them. Each is whole pages. `memory` has room for `count`
/// pointers, and each is released by itself. With PINMAP_AT_ADDRESS the address is that of the
/// first, and the others follow it.
///
/// Flags: PINMAP_READ_ONLY, PINMAP_PORTABLE, PINMAP_SAME_ADDRESS, PINMAP_AT_ADDRESS.
///
/// Errors: as for pinmap_register(); the words name the piece.
#[no_mangle]
pub unsafe extern "C" fn pinmap_register_all(
    device: *const Device,
    ranges: *const Range,
    count: usize,
    memory_options: *const MemoryOptions,
    memory: *mut *mut Memory,
) -> c_int {
    const FLAGS: u32 = PINMAP_READ_ONLY | PINMAP_PORTABLE | PINMAP_SAME_ADDRESS | PINMAP_AT_ADDRESS;
    status(|| {
        // SAFETY: A device and options, by the rules of C.
        let (device, given) = unsafe { (refer(device, "device")?, options(memory_options)?) };
        given.check(FLAGS)?;
        if count == 0 {
            return Ok(());
        }
        if ranges.is_null() || memory.is_null() {
            return Err(Error::invalid("ranges or memory is NULL"));
        }
        // SAFETY: There are `count` of them, by the rules of C.
        let asked = unsafe { slice::from_raw_parts(ranges, count) };
        let asked: Vec<_> = asked
            .iter()
            .map(|one| (one.address.cast(), one.length))
            .collect();
        let (device, register) = (&device.device, register_options(&given));
        // SAFETY: As for `pinmap_register`.
        let made = unsafe { pinmap_dynamic::Memory::register_all(device, &asked, register)? };
        for (index, one) in made.into_iter().enumerate() {
            // SAFETY: There is room for `count` of them, by the rules of C.
            unsafe {
                memory
                    .add(index)
                    .write(Box::into_raw(Box::new(Memory(one))))
            };
        }
        Ok(())
    })
}

/// Registers whole pages of a file that is open as `fd`: a memfd, or one of tmpfs or hugetlbfs. The
/// device and all who map the file share them. The memory has no address in this program, and is no
/// operand of a stream.
///
/// Flags: PINMAP_READ_ONLY, PINMAP_AT_ADDRESS.
///
/// Errors: EINVAL, that is no such file, or not whole pages of it; otherwise as for
/// pinmap_register().
#[no_mangle]
pub unsafe extern "C" fn pinmap_register_file(
    device: *const Device,
    fd: c_int,
    offset: u64,
    length: usize,
    memory_options: *const MemoryOptions,
) -> *mut Memory {
    make(|| {
        // SAFETY: A device and options, by the rules of C.
        let (device, given) = unsafe { (refer(device, "device")?, options(memory_options)?) };
        given.check(PINMAP_READ_ONLY | PINMAP_AT_ADDRESS)?;
        let file = duplicate(fd)?;
        let register = register_options(&given);
        let device = &device.device;
        let memory = pinmap_dynamic::Memory::register_file(device, &file, offset, length, register);
        Ok(Memory(memory?))
    })
}

/// A file descriptor of our own for the file that C names.
fn duplicate(fd: c_int) -> Result<std::fs::File> {
    if fd < 0 {
        return Err(Error::new(
            Errno::EBADF,
            ErrorKind::InvalidInput,
            format!("{fd} is no file descriptor"),
        ));
    }
    // SAFETY: It is used for one call, which fails if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let owned = borrowed.try_clone_to_owned().map_err(|error| {
        let errno = error.raw_os_error().map_or(Errno::EBADF, Errno::from_raw);
        let text = format!("file descriptor {fd} cannot be duplicated: {error}");
        Error::new(errno, ErrorKind::InvalidInput, text)
    })?;
    Ok(owned.into())
}

/// Allocates host memory of the driver's, which is zeroed, pinned and mapped in this program and in
/// the device.
///
/// Flags: PINMAP_WRITE_COMBINED, PINMAP_ON_NODE, PINMAP_PORTABLE.
///
/// Errors: EINVAL, the length is 0; ENOMEM, out of memory, or more than the user may lock; EBUSY,
/// another program owns the device; ENODEV, it is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_alloc(
    device: *const Device,
    length: usize,
    memory_options: *const MemoryOptions,
) -> *mut Memory {
    make(|| {
        // SAFETY: A device and options, by the rules of C.
        let (device, given) = unsafe { (refer(device, "device")?, options(memory_options)?) };
        given.check(PINMAP_WRITE_COMBINED | PINMAP_ON_NODE | PINMAP_PORTABLE)?;
        if given.address_bits != 0 {
            return Err(Error::invalid(
                "address_bits is not for memory of the driver's",
            ));
        }
        let mut alloc = AllocOptions::new();
        if given.has(PINMAP_WRITE_COMBINED) {
            alloc = alloc.write_combined();
        }
        if given.has(PINMAP_ON_NODE) {
            alloc = alloc.node(given.node);
        }
        if given.has(PINMAP_PORTABLE) {
            alloc = alloc.portable();
        }
        Ok(Memory(pinmap_dynamic::Memory::alloc(
            &device.device,
            length,
            alloc,
        )?))
    })
}

/// Allocates memory of the device's own, which is zeroed. The CPU reaches it by its address,
/// write-combined: it is slow to read. When the device is gone, an access raises SIGBUS.
///
/// Errors: EOPNOTSUPP, the device has none; ENOSPC, it has too little; EDQUOT, the control group
/// may not have so much of it; otherwise as for pinmap_alloc().
#[no_mangle]
pub unsafe extern "C" fn pinmap_alloc_vram(device: *const Device, length: usize) -> *mut Memory {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let accelerator = device.accelerator()?;
        Ok(Memory(pinmap_dynamic::Memory::alloc_vram(
            accelerator,
            length,
        )?))
    })
}

/// Allocates memory of the device's own as pinmap_alloc_vram() does, with P2PDMA pages: a disk
/// reads and writes it by itself, when it is a buffer for pread() and pwrite() of a file that is
/// open with O_DIRECT, or for io_uring.
///
/// Errors: EOPNOTSUPP, the device or the kernel has no such pages; EBUSY, somebody else has one of
/// the device's; otherwise as for pinmap_alloc_vram().
#[no_mangle]
pub unsafe extern "C" fn pinmap_alloc_vram_p2pdma(
    device: *const Device,
    length: usize,
) -> *mut Memory {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let accelerator = device.accelerator()?;
        Ok(Memory(pinmap_dynamic::Memory::alloc_vram_p2pdma(
            accelerator,
            length,
        )?))
    })
}

/// Allocates managed memory: ordinary memory of the program, that the device reaches at the same
/// address. Its pages move to where they are used.
///
/// Errors: EOPNOTSUPP, the device cannot have managed memory; otherwise as for pinmap_alloc().
#[no_mangle]
pub unsafe extern "C" fn pinmap_alloc_managed(device: *const Device, length: usize) -> *mut Memory {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let accelerator = device.accelerator()?;
        Ok(Memory(pinmap_dynamic::Memory::alloc_managed(
            accelerator,
            length,
        )?))
    })
}

/// Has memory of this program managed, where it is: `length` bytes at `address`, and the rest of
/// the pages around them. It may be unmapped and mapped anew; what is there then is managed.
///
/// What lies in memory that is managed already, stays a part of that.
///
/// Errors: EOPNOTSUPP, the device cannot have managed memory; EEXIST, it overlaps with managed
/// memory and does not lie in it; EINVAL, it is empty; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_manage(
    device: *const Device,
    address: *mut c_void,
    length: usize,
) -> *mut Memory {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let (accelerator, first) = (device.accelerator()?, address.cast());
        // SAFETY: The program has the memory while work names it, by the rules of C, which has no
        // references.
        let memory = unsafe { pinmap_dynamic::Memory::manage(accelerator, first, length)? };
        Ok(Memory(memory))
    })
}

/// Imports the dma-buf that is open as `fd`: one of this driver's, of this or another device and
/// process, or one of another driver whose memory does not move. VRAM must be of this device. The
/// file descriptor stays the caller's.
///
/// Errors: EINVAL, that is no dma-buf, or the CPU cannot map its memory; EACCES, it was exported
/// for reading only; EOPNOTSUPP, another driver may move it; EREMOTEIO, the bus does not let the
/// device reach it; ESTALE, it was taken back; otherwise as for pinmap_alloc().
#[no_mangle]
pub unsafe extern "C" fn pinmap_import(device: *const Device, fd: c_int) -> *mut Memory {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let file = DmaBuf::from(OwnedFd::from(duplicate(fd)?));
        Ok(Memory(pinmap_dynamic::Memory::import(
            &device.device,
            &file,
        )?))
    })
}

/// Exports memory of the driver's, or a registered file, as a dma-buf. Returns its file descriptor,
/// which the caller closes; -1 with an error. Flags: PINMAP_READ_ONLY.
///
/// Errors: EOPNOTSUPP, this kind of memory cannot be exported; ESTALE, it is stale; ENODEV, the
/// device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_export(memory: *const Memory, flags: u32) -> c_int {
    enter(-1, || {
        // SAFETY: Memory, by the rules of C.
        let memory = unsafe { refer(memory, "memory")? };
        let given = MemoryOptions {
            flags,
            ..MemoryOptions::default()
        };
        given.check(PINMAP_READ_ONLY)?;
        let exported = memory.0.export(given.access())?;
        Ok(OwnedFd::from(exported).into_raw_fd())
    })
}
