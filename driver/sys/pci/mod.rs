// SPDX-License-Identifier: GPL-2.0
//! PCI functions and their drivers.
//!
//! `kernel::pci` cannot register a driver that manages its own DMA, has no ids of its own, and is
//! told about shutdown and suspend.
//!
//! C header: [`include/linux/pci.h`](srctree/include/linux/pci.h).

pub(crate) mod bar_pages;
pub(crate) mod irq_eventfd;
#[cfg(not(pinmap_flat))]
pub(crate) mod irq_thread;
#[cfg(not(pinmap_flat))]
pub(crate) mod mmio;
#[cfg(not(pinmap_flat))]
pub(crate) mod p2pdma;
mod power;
pub(crate) mod runtime;

use super::helpers;
use crate::{
    logic::{msix::Msix, span::Span},
    uapi,
};
use core::pin::Pin;
use kernel::{
    bindings, device,
    error::{from_result, to_result},
    ffi,
    module::this_module,
    pci,
    prelude::*,
    sync::{aref::ARef, Arc},
    types::{ForeignOwnable, Opaque},
};

/// A PCI function, with a reference.
#[derive(Clone)]
pub(crate) struct Function(ARef<pci::Device>);

/// A base address register.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bar {
    /// Physical address, which never leaves the kernel.
    pub(crate) start: u64,
    /// Length in bytes; 0 if there is no such BAR.
    pub(crate) length: u64,
    /// Flags: `PINMAP_BAR_`.
    pub(crate) flags: u32,
    /// Range of the BAR that holds the MSI-X table or its pending bits.
    pub(crate) msix: Option<Span>,
}

impl Function {
    /// # Safety
    ///
    /// `pdev` must be valid.
    unsafe fn from_raw(pdev: *mut bindings::pci_dev) -> Self {
        // SAFETY: `pci::Device` is a transparent wrapper of `struct pci_dev`; valid by the
        // requirements.
        Self(unsafe { &*pdev.cast::<pci::Device>() }.into())
    }

    pub(super) fn as_raw(&self) -> *mut bindings::pci_dev {
        // CAST: `pci::Device` is a transparent wrapper of `struct pci_dev`.
        core::ptr::from_ref::<pci::Device>(&self.0)
            .cast_mut()
            .cast()
    }

    pub(super) fn as_dev(&self) -> *mut bindings::device {
        // SAFETY: The device is valid as long as `self`.
        unsafe { &raw mut (*self.as_raw()).dev }
    }

    /// Describes base address register `index`, from 0 to 5.
    pub(crate) fn bar(&self, index: u32) -> Bar {
        let mut bar = helpers::pinmap_pci_bar::default();
        // SAFETY: The function is valid, and `index` below the number of resources.
        unsafe { helpers::pinmap_pci_bar(self.as_raw(), index, &mut bar) };
        Bar {
            start: bar.start,
            length: bar.length,
            flags: bar.flags,
            msix: self.msix_in(index),
        }
    }

    /// Returns the range of the BAR `index` that holds MSI-X structures.
    fn msix_in(&self, index: u32) -> Option<Span> {
        let mut found = helpers::pinmap_pci_msix::default();
        // SAFETY: The function is valid.
        match to_result(unsafe { helpers::pinmap_pci_msix(self.as_raw(), &mut found) }) {
            Ok(()) => Msix {
                vectors: found.vectors,
                table: (found.table_bar, found.table_offset),
                pending: (found.pending_bar, found.pending_offset),
            }
            .bytes_in(index),
            Err(error) if error == ENOENT => None,
            // The capability cannot be read, so the structures may be anywhere.
            Err(_) => Span::from_bounds(0, u64::MAX),
        }
    }

    /// Fills in the ids and the address of the function.
    pub(crate) fn identify(&self, info: &mut uapi::pinmap_info) {
        // SAFETY: Both are valid.
        unsafe { helpers::pinmap_pci_ids(self.as_raw(), info) };
    }

    /// Number of message-signalled interrupt vectors that the function has.
    pub(crate) fn vectors(&self) -> u32 {
        // SAFETY: The function is valid.
        unsafe { helpers::pinmap_pci_vectors(self.as_raw()) }.unsigned_abs()
    }

    /// Allows or forbids the function to do DMA and to raise message-signalled interrupts.
    pub(crate) fn set_master(&self, on: bool) {
        // SAFETY: The function is valid. After removal, both calls have no effect.
        unsafe {
            if on {
                bindings::pci_set_master(self.as_raw());
            } else {
                bindings::pci_clear_master(self.as_raw());
            }
        }
    }

    /// Whether the function reaches the memory of `peer` on the bus.
    pub(crate) fn reaches(&self, peer: &Self) -> bool {
        // SAFETY: Both functions are valid.
        unsafe { helpers::pinmap_pci_reaches(self.as_raw(), peer.as_raw()) }
    }

    /// Whether the function caches translations of the IOMMU.
    pub(crate) fn uses_ats(&self) -> bool {
        // SAFETY: The function is valid.
        unsafe { helpers::pinmap_pci_uses_ats(self.as_raw()) }
    }

    pub(crate) fn can_reset(&self) -> bool {
        // SAFETY: The function is valid.
        unsafe { helpers::pinmap_pci_can_reset(self.as_raw()) }
    }

    /// Resets the function, and restores its configuration. Fails with `EAGAIN` while somebody else
    /// binds, unbinds or resets it.
    pub(crate) fn reset(&self) -> Result {
        // SAFETY: The function is valid.
        to_result(unsafe { bindings::pci_try_reset_function(self.as_raw()) })
    }
}

/// A function that is being bound or unbound: its device lock is held.
///
/// # Invariants
///
/// The pointer is valid, and the driver core holds the lock.
pub(crate) struct Locked<'a>(&'a Opaque<bindings::pci_dev>);

impl Locked<'_> {
    /// Resets the function, and restores its configuration.
    pub(crate) fn reset(&self) -> Result {
        // SAFETY: By the type invariants.
        to_result(unsafe { bindings::pci_reset_function_locked(self.0.get()) })
    }
}

impl AsRef<device::Device> for Function {
    fn as_ref(&self) -> &device::Device {
        self.0.as_ref()
    }
}

/// A function that is switched on, and whose regions are requested.
///
/// # Invariants
///
/// The function is enabled, and its regions requested, by us. Its first `combining` BARs are
/// reserved as write-combined, where they can be.
pub(crate) struct Enabled {
    function: Function,
    combining: u32,
    /// The limits of the DMA API before, on which the next driver may rely.
    limits: helpers::pinmap_dma_limits,
}

/// Base address registers that a function has.
const NR_BARS: u32 = 6;

impl Enabled {
    /// Switches `function` on, without DMA, and takes its regions.
    pub(crate) fn new(function: &Function) -> Result<Self> {
        let raw = function.as_raw();
        // SAFETY: The function is valid and bound to us.
        to_result(unsafe { bindings::pci_enable_device(raw) })?;
        function.set_master(false);
        // SAFETY: The function is valid and enabled by us.
        let requested =
            unsafe { bindings::pci_request_regions(raw, c"pinmap".as_char_ptr().cast()) };
        if let Err(error) = to_result(requested) {
            // SAFETY: Enabled just above.
            unsafe { bindings::pci_disable_device(raw) };
            return Err(error);
        }
        // This driver cannot handle level-triggered interrupts. Whoever enables the function next
        // switches them on again.
        //
        // SAFETY: The function is valid and enabled by us.
        unsafe { bindings::pci_intx(raw, 0) };
        // SAFETY: The function is valid, and being bound to us.
        unsafe { helpers::pinmap_pci_init_peers(raw) };
        // Only exporters of other drivers map by the DMA API, in a domain of all addresses.
        let mut limits = helpers::pinmap_dma_limits {
            mask: u64::MAX,
            segment: u32::MAX.into(),
        };
        // SAFETY: The function is valid, and being bound to us.
        unsafe { helpers::pinmap_pci_exchange_limits(raw, &mut limits) };
        // INVARIANT: The function is enabled and its regions are requested.
        let mut this = Self {
            function: function.clone(),
            combining: 0,
            limits,
        };
        while this.combining < NR_BARS {
            // SAFETY: The function is valid, and its regions are ours.
            to_result(unsafe { helpers::pinmap_pci_combine(raw, this.combining, true) })?;
            // INVARIANT: One more BAR is reserved.
            this.combining = this.combining.saturating_add(1);
        }
        Ok(this)
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        let raw = self.function.as_raw();
        // SAFETY: By the type invariants.
        unsafe {
            for index in 0..self.combining {
                helpers::pinmap_pci_combine(raw, index, false);
            }
            helpers::pinmap_pci_exchange_limits(raw, &mut self.limits);
            bindings::pci_release_regions(raw);
            bindings::pci_disable_device(raw);
        }
    }
}

/// A driver of PCI functions that manages their DMA itself. The driver has no ids: functions come
/// to it by `driver_override` or `new_id`.
pub(crate) trait Driver: Send + Sync + Sized + 'static {
    /// Name of the driver in sysfs.
    const NAME: &'static CStr;

    /// The data that all functions of the driver share.
    type Shared: Send + Sync;

    /// Binds `function`. The result is kept until the function is unbound, and then dropped.
    fn probe(
        function: Function,
        locked: &Locked<'_>,
        shared: &Arc<Self::Shared>,
    ) -> Result<Pin<KBox<Self>>>;

    /// Called before the function is unbound. The function is there as long as `self`.
    fn unbind(&self, locked: &Locked<'_>);

    /// Called before the function is reset, by anybody: nothing may touch its memory from now on.
    /// May be called from [`unbind`](Self::unbind).
    fn before_reset(&self);

    /// Called after the function was reset. Its configuration was restored.
    fn after_reset(&self);

    /// Called after an error on the bus has cut the function off: it reaches nothing and answers
    /// nothing. It will be reset, or is not there any more.
    fn cut_off(&self);

    /// Called when the system shuts down: the function must not do anything any more.
    fn shutdown(&self);

    /// Called before the system sleeps, when programs are frozen, and before any device sleeps.
    /// After an error the system does not sleep.
    fn prepare_sleep(&self) -> Result;

    /// Called when the function is to sleep.
    fn sleep(&self);

    /// Called after [`sleep`](Self::sleep) when a snapshot of the system was made and is going to
    /// be written to a disk. The function is awake, and the system will be switched off.
    fn sleep_on(&self);

    /// Called after [`sleep`](Self::sleep), when the function is awake. Its configuration was
    /// restored.
    fn resume(&self);

    /// Called after [`prepare_sleep`](Self::prepare_sleep), when all devices are awake.
    fn go_on(&self);

    /// Puts the function to sleep, if nobody uses it, while the system goes on. Returns whether it
    /// did.
    fn doze(&self) -> bool;

    /// Undoes [`doze`](Self::doze). The function is awake, and its configuration was restored.
    fn wake(&self);
}

/// A registered driver. Dropping it unbinds all of its functions.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<T: Driver> {
    #[pin]
    driver: Opaque<bindings::pci_driver>,
    shared: Arc<T::Shared>,
}

// SAFETY: A driver may be registered and unregistered from any thread.
unsafe impl<T: Driver> Send for Registration<T> {}
// SAFETY: A shared reference gives access to nothing: the struct has no methods, and its fields are
// used only while it is made and dropped.
unsafe impl<T: Driver> Sync for Registration<T> {}

#[repr(transparent)]
struct Errors(bindings::pci_error_handlers);
// SAFETY: The table is never written to.
unsafe impl Sync for Errors {}

#[repr(transparent)]
struct Ids([bindings::pci_device_id; 2]);
// SAFETY: The table is never written to.
unsafe impl Sync for Ids {}

/// The id table: any function, but only where `driver_override` names the driver. An empty table
/// would not do, for `new_id` takes an id only if its driver data occurs in the table.
static IDS: Ids = Ids([
    bindings::pci_device_id {
        vendor: !0,
        device: !0,
        subvendor: !0,
        subdevice: !0,
        override_only: 1, // PCI_ID_F_VFIO_DRIVER_OVERRIDE
        ..pin_init::zeroed()
    },
    pin_init::zeroed(),
]);

impl<T: Driver> Registration<T> {
    const ERRORS: &'static Errors = &Errors(bindings::pci_error_handlers {
        error_detected: Some(Self::error_detected),
        reset_prepare: Some(Self::reset_prepare),
        reset_done: Some(Self::reset_done),
        ..pin_init::zeroed()
    });

    /// Registers the driver.
    pub(crate) fn new(shared: Arc<T::Shared>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // Before `driver`, since registering that may call `probe`.
            shared,
            driver <- Opaque::try_ffi_init(|slot: *mut bindings::pci_driver| {
                let mut driver: bindings::pci_driver = pin_init::zeroed();
                driver.name = T::NAME.as_char_ptr().cast();
                driver.id_table = IDS.0.as_ptr();
                driver.probe = Some(Self::probe);
                driver.remove = Some(Self::remove);
                driver.shutdown = Some(Self::shutdown);
                driver.driver.pm = &raw const Self::POWER.0;
                driver.err_handler = &raw const Self::ERRORS.0;
                driver.driver_managed_dma = true;
                // SAFETY: `slot` is valid for writing, and pinned until it is unregistered.
                to_result(unsafe {
                    slot.write(driver);
                    bindings::__pci_register_driver(
                        slot,
                        this_module::<crate::LocalModule>().as_ptr(),
                        T::NAME.as_char_ptr().cast(),
                    )
                })
            }),
        }? Error)
    }

    /// Returns what `probe` returned for `dev`, if the device is bound.
    ///
    /// # Safety
    ///
    /// `dev` must be a valid device of this driver, and its device lock be held.
    unsafe fn data<'a>(dev: *mut bindings::device) -> Option<Pin<&'a T>> {
        // SAFETY: By the requirements.
        let data = unsafe { bindings::dev_get_drvdata(dev) };
        if data.is_null() {
            return None;
        }
        // SAFETY: Only `probe` sets the data; it stays until `remove`, under the same lock.
        Some(unsafe { Pin::<KBox<T>>::borrow(data) })
    }

    /// # Safety
    ///
    /// Called by the PCI core.
    unsafe extern "C" fn probe(
        pdev: *mut bindings::pci_dev,
        _id: *const bindings::pci_device_id,
    ) -> ffi::c_int {
        // SAFETY: The device is valid.
        let function = unsafe { Function::from_raw(pdev) };
        let dev = function.as_dev();
        from_result(|| {
            // SAFETY: `struct pci_dev` is only ever used by C.
            let locked = unsafe { &*pdev.cast::<Opaque<bindings::pci_dev>>() };
            // SAFETY: The PCI core has set `driver` to that of a `Registration`, whose `shared` was
            // written before.
            let shared = unsafe {
                let driver = Opaque::cast_from((*pdev).driver);
                &(*kernel::container_of!(driver, Self, driver)).shared
            };
            // INVARIANT: Valid, with the lock held.
            let data = T::probe(function, &Locked(locked), shared)?;
            // SAFETY: The device is valid, and being bound to us.
            unsafe {
                bindings::dev_set_drvdata(dev, data.into_foreign().cast());
                helpers::pinmap_runtime_begin(pdev);
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the PCI core.
    unsafe extern "C" fn remove(pdev: *mut bindings::pci_dev) {
        // SAFETY: Valid, with the device lock held.
        let dev = unsafe { &raw mut (*pdev).dev };
        // SAFETY: The device is valid, and its lock held.
        let Some(data) = (unsafe { Self::data(dev) }) else {
            return;
        };
        // SAFETY: The device was bound to us, and the PCI core has woken it.
        unsafe { helpers::pinmap_runtime_end(pdev) };
        // SAFETY: `struct pci_dev` is only ever used by C.
        let locked = unsafe { &*pdev.cast::<Opaque<bindings::pci_dev>>() };
        // INVARIANT: Valid, with the lock held.
        data.get_ref().unbind(&Locked(locked));
        // SAFETY: `probe` set the data, and nobody uses it any more.
        unsafe {
            let data = bindings::dev_get_drvdata(dev);
            bindings::dev_set_drvdata(dev, core::ptr::null_mut());
            drop(Pin::<KBox<T>>::from_foreign(data.cast()));
        }
    }

    /// # Safety
    ///
    /// Called by the PCI core.
    unsafe extern "C" fn shutdown(pdev: *mut bindings::pci_dev) {
        // SAFETY: Valid, with the device lock held.
        if let Some(data) = unsafe { Self::data(&raw mut (*pdev).dev) } {
            data.get_ref().shutdown();
        }
    }

    /// # Safety
    ///
    /// Called by the PCI core.
    unsafe extern "C" fn error_detected(
        pdev: *mut bindings::pci_dev,
        state: bindings::pci_channel_state_t,
    ) -> bindings::pci_ers_result_t {
        if state == helpers::PINMAP_BUS_WORKS {
            // One transfer was lost, and the function goes on.
            return helpers::PINMAP_BUS_CAN_RECOVER;
        }
        // SAFETY: Valid, with the device lock held.
        if let Some(data) = unsafe { Self::data(&raw mut (*pdev).dev) } {
            data.get_ref().cut_off();
        }
        helpers::PINMAP_BUS_DISCONNECT
    }

    /// # Safety
    ///
    /// Called by the PCI core.
    unsafe extern "C" fn reset_prepare(pdev: *mut bindings::pci_dev) {
        // SAFETY: Valid, with the device lock held.
        if let Some(data) = unsafe { Self::data(&raw mut (*pdev).dev) } {
            data.get_ref().before_reset();
        }
    }

    /// # Safety
    ///
    /// Called by the PCI core.
    unsafe extern "C" fn reset_done(pdev: *mut bindings::pci_dev) {
        // SAFETY: Valid, with the device lock held.
        if let Some(data) = unsafe { Self::data(&raw mut (*pdev).dev) } {
            data.get_ref().after_reset();
        }
    }
}

#[pinned_drop]
impl<T: Driver> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The driver is registered.
        unsafe { bindings::pci_unregister_driver(self.driver.get()) };
    }
}
