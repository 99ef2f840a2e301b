// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue: packets go in, in order, and the device executes them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::doorbell::Doorbell;
use crate::error::{Error, Operation, Result};
use crate::fence::{Fence, Progress};
use crate::gpu::{Gpu, Limits};
use crate::ioctl;
use crate::packet::Packet;
use crate::pages::{page_size, Memory};
use crate::queue_options::{Engines, QueueOptions};
use crate::ring::{Path, Ring};
use crate::sys;

/// Packets that a ring can have.
const PACKETS: std::ops::RangeInclusive<u32> = 64..=65536;

/// A queue of a paged device. What is submitted to it is executed in the order in which it was
/// submitted; between queues there is no order but by [fences](crate::Fence).
///
/// Made by [`Gpu::queue`]. Work is submitted in a [`scope`](Self::scope), by stores to mapped
/// memory: without a system call.
///
/// Dropped, the queue is destroyed, once all of its fences are dropped too. In a process forked
/// from the one that made it, it cannot be used; dropping it there would destroy the parent's.
///
/// Once the device is gone, what is submitted goes nowhere, and waiting for it is `ENODEV`.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    engines: Engines,
    progress: Arc<Progress>,
    ring: Ring,
    /// Packets that were executed when it was last looked.
    executed: u64,
    /// How many there are who will publish what is put.
    held: u32,
    /// Packets made by hand were put since the last scope ended.
    by_hand: bool,
    /// Fences of other queues that something submitted waits for; it keeps them.
    needs: Vec<Fence>,
}

/// Whether to wait until the ring has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// Wait.
    Wait,
    /// Refuse with `EAGAIN`.
    Refuse,
}

impl Gpu {
    /// Makes a queue. There may be many more than the device can hold at once: they take turns.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a number of packets that a ring cannot have; `ENOSPC`: the device has no queue
    /// left; `ENOMEM`: out of memory, or over `RLIMIT_MEMLOCK`; `EPERM`: another process opened the
    /// device; `ENODEV`: it is gone.
    pub fn queue(&self, options: QueueOptions) -> Result<Queue> {
        let device = self.device();
        let attempt = || format!("make a queue of {device}");
        let fail = |errno| Error::new(Operation::Queue, attempt(), errno);
        let QueueOptions {
            engines,
            priority,
            packets,
            system_calls,
        } = options;
        if !packets.is_power_of_two() || !PACKETS.contains(&packets) {
            let (least, most) = (PACKETS.start(), PACKETS.end());
            let cause = format!("{packets} packets are no power of two from {least} to {most}");
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Queue, attempt(), errno, cause));
        }
        let mut args = sys::pinmap_queue_create {
            flags: engines.flags(),
            priority: priority.min(self.limits().max_priority),
            packets,
            ..Default::default()
        };
        ioctl::queue_create(device.as_fd(), &mut args).map_err(fail)?;
        let created = Created {
            gpu: self,
            queue: Some(args.out_queue),
        };
        let map = |offset, len| -> Result<MmapRaw> {
            MmapOptions::new()
                .offset(offset)
                .len(len)
                .map_raw(device.file())
                .map_err(|error| Error::from_io(Operation::Queue, attempt(), &error))
        };
        let fences = Memory::new(map(args.out_fence_offset, page_size())?);
        let path = if system_calls {
            Path::Call {
                device: device.clone(),
                queue: args.out_queue,
                staged: Vec::with_capacity(packets as usize),
            }
        } else {
            let len = usize::try_from(args.out_ring_length)
                .ok()
                .filter(|&len| len >= packets as usize * Packet::LEN)
                .ok_or_else(|| fail(Errno::EPROTO))?;
            Path::Mapped {
                ring: Memory::new(map(args.out_ring_offset, len)?),
                doorbell: Doorbell::new(map(args.out_doorbell_offset, page_size())?),
            }
        };
        let id = created.keep();
        let progress = Progress::new(device.clone(), id, fences, args.out_fence_addr);
        let ring = Ring::new(path, packets.into(), progress.addr());
        Ok(Queue::from_parts(self.limits(), engines, progress, ring))
    }
}

/// A queue that is destroyed if nothing becomes of it.
struct Created<'a> {
    gpu: &'a Gpu,
    queue: Option<u64>,
}

impl Created<'_> {
    fn keep(mut self) -> u64 {
        self.queue.take().unwrap_or_default()
    }
}

impl Drop for Created<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.queue {
            let mut args = sys::pinmap_queue_destroy {
                queue,
                ..Default::default()
            };
            // If it fails, then because the device is gone, or the file not the driver's.
            let _ = ioctl::queue_destroy(self.gpu.device().as_fd(), &mut args);
        }
    }
}

impl Queue {
    fn from_parts(limits: Limits, engines: Engines, progress: Progress, ring: Ring) -> Self {
        Self {
            limits,
            engines,
            progress: Arc::new(progress),
            ring,
            executed: 0,
            by_hand: false,
            held: 0,
            needs: Vec::new(),
        }
    }

    /// The driver's name for it, unique in its context: events and faults have it.
    pub fn id(&self) -> u64 {
        self.progress.id()
    }

    /// Which engines it uses.
    pub fn engines(&self) -> Engines {
        self.engines
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Refuses what the queue's engines cannot do.
    pub(crate) fn demand(&self, what: &str, engines: Engines) -> Result<()> {
        if self.engines.include(engines) {
            return Ok(());
        }
        let attempt = format!("submit {what} to queue {}", self.id());
        let name = match engines {
            Engines::Copy => "copy",
            Engines::Compute => "compute",
            Engines::Both => "copy and compute",
        };
        let cause = format!("it was made without the {name} engines");
        Err(Error::refused(
            Operation::Submit,
            attempt,
            Errno::EINVAL,
            cause,
        ))
    }

    /// Makes sure that so many packets can be put, without waiting.
    pub(crate) fn room_now(&mut self, count: u64) -> Result<()> {
        let id = self.id();
        let attempt = || format!("submit {count} packets to queue {id}");
        if count > self.ring.longest() {
            let cause = format!("the ring takes {} at most at once", self.ring.longest());
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Submit, attempt(), errno, cause));
        }
        if self.ring.room(self.executed) < count {
            self.look();
        }
        if self.ring.room(self.executed) < count {
            let error = Error::new(Operation::Submit, attempt(), Errno::EAGAIN);
            // Also what is held, or there would never be room.
            self.publish()?;
            return Err(error);
        }
        Ok(())
    }

    /// Looks how far the device has come.
    fn look(&mut self) {
        // Whatever a packet made by hand may have written there, it is not further than this.
        self.executed = self.progress.executed().min(self.ring.written());
    }

    /// Puts one packet. Where the ring is full: waits until it is not.
    pub(crate) fn put(&mut self, packet: &Packet) -> Result<()> {
        self.progress.check(Operation::Submit, "add to")?;
        if self.ring.room(self.executed) == 0 {
            self.look();
        }
        while self.ring.room(self.executed) == 0 {
            // Also what is held, or there would never be room.
            self.publish()?;
            let value = self.ring.room_for_one();
            self.progress.wait_for_ever(value, &self.needs)?;
            self.look();
        }
        self.ring.put(packet);
        Ok(())
    }

    /// Puts packets, and publishes them unless somebody else will.
    pub(crate) fn submit(
        &mut self,
        count: u64,
        packets: impl Iterator<Item = Packet>,
        full: Full,
    ) -> Result<()> {
        self.progress.check(Operation::Submit, "add to")?;
        if full == Full::Refuse {
            self.room_now(count)?;
        }
        for packet in packets {
            self.put(&packet)?;
        }
        if self.held == 0 {
            self.publish()?;
        }
        Ok(())
    }

    /// Tells the device of all that was put.
    pub(crate) fn publish(&mut self) -> Result<()> {
        self.ring
            .publish()
            .map_err(|errno| self.progress.fail(Operation::Submit, "add to", errno))
    }

    /// One more who will publish what is put.
    pub(crate) fn hold(&mut self) {
        self.held += 1;
    }

    /// One less. The last one publishes.
    pub(crate) fn unhold(&mut self) -> Result<()> {
        // The end of a scope may have come first: with it nothing is held.
        self.held = self.held.saturating_sub(1);
        if self.held == 0 {
            self.publish()?;
        }
        Ok(())
    }

    /// The point behind all that was submitted, published.
    pub(crate) fn mark(&mut self) -> Result<u64> {
        let value = self.ring.mark();
        self.publish()?;
        Ok(value)
    }

    /// Remembers that something that is submitted next waits for a fence.
    pub(crate) fn need(&mut self, fence: &Fence) {
        // It is kept even once it is reached: the device may still be about to read it. One of each
        // queue is enough, the last.
        match self
            .needs
            .iter_mut()
            .find(|other| other.is_same_queue(fence))
        {
            Some(other) => other.advance(fence),
            None => self.needs.push(fence.clone()),
        }
    }

    /// What follows are packets made by hand, which may write to any fence.
    pub(crate) fn distrust(&mut self) {
        self.by_hand = true;
    }

    /// Whether there were such packets since the last scope.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.by_hand
    }

    /// Packets submitted since the beginning.
    pub(crate) fn written(&self) -> u64 {
        self.ring.written()
    }

    /// Fences that what was submitted waits for.
    pub(crate) fn needs(&self) -> &[Fence] {
        &self.needs
    }

    /// Forgets fences that are reached. Only where the device does not wait for them by their
    /// queue's own numbers.
    pub(crate) fn forget_reached(&mut self) {
        self.needs.retain(|fence| !fence.is_done());
    }

    /// Waits for all that was submitted. False: the time was up first.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<bool> {
        let value = self.mark()?;
        let done = match timeout {
            None => self
                .progress
                .wait_for_ever(value, &self.needs)
                .map(|()| true)?,
            Some(_) => self.progress.wait(value, timeout)?,
        };
        if done {
            self.executed = value;
            self.needs.clear();
        }
        Ok(done)
    }

    /// Ends a scope: afterwards the device does nothing any more of what was submitted. If it
    /// cannot be waited for, the queue is destroyed.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.held = 0;
        let by_hand = std::mem::take(&mut self.by_hand);
        if !by_hand && self.ring.written() == self.executed_whole() {
            return Ok(());
        }
        let waited = self.wait(None).and_then(|_| {
            // A fence may have been written by such a packet: the driver asks the device.
            match by_hand {
                true => self.progress.confirm(self.ring.written()),
                false => Ok(()),
            }
        });
        match waited {
            Ok(()) => Ok(()),
            Err(error) => {
                let destroyed = self.progress.destroy();
                self.needs.clear();
                destroyed?;
                Err(error)
            }
        }
    }

    /// How many packets there were when all was last known to be executed.
    fn executed_whole(&self) -> u64 {
        self.ring.idle_after(self.executed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ring::tests::ring;

    impl Queue {
        /// Without a driver: what it is told can be looked at.
        pub(crate) fn fake() -> Self {
            Self::fake_of(Progress::fake())
        }

        /// The same, about which the driver says how far it has come.
        pub(crate) fn fake_with_index() -> Self {
            Self::fake_of(Progress::fake_with_index())
        }

        fn fake_of(progress: Progress) -> Self {
            let gpu = Gpu::fake();
            Self::from_parts(gpu.limits(), Engines::Both, progress, ring(64))
        }

        pub(crate) fn with_engines(mut self, engines: Engines) -> Self {
            self.engines = engines;
            self
        }

        pub(crate) fn packets(&self) -> Vec<Packet> {
            let all = 0..self.ring.written();
            all.map(|index| self.ring.packet(index)).collect()
        }

        pub(crate) fn published(&self) -> u64 {
            self.ring.published()
        }
    }

    #[test]
    fn rings_have_a_length_that_makes_sense() {
        for packets in [0, 1, 63, 65, 96, 131_072, u32::MAX] {
            let options = QueueOptions::new().packets(packets);
            let error = Gpu::fake().queue(options).expect_err("refused");
            assert_eq!(error.errno(), Errno::EINVAL as i32);
            assert!(error.to_string().contains(&packets.to_string()), "{error}");
        }
        let error = Gpu::fake()
            .queue(QueueOptions::new())
            .expect_err("no driver");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
    }

    #[test]
    fn what_the_engines_cannot_do_is_refused() {
        use Engines::{Compute, Copy};
        let queue = Queue::fake().with_engines(Copy);
        let error = queue.demand("a kernel", Compute).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "cannot submit a kernel to queue 7: it was made without the compute engines (EINVAL)"
        );
    }

    #[test]
    fn a_full_ring_refuses_or_waits() {
        let mut queue = Queue::fake();
        let mut put = 0;
        let error = loop {
            match queue.submit(1, std::iter::once(Packet::nop()), Full::Refuse) {
                Ok(()) => put += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Errno::EAGAIN as i32);
        assert!(std::io::Error::from(error).kind() == std::io::ErrorKind::WouldBlock);
        assert!((48..64).contains(&put), "{put}");
        // Waiting asks the driver, which is not there.
        let error = queue
            .submit(1, std::iter::once(Packet::nop()), Full::Wait)
            .expect_err("no driver");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
        // Markers told that half of it is executed.
        queue.progress.execute(35);
        for _ in 0..16 {
            queue
                .submit(1, std::iter::once(Packet::nop()), Full::Refuse)
                .expect("room");
        }
    }

    #[test]
    fn what_never_fits_at_once_is_no_matter_of_time() {
        let error = Queue::fake().room_now(64).expect_err("too many");
        assert_eq!(error.errno(), Errno::EINVAL as i32);
    }

    #[test]
    fn queues_can_be_sent() {
        fn check<T: Send + Sync>() {}
        check::<Queue>();
    }
}
