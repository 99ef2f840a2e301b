// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs for the test GPU, and launches of their kernels.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::slice;
use std::sync::Arc;

use nix::libc;
use pinmap::accelerator::launch_blocking;
use pinmap_dynamic::{Argument, Error, Result};
use pinmap_testgpu::program::{self, Dim, Grid};

use crate::device::Device;
use crate::error::{destroy, make, refer, status};
use crate::memory::Memory;
use crate::options::{options, LaunchOptions};
use crate::stream::{placed, Stream};

/// A program that is loaded: kernels that are compiled for the test GPU.
#[derive(Debug)]
pub struct Program(program::Program);

/// The kind of an argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum ArgumentKind {
    /// `integer`: an integer of any type but uint32_t, with the value that it has in 64 bits.
    Integer,
    /// `integer`: a uint32_t
    U32,
    /// `real`: a float
    F32,
    /// `real`: a double
    F64,
    /// A pointer to `length` bytes of `memory` that the kernel reads, from `offset` on.
    Read,
    /// A pointer to `length` bytes of `memory` that the kernel reads and writes.
    Write,
    /// A pointer to `length` bytes that the threads of a block share, such as a parameter in local
    /// memory in OpenCL C.
    Local,
}

/// An argument of a kernel. Members that its kind does not name are 0.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KernelArgument {
    /// A `pinmap_argument_kind`.
    pub kind: u32,
    /// 0
    pub reserved: u32,
    /// A number without a fraction.
    pub integer: u64,
    /// A number with a fraction.
    pub real: f64,
    /// Memory.
    pub memory: *const Memory,
    /// Bytes from the beginning of the memory on.
    pub offset: usize,
    /// Bytes.
    pub length: usize,
}

/// Loads a program: `length` bytes of an ELF file for RISC-V, as docs/kernels.md has it compiled.
///
/// Errors: EINVAL, it is no such file, or the device executes no programs; EOPNOTSUPP, the device
/// has no streams; ENOMEM, out of memory, or more than the user may lock; ENODEV, the device is
/// gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_program_load(
    device: *const Device,
    elf: *const c_void,
    length: usize,
) -> *mut Program {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        if elf.is_null() {
            return Err(Error::invalid("elf is NULL"));
        }
        // SAFETY: So many bytes, by the rules of C.
        let elf = unsafe { slice::from_raw_parts(elf.cast(), length) };
        Ok(Program(program::Program::load(device.accelerator()?, elf)?))
    })
}

/// Destroys a program, and returns at once. Launches that were submitted are still done. NULL is
/// none.
#[no_mangle]
pub unsafe extern "C" fn pinmap_program_destroy(program: *mut Program) {
    // SAFETY: It comes from `make`, and is not used again, by the rules of C.
    unsafe { destroy(program) };
}

/// Submits a launch of a kernel of a program: a grid of blocks of threads. The kernel must have
/// parameters of the types of the `count` arguments, and write only what they let it: the library
/// cannot see that. Memory that is written overlaps with no other argument.
///
/// pinmap_stream_synchronize() prints what the threads printed, on the standard output, and says
/// where a kernel stopped. A launch waits if there are 64 for which nobody has synchronized, and if
/// there is no memory for one more.
///
/// Errors: EINVAL, there is no such kernel, grid or argument, there are more than 7 pieces of
/// memory, or as for pinmap_stream_copy(); ENOMEM, stacks and shared memory do not fit.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_launch(
    stream: *const Stream,
    program: *const Program,
    kernel: *const c_char,
    launch_options: *const LaunchOptions,
    arguments: *const KernelArgument,
    count: usize,
) -> c_int {
    status(|| {
        // SAFETY: A stream, a program and options, by the rules of C.
        let (stream, program, given) = unsafe {
            (
                refer(stream, "stream")?,
                refer(program, "program")?,
                options(launch_options)?,
            )
        };
        if kernel.is_null() || (arguments.is_null() && count != 0) {
            return Err(Error::invalid(
                "the kernel's name or its arguments are NULL",
            ));
        }
        // SAFETY: Text, and so many arguments, by the rules of C.
        let (kernel, arguments) = unsafe {
            let arguments = match count {
                0 => &[],
                _ => slice::from_raw_parts(arguments, count),
            };
            (CStr::from_ptr(kernel), arguments)
        };
        let kernel = kernel.to_str();
        let kernel = kernel.map_err(|_| Error::invalid("the kernel's name is not UTF-8"))?;
        let mut memory = Vec::new();
        let mut list = Vec::new();
        for argument in arguments {
            // SAFETY: Memory, by the rules of C.
            list.push(unsafe { checked(argument, &mut memory)? });
        }
        let grid = grid(&given, Argument::local_bytes(&list))?;
        // SAFETY: The documentation has the program see to it.
        let launched = unsafe {
            let end = || finish(stream);
            stream
                .0
                .launch(&program.0, (kernel, grid), &memory, &list, end)
        };
        launched.map_err(placed)?;
        match launch_blocking() {
            true => finish(stream).map_err(placed),
            false => Ok(()),
        }
    })
}

/// Waits until the stream has done everything, and ends its launches.
fn finish(stream: &Stream) -> Result<()> {
    ended(stream, stream.0.synchronize())
}

/// Ends the launches of a stream that was waited for, with this result.
pub(crate) fn ended(stream: &Stream, result: pinmap::Result<()>) -> Result<()> {
    let (text, trap) = stream.0.end_launches(&result);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        // By the program's own buffer, so that the order is that of its own lines. A line of the
        // device is far shorter than an int can tell.
        // SAFETY: The format takes these two arguments.
        unsafe { libc::printf(c"%.*s".as_ptr(), line.len() as c_int, line.as_ptr()) };
    }
    result.map_err(|error| match trap {
        Some(trap) => Error::from(error).with_trap(&trap),
        None => error.into(),
    })
}

/// Checks an argument of a kernel. Memory that it names is added to the others.
///
/// # Safety
///
/// The memory is NULL, or not released.
unsafe fn checked(
    argument: &KernelArgument,
    memory: &mut Vec<&Arc<pinmap_dynamic::Memory>>,
) -> Result<Argument> {
    use ArgumentKind as Kind;
    let &KernelArgument {
        integer,
        real,
        offset,
        length,
        ..
    } = argument;
    if argument.reserved != 0 {
        return Err(Error::invalid("reserved is not 0"));
    }
    let kinds = [
        Kind::Integer,
        Kind::U32,
        Kind::F32,
        Kind::F64,
        Kind::Read,
        Kind::Write,
        Kind::Local,
    ];
    let kind = kinds.into_iter().find(|&kind| kind as u32 == argument.kind);
    let Some(kind) = kind else {
        let text = format!("an argument of the kind {}", argument.kind);
        return Err(Error::invalid(text));
    };
    Ok(match kind {
        Kind::Integer => Argument::Integer(integer),
        Kind::U32 => Argument::U32(u32::try_from(integer).map_err(|_| {
            Error::invalid(format!("the argument {integer} has more than 32 bits"))
        })?),
        Kind::F32 => Argument::F32(real as f32),
        Kind::F64 => Argument::F64(real),
        Kind::Local => Argument::Local(length),
        Kind::Read | Kind::Write => {
            // SAFETY: As the caller promises.
            memory.push(unsafe { &refer(argument.memory, "the memory of an argument")?.0 });
            match kind {
                Kind::Read => Argument::Read(offset, length),
                _ => Argument::Write(offset, length),
            }
        }
    })
}

/// The grid of a launch whose arguments share so many bytes.
fn grid(given: &LaunchOptions, local: usize) -> Result<Grid> {
    if given.reserved != 0 {
        return Err(Error::invalid("reserved is not 0"));
    }
    // In y and z, 0 is 1.
    let dim = |[x, y, z]: [u32; 3]| Dim([x, y.max(1), z.max(1)]);
    let bytes = |bytes: u64| {
        usize::try_from(bytes).map_err(|_| Error::invalid(format!("{bytes} bytes for a launch")))
    };
    let mut grid = Grid::new(dim(given.blocks), dim(given.threads))
        .shared_bytes(local.max(bytes(given.shared_bytes)?));
    if given.stack_bytes != 0 {
        grid = grid.stack_bytes(bytes(given.stack_bytes)?);
    }
    if given.print_bytes != 0 {
        grid = grid.print_bytes(bytes(given.print_bytes)?);
    }
    Ok(grid)
}
