// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scopes of a queue: work on borrowed memory, which ends before the borrows do.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::time::Duration;

use nix::errno::Errno;

use crate::error::{in_time, Error, Operation, Result};

use super::fence::Fence;
use super::format::{Kernel, Packet};
use super::transfer::encode;
use super::{Queue, WhenFull};
use crate::memory::element::Element;
use crate::memory::lent::{or_abort, Loans, KEPT};
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
use crate::trace::recorder::Traced;

/// A scope in which work is submitted to a queue. Made by [`Queue::scope`].
///
/// Operands live at least as long as `'scope`, which ends when all work is done. Each operation
/// is executed after those that were submitted before, and sees what they wrote.
///
/// ```no_run
/// use pinmap::{testgpu::IncrementF32, Allocation, Pinned, Queue};
/// # fn f(
/// #     queue: &mut Queue, host: &mut Pinned<f32>, local: &mut Allocation<f32>,
/// # ) -> pinmap::Result<()> {
/// queue.scope(|scope| {
///     let (mut host, mut local) = (host.slice_mut(), local.slice_mut());
///     scope.copy(&host, &mut local)?;
///     scope.launch(IncrementF32 { data: &mut local })?;
///     scope.copy(&local, &mut host)
/// })
/// # }
/// ```
pub struct QueueScope<'scope, 'env: 'scope> {
    pub(crate) queue: RefCell<&'env mut Queue>,
    pub(super) loans: Loans,
    /// Makes `'scope` invariant: an operand cannot live for less, nor one scope pass for another.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Holds back the doorbell of a queue. When the batch is dropped, the device is told at once about
/// everything that was submitted in the meantime. Made by [`QueueScope::batch`].
pub struct Batch<'a, 'env> {
    queue: &'a RefCell<&'env mut Queue>,
    held: bool,
}

impl Queue {
    /// Runs a function that submits work to the queue, and waits until all of it is done. So the
    /// work can borrow memory, as threads can in [`std::thread::scope`].
    ///
    /// ```no_run
    /// use pinmap::{testgpu, Device, QueueOptions};
    /// # fn main() -> pinmap::Result<()> {
    /// let device = Device::open("/dev/pinmap0")?;
    /// let mut queue = device.accelerator()?.queue(QueueOptions::new())?;
    /// let mut numbers = device.alloc::<f32>(1024)?;
    /// queue.scope(|scope| {
    ///     let mut data = numbers.slice_mut();
    ///     scope.launch(testgpu::IncrementF32 { data: &mut data })?;
    ///     scope.launch(testgpu::IncrementF32 { data: &mut data })
    /// })?;
    /// assert_eq!(numbers.get(0)?, 2.0);
    /// # Ok(()) }
    /// ```
    ///
    /// When this returns, the device has finished all work, also if the function failed or
    /// panicked. If it did so after [`wait_value`](QueueScope::wait_value), and the device has not
    /// finished within a second, the queue is destroyed, since the program may never store the
    /// value. A queue that has stopped, or that cannot be waited for because the device is gone, is
    /// destroyed: then the device does nothing more of the work either. A destroyed queue
    /// refuses all further work.
    ///
    /// # Errors
    ///
    /// The error of the function; or else `EIO`: the queue has stopped, and
    /// [`Error::fault`](crate::Error::fault) says why; or memory of [`QueueScope::slice_mut`] could
    /// not be released, after which the driver has cut the device off from all memory. `ENODEV`:
    /// the device is gone.
    ///
    /// # Aborts
    ///
    /// If there would be references to memory that a device still writes, the process is aborted:
    /// if the queue can be neither waited for nor destroyed although slices of ordinary memory were
    /// lent to it, or if their memory cannot be released and the device is not cut off within 10
    /// seconds.
    pub fn scope<'env, F, T>(&'env mut self, work: F) -> Result<T>
    where
        F: for<'scope> FnOnce(&'scope QueueScope<'scope, 'env>) -> Result<T>,
    {
        self.try_scope(work)
    }

    /// Runs a function as [`scope`](Self::scope) does, whose error may be of any type that errors
    /// of this crate convert to.
    ///
    /// ```no_run
    /// use std::io;
    /// # fn f(queue: &mut pinmap::Queue, numbers: &mut pinmap::Pinned<f32>) -> io::Result<()> {
    /// queue.try_scope(|scope| -> io::Result<()> {
    ///     let text = std::fs::read("value.txt")?; // an error of another type
    ///     Ok(scope.fill(numbers, text.len() as f32)?)
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`scope`](Self::scope).
    ///
    /// # Aborts
    ///
    /// As for [`scope`](Self::scope).
    pub fn try_scope<'env, F, T, E>(&'env mut self, work: F) -> Result<T, E>
    where
        F: for<'scope> FnOnce(&'scope QueueScope<'scope, 'env>) -> Result<T, E>,
        E: From<Error>,
    {
        let scope = QueueScope {
            queue: RefCell::new(self),
            loans: Loans::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        // A panic leaves only the queue behind, and `finish` puts that right.
        let result = catch_unwind(AssertUnwindSafe(|| work(&scope)));
        let finished = or_abort(|| scope.finish(!matches!(result, Ok(Ok(_)))));
        match result {
            Err(panic) => resume_unwind(panic),
            // The error of `finish`, if there is one, most likely has the same cause.
            Ok(Err(error)) => Err(error),
            Ok(Ok(value)) => finished.map(|()| value).map_err(E::from),
        }
    }
}

impl<'scope, 'env> QueueScope<'scope, 'env> {
    /// Waits for all work, and ends the loans. `failed`: the scope's function has.
    fn finish(&self, failed: bool) -> Result<()> {
        let patience = self.loans.patience(failed);
        let finished = self.queue.borrow_mut().finish(patience);
        let ended = self.loans.end();
        if ended.is_err() {
            self.queue.borrow().handle().poison(KEPT);
        }
        finished.and(ended)
    }

    /// Lends a slice of ordinary memory to the device, which reads it: an operand at the address
    /// that the slice has. It stays borrowed until the scope has ended.
    ///
    /// A device that can fault has the memory [managed](crate::Accelerator::manage), without a
    /// system call once a slice was lent to this queue. For any other device the pages around the
    /// slice are registered until the scope has ended. [`DeviceSlice::reach`] tells which it was.
    /// Memory that is used again and again is better registered, or allocated, once, if the device
    /// cannot fault.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::HistogramU8, Pinned, Queue};
    /// # fn f(queue: &mut Queue, text: &str, counts: &mut Pinned<u32>) -> pinmap::Result<()> {
    /// queue.scope(|scope| {
    ///     let data = scope.slice(text.as_bytes())?;
    ///     scope.launch(HistogramU8 { data, counts: &mut counts.slice_mut() })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the memory is registered: as for [`Device::register_raw`](crate::Device::register_raw),
    /// where `EEXIST` means that the program itself has registered some of the memory. If it is
    /// managed: as for [`Accelerator::manage_all`](crate::Accelerator::manage_all), except those
    /// that say that nothing can be managed. `EIO`: the queue has stopped; `EDEADLK`: this is a
    /// host function.
    pub fn slice<T: Element>(&self, memory: &'scope [T]) -> Result<DeviceSlice<'scope, T>> {
        let queue = self.queue.borrow();
        queue.handle().slice(memory, &self.loans)
    }

    /// Lends a slice of ordinary memory to the device, which reads and writes it. It stays borrowed
    /// exclusively until the scope has ended; in the meantime the CPU reads and writes it through
    /// the [`DeviceSliceMut`].
    ///
    /// ```no_run
    /// use pinmap::{testgpu, Accelerator, QueueOptions};
    /// # fn main() -> pinmap::Result<()> {
    /// let mut queue = Accelerator::find()?.queue(QueueOptions::new())?;
    /// let mut numbers = vec![0.0f32; 1024];
    /// queue.scope(|scope| {
    ///     let mut data = scope.slice_mut(&mut numbers)?;
    ///     scope.launch(testgpu::IncrementF32 { data: &mut data })
    /// })?;
    /// assert_eq!(numbers[0], 1.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`slice`](Self::slice). `EACCES`: the memory must be registered, and shares a page
    /// that the program cannot write with memory that is lent already.
    pub fn slice_mut<T: Element>(
        &self,
        memory: &'scope mut [T],
    ) -> Result<DeviceSliceMut<'scope, T>> {
        let queue = self.queue.borrow();
        queue.handle().slice_mut(memory, &self.loans)
    }

    /// Submits a [kernel](mod@crate::testgpu). Waits if the ring is full.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::MatmulF32, Managed, Queue};
    /// # fn f(
    /// #     queue: &mut Queue, a: &Managed<f32>, b: &Managed<f32>, c: &mut Managed<f32>,
    /// # ) -> pinmap::Result<()> {
    /// queue.scope(|scope| {
    ///     let c = &mut c.slice_mut();
    ///     scope.launch(MatmulF32 { a: a.slice(), b: b.slice(), c, m: 64, n: 64, k: 64 })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the operands do not have the lengths that the kernel needs, one that is written
    /// overlaps with another, the memory belongs to another context, or the queue does not use the
    /// compute engine; `EIO`: the queue has stopped; `ENODEV`: the device is gone.
    pub fn launch(&self, kernel: impl Kernel<'scope>) -> Result<()> {
        self.launch_if(kernel, WhenFull::Wait)
    }

    /// Submits a kernel as [`launch`](Self::launch) does, but never waits.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::IncrementF32, DeviceSliceMut, ErrorKind, QueueScope};
    /// # fn f<'s, 'a: 's>(
    /// #     scope: &QueueScope<'s, '_>, data: &mut DeviceSliceMut<'a, f32>,
    /// # ) -> pinmap::Result<()> {
    /// match scope.try_launch(IncrementF32 { data }) {
    ///     Err(error) if error.kind() == ErrorKind::WouldBlock => println!("the ring is full"),
    ///     other => return other,
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`launch`](Self::launch); `EAGAIN`: the ring is full.
    pub fn try_launch(&self, kernel: impl Kernel<'scope>) -> Result<()> {
        self.launch_if(kernel, WhenFull::Refuse)
    }

    fn launch_if<K: Kernel<'scope>>(&self, kernel: K, when_full: WhenFull) -> Result<()> {
        let handle = self.queue.borrow().accept::<K>()?;
        let kernel = encode(&handle, kernel)?;
        self.queue.borrow_mut().launch(kernel, when_full)
    }

    /// Has the device store its clock, in nanoseconds, in one element, when everything before is
    /// done.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::IncrementF32, DeviceSliceMut, QueueScope};
    /// # fn f<'s, 'a: 's>(
    /// #     scope: &QueueScope<'s, '_>,
    /// #     data: &mut DeviceSliceMut<'a, f32>, times: &mut DeviceSliceMut<'a, u64>,
    /// # ) -> pinmap::Result<()> {
    /// scope.timestamp(times, 0)?;
    /// scope.launch(IncrementF32 { data })?;
    /// scope.timestamp(times, 1)?;
    /// scope.wait()?;
    /// println!("{} ns", times.get(1)? - times.get(0)?);
    /// # Ok(()) }
    /// ```
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

    /// Submits raw packets, for operations that this crate has no methods for. Waits if the ring is
    /// full.
    ///
    /// Raw packets are not checked. The device reaches what the context registered, allocated,
    /// lends to work or has [managed](crate::Accelerator::manage), with the access that the context
    /// has there; anything else stops the queue. Managed memory can be all memory of the program.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::packet, Allocation, Queue};
    /// # fn f(queue: &mut Queue, memory: &mut Allocation<u32>) -> pinmap::Result<()> {
    /// let to = memory.device_addr();
    /// queue.scope(|scope| {
    ///     // SAFETY: The packet writes 16 bytes of an allocation, which has more.
    ///     unsafe { scope.submit_packets(&[packet::fill(to, 16, 7, 2)]) }
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the queue has stopped; `ENODEV`: the device is gone.
    ///
    /// # Safety
    ///
    /// The packets tell the device where to write. From this call until the device is done with
    /// them, which the end of the scope waits for, each byte that they let it write must be one of
    /// these:
    ///
    /// - memory that only atomics and devices access: of an [`Allocation`](crate::Allocation), a
    ///   [`Registration`](crate::Registration) or a [`DeviceSliceMut`];
    /// - other memory of the program that stays allocated, to which nothing refers and which nobody
    ///   accesses in the meantime, and where any bytes are a valid value;
    /// - an address at which the device reaches nothing. That stops the queue.
    ///
    /// It must be neither in the fences of a queue nor in the slots in which events are recorded.
    /// No safe function tells the addresses of these. A packet that wrote there would make a wait
    /// end too early, and the program would use memory while the device works on it. What packets
    /// read affects only their results.
    pub unsafe fn submit_packets(&self, packets: &[Packet]) -> Result<()> {
        self.submit_raw(packets, WhenFull::Wait)
    }

    /// Submits raw packets as [`submit_packets`](Self::submit_packets) does, but never waits:
    /// submits all of them or none.
    ///
    /// # Errors
    ///
    /// As for [`submit_packets`](Self::submit_packets); `EAGAIN`: the ring is full; `EINVAL`: there
    /// are more packets than the ring holds at once.
    ///
    /// # Safety
    ///
    /// As for [`submit_packets`](Self::submit_packets).
    pub unsafe fn try_submit_packets(&self, packets: &[Packet]) -> Result<()> {
        self.submit_raw(packets, WhenFull::Refuse)
    }

    fn submit_raw(&self, packets: &[Packet], when_full: WhenFull) -> Result<()> {
        let mut queue = self.queue.borrow_mut();
        queue.mark_raw();
        let (count, packets) = (packets.len() as u64, packets.iter().copied());
        queue.submit(Traced::RawPacket, count, packets, when_full)
    }

    /// Returns a fence behind everything that was submitted, for others to wait for. Publishes what
    /// a [batch](Self::batch) has held back so far.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::Spin, QueueScope};
    /// # fn f(scope: &QueueScope<'_, '_>) -> pinmap::Result<()> {
    /// scope.launch(Spin { time: std::time::Duration::from_millis(1) })?;
    /// let first = scope.fence()?;
    /// scope.launch(Spin { time: std::time::Duration::from_millis(1) })?;
    /// first.wait()?; // for the first one only
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the queue has stopped; `ENODEV`: the device is gone.
    pub fn fence(&self) -> Result<Fence> {
        let mut queue = self.queue.borrow_mut();
        queue.handle().check(Operation::Submit, "add to")?;
        queue.fence()
    }

    /// Has the device wait for a fence of another queue before it executes what is submitted next.
    /// The CPU does not wait. If that other queue stops before the fence, this queue is destroyed
    /// at the end of the scope.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::IncrementF32, Allocation, Pinned, Queue};
    /// # fn f(
    /// #     (copies, kernels): (&mut Queue, &mut Queue),
    /// #     (host, local): (&Pinned<f32>, &mut Allocation<f32>),
    /// # ) -> pinmap::Result<()> {
    /// copies.scope(|copy| {
    ///     let mut local = local.slice_mut();
    ///     copy.copy(host, &mut local)?;
    ///     let copied = copy.fence()?;
    ///     kernels.scope(|kernel| {
    ///         kernel.wait_for(&copied)?; // on the device
    ///         kernel.launch(IncrementF32 { data: &mut local })
    ///     })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the fence belongs to another context; `EIO`: the queue has stopped; `ENODEV`: the
    /// device is gone.
    pub fn wait_for(&self, fence: &Fence) -> Result<()> {
        let mut queue = self.queue.borrow_mut();
        if !fence.device().is_same(queue.handle().device()) {
            let attempt = format!("have queue {} wait for a fence", queue.id());
            let cause = "it belongs to another context";
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Submit, attempt, errno, cause));
        }
        if fence.is_done() {
            return Ok(());
        }
        let (addr, value) = fence.target();
        queue.depend_on(fence);
        let packet = queue.format().fence_wait(addr, value);
        let what = Traced::wait_for(fence);
        queue.submit(what, 1, std::iter::once(packet), WhenFull::Wait)
    }

    /// Waits until everything that was submitted is done. Later reads see what it wrote.
    ///
    /// ```no_run
    /// use pinmap::{DeviceSliceMut, QueueScope};
    /// # fn f<'s, 'a: 's>(
    /// #     scope: &QueueScope<'s, '_>, data: &mut DeviceSliceMut<'a, f32>,
    /// # ) -> pinmap::Result<()> {
    /// scope.fill(&mut *data, 1.5)?;
    /// scope.wait()?;
    /// assert_eq!(data.get(0)?, 1.5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the queue has stopped, and [`Error::fault`](crate::Error::fault) says why; `ENODEV`:
    /// the device is gone.
    pub fn wait(&self) -> Result<()> {
        self.queue.borrow_mut().wait(None).map(drop)
    }

    /// Waits as [`wait`](Self::wait) does, but no longer than `timeout`. The end of the scope still
    /// waits for everything.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use pinmap::ErrorKind;
    /// # fn f(scope: &pinmap::QueueScope<'_, '_>) -> pinmap::Result<()> {
    /// while let Err(error) = scope.wait_timeout(Duration::from_secs(1)) {
    ///     match error.kind() {
    ///         ErrorKind::TimedOut => println!("still at work"),
    ///         _ => return Err(error),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait); `ETIMEDOUT`: the time was up first.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<()> {
        let mut queue = self.queue.borrow_mut();
        let done = queue.wait(Some(timeout))?;
        in_time(done, || queue.handle().attempt("wait for"))
    }

    /// Begins a batch. When the batch is dropped, the device is told at once about everything that
    /// was submitted since. That costs the CPU less than to tell it of each piece. Waiting, fences
    /// and a full ring publish what was held back so far.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::IncrementF32, DeviceSliceMut, QueueScope};
    /// # fn f<'s, 'a: 's>(
    /// #     scope: &QueueScope<'s, '_>, data: &mut DeviceSliceMut<'a, f32>,
    /// # ) -> pinmap::Result<()> {
    /// let batch = scope.batch();
    /// for _ in 0..16 {
    ///     scope.launch(IncrementF32 { data })?;
    /// }
    /// batch.publish()?; // one store to the doorbell
    /// # Ok(()) }
    /// ```
    pub fn batch(&self) -> Batch<'_, 'env> {
        self.queue.borrow_mut().hold();
        Batch {
            queue: &self.queue,
            held: true,
        }
    }
}

impl Batch<'_, '_> {
    /// Ends the batch, as dropping it does, and returns the error if that fails.
    ///
    /// # Errors
    ///
    /// Only for a queue that submits by [system calls](crate::QueueOptions::system_calls); for
    /// others, waiting fails later. `EIO`: the queue has stopped; `ENODEV`: the device is gone.
    pub fn publish(mut self) -> Result<()> {
        self.held = false;
        self.queue.borrow_mut().unhold()
    }
}

impl Drop for Batch<'_, '_> {
    fn drop(&mut self) {
        if self.held {
            // On an error, it is published with what comes next, or at the end of the scope.
            let _ = self.queue.borrow_mut().unhold();
        }
    }
}

impl fmt::Debug for QueueScope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueScope").field(&self.queue).finish()
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
    use crate::device::accelerator::Accelerator;
    use crate::memory::slice::tests::Fake;
    use crate::queue::handle::Handle;
    use crate::queue::options::Engines;
    use crate::testgpu::{self, packet};
    use std::sync::Arc;

    impl QueueScope<'_, '_> {
        /// Submits packets that do nothing.
        fn nops(&self, packets: &[Packet]) -> Result<()> {
            assert!(packets.iter().all(|packet| *packet == packet::nop()));
            // SAFETY: They write nothing.
            unsafe { self.submit_packets(packets) }
        }
    }

    const IN: u64 = 0x10_0000;
    const OUT: u64 = 0x30_0000;

    /// A queue whose device has executed everything at any time, and two pieces of memory.
    fn quick() -> (Queue, Arc<Handle>, Fake, Fake) {
        let queue = Queue::fake_with_index();
        let handle = Arc::clone(queue.handle());
        handle.execute(u64::MAX);
        let (input, output) = (
            Fake::of(handle.device(), IN),
            Fake::of(handle.device(), OUT),
        );
        (queue, handle, input, output)
    }

    #[test]
    fn work_becomes_packets_in_order() {
        let (mut queue, _, input, mut output) = quick();
        queue
            .scope(|scope| -> Result<()> {
                let mut to = output.slice_mut::<f32>();
                scope.copy(input.slice(), &mut to)?;
                scope.launch(testgpu::IncrementF32 { data: &mut to })?;
                scope.fill(&mut to, -1.0)?;
                scope.nops(&[packet::nop()])?;
                scope.wait()
            })
            .expect("done");
        let packets = queue.packets();
        assert_eq!(packets[0], packet::copy(IN, OUT, 0x2000));
        assert_eq!(packets[1], packet::launch(3, [OUT, 2048, 0, 0, 0, 0, 0]));
        assert_eq!(packets[2], packet::fill(OUT, 0x2000, 0xbf80_0000, 2));
        assert_eq!(packets[3], packet::nop());
        assert_eq!(packets[5], packet::interrupt());
        assert_eq!((packets.len(), queue.published()), (6, 6));
    }

    #[test]
    fn the_end_waits_also_when_nobody_asked() {
        let (mut queue, _, input, mut output) = quick();
        let early: Result<()> = queue.scope(|scope| {
            scope.copy(input.slice::<u8>(), output.slice_mut())?;
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
                scope.copy(input.slice::<u8>(), output.slice_mut())?;
                panic!("in the middle");
            })
        }));
        assert!(panic.is_err());
        assert_eq!(queue.published(), 3);
    }

    #[test]
    fn raw_packets_cannot_end_a_scope_early() {
        let (mut queue, handle, ..) = quick();
        // The fence says that all is done, as a raw packet may have stored; the device does not.
        handle.confirm_fake(0);
        let finished = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                queue
                    .scope(|scope| scope.nops(&[packet::nop()]))
                    .expect("done");
                finished.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!finished.load(std::sync::atomic::Ordering::SeqCst));
            handle.confirm_fake(3);
        });
    }

    #[test]
    fn a_queue_that_cannot_be_waited_for_fails_the_scope() {
        let mut queue = Queue::fake();
        let error = queue
            .scope(|scope| scope.nops(&[packet::nop()]))
            .expect_err("no driver");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
    }

    #[test]
    fn a_batch_is_published_at_its_end_or_the_scopes() {
        let (mut queue, ..) = quick();
        let nop = [packet::nop()];
        queue
            .scope(|scope| -> Result<()> {
                let batch = scope.batch();
                scope.nops(&nop)?;
                scope.nops(&nop)?;
                assert_eq!(scope.queue.borrow().published(), 0);
                let inner = scope.batch();
                drop(batch);
                assert_eq!(scope.queue.borrow().published(), 0);
                inner.publish()?;
                assert_eq!(scope.queue.borrow().published(), 2);
                // Forgotten, it holds nothing back for good.
                std::mem::forget(scope.batch());
                scope.nops(&nop)
            })
            .expect("done");
        assert_eq!(queue.published(), 5);
        queue.scope(|scope| scope.nops(&nop)).expect("done");
        assert_eq!(queue.published(), 8);
    }

    #[test]
    fn fences_order_queues() {
        let (mut first, handle, ..) = quick();
        let mut second = Queue::fake_with_index();
        second.handle().execute(u64::MAX);
        handle.execute(0);
        let error = first.scope(|scope| -> Result<()> {
            scope.nops(&[packet::nop()])?;
            let fence = scope.fence()?;
            let refused = second.scope(|other| other.wait_for(&fence));
            let text = refused.expect_err("another context").to_string();
            assert!(text.contains("belongs to another context"), "{text}");
            scope.wait_for(&fence)?;
            handle.execute(u64::MAX);
            // It is reached: nothing to wait for.
            scope.wait_for(&fence)
        });
        error.expect("done");
        let packets = first.packets();
        assert_eq!(packets[3], packet::fence_wait(0xfe_0000, 2));
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
        assert_eq!(queue.packets()[0], packet::timestamp(OUT + 24));
    }

    #[test]
    fn operands_are_checked_before_anything_is_submitted() {
        let (mut queue, _, input, mut output) = quick();
        let stranger = Accelerator::fake();
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
        let spin = testgpu::Spin {
            time: Duration::ZERO,
        };
        let refused = queue.scope(|scope| scope.launch(spin));
        assert!(refused.is_err());
    }
}
