// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: the thread that waits for their points, futures of points, and pools of threads.

#[path = "../../../../userlib/src/stream/callbacks.rs"]
mod callbacks;
#[path = "../../../../userlib/src/stream/pool.rs"]
mod crate_pool;
#[path = "../../../../userlib/src/stream/future.rs"]
mod future;
pub mod models;
mod pool;
#[path = "../../../../userlib/src/stream/served.rs"]
mod served;
