// SPDX-License-Identifier: GPL-2.0
//! Peers: paged devices that reach each other's VRAM on the bus.
//!
//! Memory that one device has and another one needs moves between them without the host's. The
//! engine of the one that needs it reads it in the VRAM of the other, by the addresses of a window
//! (`copy_window.rs`), which are mapped to the other's BAR for as long as the copy takes. The
//! kernel knows whether the bus lets such accesses through; where it does not, memory moves by way
//! of the host.
//!
//! A device that leaves no longer lets anybody begin to read its VRAM, and waits for those that do.
//!
//! What the kernel knows of the bus may be wrong, in a virtual machine above all. So a peer from
//! which a copy has failed is a peer no more, and its memory moves by way of the host.
//!
//! Source: `Documentation/driver-api/pci/p2pdma.rst`.

use crate::{
    gpu::{mmu::pager::Taker, Gpu},
    logic::{block::Pages, span::Span},
    sys::mm::{
        areas::Areas,
        hmm::{Leaf, Snapshot},
    },
};
use core::ptr;
use kernel::{
    device, new_condvar, new_mutex,
    prelude::*,
    sync::{Arc, CondVar, Mutex},
};

/// All paged devices that are bound: one list, which the module makes.
#[pin_data]
pub(crate) struct Gpus {
    #[pin]
    all: Mutex<KVec<Arc<Gpu>>>,
}

impl Gpus {
    /// Makes an empty list.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let gpus = pin_init!(Self {
            all <- new_mutex!(KVec::new(), "pinmap_gpus"),
        });
        Arc::pin_init(gpus, GFP_KERNEL)
    }

    /// Adds `gpu`, which was started, and finds out who reaches whom. Undone by
    /// [`leave`](Self::leave), also after a failure.
    pub(crate) fn join(&self, gpu: &Arc<Gpu>) -> Result {
        let mut all = self.all.lock();
        all.push(gpu.clone(), GFP_KERNEL)?;
        for other in all.iter().filter(|other| !Arc::ptr_eq(other, gpu)) {
            if gpu.function.reaches(&other.function) {
                gpu.peers.reached.lock().push(other.clone(), GFP_KERNEL)?;
            }
            if other.function.reaches(&gpu.function) {
                other.peers.reached.lock().push(gpu.clone(), GFP_KERNEL)?;
            }
        }
        Ok(())
    }

    /// Removes `gpu`, if it was added. When this returns, nobody reads its VRAM any more.
    pub(crate) fn leave(&self, gpu: &Gpu) {
        let mut all = self.all.lock();
        all.retain(|other| !ptr::eq(&raw const **other, gpu));
        for other in &*all {
            let mut reached = other.peers.reached.lock();
            reached.retain(|peer| !ptr::eq(&raw const **peer, gpu));
        }
        drop(all);
        gpu.peers.reached.lock().clear();
        let mut readers = gpu.peers.readers.lock();
        readers.closed = true;
        while readers.count != 0 {
            gpu.peers.idle.wait(&mut readers);
        }
    }
}

/// A device that reads the VRAM of another one.
struct Readers {
    closed: bool,
    count: usize,
}

#[pin_data]
pub(in crate::gpu) struct Peers {
    /// Devices whose VRAM it reaches.
    #[pin]
    reached: Mutex<KVec<Arc<Gpu>>>,
    #[pin]
    readers: Mutex<Readers>,
    /// Signalled when the last reader has gone.
    #[pin]
    idle: CondVar,
}

impl Peers {
    pub(in crate::gpu) fn new() -> impl PinInit<Self> {
        let readers = Readers {
            closed: false,
            count: 0,
        };
        pin_init!(Self {
            reached <- new_mutex!(KVec::new(), "pinmap_reached"),
            readers <- new_mutex!(readers, "pinmap_readers"),
            idle <- new_condvar!("pinmap_no_readers"),
        })
    }
}

/// The right to map the BAR of a peer, which does not leave as long as this exists.
pub(super) struct Reading(Arc<Gpu>);

impl Reading {
    /// `ENODEV`: the peer leaves.
    pub(super) fn begin(peer: &Arc<Gpu>) -> Result<Self> {
        let mut readers = peer.peers.readers.lock();
        if readers.closed {
            return Err(ENODEV);
        }
        readers.count = readers.count.checked_add(1).ok_or(EBUSY)?;
        Ok(Self(peer.clone()))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut readers = self.0.peers.readers.lock();
        readers.count = readers.count.saturating_sub(1);
        if readers.count == 0 {
            self.0.peers.idle.notify_all();
        }
    }
}

/// A peer that has pages of a block, and the block's page table as the peer sees it.
pub(crate) struct Holder {
    gpu: Arc<Gpu>,
    pub(crate) snapshot: Snapshot,
}

impl Holder {
    /// Has `taker` take pages from the peer.
    pub(crate) fn source(&self, taker: Taker) -> PeerSource<'_> {
        PeerSource {
            gpu: &self.gpu,
            taker,
        }
    }
}

/// A peer from which pages move.
#[derive(Clone, Copy)]
pub(crate) struct PeerSource<'a> {
    pub(super) gpu: &'a Arc<Gpu>,
    pub(super) taker: Taker,
}

impl Gpu {
    /// Finds a peer that has any of the `pages`, in `block` of the memory of `areas`, which the
    /// process can write to as they are. The others may be another process's too: they come home,
    /// which gives each process its own.
    pub(crate) fn holder(
        &self,
        areas: &Areas<'_>,
        block: Span,
        pages: impl Fn() -> Pages,
    ) -> Result<Option<Holder>> {
        let mut wanted = None;
        let mut number = 0_usize;
        let mut spare = None;
        loop {
            let peer = self.peers.reached.lock().get(number).cloned();
            let Some(gpu) = peer else {
                return Ok(None);
            };
            number = number.saturating_add(1);
            if !gpu.has_private() {
                continue;
            }
            let wanted = *wanted.get_or_insert_with(&pages);
            if wanted.is_empty() {
                return Ok(None);
            }
            let mut snapshot = match spare.take() {
                Some(snapshot) => snapshot,
                None => Snapshot::new()?,
            };
            snapshot.read_locked(areas, block.start(), gpu.token())?;
            let is_there = |index| match snapshot.leaf(index) {
                Leaf::Page { pfn, write } => write && gpu.offset_of(pfn).is_some(),
                Leaf::Absent | Leaf::Forbidden => false,
            };
            if wanted.iter().any(is_there) {
                return Ok(Some(Holder { gpu, snapshot }));
            }
            spare = Some(snapshot);
        }
    }

    /// Takes nothing from `peer` directly any more: a copy has failed.
    pub(super) fn forget_peer(&self, peer: &Arc<Self>, error: Error) {
        let mut reached = self.peers.reached.lock();
        let before = reached.len();
        reached.retain(|other| !Arc::ptr_eq(other, peer));
        let is_new = reached.len() != before;
        drop(reached);
        if is_new {
            let dev: &device::Device = self.function.as_ref();
            dev_warn!(
                dev,
                "a copy from another device has failed ({}): the next go by way of the host\n",
                error.to_errno()
            );
        }
    }

    /// Returns the page frame on the bus of the page of VRAM with frame number `pfn`, if it is
    /// there.
    pub(super) fn bus_frame(&self, pfn: u64) -> Option<u64> {
        let offset = self.offset_of(pfn)?;
        Some(self.hardware.memory_frame(offset))
    }
}
