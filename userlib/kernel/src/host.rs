// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that launch kernels: what `program!` and `#[kernel]` are made of.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

use crate::types::Row;

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

    /// Prepares launches of a kernel, whose parameters have these types.
    ///
    /// # Safety
    ///
    /// `L` launches the kernel of this name, with these types.
    ///
    /// # Errors
    ///
    /// As for [`Program::kernel`]; [`ProgramError::Refused`]: the types are others for the device.
    pub unsafe fn kernel<L>(
        &self,
        name: &str,
        grid: Grid,
        types: &[Row],
    ) -> Result<Known<L, Launcher>, ProgramError> {
        let launcher = self.0.kernel(name, grid.for_rust(types[0][1] as usize))?;
        let found = self.0.types(name).unwrap_or_default();
        if let Some(what) = difference(types, found) {
            return Err(ProgramError::Refused(format!(
                "kernel `{name}` has {what} for the device than for the program, by a `cfg`"
            )));
        }
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

/// Names a difference between the types of a kernel in the program and those in the file.
fn difference(types: &[Row], found: &[u8]) -> Option<String> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let found: Vec<_> = found.chunks_exact(8).map(word).collect();
    if found == types.as_flattened() {
        return None;
    }
    let mut rows = types.iter().zip(found.chunks_exact(3));
    Some(match rows.position(|(row, found)| row != found) {
        Some(0) if found[0] != types[0][0] => "other promises (`unsafe`)".to_owned(),
        Some(0) => format!("other memory that a block shares ({} bytes)", found[1]),
        Some(number) => format!("another type of parameter {number}"),
        None => "other parameters".to_owned(),
    })
}

/// Whether a file is the one that `file!` names, relative to where the compiler runs.
pub const fn is_file(file: &str, named: &str) -> bool {
    let (file, named) = (file.as_bytes(), named.as_bytes());
    let Some(before) = file.len().checked_sub(named.len()) else {
        return false;
    };
    let mut i = 0;
    while i < named.len() {
        if file[before + i] != named[i] {
            return false;
        }
        i += 1;
    }
    before == 0 || file[before - 1] == b'/'
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
            $crate::host::is_file(
                ::core::include_str!(::core::concat!(
                    ::core::env!("OUT_DIR"),
                    "/pinmap-kernels.path"
                )),
                ::core::file!(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_that_of_the_build_script() {
        assert!(is_file("/p/src/kernels.rs", "src/kernels.rs"));
        assert!(is_file("/p/src/kernels.rs", "/p/src/kernels.rs"));
        for other in [
            "src/my_kernels.rs",
            "src/other/kernels.rs",
            "rc/kernels.rs",
            "/other/p/src/kernels.rs",
            "q/src/kernels.rs",
        ] {
            assert!(!is_file("/p/src/kernels.rs", other), "{other}");
        }
    }

    #[test]
    fn types_that_differ_are_named() {
        let types = [[0, 16, 0], [9, 4, 4], [13, 8, 8]];
        let found = |rows: &[Row]| {
            let words = rows.as_flattened().iter();
            let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
            difference(&types, &bytes)
        };
        assert_eq!(found(&types), None);
        let text = |rows: &[Row]| found(rows).expect("they differ");
        assert_eq!(
            text(&[[1, 16, 0], types[1], types[2]]),
            "other promises (`unsafe`)"
        );
        assert!(text(&[[0, 32, 0], types[1], types[2]]).contains("(32 bytes)"));
        assert_eq!(
            text(&[types[0], [10, 8, 8], types[2]]),
            "another type of parameter 1"
        );
        assert_eq!(
            text(&[types[0], types[1], [14, 8, 8]]),
            "another type of parameter 2"
        );
        assert_eq!(text(&types[..2]), "other parameters");
        assert_eq!(text(&[]), "other parameters");
    }
}
