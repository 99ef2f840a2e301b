// SPDX-License-Identifier: MIT OR Apache-2.0
//! User memory for PCI accelerators, without a copy.
//!
//! The Linux driver pinmap pins memory of a program and maps it for a PCI device in the IOMMU, if
//! possible at the same addresses. With this crate that takes no `unsafe` code.
//!
//! The crate has two doors:
//!
//! - *Devices that you drive yourself*, such as an FPGA or a DMA engine: everything at the root of
//!   the crate. Four types are for memory. A [`Buffer`] is a slice, which only the CPU reaches; as
//!   a [`Registration`] a device reaches it, and it can only be copied from and to. (A `Vec` that
//!   the device only [reads](Device::register) stays a slice.) An [`Allocation`] is memory of the
//!   driver's for both, and a [`Ring`] has descriptors in it.
//! - [*Accelerators*](accelerator), with an MMU and queues of their own, which many programs use at
//!   once: the module [`accelerator`]. They take any slice of the program, which is borrowed as
//!   long as they work on it.
//!
//! The module [`inspect`] tells what is where, and why. The [guides](mod@guide) say where to start,
//! what other interfaces call the same things, how to write a descriptor ring, and what CPU and
//! device see of each other's accesses.
//!
//! Here is a whole program for QEMU's device `edu`.
//!
//! ```no_run
//! use std::time::Duration;
//! use pinmap::{Access, Buffer, Device};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. Open the device. `pinmap bind 0000:00:10.0` has given the PCI function to the driver, and
//! //    `pinmap info` shows it.
//! let device = Device::open_pci("0000:00:10.0".parse()?)?;
//!
//! // 2. Allocate memory in whole pages, and fill it. So far it is ordinary memory.
//! let mut buffer = Buffer::new(4096)?;
//! buffer[..13].copy_from_slice(b"hello, device");
//!
//! // 3. Register the memory. Now the device can reach it, and the program cannot refer to it. The
//! //    device address equals `registration.addr()` if the IOMMU allows that.
//! let registration = buffer.register(&device, Access::ReadWrite)?;
//! let address = registration.device_addr()?;
//!
//! // 4. Map the device's registers and take its interrupt.
//! let registers = device.bar(0)?;
//! let interrupt = device.interrupt(0)?;
//!
//! // 5. Have the device copy 13 bytes to its own memory at 0x40000, and from there back to offset
//! //    100 of ours. (The registers of edu are source, destination, count and command.)
//! for (from, to, go) in [(address, 0x40000, 0x5u64), (0x40000, address + 100, 0x7)] {
//!     registers.write(0x80, from)?;
//!     registers.write(0x88, to)?;
//!     registers.write(0x90, 13u64)?;
//!     registers.write(0x98, go)?;
//!
//!     // 6. Wait for the interrupt that tells the end of the copy, and acknowledge it.
//!     interrupt.wait_timeout(Duration::from_secs(5))?;
//!     registers.write(0x64, registers.read::<u32>(0x24)?)?;
//! }
//!
//! // 7. Release the memory. The device cannot reach it any more, and it is a buffer again.
//! let buffer = registration.release()?;
//! assert_eq!(&buffer[100..113], b"hello, device");
//! # Ok(())
//! # }
//! ```
//!
//! Always give the device [`Registration::device_addr`], never the pointer. A device with 32-bit
//! DMA needs [`RegisterOptions::address_bits`]`(32)`, and then the two may differ. Registering with
//! [`RegisterOptions::identity`] fails unless they are equal, and [`RegisterOptions::at`] demands a
//! device address of your choice.
//!
//! # Features
//!
//! Only `accelerator` is on by default. Futures on any executor need no feature.
//!
//! | feature | what it adds |
//! |---|---|
//! | `accelerator` | the module [`accelerator`], and what [`inspect`] has for it |
//! | `tokio`, `async-io` | `reactor::tokio`, `reactor::async_io`: files of their reactors |
//! | `memmap2` | mapped files can be registered with an accelerator |
//! | `bytemuck`, `zerocopy` | [`element!`] takes types that have the traits of these crates |
//! | `half` | `f16` and `bf16` are numbers |
//! | `serde` | `Serialize` on what the driver tells about devices, memory and faults |
//! | `tracing` | spans around registering, allocating, submitting, copying and waiting |
//!
//! # Names
//!
//! [`Result`] has the name of the prelude's on purpose, as that of [`std::io`] has. Programs name
//! what they use (`use pinmap::{Buffer, Device}`), or write `pinmap::Result`. After
//! `use pinmap::*`, `Result` is the crate's.
//!
//! # What is guaranteed
//!
//! - A device reaches only memory that is registered and mapped, or managed, in whole pages. It
//!   writes only to memory that was registered with [`Access::ReadWrite`], or managed memory that
//!   the program itself may write. It reaches nothing after [`Registration::release`], a drop, or
//!   the end of a [`ManagedRange`](accelerator::ManagedRange). The driver and the IOMMU enforce
//!   that, whatever the device does.
//! - Safe code gets no reference to memory that a device may be writing, not even by
//!   [`std::mem::forget`]: forgotten memory stays registered and allocated until the process ends.
//! - Memory that is borrowed for the work of a stream stays borrowed until the device is done with
//!   it, however the [scope](accelerator::scope()) ends. If the device cannot be stopped and there
//!   would be references to memory on which it works, the process is aborted.
//! - That memory moves changes neither its addresses nor its contents, nor who may use it.
//! - Work names only memory that is borrowed for it. Submitting [packets](accelerator::Packet) that
//!   a program makes itself is unsafe, because they can name any memory that the device reaches.
//! - After `fork()`, the registrations and what is managed belong to the parent, and the device
//!   works on the parent's memory. A child that needs the device must open it anew. It must not
//!   drop or release what it inherited, nor leave a scope, because that would release what the
//!   parent needs.
//!
//! # Mistakes that do not compile
//!
//! A buffer cannot be used after it is registered:
//!
//! ```compile_fail,E0382
//! # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
//! let mut buffer = pinmap::Buffer::new(4096)?;
//! let registration = buffer.register(device, pinmap::Access::ReadWrite)?;
//! buffer[0] = 1;
//! # Ok(()) }
//! ```
//!
//! A reference to a buffer cannot be kept while it is registered:
//!
//! ```compile_fail,E0505
//! # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
//! let buffer = pinmap::Buffer::new(4096)?;
//! let before: &[u8] = &buffer;
//! let registration = buffer.register(device, pinmap::Access::ReadWrite)?;
//! assert_eq!(before[0], 0);
//! # Ok(()) }
//! ```
//!
//! Memory that a device reads at any time is given away; it is only read meanwhile, and a buffer,
//! which the program writes, is registered by its own method:
//!
//! ```compile_fail,E0382
//! # fn f(device: &pinmap::Device, mut numbers: Vec<f32>) -> pinmap::Result<()> {
//! let registration = device.register(numbers, pinmap::Access::Read)?;
//! numbers.push(1.0);
//! # Ok(()) }
//! ```
//!
//! ```compile_fail,E0594
//! fn write(registration: &mut pinmap::Registration<Vec<f32>>) {
//!     registration.elements()[0] = 1.0;
//! }
//! ```
//!
//! ```compile_fail,E0277
//! # fn f(device: &pinmap::Device, buffer: pinmap::Buffer) -> pinmap::Result<()> {
//! device.register(buffer, pinmap::Access::ReadWrite)?;
//! # Ok(()) }
//! ```
//!
//! A registration does not dereference to a slice:
//!
//! ```compile_fail,E0308
//! fn bytes(registration: &pinmap::Registration) -> &[u8] {
//!     registration
//! }
//! ```
//!
//! ```compile_fail,E0608
//! fn byte(registration: &pinmap::Registration) -> u8 {
//!     registration[0]
//! }
//! ```
//!
//! Memory that the driver allocated does not either:
//!
//! ```compile_fail,E0308
//! fn read(file: &mut impl std::io::Read, allocation: &mut pinmap::Allocation<u8>) {
//!     file.read(allocation).unwrap();
//! }
//! ```
//!
//! A mapping cannot outlive its registration:
//!
//! ```compile_fail,E0505
//! # fn f(registration: pinmap::Registration) -> pinmap::Result<()> {
//! let mapping = registration.map(pinmap::Access::Read)?;
//! let buffer = registration.release()?;
//! println!("{:#x}", mapping.device_addr());
//! # Ok(()) }
//! ```
//!
//! ```compile_fail,E0515
//! fn map(registration: pinmap::Registration) -> pinmap::Mapping<'static> {
//!     registration.map(pinmap::Access::Read).unwrap()
//! }
//! ```
#![deny(unsafe_code)]
// Both doors lead through device memory, errors and system calls, of which one uses all.
#![cfg_attr(
    not(feature = "accelerator"),
    allow(
        dead_code,
        unused_imports,
        unreachable_pub,
        clippy::wrong_self_convention,
        rustdoc::broken_intra_doc_links
    )
)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the driver is for 64-bit Linux, and so is this crate");

/// The examples in the documents, which are tests, too.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    #[doc = include_str!("../README.md")]
    #[doc = include_str!("../../docs/using.md")]
    #[doc = include_str!("../../docs/driver.md")]
    #[doc = include_str!("../../docs/testing.md")]
    #[doc = include_str!("../../docs/bench.md")]
    #[doc = include_str!("../../docs/speed.md")]
    mod all {}
}

#[cfg(feature = "accelerator")]
pub mod accelerator;
mod device;
mod error;
pub mod guide;
pub mod inspect;
mod memory;
#[cfg(feature = "accelerator")]
mod queue;
#[cfg(any(feature = "tokio", feature = "async-io"))]
pub mod reactor;
#[cfg(feature = "accelerator")]
mod stream;
mod sys;
#[cfg(all(test, feature = "accelerator"))]
mod testgpu;
#[cfg(feature = "accelerator")]
mod trace;
mod wait;

#[cfg(test)]
extern crate self as pinmap;

pub use device::bar::registers::{
    ReadOnly, ReadWrite, Readable, Register, RegisterArray, RegisterBlock, Registers, Writable,
    WriteOnly,
};
pub use device::bar::Bar;
pub use device::event::DeviceEvent;
pub use device::info::{Info, Kind};
pub use device::interrupt::Interrupt;
pub use device::Device;
pub use error::failure::{Failure, Reason};
pub use error::fault::FaultAccess;
pub use error::{Error, ErrorKind, ErrorWith, Operation, RegisterAllError, Result};
pub use memory::alloc::AllocOptions;
pub use memory::allocation::Allocation;
pub use memory::buffer::{Buffer, Pages};
pub use memory::cache::{Cache, Cached};
pub use memory::completion_ring::CompletionRing;
pub use memory::direct::{Detour, Transferred};
pub use memory::dmabuf::DmaBuf;
pub use memory::element::Element;
pub use memory::file::FilePart;
pub use memory::mapping::Mapping;
pub use memory::options::{Access, RegisterOptions};
pub use memory::program::{Memory, ReadMemory};
pub use memory::registration::Registration;
pub use memory::ring::{Descriptor, Ring};
pub use sys::pci::{ParsePciAddressError, PciAddress};
pub use sys::sysfs::DeviceNode;
pub use sys::word::Word;
pub use wait::Wait;

/// Items that the macros of this crate need.
#[doc(hidden)]
pub mod __private {
    /// Compiles for elements only.
    pub const fn is_element<T: crate::Element>() {}

    /// Compiles for types that have what an element needs by the crate bytemuck.
    #[cfg(feature = "bytemuck")]
    pub const fn is_pod<T: bytemuck::Pod + Send + Sync>() {}

    /// Compiles for types that have what an element needs by the crate zerocopy.
    #[cfg(feature = "zerocopy")]
    pub const fn is_zerocopy<T>()
    where
        T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable,
        T: Copy + Send + Sync + 'static,
    {
    }
}
