// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels in Rust for the test GPU: `docs/kernels.md` of the repository is the way in.
//!
//! One file has the kernels. The build script of the program compiles it for the device
//! (`pinmap_kernel_build::compile`), and the program has it as a module, in which [`kernel`] leaves
//! of each kernel what launches it, with the types of its parameters. So this crate is two: for the
//! device, where it depends on `core` alone, it is `memory.rs` and `thread.rs`.
//!
//! # Why a launch of a safe kernel is safe
//!
//! * **Elements are values.** A kernel has no reference to memory of the program, only slices that
//!   load and store. A `&[T]` would promise that nobody writes there, and a `&mut T` that nobody
//!   else reads: but [`DeviceSliceMut`](pinmap::accelerator::DeviceSliceMut) lets work of other
//!   streams, other devices and the CPU have the same memory at the same time, as other threads of
//!   the grid do. Against all of these the rule is that of the crate `pinmap`: each access is
//!   atomic, in units of the alignment of the element, and any bytes are an element. So a race
//!   makes a result wrong, but not the program: an index is checked and used as it was loaded once.
//! * **Ends are checked.** Slices have the lengths that the program had. An index beyond panics.
//! * **Slices end with the kernel.** They borrow from a variable of the thread's first function, so
//!   none gets into a `static`, where it would outlive the memory.
//! * **Memory of a block needs no order, either.** It is accessed in the same way, and what a block
//!   before has left there is elements, too. `sync_threads` orders accesses; without it a thread
//!   reads what was there before. Any call waits for any other, and a thread that has ended is not
//!   waited for, so no thread waits for ever.
//! * **A panic ends all threads** of the launch, which fails, and no destructor runs.
//! * **Stacks end.** The device stops a thread that moves its stack pointer out of its stack.
//! * **A `static` is Rust's**: immutable, or atomic; all threads of all launches have it.
//! * **The two sides are one source.** The name of a kernel in the file for the device has the
//!   types of its parameters as they are written, and a constant beside it what they are: by `cfg`
//!   the same text can mean another type. `Kernels` refuses a kernel of which either differs, and
//!   `program!` a file that the build script did not compile.
//! * **Pointers are unsafe.** A kernel that takes one is an `unsafe fn`, and so is its launch.
#![cfg_attr(target_os = "none", no_std)]

#[cfg(target_os = "none")]
mod memory;
#[cfg(target_os = "none")]
mod thread;
#[doc(hidden)]
pub mod types;
#[cfg(target_os = "none")]
pub use {core::sync::atomic::Ordering, memory::*, thread::*};

#[cfg(not(target_os = "none"))]
#[doc(hidden)]
pub mod host;
#[cfg(not(target_os = "none"))]
pub use {
    pinmap::{element, Element},
    pinmap_testgpu::program::{Grid, ProgramError},
};

/// Marks an item for the device alone, such as a function that kernels call.
///
/// The program itself, which has the same file as a module, does not have the item.
pub use pinmap_kernel_macros::device;

/// Makes a function a kernel: each thread of a grid runs it.
///
/// A parameter is one of
///
/// * a number: an integer of 1 to 8 bytes but `usize` and `isize`, `bool`, `f32`, `f64`;
/// * `DeviceSlice<T>`, elements that are read, or `DeviceSliceMut<T>`, which are written, too;
/// * `Shared<T, N>`, so many elements for each block, which a launch has no argument for;
/// * in an `unsafe fn` a pointer.
///
/// In the program it makes, for the function `name`, the method `name` of `Kernels` and what that
/// returns, the type `Name`, with the method `launch`:
///
/// ```no_run
/// use pinmap_kernel::*;
/// # program!(unsafe b"");
///
/// #[kernel]
/// pub fn saxpy(a: f32, x: DeviceSlice<f32>, y: DeviceSliceMut<f32>) {
///     let i = grid_thread();
///     if i < y.len() {
///         y.set(i, a * x.get(i) + y.get(i));
///     }
/// }
///
/// # fn main() -> Result<(), ProgramError> {
/// let gpu = pinmap_testgpu::find()?;
/// let stream = gpu.stream(Default::default())?;
/// let (x, mut y) = (vec![3.0; 1000], vec![1.0; 1000]);
/// let mut saxpy = Kernels::load(&gpu)?.saxpy(Grid::new(4, 256))?;
/// let result = stream.scope(|work| saxpy.launch(work, 2.0, &*x, &mut *y));
/// saxpy.finish(result)?;
/// # Ok(()) }
/// ```
///
/// An argument of another type does not compile:
///
/// ```compile_fail,E0277
/// # use pinmap_kernel::*;
/// # program!(unsafe b"");
/// #[kernel]
/// pub fn fill(value: f32, to: DeviceSliceMut<f32>) {}
///
/// fn run(stream: &pinmap::accelerator::Stream, mut fill: Fill, to: &mut [f64]) {
///     let _ = stream.scope(|work| fill.launch(work, 1.0, to));
/// }
/// ```
///
/// Nor does memory that is only borrowed to be read, where the kernel writes:
///
/// ```compile_fail,E0277
/// # use pinmap_kernel::*;
/// # program!(unsafe b"");
/// #[kernel]
/// pub fn fill(value: f32, to: DeviceSliceMut<f32>) {}
///
/// fn run(stream: &pinmap::accelerator::Stream, mut fill: Fill, to: &[f32]) {
///     let _ = stream.scope(|work| fill.launch(work, 1.0, to));
/// }
/// ```
///
/// Nor memory that ends before the work:
///
/// ```compile_fail,E0597
/// # use pinmap_kernel::*;
/// # program!(unsafe b"");
/// #[kernel]
/// pub fn fill(value: f32, to: DeviceSliceMut<f32>) {}
///
/// fn run(stream: &pinmap::accelerator::Stream, mut fill: Fill) {
///     let _ = stream.scope(|work| {
///         let mut to = [0.0; 16];
///         fill.launch(work, 1.0, &mut to[..])
///     });
/// }
/// ```
///
/// Nor a second launch with the memory of the first, which the device may still be using:
///
/// ```compile_fail,E0499
/// # use pinmap_kernel::*;
/// # program!(unsafe b"");
/// #[kernel]
/// pub fn fill(value: f32, to: DeviceSliceMut<f32>) {}
///
/// fn run(work: &pinmap::accelerator::Work<'_>, mut fill: Fill, to: &mut [f32]) {
///     let stream = work.stream();
///     let _ = stream.scope(|work| {
///         let mut to = work.slice_mut(to)?;
///         fill.launch(work, 1.0, &mut to)?;
///         fill.launch(work, 2.0, &mut to)
///     });
/// }
/// ```
///
/// A type that is no plain data is none for elements:
///
/// ```compile_fail,E0277
/// # use pinmap_kernel::*;
/// # program!(unsafe b"");
/// #[kernel]
/// pub fn fill(to: DeviceSliceMut<&'static str>) {}
/// ```
///
/// A launch of a kernel that takes a pointer is unsafe:
///
/// ```compile_fail,E0133
/// # use pinmap_kernel::*;
/// # program!(unsafe b"");
/// #[kernel]
/// pub unsafe fn poke(to: *mut u32) {}
///
/// fn run(stream: &pinmap::accelerator::Stream, mut poke: Poke) {
///     let _ = stream.scope(|work| poke.launch(work, 0x1000 as *mut u32));
/// }
/// ```
pub use pinmap_kernel_macros::kernel;

/// Makes the name that modules of the file import. What it stands for is the program's.
#[cfg(target_os = "none")]
#[macro_export]
macro_rules! program {
    () => {
        #[allow(dead_code)]
        pub enum Kernels {}
    };
}
