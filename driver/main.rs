// SPDX-License-Identifier: GPL-2.0
//! pinmap: user memory for PCI accelerators, without a copy.
//!
//! The ABI and its manual are in `include/uapi/linux/pinmap.h`. To read the driver, follow one
//! REGISTER: `file.rs` → `ioctl/registration.rs` → `buffer/` → `mapping.rs`. Handlers of ioctls
//! stand above the objects. `logic/` decides and knows no kernel; `sys/` is the only place with
//! `unsafe`, and knows no type of the driver.

// What could panic on a value from user space: an arithmetic overflow is a kernel panic, too.
#![warn(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]
#![cfg_attr(
    not(pinmap_mirror),
    allow(
        dead_code,
        unused_imports,
        reason = "for managed memory and paged devices"
    )
)]

#[forbid(unsafe_code)]
mod address_space;
#[forbid(unsafe_code)]
mod allocation;
#[forbid(unsafe_code)]
mod backend;
#[forbid(unsafe_code)]
mod buffer;
#[forbid(unsafe_code)]
mod claim;
#[forbid(unsafe_code)]
mod context;
#[forbid(unsafe_code)]
mod device;
#[deny(unsafe_code)]
mod dmabuf;
#[forbid(unsafe_code)]
mod event;
#[forbid(unsafe_code)]
mod failure;
#[forbid(unsafe_code)]
mod file;
#[forbid(unsafe_code)]
mod generations;
#[cfg(not(pinmap_flat))]
#[deny(unsafe_code)]
mod gpu;
#[forbid(unsafe_code)]
mod ioctl;
#[forbid(unsafe_code)]
mod list;
#[expect(unreachable_pub, reason = "the same files are a crate on the host")]
mod logic;
#[cfg(pinmap_mirror)]
#[deny(unsafe_code)]
mod managed;
#[forbid(unsafe_code)]
mod mapping;
#[forbid(unsafe_code)]
mod mmu;
#[forbid(unsafe_code)]
mod show;
#[forbid(unsafe_code)]
mod spans;
#[forbid(unsafe_code)]
mod stats;
mod sys;
#[forbid(unsafe_code)]
mod trace;
mod uapi;
#[forbid(unsafe_code)]
mod view;

kernel::prelude::module! {
    type: device::Module,
    name: "pinmap",
    authors: ["The pinmap authors"],
    description: "User memory for PCI accelerators, without a copy",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
    params: {
        allow_unsafe_interrupts: u8 {
            default: 0,
            description: "Bind devices whose interrupts are not isolated (0 or 1)",
        },
        max_registrations: u32 {
            default: 262_144,
            description: "Registrations that one open file may have",
        },
    },
}
