// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the crate pinmap and of its programs, on QEMU's `edu`: run as root in the VM, they print TAP.
//!
//! usage: `crate-test [PATTERN...]`: part of a test's name, its whole name, a name with `*` and `?`,
//! or `smoke`.

mod command;
mod device;
#[path = "../../../userlib/examples/edu/driver.rs"]
mod edu;
mod failure;
mod harness;
mod mapping;
mod memory;
#[path = "../../../userlib/src/bin/pinmap/pins.rs"]
mod pins;
mod registration;
mod setup;
mod stale;

use std::process::ExitCode;

use harness::Test;

/// A test by its function, which gives it its name.
macro_rules! tests {
    ($($module:ident: $($name:ident)*;)*) => {
        &[$($(Test { name: stringify!($name), run: $module::$name },)*)*]
    };
}

/// All tests, in this order.
const TESTS: &[Test] = tests! {
    registration:
        register_roundtrip
        release_returns_content
        register_in_another_thread
        release_ends_reach
        drop_ends_reach_and_unpins
        forget_keeps_memory_pinned
        read_only_is_enforced
        register_raw_rounds_outwards
        query_finds_interior_addresses;
    memory:
        buffer_of_transparent_huge_pages
        buffer_of_huge_pages
        buffer_of_a_memfd
        buffer_larger_than_the_device;
    mapping:
        identity_and_fixed_addresses
        address_bits_are_kept
        unmapped_then_mapped
        mapping_drop_unmaps
        mapping_forgotten_goes_with_registration
        mapping_needs_write_access;
    failure:
        failure_names_hole
        failure_names_permission
        failure_names_overlap
        failure_names_aperture_and_reserved
        failure_names_memlock
        failure_names_other_process
        owned_device_says_what_to_do;
    stale:
        munmap_makes_stale
        events_signal_eventfd
        no_events_at_first
        gone_device_ends_everything;
    device:
        list_leads_to_devices
        info_is_plausible
        two_devices_at_once
        bar_is_bounded
        msix_table_is_out_of_reach
        interrupt_waits
        interrupt_is_taken_once
        reset_works
        factorial_interrupts;
    command:
        command_info
        command_info_without_permission
        command_copy_test
        command_bind_and_unbind
        command_refuses_nonsense
        example_edu;
};

/// Those that show whether anything works at all.
const SMOKE: &[&str] = &["register_roundtrip", "command_copy_test"];

fn main() -> ExitCode {
    harness::main("crate-test", TESTS, SMOKE)
}
