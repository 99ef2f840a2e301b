// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accelerators: devices with queues and an MMU of their own, which many programs use at once.
//!
//! An [`Accelerator`] has [streams](Stream), to which a program submits work without a system call.
//! The operands of the work are [`DeviceSlice`]s: of ordinary memory ([`Work::slice`]), of
//! registered memory ([`Accelerator::register`]), of host memory that the driver allocates
//! ([`Accelerator::alloc`]), or of the device's own memory ([`Accelerator::alloc_vram`]). Each
//! operand has the same address for the program and for the device. A program brings the
//! [`Kernel`]s and the [`PacketFormat`] of its device; the crate `pinmap-testgpu` has those of the
//! test GPU, which the examples use.
//!
//! ```no_run
//! use pinmap::accelerator::StreamOptions;
//! use pinmap_testgpu::IncrementF32;
//!
//! # fn main() -> pinmap::Result<()> {
//! let stream = pinmap_testgpu::find()?.stream(StreamOptions::new())?;
//!
//! // Ordinary memory, on which the device works in place.
//! let mut numbers = vec![0.0f32; 1024];
//! stream.scope(|work| {
//!     let mut data = work.slice_mut(&mut numbers)?;
//!     work.launch(IncrementF32 { data: &mut data })
//! })?;
//!
//! // The end of the scope has waited: the memory can be used again, and holds the results.
//! assert_eq!(numbers[0], 1.0);
//! # Ok(()) }
//! ```
//!
//! A device that can fault uses such memory as the program does, page by page when it touches them,
//! and nothing is pinned ([`Accelerator::manage`]). For any other device the crate registers the
//! memory until the work is done. [`DeviceSlice::reach`] tells which it was, and what it cost.
//!
//! Managed memory *moves* to the device that touches it, and home when the CPU does.
//! [`Accelerator::prefetch`] and [`Accelerator::advise`] steer that, [`Accelerator::residency`]
//! tells where memory is and why, and [`Accelerator::alloc_managed`] allocates memory for it: a
//! [`Managed`] is a slice of the program as long as no work of the device borrows it. A [`Window`]
//! has addresses that the program chooses, and nothing else is there on either side.
//!
//! If the device and the CPU both add to the same number, nothing is lost where the memory is
//! managed and the kernel adds atomically: such an access is made in the device's memory only.
//! Elsewhere additions can be lost, and only aligned loads and stores of 8 bytes are indivisible:
//! there a program and its kernels take turns by waiting.
//!
//! # Streams
//!
//! A stream executes its work in order; different streams run at the same time. A stream takes
//! copies, fills, kernels, host functions and waits. Submitting them takes a few
//! stores to mapped memory and returns at once. There is no order between streams, unless one
//! [waits](Stream::wait_event) for an [`Event`] that another one records; that wait happens on the
//! device. No call on one stream, and no registering, allocating or releasing, waits for the work
//! of another stream.
//!
//! # Memory of work in flight
//!
//! Memory must exist as long as the device works on it, and the program must not refer to it in the
//! meantime. There are two ways in which the compiler checks that:
//!
//! - [`scope`](scope()) borrows memory, for any number of streams; the end of the scope waits.
//! - [`Stream::submit`] takes memory over; [`Pending::wait`] gives it back.
//!
//! ```no_run
//! use pinmap::accelerator::{self, StreamOptions};
//! use pinmap_testgpu as testgpu;
//! # fn main() -> pinmap::Result<()> {
//! let gpu = pinmap_testgpu::find()?;
//! let (up, down) = (gpu.stream(StreamOptions::new())?, gpu.stream(StreamOptions::new())?);
//! let ready = gpu.event()?;
//! let (mut host, mut local) = (gpu.alloc::<f32>(1024)?, gpu.alloc_vram::<f32>(1024)?);
//!
//! // Borrowed: both streams, in the order that the event makes.
//! accelerator::scope(|scope| {
//!     let (up_work, down_work) = (scope.on(&up), scope.on(&down));
//!     let (mut host, mut local) = (host.slice_mut(), local.slice_mut());
//!     up_work.copy(&host, &mut local)?;
//!     up_work.launch(testgpu::IncrementF32 { data: &mut local })?;
//!     up.record(&ready)?;
//!     down.wait_event(&ready)?;
//!     down_work.copy(&local, &mut host)
//! })?;
//!
//! // Handed over: this returns at once.
//! let pending = up.submit((host, local), |work, (host, local)| {
//!     work.copy(&host.slice_mut(), &mut local.slice_mut())
//! })?;
//! up.call(|| println!("copied"))?;
//! let (host, local) = pending.wait()?;
//! # Ok(()) }
//! ```
//!
//! The program is responsible for the order. In a scope the CPU may read and write a slice that is
//! in flight, and two streams may use the same slice. Without an [`Event`] or a wait between two
//! accesses, a read returns an old value or a new one; it is never undefined behaviour.
//!
//! Operands are slices of registered or allocated memory, or ordinary slices that [`Work::slice`]
//! and [`Work::slice_mut`] lend to the device until the work is done. Submitting waits only if the
//! ring is full.
//!
//! # Double buffering
//!
//! A scope borrows an operand until its end, so it refuses `&mut slots[block % 2]` in a loop. Hand
//! each slot over instead, and take it back when its turn comes again:
//!
//! ```no_run
//! use std::collections::VecDeque;
//! use pinmap::accelerator::{Pending, Pinned, Stream};
//! use pinmap_testgpu::IncrementF32;
//! # fn read(_: usize, _: &mut [f32]) {}
//! # fn write(_: &[f32]) {}
//! # fn f(stream: &Stream, blocks: usize, slots: [Pinned<f32>; 2]) -> pinmap::Result<()> {
//! let mut idle = Vec::from(slots);
//! let mut running = VecDeque::new();
//! for block in 0..blocks {
//!     if idle.is_empty() {
//!         let first: Pending<Pinned<f32>> = running.pop_front().expect("not idle");
//!         let slot = first.wait()?;
//!         write(&slot);
//!         idle.push(slot);
//!     }
//!     let mut slot = idle.pop().expect("one of two");
//!     read(block, &mut slot); // the device works on the other slot meanwhile
//!     running.push_back(stream.submit(slot, |work, slot| {
//!         work.launch(IncrementF32 { data: &mut slot.slice_mut() })
//!     })?);
//! }
//! for pending in running {
//!     write(&pending.wait()?);
//! }
//! # Ok(()) }
//! ```
//!
//! # Errors
//!
//! A packet that faults, or that runs for too long, stops its stream. Until [`Stream::reset`], that
//! stream reports the [`Fault`]: its own calls do, and so do the events
//! that were recorded after the packet. Host functions submitted after the packet do not run. Other
//! streams go on, except those that wait for one of these events; they report the fault, too.
//!
//! # Host functions
//!
//! [`Stream::call`] submits a function of the program, which runs on a thread of this crate. The
//! stream waits for the function, so a function that waited for a stream could wait for itself.
//! Inside a host function, and inside the drop of memory that was handed over, everything that
//! submits, waits, or asks the driver therefore fails at once with `EDEADLK`, even where it would
//! not have had to wait:
//!
//! - opening devices and asking about them ([`Device::info`](crate::Device::info) and the like),
//!   taking their BARs and interrupts, registering, managing, allocating, mapping, importing and
//!   exporting memory, asking about it ([`Registration::query`](crate::Registration::query)),
//!   filling a [`Cache`](crate::Cache);
//! - making streams and events; submitting, recording, calling, resetting;
//! - [`Stream::synchronize`], [`Device::synchronize`](crate::Device::synchronize),
//!   [`Device::next_event`](crate::Device::next_event),
//!   [`Interrupt::wait`](crate::Interrupt::wait), and the waits of events and completions.
//!
//! Calls that ask whether something is done (`query`, [`Pending::try_into_memory`]) succeed if it
//! is. If it is not, the driver would have to be asked, and they fail with `EDEADLK`. Allowed are
//! dropping anything, releasing and unmapping; reading and writing memory and BARs;
//! [`Pending::is_done`]; lookups in a [`Cache`](crate::Cache) that find a registration; and of
//! course everything outside this crate, such as waking another thread.
//!
//! # Mistakes that do not compile
//!
//! The owner of memory on which the device works cannot read it before the scope has ended:
//!
//! ```compile_fail,E0502
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: &mut Allocation<f32>) -> Result<()> {
//! stream.scope(|work| {
//!     let mut data = numbers.slice_mut();
//!     work.launch(testgpu::IncrementF32 { data: &mut data })?;
//!     assert_eq!(numbers.get(0)?, 1.0);
//!     work.stream().synchronize()
//! }) }
//! ```
//!
//! An ordinary slice that is lent to the device cannot be used before the scope has ended, neither
//! by its owner nor as another operand:
//!
//! ```compile_fail,E0502
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, mut numbers: Vec<f32>) -> Result<()> {
//! stream.scope(|work| {
//!     let mut data = work.slice_mut(&mut numbers)?;
//!     work.launch(testgpu::IncrementF32 { data: &mut data })?;
//!     assert_eq!(numbers[0], 1.0);
//!     Ok(())
//! }) }
//! ```
//!
//! ```compile_fail,E0502
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: &mut [f32]) -> Result<()> {
//! stream.scope(|work| {
//!     let (mut y, x) = (work.slice_mut(numbers)?, work.slice(numbers)?);
//!     work.launch(testgpu::Saxpy { a: 1.0, x, y: &mut y })
//! }) }
//! ```
//!
//! ```compile_fail,E0499
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: &mut [f32]) -> Result<()> {
//! stream.scope(|work| {
//!     let (first, second) = (work.slice_mut(numbers)?, work.slice_mut(numbers)?);
//!     Ok(())
//! }) }
//! ```
//!
//! A slice that is lent can neither be freed nor change its place:
//!
//! ```compile_fail,E0505
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: Vec<f32>) -> Result<()> {
//! stream.scope(|work| {
//!     let data = work.slice(&numbers)?;
//!     drop(numbers);
//!     Ok(())
//! }) }
//! ```
//!
//! ```compile_fail,E0499
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, mut numbers: Vec<f32>) -> Result<()> {
//! stream.scope(|work| {
//!     let mut data = work.slice_mut(&mut numbers)?;
//!     work.launch(testgpu::IncrementF32 { data: &mut data })?;
//!     numbers.push(1.0);
//!     Ok(())
//! }) }
//! ```
//!
//! A slice that is lent must outlive the scope, and the device slice of it cannot:
//!
//! ```compile_fail,E0597
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream) -> Result<()> {
//! stream.scope(|work| {
//!     let mut numbers = vec![0.0; 1024];
//!     let mut data = work.slice_mut(&mut numbers)?;
//!     work.launch(testgpu::IncrementF32 { data: &mut data })
//! }) }
//! ```
//!
//! ```compile_fail,E0521
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: &mut [f32]) -> Result<()> {
//! let mut data = None;
//! stream.scope(|work| {
//!     data = Some(work.slice_mut(numbers)?);
//!     Ok(())
//! }) }
//! ```
//!
//! Memory that is only borrowed shared cannot be written:
//!
//! ```compile_fail,E0596
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: &Vec<f32>) -> Result<()> {
//! stream.scope(|work| work.slice_mut(numbers.as_mut_slice()).map(drop))
//! # }
//! ```
//!
//! Packets that the program makes itself can name any memory:
//!
//! ```compile_fail,E0133
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream) -> Result<()> {
//! stream.scope(|work| work.submit_packets(&[testgpu::packet::fill(0x1000, 4096, 0, 0)]))
//! # }
//! ```
//!
//! The same memory cannot be borrowed exclusively twice:
//!
//! ```compile_fail,E0499
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(numbers: &mut Allocation<f32>) -> Result<()> {
//! let mut data = numbers.slice_mut();
//! let mut again = numbers.slice_mut();
//! data.set(0, 1.0)?;
//! again.set(0, 2.0)
//! # }
//! ```
//!
//! The scope cannot leave its function:
//!
//! ```compile_fail,E0521
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream) -> Result<()> {
//! let mut kept = None;
//! stream.scope(|work| -> Result<()> {
//!     kept = Some(work);
//!     Ok(())
//! }) }
//! ```
//!
//! Elements must have the type on which the kernel works:
//!
//! ```compile_fail,E0308
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f<'s>(work: &Work<'s>, words: &mut DeviceSliceMut<'s, u32>) -> Result<()> {
//! work.launch(testgpu::IncrementF32 { data: words })
//! # }
//! ```
//!
//! Memory that was handed over cannot be used:
//!
//! ```compile_fail,E0382
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, mut numbers: Allocation<f32>) -> Result<()> {
//! let pending = stream.submit(numbers, |work, numbers| {
//!     work.fill(&mut numbers.slice_mut(), 1.0)
//! })?;
//! numbers.set(0, 2.0)
//! # }
//! ```
//!
//! Borrowed memory cannot be released before the end of the scope:
//!
//! ```compile_fail,E0505
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, mut numbers: Registration) -> Result<()> {
//! accelerator::scope(|scope| {
//!     let mut data = numbers.slice_mut::<f32>()?;
//!     scope.on(stream).launch(testgpu::IncrementF32 { data: &mut data })?;
//!     drop(numbers.release()?);
//!     Ok(())
//! }) }
//! ```
//!
//! Memory that does not outlive the scope cannot be borrowed:
//!
//! ```compile_fail,E0597
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(gpu: &Accelerator, stream: &Stream) -> Result<()> {
//! accelerator::scope(|scope| {
//!     let mut numbers = gpu.alloc_vram::<f32>(1024)?;
//!     scope.on(stream).fill(&mut numbers.slice_mut(), 1.0)
//! }) }
//! ```
//!
//! The memory that is lent to the function of a piece of work cannot leave that function:
//!
//! ```compile_fail,E0521
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: Allocation<f32>) -> Result<()> {
//! let mut kept = None;
//! stream.submit(numbers, |work, numbers| {
//!     kept = Some(numbers.slice());
//!     Ok(())
//! })?;
//! # Ok(()) }
//! ```
//!
//! Memory that is only borrowed cannot be handed over:
//!
//! ```compile_fail,E0521
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: &mut Allocation<f32>) -> Result<()> {
//! stream.submit(numbers, |work, numbers| {
//!     work.fill(&mut numbers.slice_mut(), 1.0)
//! })?;
//! # Ok(()) }
//! ```
//!
//! Memory that was handed over cannot be lent for longer than the work takes:
//!
//! ```compile_fail,E0521
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: Vec<f32>) -> Result<()> {
//! let mut kept = None;
//! stream.submit(numbers, |work, numbers| {
//!     kept = Some(work.slice(numbers)?);
//!     Ok(())
//! })?;
//! # Ok(()) }
//! ```
//!
//! Work is submitted where memory is borrowed or handed over, so a stream itself launches nothing
//! ([`Stream::scope`] does it in one line):
//!
//! ```compile_fail,E0599
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: &mut Pinned<f32>) -> Result<()> {
//! stream.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })?;
//! stream.synchronize()
//! # }
//! ```
//!
//! An operand stays borrowed until the work is done, so memory is borrowed once for all work on it
//! (`let mut numbers = numbers.slice_mut();`), and not for each piece:
//!
//! ```compile_fail,E0499
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, numbers: Allocation<f32>) -> Result<()> {
//! stream.submit(numbers, |work, numbers| {
//!     work.fill(&mut numbers.slice_mut(), 1.0)?;
//!     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })
//! })?;
//! # Ok(()) }
//! ```
//!
//! The same for two pieces of memory, of which the second one is used twice:
//!
//! ```compile_fail,E0499
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, both: (Pinned<f32>, Allocation<f32>)) -> Result<()> {
//! stream.submit(both, |work, (host, local)| {
//!     work.copy(&host.slice_mut(), &mut local.slice_mut())?;
//!     work.launch(testgpu::IncrementF32 { data: &mut local.slice_mut() })
//! })?;
//! # Ok(()) }
//! ```
//!
//! ```no_run
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, both: (Pinned<f32>, Allocation<f32>)) -> Result<()> {
//! let pending = stream.submit(both, |work, (host, local)| {
//!     let mut local = local.slice_mut();
//!     work.copy(&*host, &mut local)?;
//!     work.launch(testgpu::IncrementF32 { data: &mut local })
//! })?;
//! # pending.wait()?; Ok(()) }
//! ```
//!
//! The function can use only the memory that was handed over:
//!
//! ```compile_fail,E0597
//! # use pinmap::{accelerator::*, *};
//! # use pinmap_testgpu as testgpu;
//! # fn f(stream: &Stream, mut numbers: Allocation<f32>) -> Result<()> {
//! let other = &mut numbers;
//! stream.submit((), |work, ()| work.fill(&mut other.slice_mut(), 1.0))?;
//! # Ok(()) }
//! ```

pub use crate::device::accelerator::{Accelerator, AcceleratorInfo, Link};
pub use crate::error::fault::{Fault, FaultCode, FaultReason, MemoryArea};
pub use crate::memory::allocation::Place;
pub use crate::memory::element::Number;
pub use crate::memory::lent::managed::ManagedRange;
pub use crate::memory::managed::advice::Advice;
pub use crate::memory::managed::alloc::ManagedAlloc;
pub use crate::memory::managed::budget::Budget;
pub use crate::memory::managed::owned::Managed;
pub use crate::memory::managed::prefetch::Prefetched;
pub use crate::memory::managed::window::{Window, WindowOptions};
pub use crate::memory::pinned::Pinned;
pub use crate::memory::program::MemoryMut;
pub use crate::memory::registered::Registered;
pub use crate::memory::slice::{DeviceSlice, DeviceSliceMut, Reach};
pub use crate::queue::format::{Condition, Direction, Kernel, Packet, PacketFormat};
pub use crate::queue::operand::Operands;
pub use crate::queue::options::{Engines, StreamOptions};
pub use crate::stream::blocking::launch_blocking;
pub use crate::stream::completion::Completion;
pub use crate::stream::event::Event;
pub use crate::stream::in_flight::InFlight;
pub use crate::stream::operand::{Destination, Source};
pub use crate::stream::pending::Pending;
pub use crate::stream::prefetch::Prefetching;
pub use crate::stream::scope::{scope, try_scope, Scope, StreamScope};
pub use crate::stream::work::Work;
pub use crate::stream::{in_host_function, Stream};
