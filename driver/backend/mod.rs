// SPDX-License-Identifier: GPL-2.0
//! The two kinds of devices, and what the driver asks of both.
//!
//! A *flat* device is any PCI function, driven from user space: its device addresses are those of
//! the IOMMU, and one context owns it. A *paged* device has an MMU of its own, so many contexts use
//! it at once, each with an address space.
//!
//! The methods of [`Backend`] are the life of a device and of its contexts, which both kinds have;
//! what only one kind can do is asked of [`Backend::flat`] or [`Backend::gpu`]. Contexts are named
//! by numbers that are never used again for the same device.

#[cfg(not(pinmap_flat))]
use crate::gpu::Gpu;
use crate::{
    address_space::AddressSpace,
    mapping::VramRange,
    mmu::DmaControl,
    sys::{
        iommu::Domain,
        pci::{runtime::Runtime, Function, Locked},
        task::account::Account,
    },
    uapi::{self, pinmap_info},
};
use kernel::{prelude::*, sync::Arc};

mod pci;
#[cfg(not(pinmap_flat))]
mod testgpu;

pub(crate) use pci::Flat;

/// A device, by its kind.
pub(crate) enum Backend {
    Flat(Pin<KBox<Flat>>),
    #[cfg(not(pinmap_flat))]
    Paged(Arc<Gpu>),
}

/// The part of a paged device that belongs to a context.
#[cfg(not(pinmap_flat))]
pub(crate) use crate::gpu::member::Member;
#[cfg(pinmap_flat)]
pub(crate) enum Member {}

/// The paged devices, which share memory that moves.
#[cfg(pinmap_mirror)]
pub(crate) use crate::gpu::vram::peers::Gpus;
#[cfg(not(pinmap_mirror))]
pub(crate) struct Gpus;

#[cfg(not(pinmap_mirror))]
impl Gpus {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self, GFP_KERNEL)?)
    }
}

/// The address space of a context of a paged device, and its part of the device.
pub(crate) struct Own {
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) member: Arc<Member>,
}

impl Backend {
    /// Finds out what kind of device `function` is. The one place that knows all of them.
    #[cfg_attr(pinmap_flat, expect(unused_variables))]
    pub(crate) fn choose(function: &Function, runtime: &Arc<Runtime>) -> Result<Self> {
        #[cfg(not(pinmap_flat))]
        if let Some(hardware) = testgpu::TestGpu::find(function)? {
            return Ok(Self::Paged(Gpu::new(function, runtime, hardware)?));
        }
        Ok(Self::Flat(KBox::pin_init(Flat::new(function), GFP_KERNEL)?))
    }

    /// The flat device; `EOPNOTSUPP` if the device is paged.
    pub(crate) fn flat(&self) -> Result<&Flat> {
        match self {
            Self::Flat(flat) => Ok(flat),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => Err(EOPNOTSUPP),
        }
    }

    /// The paged device; `EOPNOTSUPP` if the device is flat.
    #[cfg(not(pinmap_flat))]
    pub(crate) fn gpu(&self) -> Result<&Arc<Gpu>> {
        match self {
            Self::Flat(_) => Err(EOPNOTSUPP),
            Self::Paged(gpu) => Ok(gpu),
        }
    }

    /// A `PINMAP_KIND_` value.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Flat(_) => uapi::PINMAP_KIND_FLAT,
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => uapi::PINMAP_KIND_PAGED,
        }
    }

    /// Whether the device has memory that contexts can allocate.
    pub(crate) fn has_vram(&self) -> bool {
        !matches!(self, Self::Flat(_))
    }

    /// Whether the device's memory is a part of the host's.
    pub(crate) fn is_integrated(&self) -> bool {
        match self {
            Self::Flat(_) => false,
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.limits().integrated,
        }
    }

    /// Whether the device executes programs, from memory that is mapped for that.
    pub(crate) fn has_programs(&self) -> bool {
        match self {
            Self::Flat(_) => false,
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.limits().programs,
        }
    }

    /// Allocates `length` bytes of VRAM, zeroed, with P2PDMA pages if wanted. `ENOSPC`: not free in
    /// one piece; `EDQUOT`: more than the control group may have; `EOPNOTSUPP`: there can be no
    /// such pages.
    #[cfg_attr(pinmap_flat, expect(unused_variables))]
    pub(crate) fn allocate_vram(&self, length: u64, p2pdma: bool) -> Result<Arc<dyn VramRange>> {
        match self {
            Self::Flat(_) => Err(EOPNOTSUPP),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) if p2pdma => Ok(Gpu::allocate_p2pdma(gpu, length)?),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => Ok(Gpu::allocate(gpu, length)?),
        }
    }

    /// Starts a function that was bound, whose DMA goes through `domain`, and that cannot be opened
    /// yet. [`leave`](Self::leave) undoes this, also after a failure. `gpus` are those that are
    /// bound.
    #[cfg_attr(
        not(pinmap_mirror),
        allow(unused_variables, reason = "for memory that moves")
    )]
    pub(crate) fn start(
        &self,
        locked: &Locked<'_>,
        domain: &Arc<Domain>,
        dma_control: Arc<dyn DmaControl>,
        gpus: &Gpus,
    ) -> Result {
        match self {
            Self::Flat(_) => Ok(()),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => {
                Gpu::start(gpu, locked, domain, dma_control)?;
                #[cfg(pinmap_mirror)]
                gpus.join(gpu)?;
                Ok(())
            }
        }
    }

    /// Adds a context. Returns its address space and its part of the device, if that is paged.
    /// [`disown`](Self::disown) undoes this.
    #[cfg_attr(pinmap_flat, expect(unused_variables))]
    pub(crate) fn open(&self, context: u64, account: &Arc<Account>) -> Result<Option<Own>> {
        match self {
            Self::Flat(_) => Ok(None),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => {
                let (space, member) = Gpu::open(gpu, context, account)?;
                Ok(Some(Own { space, member }))
            }
        }
    }

    /// Claims the device for `context`. `EBUSY`: another context has it; `ENODEV`: the device is
    /// gone. Takes no lock that is held across allocations or page faults. Called only by
    /// [`Claim`](crate::claim::Claim), which calls [`end_claim`](Self::end_claim) once for each
    /// `true`; `false`: the context owns the device until it ends, and the call changes nothing.
    pub(crate) fn claim(&self, context: u64) -> Result<bool> {
        match self {
            Self::Flat(flat) => flat.claim(context),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.check_here().map(|()| true),
        }
    }

    /// Makes up for the reset of a flat device that failed when the last owner went, if nobody has
    /// claimed the device since. Not called with the mmap lock held.
    pub(crate) fn make_up(&self) {
        match self {
            Self::Flat(flat) => flat.make_up(),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => {}
        }
    }

    /// Fails if [`claim`](Self::claim) would, as far as can be told without doing anything.
    pub(crate) fn check_claim(&self, context: u64) -> Result {
        match self {
            Self::Flat(flat) => flat.check_claim(context),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => Ok(()),
        }
    }

    /// Ends a call that claimed the device: it has succeeded (`keep`) or failed. When the last call
    /// of a context fails and none has succeeded, the device is free again.
    pub(crate) fn end_claim(&self, context: u64, keep: bool) {
        match self {
            Self::Flat(flat) => flat.end_claim(context, keep),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => {}
        }
    }

    /// Stops the device for `context`: when this returns, it starts no DMA and no interrupt for the
    /// context any more.
    pub(crate) fn stop(&self, context: u64) {
        match self {
            Self::Flat(flat) => flat.stop(context),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.stop_context(context),
        }
    }

    /// Lets go of what the driver itself maps for the device, if nobody needs it at this moment.
    pub(crate) fn rest(&self) {
        match self {
            Self::Flat(_) => {}
            #[cfg(pinmap_mirror)]
            Self::Paged(gpu) => gpu.rest_mover(),
            #[cfg(not(any(pinmap_flat, pinmap_mirror)))]
            Self::Paged(_) => {}
        }
    }

    /// Takes interrupts and everything else from `context`, whose mappings are gone. If the device
    /// can be reset, nothing that it does for the next owner was begun by this one.
    pub(crate) fn disown(&self, context: u64) {
        match self {
            Self::Flat(flat) => flat.disown(context),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.close_context(context),
        }
    }

    /// Takes the device's memory from drivers of other devices, before [`leave`](Self::leave).
    /// `zap` unmaps it from user space. The I/O that they have begun goes on.
    #[cfg_attr(pinmap_flat, expect(unused_variables))]
    pub(crate) fn withdraw_p2pdma(&self, zap: &dyn Fn()) {
        match self {
            Self::Flat(_) => {}
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.withdraw_p2pdma(zap),
        }
    }

    /// Waits until the I/O has ended that drivers of other devices have begun. The function is
    /// being unbound.
    pub(crate) fn end_p2pdma(&self) {
        match self {
            Self::Flat(_) => {}
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.end_p2pdma(),
        }
    }

    /// Takes the device away from everybody: from now on calls fail with `ENODEV`, and no page of
    /// device memory is given out.
    #[cfg_attr(not(pinmap_mirror), expect(unused_variables))]
    pub(crate) fn leave(&self, gpus: &Gpus) {
        match self {
            Self::Flat(flat) => flat.leave(),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => {
                #[cfg(pinmap_mirror)]
                gpus.leave(gpu);
                gpu.leave();
            }
        }
    }

    /// Whether a context has the device, as all contexts of a paged one do.
    pub(crate) fn is_in_use(&self) -> bool {
        match self {
            Self::Flat(flat) => flat.is_in_use(),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => true,
        }
    }

    /// Whether `context` has the device, and so no other context can.
    pub(crate) fn is_owner(&self, context: u64) -> bool {
        match self {
            Self::Flat(flat) => flat.is_owner(context),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => false,
        }
    }

    /// Whether a reset would end something that a context began and that may still be going on.
    pub(crate) fn needs_reset(&self) -> bool {
        match self {
            Self::Flat(flat) => flat.needs_reset(),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.needs_reset(),
        }
    }

    /// Whether contexts can go on after a reset that they did not ask for. If not, such a reset
    /// begins with [`leave`](Self::leave): it takes queues, page tables and VRAM from all of them.
    pub(crate) fn survives_reset(&self) -> bool {
        matches!(self, Self::Flat(_))
    }

    /// Prepares for a reset: until [`after_reset`](Self::after_reset) no page of device memory is
    /// given out, and page faults wait.
    pub(crate) fn before_reset(&self) {
        match self {
            Self::Flat(flat) => flat.before_reset(),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => {}
        }
    }

    /// Goes on after a reset.
    pub(crate) fn after_reset(&self) {
        match self {
            Self::Flat(flat) => flat.after_reset(),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => {}
        }
    }

    /// Stops the device before the system sleeps; programs are frozen. `zap` unmaps its memory from
    /// user space. After an error it goes on. The steps are those of `gpu/sleep.rs`; a flat device
    /// has only the first and the last one.
    pub(crate) fn prepare_sleep(&self, zap: &dyn Fn()) -> Result {
        match self {
            Self::Flat(flat) => {
                flat.prepare_sleep();
                zap();
                Ok(())
            }
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.prepare_sleep(zap),
        }
    }

    /// Keeps what the device may forget.
    pub(crate) fn sleep(&self) {
        match self {
            Self::Flat(_) => {}
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.sleep(),
        }
    }

    /// Undoes [`sleep`](Self::sleep).
    pub(crate) fn resume(&self) {
        match self {
            Self::Flat(_) => {}
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.resume(),
        }
    }

    /// Undoes [`prepare_sleep`](Self::prepare_sleep): all devices are awake.
    pub(crate) fn go_on(&self) {
        match self {
            Self::Flat(flat) => flat.after_reset(),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.go_on(),
        }
    }

    /// Whether the device does nothing, and has not for `delay` nanoseconds. Nothing of it is
    /// stopped for that; what it can do better before, it does.
    #[cfg_attr(pinmap_flat, expect(unused_variables))]
    pub(crate) fn can_doze(&self, delay: u64) -> bool {
        match self {
            Self::Flat(_) => true,
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.can_doze(delay),
        }
    }

    /// Puts the device to sleep, while the system goes on. Nobody is in a call, and nobody has its
    /// memory mapped. `EBUSY`: it has something to do.
    pub(crate) fn doze(&self) -> Result {
        match self {
            Self::Flat(_) => Ok(()),
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => gpu.doze(),
        }
    }

    /// Undoes [`doze`](Self::doze).
    pub(crate) fn wake(&self) {
        match self {
            Self::Flat(_) => {}
            #[cfg(not(pinmap_flat))]
            Self::Paged(gpu) => {
                gpu.resume();
                gpu.go_on();
            }
        }
    }

    /// Fills in the answers of GET_INFO that the kinds differ in.
    pub(crate) fn describe(&self, context: u64, info: &mut pinmap_info) {
        match self {
            Self::Flat(flat) => flat.describe(context, info),
            #[cfg(not(pinmap_flat))]
            Self::Paged(_) => {
                info.out_kind = uapi::PINMAP_KIND_PAGED;
                if cfg!(pinmap_mirror) {
                    info.out_flags |= uapi::PINMAP_INFO_MANAGED;
                }
                if self.is_integrated() {
                    info.out_flags |= uapi::PINMAP_INFO_INTEGRATED;
                }
                if self.has_programs() {
                    info.out_flags |= uapi::PINMAP_INFO_PROGRAMS;
                }
            }
        }
    }
}
