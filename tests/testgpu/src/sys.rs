// SPDX-License-Identifier: MIT OR Apache-2.0
//! What needs `unsafe`: memory shared with other processes, and messages with file descriptors.

#![allow(unsafe_code)]

pub mod memory;
pub mod socket;
