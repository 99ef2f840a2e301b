// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work for the device on borrowed memory, which ends before the borrows do.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use crate::error::{Error, Operation, Result};
use crate::fence::Fence;
use crate::kernel::{self, Kernel};
use crate::packet::Packet;
use crate::queue::{Full, Queue};
use crate::slice::DeviceSliceMut;

/// A scope in which work is submitted to a queue: see [`Queue::scope`].
///
/// Operands live at least as long as `'scope`, which ends when all work is done. Each operation
/// is executed after those that were submitted before, and sees what they wrote.
pub struct Scope<'scope, 'env: 'scope> {
    pub(crate) queue: RefCell<&'env mut Queue>,
    /// Invariant: no operand may live shorter, nor the scope be taken for another one.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Holds back the doorbell of a queue: what is submitted meanwhile is told to the device when it is
/// dropped, all at once. See [`Scope::batch`].
pub struct Batch<'a, 'env> {
    queue: &'a RefCell<&'env mut Queue>,
    held: bool,
}

impl Queue {
    /// Runs a function that submits work to the queue, and waits until all of it is done. So
    /// memory can be borrowed for the work, as by [`std::thread::scope`].
    ///
    /// ```no_run
    /// use pinmap::{kernel, Device, QueueOptions};
    /// # fn main() -> pinmap::Result<()> {
    /// let device = Device::open("/dev/pinmap0")?;
    /// let mut queue = device.gpu()?.queue(QueueOptions::new())?;
    /// let mut numbers = device.alloc::<f32>(1024)?;
    /// queue.scope(|scope| {
    ///     let mut data = numbers.slice_mut();
    ///     scope.launch(kernel::IncrementF32 { data: &mut data })?;
    ///     scope.launch(kernel::IncrementF32 { data: &mut data })
    /// })?;
    /// assert_eq!(numbers.get(0)?, 2.0);
    /// # Ok(()) }
    /// ```
    ///
    /// However the function ends, with an error or a panic too, the device has finished what was
    /// submitted when this returns. If the queue has stopped, or cannot be waited for because
    /// the device is gone, the queue is destroyed: then, too, the device does nothing more of
    /// it. A destroyed queue refuses all further work.
    ///
    /// # Errors
    ///
    /// That of the function. If it had none: `EIO`, the queue has stopped, and
    /// [`Error::fault`](crate::Error::fault) says why; `ENODEV`: the device is gone.
    pub fn scope<'env, F, T, E>(&'env mut self, work: F) -> Result<T, E>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
        E: From<Error>,
    {
        let scope = Scope {
            queue: RefCell::new(self),
            scope: PhantomData,
            env: PhantomData,
        };
        // What the panic leaves behind is the queue, which `finish` makes good.
        let result = catch_unwind(AssertUnwindSafe(|| work(&scope)));
        let finished = scope.queue.borrow_mut().finish();
        match result {
            Err(panic) => resume_unwind(panic),
            // Most likely it tells the same.
            Ok(Err(error)) => Err(error),
            Ok(Ok(value)) => finished.map(|()| value).map_err(E::from),
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Launches a [kernel](mod@crate::kernel). Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the operands do not have the lengths that the kernel needs, what is written
    /// overlaps with something else, the memory belongs to another context, or the queue has no
    /// compute engine; `EIO`: the queue has stopped; `ENODEV`: the device is gone.
    pub fn launch(&self, kernel: impl Kernel<'scope>) -> Result<()> {
        self.launch_if(kernel, Full::Wait)
    }

    /// As [`launch`](Self::launch), but does not wait.
    ///
    /// # Errors
    ///
    /// As for [`launch`](Self::launch); `EAGAIN`: the ring is full.
    pub fn try_launch(&self, kernel: impl Kernel<'scope>) -> Result<()> {
        self.launch_if(kernel, Full::Refuse)
    }

    fn launch_if<K: kernel::sealed::Kernel>(&self, kernel: K, full: Full) -> Result<()> {
        self.queue.borrow_mut().launch(kernel, full)
    }

    /// Stores the device's clock, in nanoseconds, in one element, when everything before is done.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element, or the memory belongs to another context; `EIO`: the
    /// queue has stopped; `ENODEV`: the device is gone.
    pub fn timestamp<'b: 'scope>(
        &self,
        to: &mut DeviceSliceMut<'b, u64>,
        index: usize,
    ) -> Result<()> {
        self.queue.borrow_mut().timestamp(to, index)
    }

    /// Submits packets as they are: for what this crate has no words for. Waits if the ring is
    /// full.
    ///
    /// They are not checked, but the device does reach only what the context registered or
    /// allocated, in the way that it allowed; anything else stops the queue.
    ///
    /// They can write to the fences of this queue and of any other of the context. This queue's scope
    /// asks the device itself at its end. Waiting for another queue ends too early then, or never: a
    /// scope of it returns, a [`Pending`](crate::stream::Pending) gives its memory back, while the
    /// device still works there. That spoils results and nothing else: memory that the device can
    /// reach is only accessed by atomics, and what there are references to afterwards is released
    /// before.
    ///
    /// # Errors
    ///
    /// `EIO`: the queue has stopped; `ENODEV`: the device is gone.
    pub fn submit(&self, packets: &[Packet]) -> Result<()> {
        self.submit_by_hand(packets, Full::Wait)
    }

    /// As [`submit`](Self::submit), but does not wait, and submits all of them or none.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit); `EAGAIN`: the ring is full; `EINVAL`: they are too many for
    /// the ring at once.
    pub fn try_submit(&self, packets: &[Packet]) -> Result<()> {
        self.submit_by_hand(packets, Full::Refuse)
    }

    /// Nobody knows what such packets write: what memory says about the queue proves nothing from now on.
    fn submit_by_hand(&self, packets: &[Packet], full: Full) -> Result<()> {
        let mut queue = self.queue.borrow_mut();
        queue.distrust();
        queue.submit(packets.len() as u64, packets.iter().copied(), full)
    }

    /// The point behind all that was submitted, for others to wait for. Ends a [batch](Self::batch)
    /// as far as it has come.
    ///
    /// # Errors
    ///
    /// `EIO`: the queue has stopped; `ENODEV`: the device is gone.
    pub fn fence(&self) -> Result<Fence> {
        let mut queue = self.queue.borrow_mut();
        let progress = Arc::clone(queue.progress());
        progress.check(Operation::Submit, "add to")?;
        Ok(Fence::new(progress, queue.mark()?))
    }

    /// Has the device wait for a fence of another queue before it executes what is submitted next.
    /// The CPU does not wait. If that queue stops before, this one is given up at the end of the
    /// scope.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the fence belongs to another context; `EIO`: the queue has stopped; `ENODEV`: the
    /// device is gone.
    pub fn wait_for(&self, fence: &Fence) -> Result<()> {
        let mut queue = self.queue.borrow_mut();
        if !fence.device().is_same(queue.progress().device()) {
            let attempt = format!("have queue {} wait for a fence", queue.id());
            let cause = "it belongs to another context";
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Submit, attempt, errno, cause));
        }
        if fence.is_done() {
            return Ok(());
        }
        let (addr, value) = fence.target();
        queue.need(fence);
        let packet = Packet::fence_wait(addr, value);
        queue.submit(1, std::iter::once(packet), Full::Wait)
    }

    /// Waits until all that was submitted is done. What it wrote is seen then.
    ///
    /// # Errors
    ///
    /// `EIO`: the queue has stopped, and [`Error::fault`](crate::Error::fault) says why; `ENODEV`:
    /// the device is gone.
    pub fn wait(&self) -> Result<()> {
        self.queue.borrow_mut().wait(None).map(drop)
    }

    /// As [`wait`](Self::wait), but not for longer than this. False: the time was up first. The end
    /// of the scope still waits for all.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.queue.borrow_mut().wait(Some(timeout))
    }

    /// Holds back what is submitted from now on, until the batch is dropped: then the device is told
    /// of all of it at once, which costs the CPU less. Waiting and fences end it as far as it has
    /// come, as does a full ring.
    pub fn batch(&self) -> Batch<'_, 'env> {
        self.queue.borrow_mut().hold();
        Batch {
            queue: &self.queue,
            held: true,
        }
    }
}

impl Batch<'_, '_> {
    /// Tells the device of what was held back: as dropping it, but says when it does not work.
    ///
    /// # Errors
    ///
    /// `EIO`: the queue has stopped; `ENODEV`: the device is gone. Both only for a queue that
    /// submits by [system calls](crate::QueueOptions::system_calls): otherwise waiting tells.
    pub fn submit(mut self) -> Result<()> {
        self.held = false;
        self.queue.borrow_mut().unhold()
    }
}

impl Drop for Batch<'_, '_> {
    fn drop(&mut self) {
        if self.held {
            // What could not be published is published with what comes next, or at the end.
            let _ = self.queue.borrow_mut().unhold();
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.queue).finish()
    }
}

impl fmt::Debug for Batch<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Batch").field(&self.queue).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Progress;
    use crate::gpu::Gpu;
    use crate::queue_options::Engines;
    use crate::slice::tests::Fake;

    const IN: u64 = 0x10_0000;
    const OUT: u64 = 0x30_0000;

    /// A queue whose device has always executed everything, and two pieces of its memory.
    fn quick() -> (Queue, Arc<Progress>, Fake, Fake) {
        let queue = Queue::fake_with_index();
        let progress = Arc::clone(queue.progress());
        progress.execute(u64::MAX);
        let (input, output) = (
            Fake::of(progress.device(), IN),
            Fake::of(progress.device(), OUT),
        );
        (queue, progress, input, output)
    }

    #[test]
    fn work_becomes_packets_in_order() {
        let (mut queue, _, input, mut output) = quick();
        queue
            .scope(|scope| -> Result<()> {
                let mut to = output.slice_mut::<f32>();
                scope.copy(input.slice(), &mut to)?;
                scope.launch(kernel::IncrementF32 { data: &mut to })?;
                scope.fill(&mut to, -1.0)?;
                scope.submit(&[Packet::nop()])?;
                scope.wait()
            })
            .expect("done");
        let packets = queue.packets();
        assert_eq!(packets[0], Packet::copy(IN, OUT, 0x2000));
        assert_eq!(packets[1], Packet::launch(3, [OUT, 2048, 0, 0, 0, 0, 0]));
        assert_eq!(packets[2], Packet::fill(OUT, 0x2000, 0xbf80_0000, 2));
        assert_eq!(packets[3], Packet::nop());
        assert_eq!(packets[5], Packet::interrupt());
        assert_eq!((packets.len(), queue.published()), (6, 6));
    }

    #[test]
    fn the_end_waits_also_when_nobody_asked() {
        let (mut queue, _, input, mut output) = quick();
        let early: Result<()> = queue.scope(|scope| {
            scope.copy(input.slice::<u8>(), &mut output.slice_mut())?;
            let nothing = input.slice::<u8>().part(0x2001..);
            nothing.map(drop)
        });
        assert!(early
            .expect_err("the function's")
            .to_string()
            .contains("part"));
        // The copy and its marker.
        assert_eq!((queue.packets().len(), queue.published()), (3, 3));
    }

    #[test]
    fn a_panic_comes_after_the_wait() {
        let (mut queue, _, input, mut output) = quick();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            queue.scope(|scope| -> Result<()> {
                scope.copy(input.slice::<u8>(), &mut output.slice_mut())?;
                panic!("in the middle");
            })
        }));
        assert!(panic.is_err());
        assert_eq!(queue.published(), 3);
    }

    #[test]
    fn packets_made_by_hand_cannot_end_a_scope_early() {
        let (mut queue, progress, ..) = quick();
        // The fence says that all is done, as a packet may have written; the device does not.
        progress.confirm_fake(0);
        let finished = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                queue
                    .scope(|scope| scope.submit(&[Packet::nop()]))
                    .expect("done");
                finished.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!finished.load(std::sync::atomic::Ordering::SeqCst));
            progress.confirm_fake(3);
        });
    }

    #[test]
    fn a_queue_that_cannot_be_waited_for_fails_the_scope() {
        let mut queue = Queue::fake();
        let error = queue
            .scope(|scope| scope.submit(&[Packet::nop()]))
            .expect_err("no driver");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
    }

    #[test]
    fn a_batch_is_published_at_its_end_or_the_scopes() {
        let (mut queue, ..) = quick();
        let nop = [Packet::nop()];
        queue
            .scope(|scope| -> Result<()> {
                let batch = scope.batch();
                scope.submit(&nop)?;
                scope.submit(&nop)?;
                assert_eq!(scope.queue.borrow().published(), 0);
                let inner = scope.batch();
                drop(batch);
                assert_eq!(scope.queue.borrow().published(), 0);
                inner.submit()?;
                assert_eq!(scope.queue.borrow().published(), 2);
                // Forgotten, it holds nothing back for good.
                std::mem::forget(scope.batch());
                scope.submit(&nop)
            })
            .expect("done");
        assert_eq!(queue.published(), 5);
        queue.scope(|scope| scope.submit(&nop)).expect("done");
        assert_eq!(queue.published(), 8);
    }

    #[test]
    fn fences_order_queues() {
        let (mut first, progress, ..) = quick();
        let mut second = Queue::fake_with_index();
        second.progress().execute(u64::MAX);
        progress.execute(0);
        let error = first.scope(|scope| -> Result<()> {
            scope.submit(&[Packet::nop()])?;
            let fence = scope.fence()?;
            let refused = second.scope(|other| other.wait_for(&fence));
            let text = refused.expect_err("another context").to_string();
            assert!(text.contains("belongs to another context"), "{text}");
            scope.wait_for(&fence)?;
            progress.execute(u64::MAX);
            // It is reached: nothing to wait for.
            scope.wait_for(&fence)
        });
        error.expect("done");
        let packets = first.packets();
        assert_eq!(packets[3], Packet::fence_wait(0xfe_0000, 2));
        assert_eq!(packets.len(), 6);
    }

    #[test]
    fn timestamps_are_single_numbers() {
        let (mut queue, _, _, mut output) = quick();
        queue
            .scope(|scope| -> Result<()> {
                let mut to = output.slice_mut::<u64>();
                scope.timestamp(&mut to, 3)?;
                assert!(scope.timestamp(&mut to, 1024).is_err());
                assert!(scope.timestamp(&mut to, usize::MAX).is_err());
                Ok(())
            })
            .expect("done");
        assert_eq!(queue.packets()[0], Packet::timestamp(OUT + 24));
    }

    #[test]
    fn operands_are_checked_before_anything_is_submitted() {
        let (mut queue, _, input, mut output) = quick();
        let stranger = Gpu::fake();
        let foreign = Fake::of(stranger.device(), IN);
        queue
            .scope(|scope| -> Result<()> {
                let mut to = output.slice_mut::<u8>();
                for refused in [
                    scope.copy(foreign.slice(), &mut to),
                    scope.copy(input.slice::<u8>().part(1..)?, &mut to),
                    scope.copy(to.as_slice(), &mut to),
                    scope.try_copy(foreign.slice(), &mut to),
                ] {
                    assert_eq!(refused.expect_err("refused").errno(), Errno::EINVAL as i32);
                }
                Ok(())
            })
            .expect("done");
        assert_eq!(queue.packets(), []);
        let mut queue = queue.with_engines(Engines::Copy);
        let spin = kernel::Spin {
            time: Duration::ZERO,
        };
        let refused = queue.scope(|scope| scope.launch(spin));
        assert!(refused.is_err());
    }
}
