// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings, fences, and the end of queues.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::kernel::check_with;
use crate::sys::map::{Map, Register};
use crate::sys::word;

use super::doorbell::Doorbell;
use super::format::{Format, Packet, INTERRUPT, MARKER};
use super::ring::{Path, Ring};
use super::{point, queue};

/// Packets in the ring of the model, the fewest for which a ring has room for more than one.
const CAPACITY: u64 = 16;

/// A device that executes a ring: it checks that the packets are numbered from 1, in order.
struct Device {
    ring: Map,
    doorbell: Register,
    /// Where markers store how many packets are executed.
    fence: Map,
    executed: u64,
    packets: u64,
}

impl Device {
    /// Executes the packets that it was told of.
    fn run(&mut self) {
        let told = self.doorbell.value();
        while self.executed < told {
            let slot = &self.ring.words()[(self.executed % CAPACITY) as usize];
            self.executed += 1;
            match u64::from_le(slot.load(Ordering::Relaxed)) {
                INTERRUPT => {}
                marker if marker > MARKER => {
                    assert_eq!(marker, MARKER + self.executed, "the marker that was put");
                    self.fence.words()[0].store(self.executed.to_le(), Ordering::Release);
                }
                packet => {
                    self.packets += 1;
                    assert_eq!(packet, self.packets, "the packet that was put");
                }
            }
        }
    }
}

/// The device executes every packet once, in order, as it was put, also where the ring begins anew.
pub fn packets_arrive_as_they_were_put() {
    check_with(3, || {
        let (memory, fence) = (Map::of_words(CAPACITY as usize), Map::of_words(1));
        let mut device = Device {
            ring: memory.clone(),
            doorbell: Register::new(),
            fence: fence.clone(),
            executed: 0,
            packets: 0,
        };
        let path = Path::Mapped {
            ring: memory,
            doorbell: Doorbell::new(device.doorbell.clone()),
        };
        let mut ring = Ring::new(path, CAPACITY, 0, &Format);
        let mut packets = 0;
        let mut submit = |most: u64| {
            let executed = u64::from_le(word::load(fence.words(), 0));
            for _ in 0..ring.room(executed).min(most) {
                packets += 1;
                ring.put(&Packet(packets));
            }
            ring.mark();
            ring.publish().expect("the ring is mapped");
            packets
        };
        // What comes next is beyond the end of the ring.
        submit(4);
        device.run();
        submit(4);
        let device = thread::spawn(move || {
            device.run();
            device.run();
            device
        });
        submit(2);
        submit(4);
        let packets = submit(4);
        let mut device = device.join().expect("the device");
        device.run();
        assert_eq!(device.packets, packets, "every packet was executed");
    });
}

/// A thread that finds a fence reached, or was woken, sees what the work before it wrote.
pub fn a_fence_shows_what_was_written() {
    check_with(3, || {
        let (handle, engine) = queue();
        let memory = Arc::clone(&engine.memory);
        let device = thread::spawn(move || engine.work(42, 5));
        let fence = point(&handle, 5).fence;
        if !fence.is_done() {
            fence.wait_for(None).expect("the device works");
        }
        assert_eq!(memory.load(Ordering::Relaxed), 42);
        device.join().expect("the device");
    });
}

/// A wait ends when another thread destroys the queue.
pub fn a_wait_ends_with_the_queue() {
    check_with(3, || {
        let (handle, engine) = queue();
        drop(engine);
        let other = Arc::clone(&handle);
        let other = thread::spawn(move || other.destroy().expect("the driver can"));
        point(&handle, 5)
            .wait(None)
            .expect_err("nothing is executed");
        other.join().expect("the other thread");
    });
}

/// A wait for work that was done does not fail because another thread then destroys the queue.
pub fn work_that_was_done_is_done() {
    check_with(3, || {
        let (handle, engine) = queue();
        let device = thread::spawn(move || engine.work(42, 5));
        let other = Arc::clone(&handle);
        let other = thread::spawn(move || {
            let fence = point(&other, 5).fence;
            fence.wait_for(None).expect("the device works");
            other.destroy().expect("the driver can");
        });
        let fence = point(&handle, 5).fence;
        fence.wait_for(None).expect("the work was done");
        other.join().expect("the other thread");
        device.join().expect("the device");
    });
}

/// Whoever destroys a queue, or finds it destroyed, may have the memory that its work wrote.
pub fn a_destroyed_queue_writes_nothing() {
    check_with(3, || {
        let (handle, engine) = queue();
        // loom's threads may share it: that they do so in order is what it checks.
        #[allow(clippy::arc_with_non_send_sync)]
        let memory = Arc::new(UnsafeCell::new(0));
        let written = Arc::clone(&memory);
        let device = thread::spawn(move || {
            written.with_mut(|_| ());
            drop(engine);
        });
        let other = Arc::clone(&handle);
        let other = thread::spawn(move || drop(other.destroy()));
        let stopped = point(&handle, 5)
            .fence
            .stopped()
            .expect("the driver answers");
        if stopped.is_some() {
            memory.with(|_| ());
        } else {
            handle.destroy().expect("the driver can");
            memory.with(|_| ());
        }
        other.join().expect("the other thread");
        device.join().expect("the device");
    });
}
