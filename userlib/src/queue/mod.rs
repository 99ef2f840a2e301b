// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: work that a paged device executes in order.
//!
//! Submitting takes no system call. A queue writes packets into a [`ring`] in memory that the
//! device reads, and rings a [`doorbell`]; the device counts executed packets in a [`fence`]. A
//! [`Stream`](crate::accelerator::Stream) has a queue, and sees to the memory of the work.

mod create;
pub(crate) mod doorbell;
pub(crate) mod fence;
pub(crate) mod format;
pub(crate) mod handle;
pub(crate) mod operand;
pub(crate) mod options;
pub(crate) mod point;
pub(crate) mod ring;
pub(crate) mod transfer;

use std::sync::Arc;

use nix::errno::Errno;

use crate::device::accelerator::{Accelerator, Limits};
use crate::error::{Error, Operation, Result};
use crate::sys::trace::span;
use crate::trace::recorder::Traced;

use fence::Fence;
use format::{Packet, PacketFormat};
use handle::Handle;
use options::Engines;
use point::Point;
use ring::Ring;

/// A queue of a paged device, which executes work in the order in which it is submitted.
///
/// A dropped queue is destroyed once all of its fences are dropped, too. A process forked from the
/// one that made the queue must not drop it: that would destroy the queue of the parent.
#[derive(Debug)]
pub(crate) struct Queue {
    limits: Limits,
    format: &'static dyn PacketFormat,
    engines: Engines,
    handle: Arc<Handle>,
    ring: Ring,
    /// Packets known to be executed.
    executed: u64,
    /// Batches that hold back publishing.
    held: u32,
    /// How many host functions must have run before what is put next, if nothing was put since.
    awaited_calls: Option<u64>,
    /// Raw packets were put, which can have written any fence.
    raw_packets: bool,
    /// Fences of other queues that submitted work waits for, which must not be dropped before.
    dependencies: Vec<Fence>,
}

/// The behaviour of submitting when the ring is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// Wait until it has room.
    Wait,
    /// Refuse with `EAGAIN`.
    Refuse,
}

impl Queue {
    fn from_parts(gpu: &Accelerator, engines: Engines, handle: Handle, ring: Ring) -> Self {
        Self {
            limits: gpu.limits(),
            format: gpu.format(),
            engines,
            handle: Arc::new(handle),
            ring,
            executed: 0,
            held: 0,
            awaited_calls: None,
            raw_packets: false,
            dependencies: Vec::new(),
        }
    }

    /// The id of the queue, unique in its context.
    pub(crate) fn id(&self) -> u64 {
        self.handle.id()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn format(&self) -> &'static dyn PacketFormat {
        self.format
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Refuses work for engines that the queue does not use.
    fn require(&self, what: &str, engines: Engines) -> Result<()> {
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

    /// Makes sure that `count` packets can be put, without waiting.
    fn room_now(&mut self, count: u64) -> Result<()> {
        let id = self.id();
        let attempt = || format!("submit {count} packets to queue {id}");
        if count > self.ring.longest() {
            let cause = format!("the ring takes {} at most at once", self.ring.longest());
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Submit, attempt(), errno, cause));
        }
        if self.ring.room(self.executed) < count {
            self.refresh();
        }
        if self.ring.room(self.executed) < count {
            let error = Error::new(Operation::Submit, attempt(), Errno::EAGAIN);
            // Batches do not hold back here, or there would never be room.
            self.publish()?;
            return Err(error);
        }
        Ok(())
    }

    /// Reads how far the device has come.
    fn refresh(&mut self) {
        // A raw packet may have stored a higher number.
        self.executed = self.handle.executed().min(self.ring.written());
    }

    /// Waits until the ring has room for `count` packets, if it has not.
    fn make_room(&mut self, count: u64) -> Result<()> {
        if self.ring.room(self.executed) >= count {
            return Ok(());
        }
        self.wait_for_room(count)
    }

    #[cold]
    fn wait_for_room(&mut self, count: u64) -> Result<()> {
        self.handle.check(Operation::Submit, "add to")?;
        self.refresh();
        while self.ring.room(self.executed) < count {
            // Batches do not hold back here, or there would never be room.
            self.publish()?;
            let room = Fence::new(Arc::clone(&self.handle), self.ring.room_for(count));
            point::wait(&room, &self.dependencies, None)?;
            self.refresh();
        }
        Ok(())
    }

    /// Puts the packets of `what` into the ring, and publishes them unless a batch holds them back.
    pub(crate) fn submit(
        &mut self,
        what: Traced,
        count: u64,
        packets: impl Iterator<Item = Packet>,
        when_full: WhenFull,
    ) -> Result<()> {
        self.put(what, count, packets, when_full)?;
        if self.held == 0 {
            self.publish()?;
        }
        Ok(())
    }

    /// Puts the packets of `what` into the ring, to be published with what comes next: the caller
    /// puts more, or nobody misses them until then.
    pub(crate) fn put(
        &mut self,
        what: Traced,
        count: u64,
        packets: impl Iterator<Item = Packet>,
        when_full: WhenFull,
    ) -> Result<()> {
        span!("submit", queue = self.handle.id(), packets = count);
        self.handle.check(Operation::Submit, "add to")?;
        self.put_awaited_calls();
        self.settle();
        // Each packet has another one behind it that stamps it, if that ever fits.
        let traced = self.handle.recorder().is_some_and(|recorder| {
            let fits = 2 * count <= self.ring.longest();
            if !fits {
                recorder.lose(count);
            }
            fits
        });
        if when_full == WhenFull::Refuse {
            self.room_now(if traced { 2 * count } else { count })?;
        }
        for (index, packet) in (0..).zip(packets) {
            if !traced {
                self.make_room(1)?;
                self.ring.put(&packet);
                continue;
            }
            self.make_room(2)?;
            match self.stamp(what, index) {
                Some(stamp) => self.ring.put_both(&packet, &stamp),
                None => self.ring.put(&packet),
            }
        }
        Ok(())
    }

    /// Has what is put next wait until `calls` host functions have run. The packet for that is put
    /// when something follows while they have not.
    pub(crate) fn await_calls(&mut self, calls: u64) -> Result<()> {
        if self.handle.recorder().is_some() {
            // A trace shows the wait.
            let (what, packet) = (Traced::HostFunction, self.wait_for_calls(calls));
            return self.submit(what, 1, std::iter::once(packet), WhenFull::Wait);
        }
        self.put_awaited_calls();
        self.make_room(1)?;
        self.awaited_calls = Some(calls);
        Ok(())
    }

    /// How many host functions must have run before what is put next, if nothing was put since.
    pub(crate) fn awaited_calls(&self) -> Option<u64> {
        self.awaited_calls
    }

    /// Puts the packet that waits for host functions, if some are awaited that have not run.
    fn put_awaited_calls(&mut self) {
        let Some(calls) = self.awaited_calls.take() else {
            return;
        };
        if !self.handle.have_run(calls) {
            self.settle();
            // `await_calls` has made room, and nothing was put since.
            self.ring.put(&self.wait_for_calls(calls));
        }
    }

    fn wait_for_calls(&self, calls: u64) -> Packet {
        let addr = self.handle.callbacks_addr();
        self.format.fence_wait(addr, calls)
    }

    /// Records a packet that is put next. Returns the packet with which the device stamps it.
    fn stamp(&self, what: Traced, index: u64) -> Option<Packet> {
        let stamps = self.format.stamp(0).is_some();
        let position = self.ring.written() + 1;
        let recorder = self.handle.recorder()?;
        let addr = recorder.record(what, index, position, stamps)?;
        let stamp = self.format.stamp(addr);
        Some(stamp.unwrap_or_else(|| self.format.timestamp(addr)))
    }

    /// Tells the device about all packets that were put.
    pub(crate) fn publish(&mut self) -> Result<()> {
        self.ring
            .publish()
            .map_err(|errno| self.handle.fail(Operation::Submit, "add to", errno))
    }

    /// Begins a batch: packets are not published before it ends.
    pub(crate) fn hold(&mut self) {
        self.held += 1;
    }

    /// Ends a batch. The last one publishes.
    pub(crate) fn unhold(&mut self) -> Result<()> {
        self.release();
        if self.held == 0 {
            self.publish()?;
        }
        Ok(())
    }

    /// Ends a batch, without publishing it: the caller does so.
    pub(crate) fn release(&mut self) {
        self.held -= 1;
    }

    /// Publishes everything, and returns the fence behind it.
    pub(crate) fn fence(&mut self) -> Result<Fence> {
        self.put_awaited_calls();
        self.settle();
        let value = self.ring.mark();
        self.publish()?;
        Ok(Fence::new(Arc::clone(&self.handle), value))
    }

    /// Publishes everything, and returns the point behind it, of which the device does not tell
    /// those who sleep before somebody [wants that](Self::interrupt_if).
    pub(crate) fn quiet_point(&mut self) -> Result<Point> {
        self.put_awaited_calls();
        let value = self.ring.mark_quietly();
        self.publish()?;
        let fence = Fence::new(Arc::clone(&self.handle), value);
        Ok(Point::new(fence, self.dependencies.clone()))
    }

    /// Has the device interrupt behind the last marker, unless it has executed that already.
    fn settle(&mut self) {
        match self.ring.quiet() {
            None => {}
            Some(value) if self.handle.executed() >= value => self.ring.need_no_interrupt(),
            Some(_) => self.ring.interrupt(),
        }
    }

    /// Has the device interrupt behind the markers that it comes to with `wanted` packets.
    #[inline]
    pub(crate) fn interrupt_if(&mut self, wanted: u64) {
        if self.ring.lacks_interrupt(wanted) {
            self.tell(wanted);
        }
    }

    #[cold]
    fn tell(&mut self, wanted: u64) {
        if self.ring.quiet().is_some_and(|value| value <= wanted) {
            self.settle();
        }
        // Batches do not hold back here: one may take long to end.
        if self.ring.is_untold(wanted) {
            // If this fails, so does the wait, or it looks again after a while.
            let _ = self.publish();
        }
    }

    /// Publishes everything, and returns the point behind it. At this point no memory is given
    /// back.
    pub(crate) fn point(&mut self) -> Result<Point> {
        Ok(Point::new(self.fence()?, self.dependencies.clone()))
    }

    /// Publishes everything, and returns the point behind it, at which memory is given back.
    pub(crate) fn point_for_memory(&mut self) -> Result<Point> {
        let raw_packets = self.raw_packets;
        Ok(Point {
            raw_packets,
            ..self.point()?
        })
    }

    /// As [`point_for_memory`](Self::point_for_memory), but [quiet](Self::quiet_point).
    pub(crate) fn quiet_point_for_memory(&mut self) -> Result<Point> {
        let raw_packets = self.raw_packets;
        Ok(Point {
            raw_packets,
            ..self.quiet_point()?
        })
    }

    /// Remembers that what is submitted next waits for a fence.
    pub(crate) fn depend_on(&mut self, fence: &Fence) {
        // A fence is kept even when it is reached, because the device may be about to read it. The
        // last one of each queue is enough.
        match self
            .dependencies
            .iter_mut()
            .find(|other| other.is_same_queue(fence))
        {
            Some(other) => other.advance(fence),
            None => self.dependencies.push(fence.clone()),
        }
    }

    /// Notes that raw packets follow, which can write any fence: from now on fences prove nothing.
    pub(crate) fn mark_raw(&mut self) {
        self.raw_packets = true;
    }

    /// Whether raw packets were put.
    pub(crate) fn has_raw_packets(&self) -> bool {
        self.raw_packets
    }

    /// Packets submitted since the beginning, markers included.
    pub(crate) fn written(&self) -> u64 {
        self.ring.written()
    }

    /// Forgets dependencies that are reached. Allowed only if the device does not read the fences
    /// of those queues, but numbers elsewhere.
    pub(crate) fn forget_reached(&mut self) {
        self.dependencies.retain(|fence| !fence.is_done());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::queue::options::StreamOptions;
    use crate::queue::ring::tests::ring;
    use crate::testgpu::packet;

    impl Queue {
        /// A queue without a driver, whose ring can be looked at.
        pub(crate) fn fake() -> Self {
            Self::fake_of(Handle::fake())
        }

        /// A queue whose index a made-up driver tells.
        pub(crate) fn fake_with_index() -> Self {
            Self::fake_of(Handle::fake_with_index())
        }

        fn fake_of(handle: Handle) -> Self {
            let gpu = Accelerator::fake();
            Self::from_parts(&gpu, Engines::Both, handle, ring(64))
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

        /// How often the device was told of packets.
        pub(crate) fn tellings(&self) -> u64 {
            self.ring.tellings()
        }
    }

    #[test]
    fn rings_have_a_length_that_makes_sense() {
        for packets in [0, 1, 63, 65, 96, 131_072, u32::MAX] {
            let options = StreamOptions::new().packets(packets);
            let error = Accelerator::fake().queue(options).expect_err("refused");
            assert_eq!(error.errno(), Errno::EINVAL as i32);
            assert!(error.to_string().contains(&packets.to_string()), "{error}");
        }
        let error = Accelerator::fake()
            .queue(StreamOptions::new())
            .expect_err("no driver");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
    }

    #[test]
    fn what_the_engines_cannot_do_is_refused() {
        use Engines::{Compute, Copy};
        let queue = Queue::fake().with_engines(Copy);
        let error = queue.require("a kernel", Compute).expect_err("refused");
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
            match queue.submit(
                Traced::Nothing,
                1,
                std::iter::once(packet::nop()),
                WhenFull::Refuse,
            ) {
                Ok(()) => put += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Errno::EAGAIN as i32);
        assert!(std::io::Error::from(error).kind() == std::io::ErrorKind::WouldBlock);
        assert!((48..64).contains(&put), "{put}");
        // Waiting asks the driver, which is not there.
        let error = queue
            .submit(
                Traced::Nothing,
                1,
                std::iter::once(packet::nop()),
                WhenFull::Wait,
            )
            .expect_err("no driver");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
        // Markers told that half of it is executed.
        queue.handle.execute(35);
        for _ in 0..16 {
            queue
                .submit(
                    Traced::Nothing,
                    1,
                    std::iter::once(packet::nop()),
                    WhenFull::Refuse,
                )
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
