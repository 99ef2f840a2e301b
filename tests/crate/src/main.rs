// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the crate pinmap and of its programs, on QEMU's `edu` and on the test GPU, as root in
//! the VM. Without a device its tests are skipped.
//!
//! usage: `crate-test --list` and `crate-test --run NAME`; `tests/runner` calls both.

mod cache;
mod command;
mod demo;
mod device;
mod direct;
mod doctor;
mod documents;
mod failure;
mod faults;
mod files;
mod gpu;
mod harness;
mod held;
mod hotplug;
mod instructions;
mod kernels;
mod knobs;
mod lent;
mod lost;
mod managed;
mod mapping;
mod memory;
mod moving;
mod opencl;
mod operands;
mod peers;
mod program;
mod programs;
mod raw;
mod registration;
mod rust_kernels;
mod rust_program;
mod scopes;
mod setup;
mod several;
mod sharing;
mod sleep;
mod stale;
mod stream_calls;
mod stream_devices;
mod stream_faults;
mod stream_graph;
mod stream_overlap;
mod stream_scale;
mod stream_turns;
mod streams;
mod submission;
mod syscalls;
mod traces;
mod waiting;
mod windows;

use std::process::ExitCode;

use harness::{tests, Test};
use pinmap_samples::{edu, pins};

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
        vec_is_read_where_it_is
        query_finds_interior_addresses;
    several:
        several_buffers_are_reached_and_released
        several_buffers_are_at_demanded_addresses
        several_buffers_are_all_registered_or_none
        several_buffers_count_against_the_limit
        several_buffers_of_an_owned_device_come_back
        several_buffers_may_be_stale_or_of_a_device_that_is_gone
        several_vectors_are_worked_on_in_place
        several_pieces_share_their_pages
        several_pieces_are_all_registered_or_none
        several_pieces_are_released_beside_work;
    lost:
        lost_memory_is_not_given_back
        scope_tells_that_memory_is_lost;
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
    cache:
        cache_hits_make_no_system_call
        cache_hit_costs_little
        cache_sees_memory_go
        cache_is_not_fooled_by_neighbours
        cache_keeps_its_limit
        cache_makes_way
        cache_gives_back_what_the_user_may_not_lock;
    direct:
        files_go_straight_into_vram;
    files:
        file_is_shared_with_the_device
        file_errors_say_what_to_do
        preflight_says_what_registering_would
        preflight_names_the_limit
        progress_is_reported
        query_knows_every_kind
        portable_memory_is_on_all_devices;
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
        register_access_costs_little
        msix_table_is_out_of_reach
        interrupt_waits
        interrupt_is_taken_once
        reset_works
        factorial_interrupts;
    command:
        command_info
        command_cdi
        command_info_without_permission
        command_info_asks_the_driver
        json_has_the_fields_of_the_manual
        colours_are_for_terminals
        command_copy_test
        command_top
        command_bind_and_unbind
        command_replug
        command_refuses_nonsense
        example_edu
        examples_of_queues
        examples_of_streams
        examples_of_managed_memory
        examples_of_kernels
        example_pipeline
        example_stream_costs;
    demo:
        command_demo;
    documents:
        documents_have_these_programs
        readme_drives_a_device
        readme_works_in_place
        using_hands_memory_over
        using_moves_memory
        crate_readme_works_in_place
        crate_readme_drives_a_device
        guides_have_programs_that_run
        guide_drives_a_network_card;
    hotplug:
        pulled_card_comes_back
        peers_lose_a_pulled_card;
    doctor:
        doctor_all_is_well
        doctor_low_limit
        doctor_without_permission
        doctor_of_an_old_session
        doctor_without_udev_rule
        doctor_of_a_function
        doctor_of_a_shared_group
        doctor_without_devices
        doctor_without_module
        doctor_of_a_kernel_without_options
        noiommu_doctor;
    gpu:
        gpu_info_is_plausible
        every_call_names_memlock
        flat_device_has_no_queues
        alloc_for_a_flat_device
        alloc_is_zeroed_and_at_its_own_address
        alloc_refuses_what_cannot_be
        vram_is_given_back
        stream_options_are_checked
        queues_run_out_and_come_back;
    sharing:
        alloc_of_all_kinds
        shared_allocation
        shared_file
        dma_buf_of_udmabuf_is_imported
        sharing_refuses_what_cannot_be;
    sleep:
        sleep_is_told
        sleep_of_streams;
    operands:
        pinned_memory_is_a_slice
        registered_memory_stays_an_operand
        shared_memory_and_files_are_read
        memory_that_cannot_be_registered_comes_back
        portable_memory_is_an_operand_of_two_gpus
        registered_memory_is_an_operand_of_two_gpus
        pending_work_is_followed_by_more
        pending_work_outlives_the_stream_before
        pending_work_is_kept_for_all_its_streams
        pending_work_is_not_followed_after_a_fault
        packets_have_the_format_of_the_program
        errors_have_kinds_and_sources;
    waiting:
        pending_work_is_awaited
        sleepers_are_woken_in_time
        streams_devices_and_moves_are_awaited
        failed_scopes_end
        futures_can_be_dropped
        futures_learn_of_faults
        interrupts_are_awaited
        events_are_awaited
        ring_is_worked_off_by_dma
        windows_of_a_bar_are_parts_of_the_device;
    programs:
        program_increment
        program_of_the_guide_to_kernels
        program_two_streams
        program_tokio
        program_reactors
        program_compress
        program_key_value
        program_fpga_ring
        program_fpga_finds_no_device
        program_features;
    harness:
        freed_memory_is_watched;
    traces:
        trace_tells_what_queues_did
        trace_outlives_the_program
        trace_not_of_privileged_programs
        trace_that_is_full_loses_records_only
        trace_leaves_small_rings_alone
        command_trace
        command_trace_shows_faults
        command_trace_without_root
        command_trace_of_a_flat_device
        command_trace_ends_as_the_program;
    kernels:
        copy_engines_copy_and_fill
        kernel_copy_and_fill
        kernel_increment
        kernel_saxpy
        kernel_sum
        kernel_histogram
        kernel_crc32c
        kernel_matmul
        kernel_spin
        registered_memory_is_worked_on_in_place;
    scopes:
        scope_waits_whatever_happens
        scope_leaves_memory_free
        scope_ends_when_the_device_is_stopped
        packets_are_executed_in_order
        full_ring_is_back_pressure
        waiting_has_a_deadline
        streams_work_at_the_same_time
        contexts_work_at_the_same_time
        more_streams_and_contexts_than_the_device_holds;
    faults:
        fault_names_what_was_missing
        fault_after_release
        fault_on_writing_what_is_read_only
        error_names_bad_packets
        error_when_it_runs_for_too_long
        contexts_do_not_reach_each_other
        same_memory_in_two_contexts
        gone_device_ends_a_scope
        gone_device_kills_no_program;
    submission:
        submission_makes_no_system_call
        streams_make_no_system_call
        submission_cost;
    streams:
        stream_stays_in_order
        memory_that_is_handed_over_comes_back
        dropped_memory_in_flight_stays
        memory_in_flight_stays_after_a_panic
        memory_in_flight_stays_after_an_error
        forgotten_memory_in_flight_stays
        memory_in_flight_is_raced_for
        scope_of_streams_waits_whatever_happens
        busy_stream_is_dropped_at_once
        done_on_a_stream_that_is_gone
        event_never_recorded
        events_tell_order
        events_make_streams_take_turns
        events_tell_time
        event_recorded_anew
        event_recorded_by_another_stream
        events_are_many
        event_of_another_context
        unregistered_memory_is_lent
        unregistered_memory_is_shared
        unregistered_memory_is_written
        unregistered_parts_of_pages_are_written
        unregistered_memory_that_is_forgotten_stays;
    lent:
        lent_memory_of_all_kinds
        lent_memory_is_not_pinned_where_it_is_managed
        lent_memory_is_registered_where_it_is_not_managed
        lent_slices_share_pages
        lent_memory_is_handed_over_and_comes_back
        lent_memory_outlasts_a_panic
        lent_memory_outlasts_a_reset
        lent_memory_outlasts_the_device
        lent_memory_changes_while_the_device_uses_it
        lent_memory_takes_no_system_call_once_it_is_managed
        lent_file_gets_the_results;
    managed:
        managed_ranges_are_what_the_program_chose
        managed_memory_moves_where_it_is_wanted
        managed_memory_says_why_not
        managed_fault_leaves_others_alone
        managed_memory_of_a_child_is_refused;
    moving:
        managed_value_is_where_it_is_used
        managed_advice_decides_where_memory_is
        managed_memory_moves_in_the_order_of_a_stream
        managed_memory_is_discarded_where_it_is
        managed_memory_that_is_locked
        managed_memory_stays_on_the_host_by_option
        managed_memory_keeps_its_budget
        managed_thrashing_is_told
        allocator_grows_what_is_on_the_device
        command_explains_where_a_page_is;
    windows:
        window_is_the_same_for_both
        window_keeps_its_addresses
        window_tells_its_last_fault
        window_of_a_child
        window_beside_lent_memory;
    stream_calls:
        host_functions_run_in_order
        host_functions_cannot_wait
        host_functions_ask_nothing_of_the_driver
        host_functions_cannot_wait_for_a_full_ring
        thousand_host_functions_of_a_stream
        completions_are_files
        completion_of_what_is_done_is_ready
        completions_are_limited
        completions_of_a_failed_stream_are_ready;
    stream_devices:
        streams_of_two_gpus_wait_for_each_other
        failure_is_told_to_a_stream_of_another_of_two_gpus;
    peers:
        vram_of_two_gpus_is_copied
        copies_between_two_gpus_are_in_order
        vram_of_two_gpus_is_an_operand
        vram_of_two_gpus_goes_stale
        copies_between_two_gpus_are_timed
        stale_registration_of_two_gpus_keeps_addresses
        vram_of_another_context_is_imported
        streams_wait_for_conditions;
    stream_overlap:
        copies_overlap_with_a_kernel
        kernels_overlap
        copies_of_one_direction_leave_the_other_free
        pipeline_of_streams_takes_half
        urgent_streams_go_first
        stuck_stream_holds_up_nobody;
    stream_faults:
        launch_blocking_names_the_line
        reset_amid_work_is_told
        reset_amid_a_scope_is_told
        scope_outlasts_a_reset
        failed_stream_names_the_fault
        failure_is_told_by_all_that_waits_for_it
        failed_stream_gives_memory_back
        failed_stream_leaves_its_context_alone
        failed_stream_is_reset
        reset_gives_up_what_was_recorded
        host_functions_of_a_failed_stream_are_dropped
        hang_fails_the_stream
        stuck_engine_fails_the_stream
        scope_gives_failed_streams_up
        panicking_host_function_fails_its_stream
        dropped_stream_tells_why_it_failed
        dropped_streams_that_fail_leave_nothing
        process_ends_with_work_in_flight;
    stream_scale:
        million_packets_in_bounded_memory
        thousand_streams_of_one_program
        streams_that_begin_all_at_once_are_all_seen
        streams_of_one_program_leave_others_their_share
        thousand_streams_of_twenty_programs
        stream_is_used_by_two_threads;
    stream_turns:
        long_kernels_hold_up_no_other_context
        streams_that_wait_keep_nobody_out
        equal_streams_do_not_put_each_other_out;
    program:
        compiled_kernel_is_saxpy
        compiled_kernel_is_histogram
        compiled_kernel_prints_in_order
        compiled_kernel_takes_all_arguments
        compiled_kernel_that_stops_says_where
        compiled_kernel_that_stops_is_named_beside_others
        compiled_kernel_that_cannot_be
        compiled_kernel_wants_a_device_that_executes;
    rust_program:
        rust_kernel_is_saxpy
        rust_kernel_works_on_more_than_the_device_has
        rust_kernel_is_matrix_product
        rust_kernel_is_histogram
        rust_kernel_prints_and_takes_structs
        rust_kernel_takes_all_arguments
        rust_kernel_that_panics_names_the_line
        rust_kernels_are_those_of_the_source
        rust_kernels_have_the_same_types_on_both_sides
        rust_kernels_run_in_the_context_that_loaded_them
        rust_kernels_have_stacks_of_8_kib_at_least
        rust_kernel_that_needs_more_than_its_stack_is_stopped;
    opencl:
        opencl_local_parameter
        opencl_local_variables
        opencl_local_variables_are_of_a_launch
        opencl_atomics
        opencl_vectors
        opencl_integers
        opencl_functions
        opencl_threads_and_copies
        opencl_prints_and_stops;
    stream_graph:
        random_graphs_are_as_if_sequential
        random_graphs_of_many_streams_of_all_priorities;
};

/// Tests that show whether anything works at all.
const SMOKE: &[&str] = &[
    "register_roundtrip",
    "command_copy_test",
    "kernel_increment",
];

/// Tests in which the IOMMU stops a device, and says so in the kernel's log.
const FAULTS: &[&str] = &[
    "release_ends_reach",
    "several_buffers_are_reached_and_released",
    "drop_ends_reach_and_unpins",
    "read_only_is_enforced",
    "vec_is_read_where_it_is",
    "unmapped_then_mapped",
    "mapping_drop_unmaps",
    "mapping_forgotten_goes_with_registration",
    "munmap_makes_stale",
    "gone_device_ends_a_scope",
    "process_ends_with_work_in_flight",
    "scope_ends_when_the_device_is_stopped",
    "lent_memory_outlasts_the_device",
    "trace_outlives_the_program",
];

fn main() -> ExitCode {
    harness::main(TESTS, SMOKE, FAULTS)
}
