// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues whose doorbells an accelerator rings: the CPU prepares commands, and does nothing between
//! a kernel and the disk.
//!
//! The accelerator does three things for a command, in the order of its stream: it stores the tail
//! of the commands to the one doorbell, waits until the controller has changed the phase of the
//! completion, and stores the head of the completions to the other doorbell. So one command of a
//! queue is with the controller at a time, and the completion of a command has its place.

use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pinmap::accelerator::{Accelerator, Condition, Work};
use pinmap::{Access, AllocOptions, Allocation, Bar, Registration};

use crate::admin::Shared;
use crate::command::{Command, Lists};
use crate::controller::Controller;
use crate::entry::{Completion, Entry};
use crate::error::{demand, Error, Failed, Result};
use crate::identify::Identity;
use crate::memory::Memory;
use crate::options::QueueOptions;
use crate::queue::Done;
use crate::registers::DOORBELLS;
use crate::PAGE;

/// The phase of a completion, in its second half.
const PHASE: u64 = 1 << 48;

/// A queue of commands that are part of the work of an accelerator's stream. Made by
/// [`Controller::stream_queue`].
///
/// A command begins when the work before it in the stream is done, and the work behind it begins
/// when the command is done. The commands of one queue are executed one after the other; several
/// queues, each with a stream of its own, work at the same time.
///
/// ```no_run
/// use std::sync::Arc;
/// use pinmap::accelerator::{Accelerator, Stream};
/// use pinmap::{Access, Registration};
/// use pinmap_nvme::{Controller, Namespace, QueueOptions, StreamQueue};
/// # use pinmap_testgpu::IncrementF32;
/// # type Error = pinmap_nvme::Error;
/// # fn f(
/// #     gpu: &Accelerator, stream: &Stream, controller: &Controller, namespace: &Namespace,
/// # ) -> Result<(), Error> {
/// let mut numbers = gpu.alloc_vram::<f32>(1024)?;
/// let memory = Arc::new(numbers.register(controller.device(), Access::ReadWrite)?);
/// let mut queue: StreamQueue<Arc<Registration<()>>> =
///     controller.stream_queue(gpu, QueueOptions::new().depth(32))?;
/// stream.try_scope(|work| {
///     let mut numbers = numbers.slice_mut();
///     for block in 0..16 {
///         queue.submit(work, namespace.read(8 * block, Arc::clone(&memory)))?;
///         work.launch(IncrementF32 { data: &mut numbers })?;
///         queue.submit(work, namespace.write(8 * block, Arc::clone(&memory)))?;
///     }
///     Ok::<_, Error>(())
/// })?;
/// for done in queue.finish()? {
///     done.result?;
/// }
/// # Ok(()) }
/// ```
pub struct StreamQueue<M> {
    shared: Arc<Shared>,
    accelerator: Accelerator,
    options: QueueOptions,
    number: u16,
    /// `None` only at the end, if the controller cannot be stopped.
    held: Option<Held>,
    /// The generation in which the controller has the queues; 0 if it has none.
    generation: u64,
    state: Mutex<State<M>>,
    /// Held while a command is submitted, which waits if the stream's ring is full, so that
    /// doorbells get their values in the order of the commands. `true`: the last command was
    /// submitted in part, and none may follow it.
    ringing: Mutex<bool>,
}

/// Pages of doorbells that are registered with accelerators. One is registered once, however many
/// queues have their doorbells there.
#[derive(Debug, Default)]
pub(crate) struct Pages(Mutex<Vec<Weak<Registration<()>>>>);

impl Pages {
    fn find(&self, page: &Bar, accelerator: &Accelerator) -> Result<Arc<Registration<()>>> {
        let (device, len) = (accelerator.device(), page.len() as usize);
        let addr = page.as_mut_ptr(0, len)?.addr();
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|known| known.strong_count() != 0);
        let is_it = |known: &Arc<Registration<()>>| {
            let is_same = known.device().as_raw_fd() == device.as_raw_fd();
            is_same && known.addr() == addr && known.len() == len
        };
        if let Some(known) = pages.iter().filter_map(Weak::upgrade).find(is_it) {
            return Ok(known);
        }
        let made = Arc::new(page.register(device, Access::ReadWrite)?);
        pages.push(Arc::downgrade(&made));
        Ok(made)
    }
}

/// The parts of a queue that the accelerator accesses.
struct Held {
    completions: Allocation<u64>,
    doorbells: Arc<Registration<()>>,
    /// Where the two doorbells are in it.
    at: [usize; 2],
}

struct State<M> {
    submissions: Allocation<Entry>,
    lists: Lists,
    /// How many commands the queues had since they were made.
    count: usize,
    /// The number of the first command that was not returned.
    first: u64,
    /// The memory of the commands that were not returned; these are the last ones.
    commands: Vec<Option<M>>,
}

impl Controller {
    /// Makes a queue whose doorbells are rung by a stream of this accelerator. Of the options the
    /// depth matters: how many commands can be submitted before [`StreamQueue::finish`] is called;
    /// and [`prp`](QueueOptions::prp).
    ///
    /// # Errors
    ///
    /// As for [`queue`](Self::queue); [`Error::Pinmap`] with `EREMOTEIO`: the bus does not let the
    /// accelerator reach the doorbells.
    pub fn stream_queue<M: Memory>(
        &self,
        accelerator: &Accelerator,
        options: QueueOptions,
    ) -> Result<StreamQueue<M>> {
        StreamQueue::new(Arc::clone(self.shared()), accelerator, options)
    }
}

impl Held {
    fn new(
        shared: &Shared,
        accelerator: &Accelerator,
        number: u16,
        entries: usize,
    ) -> Result<Self> {
        let stride = shared.capabilities.stride;
        let first = DOORBELLS + 2 * usize::from(number) * stride;
        let start = first - first % PAGE;
        let end = (first + 2 * stride).next_multiple_of(PAGE);
        let page = shared.bar.window(start as u64..end as u64)?;
        Ok(Self {
            completions: shared
                .device
                .alloc_with(2 * entries, AllocOptions::new().portable())?,
            doorbells: shared.pages.find(&page, accelerator)?,
            at: [first - start, first + stride - start],
        })
    }
}

impl<M: Memory> StreamQueue<M> {
    fn new(shared: Arc<Shared>, accelerator: &Accelerator, options: QueueOptions) -> Result<Self> {
        let depth = options.depth;
        let most = shared.capabilities.entries - 1;
        let is_possible = (1..=most).contains(&depth.into());
        demand!(Invalid, is_possible => "a queue has 1 to {most} commands in flight, not {depth}");
        let entries = usize::from(depth) + 1;
        let state = State {
            submissions: shared.device.alloc(entries)?,
            lists: Lists::new(&shared.device, depth + 1)?,
            count: 0,
            first: 0,
            commands: Vec::new(),
        };
        let number = shared.take_number(true)?;
        let held = Held::new(&shared, accelerator, number, entries)
            .inspect_err(|_| shared.give_number(number))?;
        let mut queue = Self {
            accelerator: accelerator.clone(),
            options,
            number,
            held: Some(held),
            generation: 0,
            state: Mutex::new(state),
            ringing: Mutex::new(false),
            shared,
        };
        queue.renew()?;
        Ok(queue)
    }

    /// Has the controller make the queues anew, if it does not have them.
    fn renew(&mut self) -> Result<()> {
        if self.generation == self.shared.generation() {
            return Ok(());
        }
        let entries = self.entries();
        // What the controller has written before would pass for completions.
        let held = Held::new(&self.shared, &self.accelerator, self.number, entries)?;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.count = 0;
        let addresses = (
            state.submissions.device_addr(),
            held.completions.device_addr(),
        );
        self.held = Some(held);
        let entries = self.options.depth + 1;
        self.generation = self.shared.create_in(self.number, entries, addresses)?;
        Ok(())
    }

    fn entries(&self) -> usize {
        usize::from(self.options.depth) + 1
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> &Held {
        match &self.held {
            Some(held) => held,
            None => unreachable!("the queue is being dropped"),
        }
    }

    /// Makes a command part of the work, and returns its number. `work` is of a stream of the
    /// accelerator; if it is of several ones, the program orders them by events.
    ///
    /// The stream goes on behind a command that fails; [`finish`](Self::finish) tells what came of
    /// it. If the controller never answers, or is reset, the stream waits until it is reset, too.
    ///
    /// # Errors
    ///
    /// The memory comes back with the error, and nothing was begun: as for
    /// [`Queue::submit`](crate::Queue::submit), where [`Error::Full`] means that `finish` has not
    /// been called since as many commands as the depth says; [`Error::Reset`]: the controller was
    /// reset, or the work did not end: `finish` makes the queue anew. If there is no memory with
    /// the error, part of the work was submitted, and `finish` returns the memory.
    pub fn submit<'w>(
        &'w self,
        work: &Work<'w>,
        command: Command<'_, M>,
    ) -> Result<u64, Failed<M>> {
        let mut is_broken = self.ringing.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_broken {
            let memory = command.into_memory();
            let error = Error::Reset;
            return Err(Failed { error, memory });
        }
        let mut state = self.lock();
        let index = state.count % self.entries();
        if let Err(error) = self.prepare(&mut state, index, &command) {
            let memory = command.into_memory();
            return Err(Failed { error, memory });
        }
        let (lap, number) = (
            state.count / self.entries(),
            state.first + state.commands.len() as u64,
        );
        state.commands.push(command.into_memory());
        state.count += 1;
        // Without the lock, since a full ring is waited for.
        drop(state);
        let rung = self.ring(work, index, lap);
        *is_broken = rung.is_err();
        rung.map(|()| number).map_err(|error| Failed {
            error: error.into(),
            memory: None,
        })
    }

    /// Writes the entry for a command, of which the controller does not learn yet.
    fn prepare(&self, state: &mut State<M>, index: usize, command: &Command<'_, M>) -> Result<()> {
        let mut entry = command.entry(&self.shared)?;
        if self.generation != self.shared.generation() {
            return Err(Error::Reset);
        }
        if state.commands.len() == usize::from(self.options.depth) {
            return Err(Error::Full);
        }
        let Identity { sgl, alignment, .. } = self.shared.identity;
        let sgl = (sgl && !self.options.prp).then_some(alignment);
        state.lists.fill(index, command, sgl, &mut entry)?;
        entry[0] |= (index as u64) << 16;
        Ok(state.submissions.set(index, entry)?)
    }

    /// Has the accelerator tell the controller of a command, wait for its end, and tell it that the
    /// completion was taken.
    fn ring<'w>(&'w self, work: &Work<'w>, index: usize, lap: usize) -> pinmap::Result<()> {
        let Held {
            completions,
            doorbells,
            at: [tail, head],
        } = self.held();
        let next = ((index + 1) % self.entries()) as u32;
        let done = match lap % 2 {
            0 => Condition::And(PHASE),
            _ => Condition::Nor(!PHASE),
        };
        work.batch(|| {
            work.store(doorbells, *tail, next)?;
            work.wait_until(completions.on(&self.accelerator)?, 2 * index + 1, done)?;
            work.store(doorbells, *head, next)
        })
    }

    /// Returns what came of the commands, in the order in which they were submitted. To be called
    /// when the work is done: a command that has not ended by now, because its stream has failed
    /// for instance, ends with [`Error::Reset`], and the controller forgets it.
    ///
    /// # Errors
    ///
    /// The controller does not answer, as for [`Controller::reset`]; then nothing is returned, and
    /// the commands stay in flight.
    pub fn finish(&mut self) -> Result<Vec<Done<M>>> {
        let is_lost = self.generation != self.shared.generation();
        let entries = self.entries();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let first = state.count - state.commands.len();
        let mut results = Vec::with_capacity(state.commands.len());
        for count in first..state.count {
            let Some(held) = self.held.as_ref().filter(|_| !is_lost) else {
                break;
            };
            let word = held.completions.get(2 * (count % entries) + 1)?;
            if (word & PHASE != 0) != (count / entries % 2 == 0) {
                break;
            }
            let status = (word >> 48) as u16;
            let completion = Completion {
                status,
                ..Completion::default()
            };
            results.push(completion.outcome());
        }
        let is_broken = self
            .ringing
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if is_lost || *is_broken || results.len() < state.commands.len() {
            self.end()?;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let outcomes = results
            .into_iter()
            .chain(std::iter::repeat_with(|| Err(Error::Reset)));
        let commands = std::mem::take(&mut state.commands);
        let numbers = state.first..;
        state.first += commands.len() as u64;
        let done = commands.into_iter().zip(outcomes).zip(numbers);
        let done = done
            .map(|((memory, result), number)| Done {
                number,
                memory,
                result,
            })
            .collect();
        *self
            .ringing
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner) = false;
        self.renew()?;
        Ok(done)
    }

    /// Has the controller forget the queues, and work on their commands no more.
    fn end(&mut self) -> Result<()> {
        if self.generation == self.shared.generation() {
            if self.shared.delete(self.number, self.generation).is_err() {
                self.shared.reset(self.generation)?;
            }
            // No generation has this number.
            self.generation = 0;
        }
        Ok(())
    }
}

impl<M> Drop for StreamQueue<M> {
    fn drop(&mut self) {
        let is_made = self.generation == self.shared.generation();
        if is_made && self.shared.delete(self.number, self.generation).is_err() {
            let _ = self.shared.reset(self.generation);
            let is_over = self.generation != self.shared.generation();
            if !is_over && !matches!(self.shared.look_for_device(), Err(Error::Gone)) {
                let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
                // As in a `Queue`, the controller may still write.
                std::mem::forget(std::mem::take(&mut state.commands));
                std::mem::forget(self.held.take());
                return;
            }
        }
        self.shared.give_number(self.number);
    }
}

impl<M> fmt::Debug for StreamQueue<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamQueue")
            .field("number", &self.number)
            .field("accelerator", &self.accelerator)
            .finish_non_exhaustive()
    }
}
