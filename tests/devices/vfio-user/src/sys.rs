// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code that needs `unsafe`: memory shared with other processes, and messages with descriptors.

#![allow(unsafe_code)]

pub(crate) mod memory;
pub(crate) mod socket;
