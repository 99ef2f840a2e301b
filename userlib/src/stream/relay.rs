// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between the VRAM of two devices of which neither reaches the other: through host memory.
//!
//! One engine fills a buffer in host memory while the other device's engine empties another one.
//! The other device works in a stream of its own, and events keep the two in order, so that the
//! CPU only submits. The stream of the copy waits for the other one at the end: its fence, and all
//! that comes behind, means both.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::accelerator::Accelerator;
use crate::error::Result;
use crate::memory::alloc::AllocOptions;
use crate::memory::allocation::Allocation;
use crate::memory::element::Element;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
use crate::queue::WhenFull;

use super::core::Core;
use super::event::Event;

/// Bytes of a buffer. A device needs some time for that many, beside which events cost little.
const PIECE: usize = 1 << 20;
/// One is filled while the other one is emptied.
const BUFFERS: usize = 2;

/// The relays of a stream, by the other device.
#[derive(Debug, Default)]
pub(super) struct Relays(Mutex<Vec<Relay>>);

/// The way between the device of a stream and another one.
#[derive(Debug)]
struct Relay {
    /// The queue that the stream had when this was made.
    queue: u64,
    /// The stream of the other device.
    there: Arc<Core>,
    buffers: Vec<Buffer>,
    next: usize,
    /// Whether a copy has ended in the midst. The devices may still have the buffers.
    is_broken: bool,
}

#[derive(Debug)]
struct Buffer {
    memory: Allocation<u8>,
    /// When it was emptied last.
    emptied: Option<Event>,
}

/// Has everything that is submitted to `second` next come behind what was submitted to `first`.
fn order(first: &Core, second: &Core) -> Result<Event> {
    let event = first.accelerator().event()?;
    event.record(first)?;
    event.wait_on(second)?;
    Ok(event)
}

impl Relays {
    fn lock(&self) -> MutexGuard<'_, Vec<Relay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a copy from the device of `here` to `giver`, another one, or from there.
    pub(super) fn copy<T: Element>(
        here: &Core,
        other: &Accelerator,
        from: DeviceSlice<'_, T>,
        to: DeviceSlice<'_, T>,
    ) -> Result<()> {
        let (from, to) = (from.cast::<u8>()?, to.cast::<u8>()?);
        let mut relays = here.relays().lock();
        let queue = here.id();
        let is_it = |relay: &Relay| {
            let is_same = relay.there.device().is_same(other.device());
            is_same && relay.queue == queue && !relay.is_broken
        };
        let relay = match relays.iter().position(is_it) {
            Some(index) => &mut relays[index],
            None => {
                relays.retain(|relay| relay.queue == queue && !relay.is_broken);
                relays.push(Relay::new(here, other)?);
                let last = relays.len() - 1;
                &mut relays[last]
            }
        };
        let copied = relay.copy(here, from, to);
        relay.is_broken = copied.is_err();
        copied
    }
}

impl Relay {
    fn new(here: &Core, other: &Accelerator) -> Result<Self> {
        let options = AllocOptions::new().portable();
        let there = Core::new(other, here.options())?;
        let buffer = |_| {
            Ok(Buffer {
                memory: here.device().alloc_with(PIECE, options)?,
                emptied: None,
            })
        };
        Ok(Self {
            queue: here.id(),
            there,
            buffers: (0..BUFFERS).map(buffer).collect::<Result<_>>()?,
            next: 0,
            is_broken: false,
        })
    }

    fn copy(
        &mut self,
        here: &Core,
        from: DeviceSlice<'_, u8>,
        to: DeviceSlice<'_, u8>,
    ) -> Result<()> {
        let there = &*self.there.clone();
        let is_leaving = from.is_of(here.device());
        let (source, target) = if is_leaving {
            (here, there)
        } else {
            (there, here)
        };
        order(here, there)?;
        let copied = self.pieces((source, from), (target, to));
        if is_leaving {
            // Also if a piece could not be submitted: the program has the memory when this stream
            // is done, and those before it are under way.
            order(there, here)?;
        }
        copied
    }

    /// Submits the copy piece by piece: by the device that reaches `from`, and by the one that
    /// reaches `to`.
    fn pieces(
        &mut self,
        (source, from): (&Core, DeviceSlice<'_, u8>),
        (target, to): (&Core, DeviceSlice<'_, u8>),
    ) -> Result<()> {
        let mut at = 0;
        while at < from.len() {
            let end = from.len().min(at + PIECE);
            let buffer = &mut self.buffers[self.next];
            self.next = (self.next + 1) % BUFFERS;
            if let Some(emptied) = &buffer.emptied {
                emptied.wait_on(source)?;
            }
            let piece = buffer.memory.slice().part(..end - at)?;
            submit(source, from.part(at..end)?, piece)?;
            order(source, target)?;
            submit(target, piece, to.part(at..end)?)?;
            let emptied = target.accelerator().event()?;
            emptied.record(target)?;
            buffer.emptied = Some(emptied);
            at = end;
        }
        Ok(())
    }
}

/// Submits a copy of which both ends are reached by the device of the stream.
fn submit(core: &Core, from: DeviceSlice<'_, u8>, to: DeviceSlice<'_, u8>) -> Result<()> {
    let here = core.device();
    let to = DeviceSliceMut::new(to.of_portable(here));
    let from = from.of_portable(here);
    core.lock().queue_mut().copy(&from, &to, WhenFull::Wait)
}
