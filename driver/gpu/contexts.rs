// SPDX-License-Identifier: GPL-2.0
//! The contexts of a paged device: each has a [`Member`], from when it is opened until it is
//! closed.

use super::{close, member::Member, mmu::vm::Vm, Gpu};
use crate::{address_space::AddressSpace, sys::task::account::Account};
use kernel::{prelude::*, rbtree::RBTreeNodeReservation, sync::Arc};

impl Gpu {
    /// Adds a context. Returns the addresses for its programs, and the member.
    pub(crate) fn open(
        this: &Arc<Self>,
        context: u64,
        account: &Arc<Account>,
    ) -> Result<(Arc<AddressSpace>, Arc<Member>)> {
        this.check_here()?;
        let bus = {
            let bus = this.bus.lock();
            bus.as_ref().ok_or(ENODEV)?.space.clone()
        };
        let vm = Vm::new(this, account)?;
        let (lower, upper) = Vm::spaces(&vm, &bus)?;
        let member = Arc::pin_init(Member::new(vm, upper, account.clone()), GFP_KERNEL_ACCOUNT)?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let mut members = this.members.lock();
        members.insert(node.into_node(context, member.clone()));
        Ok((lower, member))
    }

    fn find_member(&self, context: u64) -> Option<Arc<Member>> {
        self.members.lock().get(&context).cloned()
    }

    /// Closes all queues of a context, and takes its VMID. When this returns, the device does
    /// nothing for the context any more.
    pub(crate) fn stop_context(&self, context: u64) {
        let Some(member) = self.find_member(context) else {
            return;
        };
        // All queues are told first, so that this takes no longer than the longest packet.
        member.close(|queue| {
            self.try_remove(queue);
        });
        while let Some(queue) = member.take_any() {
            close(self, &queue);
        }
        member.vm().end_pager();
        // If the device does not forget, it is blocked, and reaches nobody's memory.
        let _ = self.retire(member.vm());
    }

    /// Removes a context, whose mappings are gone.
    pub(crate) fn close_context(&self, context: u64) {
        let node = self.members.lock().remove_node(&context);
        drop(node);
    }
}
