// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: where commands are given to the controller, and come back with their memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use pinmap::{ErrorKind, Interrupt};

use crate::admin::{Shared, PAUSE};
use crate::command::{Command, Lists};
use crate::error::{demand, Error, Failed, Result};
use crate::identify::Identity;
use crate::memory::Memory;
use crate::options::QueueOptions;
use crate::pair::Pair;

mod recover;

/// A command that is done. Returned by [`Queue::wait`] and [`Queue::poll`].
#[derive(Debug)]
pub struct Done<M> {
    /// The number that [`Queue::submit`] has returned.
    pub number: u64,
    /// The memory of the command, if it had some.
    pub memory: Option<M>,
    /// Whether the command succeeded.
    pub result: Result<()>,
}

/// A queue of commands with memory of the type `M`, and of what is done. Made by
/// [`Controller::queue`](crate::Controller::queue).
///
/// A queue belongs to one thread at a time. Commands that are in flight at once are executed in any
/// order. Dropping a queue ends the commands that are in flight, and then frees their memory.
///
/// ```no_run
/// use pinmap::{Access, Buffer, Registration};
/// use pinmap_nvme::{Controller, Queue, QueueOptions};
/// # fn f(controller: &Controller) -> Result<(), pinmap_nvme::Error> {
/// let namespace = controller.namespace(1)?;
/// let mut queue: Queue<Registration> = controller.queue(QueueOptions::new().depth(8))?;
/// for block in 0..8 {
///     let memory = Buffer::new(4096)?.register(controller.device(), Access::ReadWrite)?;
///     queue.submit(namespace.read(8 * block, memory))?;
/// }
/// while queue.in_flight() != 0 {
///     let done = queue.wait()?;
///     done.result?;
///     println!("{} is read: {:?}", done.number, done.memory);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Queue<M> {
    shared: Arc<Shared>,
    options: QueueOptions,
    number: u16,
    /// `None` only at the end, if the controller cannot be stopped.
    held: Option<Held>,
    /// The generation in which the controller has the pair.
    generation: u64,
    /// `None` for a queue that is polled.
    interrupt: Option<Interrupt>,
    /// The commands in flight, by their identifiers.
    slots: Vec<Option<Slot<M>>>,
    /// Identifiers that no command in flight has.
    free: Vec<u16>,
    /// Commands that are done and were not returned.
    done: VecDeque<Done<M>>,
    submitted: u64,
    /// When a wait has last looked whether the controller works.
    checked: Instant,
}

/// Memory of the queue that the controller accesses.
#[derive(Debug)]
struct Held {
    pair: Pair,
    lists: Lists,
}

#[derive(Debug)]
struct Slot<M> {
    number: u64,
    memory: Option<M>,
    /// `None`: never.
    deadline: Option<Instant>,
    /// Whether it has missed one already, and was to be aborted.
    is_late: bool,
}

impl<M: Memory> Queue<M> {
    pub(crate) fn new(shared: Arc<Shared>, options: QueueOptions) -> Result<Self> {
        let depth = options.depth;
        // One place stays free, so that a full queue does not look like an empty one.
        let most = shared.capabilities.entries - 1;
        let is_possible = (1..=most).contains(&depth.into());
        demand!(Invalid, is_possible => "a queue has 1 to {most} commands in flight, not {depth}");
        let device = &shared.device;
        let lists = Lists::new(device, depth)?;
        let number = shared.take_number(options.polled)?;
        let make = || -> Result<_> {
            let interrupt = match options.polled {
                true => None,
                false => Some(device.interrupt(number.into())?),
            };
            let (pair, generation) = shared.create(number, &options, interrupt.as_ref())?;
            Ok((interrupt, pair, generation))
        };
        let made = make().inspect_err(|_| shared.give_number(number));
        let (interrupt, pair, generation) = made?;
        Ok(Self {
            number,
            held: Some(Held { pair, lists }),
            generation,
            interrupt,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            done: VecDeque::with_capacity(depth.into()),
            submitted: 0,
            checked: Instant::now(),
            shared,
            options,
        })
    }

    /// How many commands were submitted, and not returned as done.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.done.len()
    }

    /// The number of the queue, by which the controller knows it.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// How many commands can be submitted before one must be waited for.
    pub fn room(&self) -> usize {
        self.slots.len() - self.in_flight()
    }

    /// The interrupt that the ends of commands raise, for event loops: when it is readable,
    /// [`poll`](Self::poll) until nothing is done. `None` if the queue is polled.
    pub fn interrupt(&self) -> Option<&Interrupt> {
        self.interrupt.as_ref()
    }

    /// Gives a command to the controller, and returns its number. Does not wait, but the first
    /// command after a reset makes the queue anew.
    ///
    /// # Errors
    ///
    /// The memory comes back with the error, and nothing was begun.
    ///
    /// [`Error::Invalid`]: the blocks are not all in the namespace, or of another controller; the
    /// memory is not whole blocks, too long, not aligned to
    /// [`Identity::alignment`](crate::Identity::alignment), or with PRP to 4 bytes, of another
    /// device, or may not be written; [`Error::Unsupported`]: the controller lacks the command;
    /// [`Error::Full`]: as many commands are in flight as have room; otherwise, the queue cannot be
    /// made anew.
    pub fn submit(&mut self, command: Command<'_, M>) -> Result<u64, Failed<M>> {
        let number = self.push(command)?;
        self.held().pair.tell();
        Ok(number)
    }

    /// Submits a command as [`submit`](Self::submit) does, but tells the controller only by the
    /// next `submit`, `poll` or `wait`, of all commands at once.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit).
    pub fn push(&mut self, command: Command<'_, M>) -> Result<u64, Failed<M>> {
        let id = match self.give(&command) {
            Ok(id) => id,
            Err(error) => {
                let memory = command.into_memory();
                return Err(Failed { error, memory });
            }
        };
        let number = self.submitted;
        self.submitted += 1;
        self.slots[usize::from(id)] = Some(Slot {
            number,
            memory: command.into_memory(),
            deadline: Instant::now().checked_add(self.options.timeout),
            is_late: false,
        });
        Ok(number)
    }

    /// Writes the entry for a command, and returns its identifier.
    fn give(&mut self, command: &Command<'_, M>) -> Result<u16> {
        let mut entry = command.entry(&self.shared)?;
        self.renew()?;
        let free = self.free.last().filter(|_| self.room() != 0);
        let &id = free.ok_or(Error::Full)?;
        let Identity { sgl, alignment, .. } = self.shared.identity;
        let sgl = (sgl && !self.options.prp).then_some(alignment);
        let lists = &mut self.held().lists;
        lists.fill(usize::from(id), command, sgl, &mut entry)?;
        entry[0] |= u64::from(id) << 16;
        self.held().pair.push(entry)?;
        self.free.pop();
        Ok(id)
    }

    #[inline]
    fn held(&mut self) -> &mut Held {
        match &mut self.held {
            Some(held) => held,
            None => unreachable!("the queue is being dropped"),
        }
    }

    /// Executes a command, and waits for it. Returns its memory.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit); [`Error::Status`]: the controller reports an error; others
    /// as for [`wait`](Self::wait). If there is no memory with the error, it is returned by `wait`
    /// when the controller does not work on it any more.
    pub fn run(&mut self, command: Command<'_, M>) -> Result<Option<M>, Failed<M>> {
        let number = self.submit(command)?;
        let lost = |error| Failed {
            error,
            memory: None,
        };
        let since = Instant::now();
        loop {
            self.gather().map_err(lost)?;
            let index = self.done.iter().position(|done| done.number == number);
            if let Some(Done { memory, result, .. }) = index.and_then(|i| self.done.remove(i)) {
                return match result {
                    Ok(()) => Ok(memory),
                    Err(error) => Err(Failed { error, memory }),
                };
            }
            self.idle(since).map_err(lost)?;
        }
    }

    /// Returns a command that is done, if one is. Does not wait.
    ///
    /// # Errors
    ///
    /// The controller completed a command that is not in flight, and cannot be reset, as for
    /// [`check`](Self::check).
    pub fn poll(&mut self) -> Result<Option<Done<M>>> {
        self.gather()?;
        Ok(self.done.pop_front())
    }

    /// Waits until a command is done, and returns it. Meanwhile it does as [`check`](Self::check).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: no command is in flight; otherwise as for [`check`](Self::check).
    pub fn wait(&mut self) -> Result<Done<M>> {
        let since = Instant::now();
        loop {
            if let Some(done) = self.poll()? {
                return Ok(done);
            }
            demand!(Invalid, self.in_flight() != 0 => "no command is in flight");
            self.idle(since)?;
        }
    }

    /// Waits as [`wait`](Self::wait) does, without blocking the thread, on any executor. It does
    /// not [`check`](Self::check), because that takes a timer, which the executor has.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait); [`Error::Unsupported`]: the queue is polled.
    pub async fn next(&mut self) -> Result<Done<M>> {
        loop {
            if let Some(done) = self.poll()? {
                return Ok(done);
            }
            demand!(Invalid, self.in_flight() != 0 => "no command is in flight");
            let words = "no interrupt for this queue, which is polled";
            let interrupt = self.interrupt.as_ref();
            let interrupt = interrupt.ok_or_else(|| Error::Unsupported(words.into()))?;
            match interrupt.wait_async().await {
                Err(error) if error.kind() == ErrorKind::Gone => self.lose(),
                came => _ = came?,
            }
        }
    }

    /// Takes what the controller has completed.
    #[inline]
    fn gather(&mut self) -> Result<()> {
        if self.generation != self.shared.generation() {
            self.end(|_| Error::Reset);
            return Ok(());
        }
        self.held().pair.tell();
        while let Some(completion) = self.held().pair.pop()? {
            let slot = self.slots.get_mut(usize::from(completion.id));
            let Some(slot) = slot.and_then(Option::take) else {
                return self.reset(|_| Error::Confused);
            };
            let result = match completion.outcome() {
                // The controller was asked to abort it.
                Err(Error::Status(s)) if slot.is_late && (s.kind(), s.code()) == (0, 7) => {
                    Err(Error::TimedOut)
                }
                outcome => outcome,
            };
            self.finish(completion.id, slot, result);
        }
        Ok(())
    }

    #[inline]
    fn finish(&mut self, id: u16, slot: Slot<M>, result: Result<()>) {
        let Slot { number, memory, .. } = slot;
        self.free.push(id);
        self.done.push_back(Done {
            number,
            memory,
            result,
        });
    }

    /// Polls or sleeps for a moment, as the options say, in a wait that has begun at `since`.
    fn idle(&mut self, since: Instant) -> Result<()> {
        if self.checked.elapsed() >= PAUSE.min(self.options.timeout) {
            self.checked = Instant::now();
            return self.check();
        }
        let interrupt = self.interrupt.as_ref();
        let Some(interrupt) = interrupt.filter(|_| since.elapsed() >= self.options.poll_first)
        else {
            (0..16).for_each(|_| std::hint::spin_loop());
            return Ok(());
        };
        match interrupt.wait_timeout(PAUSE.min(self.options.timeout)) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if error.kind() == ErrorKind::Gone => self.lose(),
            came => _ = came?,
        }
        Ok(())
    }
}

impl<M> Drop for Queue<M> {
    fn drop(&mut self) {
        if self.shared.delete(self.number, self.generation).is_err() {
            // A reset ends them, too. If the controller cannot be disabled, and is there, it may
            // still write: then memory and number stay taken, until the device is closed.
            let _ = self.shared.reset(self.generation);
            let is_over = self.generation != self.shared.generation();
            if !is_over && !matches!(self.shared.look_for_device(), Err(Error::Gone)) {
                std::mem::forget(std::mem::take(&mut self.slots));
                std::mem::forget(self.held.take());
                return;
            }
        }
        // Whoever gets the number takes the vector.
        self.interrupt = None;
        self.shared.give_number(self.number);
    }
}
