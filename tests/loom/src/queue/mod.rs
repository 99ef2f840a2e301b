// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: the files of the crate, with packets of one word.

#[path = "../../../../userlib/src/queue/doorbell.rs"]
pub(crate) mod doorbell;
#[path = "../../../../userlib/src/queue/fence.rs"]
pub(crate) mod fence;
pub(crate) mod format;
#[path = "../../../../userlib/src/queue/handle.rs"]
pub(crate) mod handle;
pub mod models;
#[path = "../../../../userlib/src/queue/point.rs"]
pub(crate) mod point;
#[path = "../../../../userlib/src/queue/ring.rs"]
pub(crate) mod ring;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::device::Device;
use crate::kernel::{kernel, Kernel};
use crate::memory::lent::Lending;
use crate::sys::map::Map;
use crate::sys::sync::AtomicU64;

use fence::Fence;
use handle::Handle;
use point::Point;

/// The device's side of a queue, for a thread that plays the device. It ends when that is dropped.
pub(crate) struct Engine {
    fences: Map,
    /// Memory that the device writes for the program.
    pub(crate) memory: Arc<AtomicU64>,
    kernel: Arc<Kernel>,
}

const ID: u64 = 7;

/// A queue, and the device that works for it.
pub(crate) fn queue() -> (Arc<Handle>, Engine) {
    let fences = Map::of_words(2);
    kernel().make_queue(ID, fences.clone());
    let engine = Engine {
        fences: fences.clone(),
        memory: Arc::default(),
        kernel: kernel(),
    };
    let handle = Handle::new(Device, ID, fences, 0, Lending, None);
    (Arc::new(handle), engine)
}

/// A point of the queue, when `value` packets are executed.
pub(crate) fn point(handle: &Arc<Handle>, value: u64) -> Point {
    Point::new(Fence::new(Arc::clone(handle), value), Vec::new())
}

impl Engine {
    /// Does work, and executes the marker behind it.
    pub(crate) fn work(&self, result: u64, executed: u64) {
        self.memory.store(result, Ordering::Relaxed);
        self.executed(executed);
    }

    /// Executes a marker: what was written before is visible with it.
    pub(crate) fn executed(&self, value: u64) {
        self.fences.words()[0].store(value.to_le(), Ordering::Release);
        self.kernel.interrupt(ID);
    }

    /// How many host functions have run.
    pub(crate) fn callbacks(&self) -> u64 {
        u64::from_le(self.fences.words()[1].load(Ordering::Acquire))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kernel.stop(ID);
    }
}
