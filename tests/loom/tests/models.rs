// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the models.

macro_rules! models {
    ($($module:ident: $($model:ident)*;)*) => { $($(
        #[test]
        fn $model() {
            pinmap_loom::$module::$model();
        }
    )*)* };
}

models! {
    queues: packets_arrive_as_they_were_put a_fence_shows_what_was_written
        a_wait_ends_with_the_queue work_that_was_done_is_done a_destroyed_queue_writes_nothing;
    streams: a_task_is_woken points_of_one_queue_are_all_told
        a_task_is_told_that_its_queue_is_gone a_future_that_is_dropped_leaves_nothing
        pending_memory_is_dropped_after_the_work
        the_device_sees_what_a_host_function_wrote the_end_of_a_host_function_is_told
        the_loss_of_a_host_function_is_told a_wish_is_not_lost a_wish_is_no_lock
        a_pool_wakes_its_thread
        a_pool_runs_every_job;
    rings: descriptors_go_there_and_come_back;
    watches: a_file_wakes_its_task;
    changes: a_page_that_changes_is_not_lent a_wide_change_is_seen;
}
