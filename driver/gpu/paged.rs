// SPDX-License-Identifier: GPL-2.0
//! The backend of paged devices.

use super::{close, member::Member, vm::Vm, vram::Block, Gpu};
use crate::{
    backend::{Backend, LocalMemory},
    mapping::{AddressSpace, Guardian},
    sys::{
        account::Account,
        compat,
        eventfd::EventFd,
        iommu::Domain,
        pci::Locked,
        uapi::{self, pinmap_info},
    },
    view,
};
use kernel::{
    prelude::*,
    rbtree::RBTreeNodeReservation,
    sync::{atomic::Relaxed, Arc},
};

/// The backend of paged devices.
pub(crate) struct Paged(Arc<Gpu>);

impl Paged {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Self {
        Self(gpu)
    }

    fn member(&self, context: u64) -> Option<Arc<Member>> {
        self.0.members.lock().get(&context).cloned()
    }
}

impl Backend for Paged {
    fn start(
        &self,
        locked: &Locked<'_>,
        domain: &Arc<Domain>,
        guardian: Arc<dyn Guardian>,
    ) -> Result {
        Gpu::start(&self.0, locked, domain, guardian)
    }

    fn open(&self, context: u64, account: &Arc<Account>) -> Result<Option<Arc<AddressSpace>>> {
        let gpu = &self.0;
        gpu.check_here()?;
        let bus = {
            let link = gpu.link.lock();
            link.as_ref().ok_or(ENODEV)?.bus.clone()
        };
        let vm = Vm::new(gpu, account)?;
        let (lower, upper) = Vm::spaces(&vm, &bus)?;
        let member = Arc::pin_init(Member::new(vm, upper, account.clone()), GFP_KERNEL_ACCOUNT)?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let mut members = gpu.members.lock();
        members.insert(node.into_node(context, member));
        Ok(Some(lower))
    }

    fn gpu(&self) -> Option<&Arc<Gpu>> {
        Some(&self.0)
    }

    fn has_memory(&self) -> bool {
        true
    }

    fn allocate(&self, length: u64) -> Result<LocalMemory> {
        let block = Arc::new(Block::new(&self.0, length)?, GFP_KERNEL_ACCOUNT)?;
        Ok(LocalMemory {
            local: block.clone(),
            pages: block,
        })
    }

    fn claim(&self, _context: u64) -> Result {
        self.0.check_here()
    }

    fn settle(&self, _context: u64, _keep: bool) {}

    fn stop(&self, context: u64) {
        let Some(member) = self.member(context) else {
            return;
        };
        // All of them at once, so that it takes no longer than the longest packet.
        member.close(|queue| {
            self.0.try_remove(queue);
        });
        while let Some(queue) = member.take_any() {
            close(&self.0, &queue);
        }
        // If the device does not forget, it is blocked, and nobody can reach anything.
        let _ = self.0.retire(member.vm());
    }

    fn disown(&self, context: u64) {
        let node = self.0.members.lock().remove_node(&context);
        drop(node);
    }

    fn leave(&self) {
        self.0.leave();
    }

    fn is_in_use(&self) -> bool {
        self.0.uses.load(Relaxed) != 0 || !self.0.members.lock().is_empty()
    }

    fn resume(&self) {
        self.0.resume();
    }

    /// Its own reset, by which it was made quiet, leaves in its memory what contexts had there.
    fn needs_reset(&self) -> bool {
        self.0.function.can_reset()
    }

    /// It takes queues, page tables and device memory from everybody.
    fn survives_reset(&self) -> bool {
        false
    }

    fn describe(&self, _context: u64, info: &mut pinmap_info) {
        info.out_kind = uapi::PINMAP_KIND_PAGED;
    }

    fn check_view(&self, offset: u64, _length: u64) -> Result<bool> {
        // A BAR, and those are the driver's.
        Err(if offset < view::START {
            compat::unsupported()
        } else {
            EINVAL
        })
    }

    fn fault(&self, _offset: u64, _insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        None
    }

    fn has_vectors(&self) -> bool {
        false
    }

    fn has_vector(&self, _index: u32) -> bool {
        false
    }

    fn set_vector(&self, _index: u32, _eventfd: Option<EventFd>) -> Result {
        Err(compat::unsupported())
    }

    fn can_reset(&self) -> bool {
        false
    }

    fn reset(&self) -> Result {
        Err(compat::unsupported())
    }
}
