// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guides: where to start, and what other interfaces call the things of this crate.
//!
//! These modules contain no code.
//!
//! # Start here
//!
//! The kind of the device ([`Device::kind`](crate::Device::kind)) decides which half of the crate
//! is for it.
//!
//! *A flat device* ([`Kind::Flat`](crate::Kind::Flat)) has no MMU of its own: an FPGA, a DMA
//! engine, a network or storage function. One program owns it, and is its driver. It needs
//!
//! - a [`Device`](crate::Device);
//! - its registers: a [`Bar`](crate::Bar), declared by [`registers!`](crate::registers);
//! - its [`Interrupt`](crate::Interrupt)s;
//! - memory that the device reaches: a [`Buffer`](crate::Buffer) that becomes a
//!   [`Registration`](crate::Registration), or an [`Allocation`](crate::Allocation);
//! - often a [`Ring`](crate::Ring) of descriptors.
//!
//! Begin with [`rings`], and copy the template `userlib/samples/src/edu.rs`.
//!
//! *A paged device* ([`Kind::Paged`](crate::Kind::Paged)), or *accelerator*, has an MMU and queues
//! of its own, as GPUs have. Many programs use it at once. The driver keeps its registers and its
//! interrupts; a program submits work. It needs
//!
//! - an [`Accelerator`](crate::Accelerator);
//! - a [`Stream`](crate::Stream) for work that goes on while the program does something else, or a
//!   [`Queue`](crate::Queue), whose [scope](crate::Queue::scope) waits;
//! - operands ([`DeviceSlice`](crate::DeviceSlice)): any slice of the program, or memory that is
//!   [pinned](crate::Pinned), [registered](crate::Registered), [managed](crate::Managed), or of the
//!   device ([`Accelerator::alloc_vram`](crate::Accelerator::alloc_vram)).
//!
//! Begin with [`from_cuda`], also without knowing CUDA: it names each thing once.
//!
//! *The test GPU* is an accelerator in software, which comes with the driver's tests. To it alone
//! belong the module [`testgpu`](crate::testgpu) with its kernels and packets, the numbers of
//! [`FaultCode`](crate::FaultCode), and the modelled bandwidths of
//! [`AcceleratorInfo`](crate::AcceleratorInfo). A program for another accelerator implements
//! [`Kernel`](crate::Kernel) and [`PacketFormat`](crate::PacketFormat) itself, and the driver needs
//! a backend for the device. So far the test GPU is the only accelerator that the driver supports.
//!
//! # What do you want to do?
//!
//! | task | type or function |
//! |---|---|
//! | list the devices, find one by its PCI ids | [`Device::list`], [`Device::find`], [`Accelerator::find`] |
//! | ask what a device is and can do | [`Device::info`], [`Accelerator::info`] |
//! | access registers | [`Device::bar`], [`Bar::registers`], [`registers!`](crate::registers) |
//! | wait for an interrupt | [`Interrupt::wait_timeout`], [`Interrupt::wait_async`] |
//! | hand memory to a flat device and take it back | [`Buffer::register`], [`Registration::release`] |
//! | demand a device address, or limit its bits | [`RegisterOptions::at`], [`RegisterOptions::address_bits`] |
//! | hand a part of a memfd to a device | [`Device::register_file`] |
//! | allocate memory for CPU and device | [`Device::alloc`] for a flat device, [`Accelerator::alloc`] for an accelerator |
//! | write a descriptor ring | [`Device::ring`], [`Descriptor`], [`element!`](crate::element) |
//! | share a flag or an index with a device | [`Registration::load`], [`Registration::store`] |
//! | use a device whose DMA does not snoop | [`Registration::sync_for_device`], [`Registration::sync_for_cpu`] |
//! | run a kernel on a `Vec`, in place | [`QueueScope::slice_mut`], [`Work::slice_mut`] |
//! | register a `Vec` or a mapped file once, for many pieces of work | [`Accelerator::register`] |
//! | copy to the device's memory and back | [`Accelerator::alloc_vram`], [`Work::copy`] |
//! | submit and go on | [`Stream::submit`], [`Pending::wait`] |
//! | order two streams | [`Stream::record`], [`Stream::wait_event`] |
//! | wait for hundreds of streams in one thread | [`Stream::completion`], `Pending::await` |
//! | have memory move to where it is used | [`Accelerator::alloc_managed`], [`Accelerator::prefetch`], [`Accelerator::advise`] |
//! | see where memory is, and why | [`Accelerator::residency`], [`Managed::statistics`] |
//! | use the same addresses in each run | [`Accelerator::window`] |
//! | register pointers that callers pass in | [`Cache`](crate::Cache), [`Device::register_raw`] |
//! | share memory with another process, device or driver | [`Allocation::export`], [`Device::import`] |
//! | know beforehand whether a limit is in the way | [`Device::preflight`], [`Memlock::check`] |
//! | act on an error | [`Error::kind`], [`Error::fault`], [`Error::failure`] |
//! | learn that memory or the device went away | [`Device::next_event`] |
//!
//! # The guides
//!
//! - [`from_cuda`], [`from_vfio`] and [`from_udmabuf_xdma`]: what you know by another name.
//! - [`rings`]: a driver with a descriptor ring, from the registers to the errors.
//! - [`coherence`]: what CPU and device see of each other's accesses, and when.
//!
//! `docs/using.md` in the repository says how to install the driver, give it a device and raise the
//! limits. It also says more about memory that moves.
//!
//! [`Accelerator::advise`]: crate::Accelerator::advise
//! [`Accelerator::alloc_managed`]: crate::Accelerator::alloc_managed
//! [`Accelerator::alloc_vram`]: crate::Accelerator::alloc_vram
//! [`Accelerator::alloc`]: crate::Accelerator::alloc
//! [`Accelerator::find`]: crate::Accelerator::find
//! [`Accelerator::info`]: crate::Accelerator::info
//! [`Accelerator::prefetch`]: crate::Accelerator::prefetch
//! [`Accelerator::register`]: crate::Accelerator::register
//! [`Accelerator::residency`]: crate::Accelerator::residency
//! [`Accelerator::window`]: crate::Accelerator::window
//! [`Allocation::export`]: crate::Allocation::export
//! [`Bar::registers`]: crate::Bar::registers
//! [`Buffer::register`]: crate::Buffer::register
//! [`Descriptor`]: crate::Descriptor
//! [`Device::alloc`]: crate::Device::alloc
//! [`Device::bar`]: crate::Device::bar
//! [`Device::find`]: crate::Device::find
//! [`Device::import`]: crate::Device::import
//! [`Device::info`]: crate::Device::info
//! [`Device::list`]: crate::Device::list
//! [`Device::next_event`]: crate::Device::next_event
//! [`Device::preflight`]: crate::Device::preflight
//! [`Device::register_file`]: crate::Device::register_file
//! [`Device::register_raw`]: crate::Device::register_raw
//! [`Device::ring`]: crate::Device::ring
//! [`Error::failure`]: crate::Error::failure
//! [`Error::fault`]: crate::Error::fault
//! [`Error::kind`]: crate::Error::kind
//! [`Interrupt::wait_async`]: crate::Interrupt::wait_async
//! [`Interrupt::wait_timeout`]: crate::Interrupt::wait_timeout
//! [`Managed::statistics`]: crate::Managed::statistics
//! [`Memlock::check`]: crate::Memlock::check
//! [`Pending::wait`]: crate::stream::Pending::wait
//! [`QueueScope::slice_mut`]: crate::QueueScope::slice_mut
//! [`RegisterOptions::address_bits`]: crate::RegisterOptions::address_bits
//! [`RegisterOptions::at`]: crate::RegisterOptions::at
//! [`Registration::load`]: crate::Registration::load
//! [`Registration::release`]: crate::Registration::release
//! [`Registration::store`]: crate::Registration::store
//! [`Registration::sync_for_cpu`]: crate::Registration::sync_for_cpu
//! [`Registration::sync_for_device`]: crate::Registration::sync_for_device
//! [`Stream::completion`]: crate::Stream::completion
//! [`Stream::record`]: crate::Stream::record
//! [`Stream::submit`]: crate::Stream::submit
//! [`Stream::wait_event`]: crate::Stream::wait_event
//! [`Work::copy`]: crate::stream::Work::copy
//! [`Work::slice_mut`]: crate::stream::Work::slice_mut

/// For CUDA programmers: each word of the runtime API, and what it is here.
///
#[doc = include_str!("from_cuda.md")]
pub mod from_cuda {}

/// For VFIO and iommufd programmers: each word, and what it is here.
///
#[doc = include_str!("from_vfio.md")]
pub mod from_vfio {}

/// For those who use u-dma-buf, udmabuf, XDMA or XRT: each word, and what it is here.
///
#[doc = include_str!("from_udmabuf_xdma.md")]
pub mod from_udmabuf_xdma {}

/// How to write a driver with a descriptor ring.
///
#[doc = include_str!("rings.md")]
pub mod rings {}

/// What CPU and device see of each other's accesses, and when.
///
#[doc = include_str!("coherence.md")]
pub mod coherence {}
