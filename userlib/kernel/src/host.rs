// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that launch kernels: what `program!` and `#[kernel]` are made of.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

pub use pinmap::accelerator::{Accelerator, Destination, Source, Work};
pub use pinmap::Result;
pub use pinmap_testgpu::program::{Arguments, Grid, Launcher, Message, Program, ProgramError};

/// A program, or launches of a kernel, of which the macros know what is in it: the type `K` that
/// they made for it has one of it, and nothing else can.
pub struct Known<K, T>(T, PhantomData<fn(K)>);

impl<K, T: fmt::Debug> fmt::Debug for Known<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<K> Known<K, Program> {
    /// Loads a program.
    ///
    /// # Safety
    ///
    /// The file was compiled of the source in which `K` is.
    ///
    /// # Errors
    ///
    /// As for [`Program::load`]; [`ProgramError::Refused`]: the kernels could not be compiled.
    pub unsafe fn load(gpu: &Accelerator, elf: &[u8]) -> Result<Self, ProgramError> {
        if !elf.starts_with(b"\x7fELF") {
            let cause = String::from_utf8_lossy(elf).into_owned();
            return Err(ProgramError::Refused(cause));
        }
        Program::load(gpu, elf).map(|program| Self(program, PhantomData))
    }

    /// Prepares launches of a kernel, with what it needs of the memory that blocks share.
    ///
    /// # Safety
    ///
    /// `L` launches the kernel of this name.
    ///
    /// # Errors
    ///
    /// As for [`Program::kernel`].
    pub unsafe fn kernel<L>(
        &self,
        name: &str,
        grid: Grid,
        shared: usize,
    ) -> Result<Known<L, Launcher>, ProgramError> {
        let launcher = self.0.kernel(name, grid.for_rust(shared))?;
        Ok(Known(launcher, PhantomData))
    }
}

/// Launches of a kernel, as [`Launcher`] has them.
impl<K> Known<K, Launcher> {
    /// Submits a launch.
    ///
    /// # Errors
    ///
    /// As for [`Launcher::launch`].
    ///
    /// # Safety
    ///
    /// As for [`Launcher::launch`].
    #[track_caller]
    pub unsafe fn launch_with<'w>(
        &'w mut self,
        work: &Work<'w>,
        arguments: Arguments<'w, '_>,
    ) -> Result<()> {
        // SAFETY: As the caller promises.
        unsafe { self.0.launch(work, arguments) }
    }

    /// Ends launches: see [`Launcher::finish`].
    ///
    /// # Errors
    ///
    /// As for [`Launcher::finish`].
    pub fn finish<T>(&mut self, result: Result<T>) -> Result<T, ProgramError> {
        self.0.finish(result)
    }

    /// Takes what was printed: see [`Launcher::messages`].
    pub fn messages(&mut self) -> Vec<Message> {
        self.0.messages()
    }

    /// How many instructions the last launch has executed, when it is done.
    pub fn instructions(&self) -> u64 {
        self.0.instructions()
    }
}

/// Whether a path ends with another one.
pub const fn ends_with(path: &str, end: &str) -> bool {
    let (path, end) = (path.as_bytes(), end.as_bytes());
    let mut i = 0;
    while i < end.len() {
        i += 1;
        if path.len() < i || path[path.len() - i] != end[end.len() - i] {
            return false;
        }
    }
    true
}

/// Makes `Kernels`, by which the program loads the kernels of this file: the first line of the file
/// that the build script names.
///
/// `Kernels::load` takes the accelerator. The result has a method for each kernel, of its name,
/// which takes a [`Grid`] and returns its launches. These have a method `launch`, with the
/// parameters of the kernel behind the work: for a slice anything that can be lent to the device.
/// A module of the file that has kernels, too, imports `Kernels`.
#[macro_export]
macro_rules! program {
    () => {
        const _: () = ::core::assert!(
            $crate::host::ends_with(
                ::core::file!(),
                ::core::include_str!(::core::concat!(
                    ::core::env!("OUT_DIR"),
                    "/pinmap-kernels.path"
                )),
            ),
            "the build script compiles another file",
        );
        $crate::program! {
            unsafe ::core::include_bytes!(::core::concat!(
                ::core::env!("OUT_DIR"),
                "/pinmap-kernels.elf"
            ))
        }
    };
    (unsafe $elf:expr) => {
        /// The kernels of this file, in the memory of a device.
        #[derive(Debug)]
        pub struct Kernels($crate::host::Known<Self, $crate::host::Program>);

        impl Kernels {
            /// Loads the kernels.
            ///
            /// # Errors
            ///
            /// As for [`Program::load`]($crate::host::Program::load); `Refused`: there was no
            /// compiler for them when the program was built.
            pub fn load(
                gpu: &$crate::host::Accelerator,
            ) -> ::core::result::Result<Self, $crate::ProgramError> {
                // SAFETY: The build script has compiled it of this file.
                unsafe { $crate::host::Known::load(gpu, $elf) }.map(Self)
            }
        }
    };
}
