// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guides: where to start, and what other interfaces call the things of this crate.
//!
#![doc = include_str!("index.md")]

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

/// A driver for a network card, step by step from `lspci` to frames.
///
#[doc = include_str!("network_card.md")]
pub mod network_card {}

/// Files, io_uring, and many small values: work on what is read, without a copy.
///
#[doc = include_str!("files.md")]
pub mod files {}

/// How to write the crate of an accelerator: its packets, its kernels, and how it is found.
///
#[doc = include_str!("accelerators.md")]
pub mod accelerators {}

/// Coherence: what CPU and device see of each other's accesses, and when.
///
#[doc = include_str!("coherence.md")]
pub mod coherence {}
