// SPDX-License-Identifier: GPL-2.0
//! The structs and constants of `include/uapi/linux/pinmap.h`, by their names in C.

use kernel::transmute::{AsBytes, FromBytes};

pub(crate) use header::*;

/// The header, as bindgen translates it (see Kbuild).
#[allow(
    clippy::all,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub,
    unused_imports
)]
mod header {
    include!(env!("PINMAP_UAPI"));
}

/// Allows structs to be copied from and to user space: integers only, without padding, as their
/// sizes show.
macro_rules! plain {
    ($($name:ident: $size:literal),* $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $size);
        // SAFETY: Integers only, of which every bit pattern is valid.
        unsafe impl FromBytes for $name {}
        // SAFETY: Integers only, with reserved fields where there would be padding.
        unsafe impl AsBytes for $name {}
    )*};
}

plain! {
    pinmap_advise: 64,
    pinmap_alloc: 72,
    pinmap_budget: 40,
    pinmap_event: 32,
    pinmap_export: 32,
    pinmap_generations: 24,
    pinmap_get_totals: 160,
    pinmap_gpu_counters: 448,
    pinmap_gpu_info: 104,
    pinmap_gpu_walk: 40,
    pinmap_import: 72,
    pinmap_info: 344,
    pinmap_manage: 64,
    pinmap_map: 64,
    pinmap_prefetch: 96,
    pinmap_preflight: 104,
    pinmap_query: 88,
    pinmap_queue_create: 96,
    pinmap_queue_destroy: 16,
    pinmap_queue_notify: 32,
    pinmap_queue_query: 72,
    pinmap_queue_submit: 40,
    pinmap_queue_wait: 48,
    pinmap_register: 88,
    pinmap_register_buffers: 64,
    pinmap_register_fd: 88,
    pinmap_registration: 32,
    pinmap_release: 16,
    pinmap_release_buffers: 24,
    pinmap_reserved: 32,
    pinmap_reset: 8,
    pinmap_stay_awake: 8,
    pinmap_residency: 104,
    pinmap_run: 32,
    pinmap_set_eventfd: 24,
    pinmap_statistics: 144,
    pinmap_sync: 32,
    pinmap_unmap: 24,
}
