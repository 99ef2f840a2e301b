// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are compiled: kernels in an ELF file, which the device executes.
//!
//! A [`Program`] is loaded once. A [`Launcher`] of one of its kernels has what a launch needs: the
//! grid, stacks, memory that the threads of a block share, and room for what they print. The
//! repository's `docs/kernels.md` shows how kernels are written in C and compiled.
//!
//! ```no_run
//! use pinmap_testgpu::program::{Arguments, Grid, Program, ProgramError};
//! # fn f(elf: &[u8], x: &[f32], y: &mut [f32]) -> Result<(), ProgramError> {
//! let gpu = pinmap_testgpu::find()?;
//! let stream = gpu.stream(Default::default())?;
//! let program = Program::load(&gpu, elf)?;
//! // __global__ void saxpy(uint64_t count, float a, const float *x, float *y)
//! let blocks = x.len().div_ceil(256) as u32;
//! let mut saxpy = program.kernel("saxpy", Grid::new(blocks, 256))?;
//! let result = stream.scope(|work| {
//!     let (x, mut y) = (work.slice(x)?, work.slice_mut(y)?);
//!     let count = x.len().min(y.len()) as u64;
//!     let arguments = Arguments::new().value(count).value(2.0f32).read(x).write(&mut y);
//!     // SAFETY: The kernel has these arguments, and reaches `count` elements of the slices.
//!     unsafe { saxpy.launch(work, arguments) }
//! });
//! // Prints what the kernel printed. The error of a kernel that stopped says where.
//! saxpy.finish(result)
//! # }
//! ```
#![allow(unsafe_code)]

mod arguments;
mod elf;
mod error;
mod launch;
mod ring;

use std::fmt;
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions};
use pinmap::accelerator::Accelerator;
use pinmap::Allocation;

use elf::{Elf, Symbol};

pub use arguments::{Arguments, Value};
pub use error::{ProgramError, Trap};
pub use launch::{Dim, Grid, Launcher};
pub use ring::Message;

/// The files with which kernels in C and OpenCL C are compiled, by their names: for programs that
/// compile kernels themselves.
pub const HEADERS: [(&str, &str); 7] = [
    (
        "pinmap_kernel.h",
        include_str!("../../include/pinmap_kernel.h"),
    ),
    (
        "pinmap_kernel_printf.h",
        include_str!("../../include/pinmap_kernel_printf.h"),
    ),
    (
        "pinmap_opencl.h",
        include_str!("../../include/pinmap_opencl.h"),
    ),
    (
        "pinmap_opencl.c",
        include_str!("../../include/pinmap_opencl.c"),
    ),
    (
        "pinmap_opencl_integer.h",
        include_str!("../../include/pinmap_opencl_integer.h"),
    ),
    (
        "pinmap_opencl_math.h",
        include_str!("../../include/pinmap_opencl_math.h"),
    ),
    (
        "pinmap_opencl_memory.h",
        include_str!("../../include/pinmap_opencl_memory.h"),
    ),
];

/// A program in the memory of the device.
///
/// Its memory is freed when it and the [`Launcher`]s of its kernels are dropped. The variables of
/// the program are as the last kernel left them. In OpenCL C, each [`Launcher`] has its own.
#[derive(Clone)]
pub struct Program(Arc<Loaded>);

pub(crate) struct Loaded {
    gpu: Accelerator,
    /// The parts of the image. Only the device uses them.
    _code: Allocation<u8>,
    _data: Option<Allocation<u8>>,
    /// Addresses that nothing else gets, neither on the CPU nor, so, on the device.
    reserved: MmapMut,
    symbols: Vec<Symbol>,
    /// The file, if it is loaded anew for each launcher.
    file: Option<Vec<u8>>,
    /// Types of the parameters of kernels in Rust, by their names.
    types: Vec<(String, Vec<u8>)>,
}

impl Program {
    /// Loads an executable that is linked statically and position independent, as
    /// `docs/kernels.md` makes them.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Refused`]: this is no such file, or the device executes no programs;
    /// [`ProgramError::Pinmap`]: as for [`Accelerator::alloc_vram`] and
    /// [`Allocation::map_code`].
    pub fn load(gpu: &Accelerator, elf: &[u8]) -> Result<Self, ProgramError> {
        let file = elf;
        let elf = Elf::parse(file)?;
        if !gpu.device().info()?.programs {
            return Err(ProgramError::Refused(
                "the device executes no programs".into(),
            ));
        }
        let reserved = MmapOptions::new()
            .len(elf.len())
            .no_reserve_swap()
            .map_anon()
            .map_err(|error| {
                ProgramError::Refused(format!("there are no addresses for it: {error}"))
            })?;
        let base = reserved.as_ptr().addr() as u64;
        let image = elf.image(base)?;
        let (code, data) = image.split_at(elf.data());
        let place = |bytes: &[u8]| {
            let mut memory = gpu.alloc_vram::<u8>(bytes.len())?;
            memory.write(0, bytes).map(|()| memory)
        };
        let code = place(code)?;
        code.map_code(base)?;
        let data = match data {
            [] => None,
            data => {
                let memory = place(data)?;
                memory.map_data(base + elf.data() as u64)?;
                Some(memory)
            }
        };
        Ok(Self(Arc::new(Loaded {
            gpu: gpu.clone(),
            _code: code,
            _data: data,
            reserved,
            symbols: elf.symbols()?,
            file: elf.has_variables_of_launchers()?.then(|| file.to_vec()),
            types: elf.types()?,
        })))
    }

    /// Prepares launches of a kernel with this grid: allocates what they need.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Refused`]: there is no such kernel, or no such grid;
    /// [`ProgramError::Pinmap`]: as for [`Accelerator::alloc`] and [`Accelerator::alloc_vram`].
    pub fn kernel(&self, name: &str, grid: Grid) -> Result<Launcher, ProgramError> {
        let kernel = self.0.symbols.iter().position(|symbol| symbol.is(name));
        let kernel = kernel.ok_or_else(|| {
            let all: Vec<_> = self.kernels().collect();
            ProgramError::Refused(format!(
                "there is no kernel `{name}` in the program; it has {}",
                all.join(", ")
            ))
        })?;
        let program = match &self.0.file {
            Some(file) => Self::load(&self.0.gpu, file)?,
            None => self.clone(),
        };
        Launcher::new(&program.0, kernel, grid)
    }

    /// Returns what a kernel in Rust says of the types of its parameters.
    #[doc(hidden)]
    pub fn types(&self, kernel: &str) -> Option<&[u8]> {
        let found = self.0.types.iter().find(|(name, _)| name == kernel);
        found.map(|(_, types)| &**types)
    }

    /// The names of the kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        let kernels = self.0.symbols.iter().filter(|symbol| symbol.global);
        kernels.map(|symbol| symbol.name.as_str())
    }
}

impl Loaded {
    pub(crate) fn gpu(&self) -> &Accelerator {
        &self.gpu
    }

    pub(crate) fn symbol(&self, index: usize) -> &Symbol {
        &self.symbols[index]
    }

    /// The device address of the first byte.
    pub(crate) fn base(&self) -> u64 {
        self.reserved.as_ptr().addr() as u64
    }

    /// Names an instruction by the function around it, as in `saxpy+0x1c`.
    pub(crate) fn locate(&self, pc: u64) -> Option<String> {
        let at = pc.checked_sub(self.base())?;
        let mut around = self.symbols.iter();
        let symbol = around.find(|symbol| symbol.covers(at))?;
        Some(format!("{}+{:#x}", symbol.short(), at - symbol.addr))
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("device_addr", &format_args!("{:#x}", self.0.base()))
            .field("len", &self.0.reserved.len())
            .field("kernels", &self.kernels().collect::<Vec<_>>())
            .finish()
    }
}
