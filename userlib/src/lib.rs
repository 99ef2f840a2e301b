// SPDX-License-Identifier: MIT OR Apache-2.0
//! User memory for PCI accelerators, without a copy.
//!
//! The Linux driver pinmap pins memory of a program and maps it for a PCI device in the IOMMU, if
//! possible so that the device uses the same addresses as the program. With this crate that takes
//! no `unsafe`: memory is either the CPU's, a [`Buffer`], which is a slice of bytes, or the device
//! can reach it, a [`Registration`], which can only be copied from and to.
//!
//! A whole program, for QEMU's device `edu`. The crate's example `edu` has all of that device.
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
//! // 2. Allocate memory, in whole pages, and fill it. So far it is ordinary memory.
//! let mut buffer = Buffer::new(4096)?;
//! buffer[..13].copy_from_slice(b"hello, device");
//!
//! // 3. Register it: now the device can reach it, and this program can no longer refer to it. The
//! //    device address equals `registration.addr()` if the IOMMU allows.
//! let registration = buffer.register(&device, Access::ReadWrite)?;
//! let address = registration.device_addr()?;
//!
//! // 4. Map the device's registers and take its interrupt.
//! let registers = device.bar(0)?;
//! let interrupt = device.interrupt(0)?;
//!
//! // 5. Have the device copy the 13 bytes to its own memory at 0x40000, and from there back to
//! //    offset 100 of ours. (The registers are those of edu: from, to, how many, go.)
//! for (from, to, go) in [(address, 0x40000, 0x5u64), (0x40000, address + 100, 0x7)] {
//!     registers.write(0x80, from)?;
//!     registers.write(0x88, to)?;
//!     registers.write(0x90, 13u64)?;
//!     registers.write(0x98, go)?;
//!
//!     // 6. Wait for the interrupt that says it is done, and acknowledge it.
//!     interrupt.wait(Duration::from_secs(5))?.ok_or("no interrupt")?;
//!     registers.write(0x64, registers.read::<u32>(0x24)?)?;
//! }
//!
//! // 7. Release it: the device cannot reach the memory any more, and it is ours again.
//! let buffer = registration.release()?;
//! assert_eq!(&buffer[100..113], b"hello, device");
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//!
//! - A device reaches only what is registered and mapped, writes only to what was registered with
//!   [`Access::ReadWrite`], and nothing after [`Registration::release`] or the drop. The driver and
//!   the IOMMU see to that, whatever the device does.
//! - No safe code gets a reference to memory that a device may write, also not by
//!   [`std::mem::forget`]: what is forgotten stays registered and allocated until the process ends.
//! - After `fork()` the registrations belong to the parent. A child that has a use for the device
//!   opens it anew; it must not drop or release what it inherited, for that would release the
//!   parent's.
//!
//! # These do not compile
//!
//! A buffer that is registered is no longer there:
//!
//! ```compile_fail,E0382
//! # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
//! let mut buffer = pinmap::Buffer::new(4096)?;
//! let registration = buffer.register(device, pinmap::Access::ReadWrite)?;
//! buffer[0] = 1;
//! # Ok(()) }
//! ```
//!
//! Nor can a reference from before be kept:
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
//! A registration is no slice:
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

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the driver is for 64-bit Linux, and so is this crate");

mod bar;
mod device;
mod error;
mod event;
mod failure;
mod hint;
mod info;
mod interrupt;
mod ioctl;
mod mapping;
mod memory;
mod options;
mod pages;
mod pci;
mod query;
mod raw;
mod registration;
mod sys;
mod sysfs;
mod wait;
mod word;

pub use bar::Bar;
pub use device::Device;
pub use error::{Error, ErrorWith, Operation, Result};
pub use event::Event;
pub use failure::{Failure, Reason};
pub use info::{BarInfo, Info, Kind, Memlock, PageSizes, Reserved, ReservedKind};
pub use interrupt::Interrupt;
pub use mapping::Mapping;
pub use memory::{Buffer, Pages};
pub use options::{Access, MapOptions, RegisterOptions};
pub use pci::{ParsePciAddressError, PciAddress};
pub use query::{RegistrationInfo, State};
pub use raw::RawRegistration;
pub use registration::Registration;
pub use sysfs::DeviceNode;
pub use word::Word;
