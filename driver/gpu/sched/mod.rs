// SPDX-License-Identifier: GPL-2.0
//! Scheduling: the queues of all contexts share the slots of the device, and its VMIDs.
//!
//! * `queue.rs`: a queue, its fences and its doorbell; `ids.rs`: which ids are free
//! * `scheduler.rs`, `schedule.rs`, `room.rs`: which queue gets a slot; decided in `logic/slots.rs`
//! * `vmids.rs`: who has a VMID
//! * `service.rs`: the threads that have faults served
//! * `isolation.rs`: contexts that are held off after trouble

pub(in crate::gpu) mod ids;
pub(in crate::gpu) mod isolation;
pub(crate) mod queue;
pub(in crate::gpu) mod room;
pub(in crate::gpu) mod schedule;
pub(in crate::gpu) mod scheduler;
pub(in crate::gpu) mod service;
pub(in crate::gpu) mod vmids;
