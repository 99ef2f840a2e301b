// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the crate pinmap-nvme on QEMU's controller (`scripts/vm --device nvme`), as root in the
//! VM. Without the controller they are skipped.
//!
//! usage: `nvme --list` and `nvme --run NAME`; `tests/runner` calls both.
#![deny(unsafe_code)]

mod commands;
mod drivers;
mod faults;
// The harness has a check of AddressSanitizer, without which this program is built.
#[allow(dead_code, unsafe_code)]
#[path = "../../crate/src/harness.rs"]
mod harness;
mod kernel;
mod peers;
mod plug;
mod program;
mod queues;
mod random;
mod referee;
mod reports;
mod setup;
mod tools;
mod virtual_function;

use std::process::ExitCode;

use harness::{tests, Test};

/// All tests, in this order.
const TESTS: &[Test] = tests! {
    commands:
        controller_is_identified
        metadata_is_refused
        memory_of_all_kinds
        memory_anywhere_in_its_pages
        memory_at_any_byte_by_sgl
        commands_without_memory
        bad_input_is_refused
        other_controllers_memory_is_refused;
    queues:
        waits_poll_or_sleep
        full_queue_refuses
        futures_are_awaited
        event_loop_polls_the_interrupts_file
        several_commands_are_told_at_once
        queues_run_out_and_come_back
        dropped_queue_ends_commands;
    referee:
        file_has_what_was_written
        kernel_reads_what_was_written_and_writes_what_is_read;
    tools:
        file_system_goes_to_the_kernel_and_back
        nvme_cli_tells_the_same;
    reports:
        errors_of_the_medium_are_precise
        events_are_reported
        health_counts_commands;
    faults:
        done_command_is_not_late
        command_is_aborted
        late_command_is_aborted_or_reset
        lost_command_ends_with_a_reset
        reset_ends_commands_of_other_threads
        failed_controller_is_reset
        resets_under_load_lose_nothing
        gone_controller_gives_memory_back
        killed_program_leaves_a_controller_that_comes_up;
    peers:
        peers_read_into_vram_and_write_from_it
        peers_lose_vram_that_is_freed
        peers_work_without_the_cpu
        peers_take_commands_of_two_threads
        peers_tell_which_command_failed
        peers_go_on_after_a_reset
        peers_program_disk_kernel;
    plug:
        pulled_controller_is_gone_and_comes_back
        controller_is_pulled_while_it_works
        commands_are_in_the_controllers_memory;
    virtual_function:
        virtual_function_works_beside_the_kernels_driver;
    program:
        command_lists_and_copies;
    random:
        random_commands_of_several_threads;
};

/// Tests that show whether anything works at all.
const SMOKE: &[&str] = &["controller_is_identified"];

/// Tests in which the IOMMU stops what a controller still does for a program that has ended.
const FAULTS: &[&str] = &[
    "killed_program_leaves_a_controller_that_comes_up",
    "peers_lose_vram_that_is_freed",
];

fn main() -> ExitCode {
    harness::main(TESTS, SMOKE, FAULTS)
}
