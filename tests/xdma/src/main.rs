// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the crate pinmap-xdma on the model of the core (`scripts/vm --device xdma`), as root in
//! the VM. Without the cards they are skipped.
//!
//! usage: `xdma --list` and `xdma --run NAME`; `tests/runner` calls both.
#![deny(unsafe_code)]

#[path = "../../nvme/src/drivers.rs"]
mod drivers;
mod faults;
// The harness has a check of AddressSanitizer, without which this program is built.
#[allow(dead_code, unsafe_code)]
#[path = "../../crate/src/harness.rs"]
mod harness;
mod memory;
mod program;
mod races;
mod setup;
mod streams;

use std::process::ExitCode;

use harness::{tests, Test};

/// All tests, in this order. The last one looks at what the cards say of all others.
const TESTS: &[Test] = tests! {
    memory:
        core_is_found
        core_opened_twice_is_one
        bytes_go_there_and_back
        memory_of_all_kinds
        long_lists_of_descriptors
        fixed_address_is_a_fifo
        channels_of_several_threads
        channels_are_taken_and_given_back
        user_interrupts_come
        guide_drives_the_core;
    streams:
        packets_have_ends
        futures_are_awaited
        event_loop_polls_the_interrupts_files
        ring_receives_without_a_pause
        rings_are_of_streams_from_the_card;
    faults:
        bad_input_is_refused
        other_cores_are_refused
        errors_are_named
        late_transfer_stops_after_a_descriptor
        channel_that_does_not_stop_keeps_its_memory
        dropped_channel_that_does_not_stop_is_taken
        reset_ends_a_transfer
        gone_card_gives_memory_back
        killed_program_leaves_a_card_that_works
        host_refuses_memory;
    races:
        interrupt_before_the_end_is_enough
        stop_before_the_begin_keeps_the_memory
        polled_channel_goes_on_after_a_reset
        resets_under_load_lose_no_memory
        card_that_answers_all_ones_keeps_its_memory;
    program:
        command_moves_bytes;
    setup:
        manual_forbids_nothing_that_was_done;
};

/// Tests that show whether anything works at all.
const SMOKE: &[&str] = &["bytes_go_there_and_back"];

/// Tests in which the IOMMU stops what a card does.
const FAULTS: &[&str] = &[
    "host_refuses_memory",
    "killed_program_leaves_a_card_that_works",
    "resets_under_load_lose_no_memory",
];

fn main() -> ExitCode {
    harness::main(TESTS, SMOKE, FAULTS)
}
