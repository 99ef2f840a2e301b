// SPDX-License-Identifier: MIT OR Apache-2.0
//! A controller: brought up, identified, and the maker of queues and namespaces.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pinmap::Device;

use crate::admin::Shared;
use crate::error::{demand, Error, Result};
use crate::identify::{format, number, Identity, Namespace};
use crate::log::{Event, Health, Logged, ERRORS, HEALTH};
use crate::memory::Memory;
use crate::options::QueueOptions;
use crate::queue::Queue;

/// An NVMe controller that this program drives. Its queues and namespaces keep it up: when the last
/// of them is dropped, the controller is shut down.
#[derive(Debug, Clone)]
pub struct Controller {
    shared: Arc<Shared>,
}

impl Controller {
    /// Resets a controller, brings it up, and identifies it. Takes its interrupt vector 0.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the device is no NVMe controller; [`Error::Unsupported`]: it cannot do
    /// what this driver needs; [`Error::Pinmap`]: another program owns it, for instance;
    /// [`Error::TimedOut`], [`Error::Fatal`], [`Error::Gone`]: it does not come up.
    pub fn open(device: &Device) -> Result<Self> {
        let shared = Arc::new(Shared::new(device)?);
        Ok(Self { shared })
    }

    #[cfg(feature = "accelerator")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The properties of the controller.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Asks for the numbers of the namespaces that are active.
    ///
    /// # Errors
    ///
    /// [`Error::Status`]: the controller reports an error; otherwise as for
    /// [`namespace`](Self::namespace).
    pub fn namespaces(&self) -> Result<Vec<u32>> {
        let mut found: Vec<u32> = Vec::new();
        loop {
            let behind = found.last().copied().unwrap_or(0);
            let page = self.shared.identify(behind, 2)?;
            let numbers = page.chunks_exact(4).map(|bytes| number(bytes, 0..4) as u32);
            let before = found.len();
            found.extend(numbers.take_while(|&number| number > behind));
            // They grow, so this ends even if the controller repeats itself.
            if found.len() - before < page.len() / 4 {
                return Ok(found);
            }
        }
    }

    /// Identifies a namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: there is none with this number, or it is not active;
    /// [`Error::Unsupported`]: its blocks have metadata, or other lengths than 512 bytes to 64 KiB;
    /// [`Error::TimedOut`], [`Error::Fatal`], [`Error::Gone`]: the controller does not answer.
    pub fn namespace(&self, id: u32) -> Result<Namespace> {
        // The last two numbers mean all namespaces.
        demand!(Invalid, (1..0xffff_fffe).contains(&id) => "there is no namespace {id}");
        match self.shared.identify(id, 0) {
            Ok(page) => format(id, &page).map(|(blocks, shift)| Namespace {
                controller: Arc::clone(&self.shared),
                id,
                blocks,
                shift,
            }),
            Err(Error::Status(status)) if (status.kind(), status.code()) == (0, 0x0b) => {
                Err(Error::Invalid(format!("there is no namespace {id}")))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a queue, for commands with memory of one type. Its commands wait for no other queue,
    /// so each thread has one of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the options make no sense; [`Error::Unsupported`]: the controller has no
    /// more queues; [`Error::Pinmap`]: there is no interrupt vector left, or no memory.
    pub fn queue<M: Memory>(&self, options: QueueOptions) -> Result<Queue<M>> {
        Queue::new(Arc::clone(&self.shared), options)
    }

    /// Waits until the controller reports something by itself, but no longer than some time, which
    /// can be zero. Returns `None` if that was up first. An event waits for the program, and all
    /// others wait behind it.
    ///
    /// # Errors
    ///
    /// [`Error::Down`]: the controller did not come up after a reset; [`Error::TimedOut`],
    /// [`Error::Fatal`], [`Error::Confused`], [`Error::Gone`]: it does not answer as it should.
    pub fn event(&self, within: Duration) -> Result<Option<Event>> {
        let since = Instant::now();
        loop {
            if let Some(event) = self.shared.event()? {
                return Ok(Some(event));
            }
            match within.saturating_sub(since.elapsed()) {
                Duration::ZERO => return Ok(None),
                left => self.shared.pause(left)?,
            }
        }
    }

    /// Asks how the controller and its medium are (the SMART log). Fails as
    /// [`namespaces`](Self::namespaces) does.
    pub fn health(&self) -> Result<Health> {
        Ok(Health::of(&self.shared.log(HEALTH, 512)?))
    }

    /// Asks for the latest errors that the controller has logged, at most 64, the latest first.
    /// Fails as [`namespaces`](Self::namespaces) does.
    pub fn errors(&self) -> Result<Vec<Logged>> {
        let len = 64 * self.identity().logged;
        Ok(Logged::all(&self.shared.log(ERRORS, len)?))
    }

    /// Resets the controller. Commands in flight end with [`Error::Reset`], and all queues can be
    /// used further on.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Fatal`], [`Error::Gone`]: the controller does not come up.
    pub fn reset(&self) -> Result<()> {
        self.shared.reset(self.shared.generation())
    }
}
