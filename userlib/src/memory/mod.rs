// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the CPU and a device share.
//!
//! Memory of the program is registered: a [`buffer`] becomes a [`registration`], other values of
//! the [`program`] one that is only read, or memory of somebody else a [`raw`] one; a part of a
//! [`file`] can be registered without mapping it. Memory of the driver is an [`allocation`], in
//! host memory or in the device's. All of it can be changed by the device at any time, so there are
//! no references to it: the CPU copies through a [`view`], and work for the device takes a
//! [`slice`]. Ordinary slices are [`lent`] for as long as the work takes. Where the device can
//! fault, their pages move between host and device ([`managed`]).

pub(crate) mod alloc;
pub(crate) mod allocation;
pub(crate) mod buffer;
pub(crate) mod cache;
#[cfg(feature = "accelerator")]
mod code;
pub(crate) mod completion_ring;
mod deref;
pub(crate) mod direct;
pub(crate) mod dmabuf;
pub(crate) mod element;
pub(crate) mod file;
mod generations;
#[cfg(feature = "accelerator")]
pub(crate) mod lent;
#[cfg(feature = "accelerator")]
pub(crate) mod managed;
pub(crate) mod mapping;
pub(crate) mod options;
pub(crate) mod peer;
#[cfg(feature = "accelerator")]
pub(crate) mod pinned;
pub(crate) mod preflight;
pub(crate) mod program;
pub(crate) mod query;
pub(crate) mod raw;
#[cfg(feature = "accelerator")]
pub(crate) mod registered;
pub(crate) mod registration;
pub(crate) mod ring;
mod segments;
pub(crate) mod slice;
pub(crate) mod view;
