// SPDX-License-Identifier: MIT OR Apache-2.0
//! State that all objects of a device share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pinmap::accelerator::{Accelerator, ManagedRange};
use pinmap::ErrorKind;
use pinmap_dynamic as dynamic;

/// State that all objects of a device share.
pub(crate) struct Shared {
    pub(crate) device: pinmap::Device,
    accelerator: OnceLock<Accelerator>,
    /// All of the program's memory as managed memory, once somebody has asked for that.
    all: OnceLock<ManagedRange>,
    /// Memory with an address, by the address and the number.
    known: Mutex<BTreeMap<(usize, u64), Weak<dynamic::Memory>>>,
}

impl Shared {
    pub(crate) fn new(device: pinmap::Device) -> Self {
        Self {
            device,
            accelerator: OnceLock::new(),
            all: OnceLock::new(),
            known: Mutex::default(),
        }
    }

    /// The device as one with queues.
    pub(crate) fn accelerator(&self) -> dynamic::Result<&Accelerator> {
        if let Some(accelerator) = self.accelerator.get() {
            return Ok(accelerator);
        }
        let accelerator = pinmap_testgpu::accelerator(&self.device)?;
        Ok(self.accelerator.get_or_init(|| accelerator))
    }

    /// Has all of the program's memory managed, as for arrays that streams name, unless the program
    /// has chosen ranges.
    pub(crate) fn manage_all(&self) -> dynamic::Result<()> {
        if self.all.get().is_some() {
            return Ok(());
        }
        match self.accelerator()?.manage_all() {
            Ok(all) => drop(self.all.set(all)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<(usize, u64), Weak<dynamic::Memory>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has arrays in this memory found.
    pub(crate) fn know(&self, memory: &Arc<dynamic::Memory>) {
        let mut known = self.known();
        // Once in a while, so that it costs nothing: memory that nobody has released by name.
        if known.len().is_power_of_two() {
            known.retain(|_, memory| memory.strong_count() != 0);
        }
        known.insert((memory.addr(), memory.id()), Arc::downgrade(memory));
    }

    pub(crate) fn forget(&self, memory: &dynamic::Memory) {
        self.known().remove(&(memory.addr(), memory.id()));
    }

    /// The memory in which these bytes are.
    pub(crate) fn find(&self, addr: usize, len: usize) -> Option<Arc<dynamic::Memory>> {
        let known = self.known();
        let before = known.range(..=(addr, u64::MAX)).rev();
        let mut alive = before.filter_map(|(_, memory)| memory.upgrade());
        alive.find(|memory| addr - memory.addr() + len <= memory.len())
    }
}
