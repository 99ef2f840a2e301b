// SPDX-License-Identifier: GPL-2.0
//! Imports dma-bufs of other drivers.
//!
//! An exporter maps its memory for a device by the DMA API, in the default domain of the device. In
//! place of that domain the function has one of ours, so the addresses that the exporter gives mean
//! nothing to it. But the default domain still translates them, and says where the memory is. There
//! it is mapped in our domain, for as long as the exporter leaves it where it is: the exporter
//! tells when it takes the memory back, and then waits until the import is dropped.
//!
//! Memory that its exporter may move at any time (with an operation `pin`) is refused: it would go
//! stale as soon as it moves. So is all memory where the DMA API may give the address of a copy.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h).

use crate::{
    logic::{runs::Run, PAGE_SIZE},
    sys::{
        helpers,
        mm::pages::{block_of, blocks_of, pages_of, Origin, Pages},
        pci::Function,
        task,
        task::account::Charge,
    },
};
use kernel::{
    bindings,
    error::from_err_ptr,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Release},
        Arc, Mutex,
    },
};

/// Bytes that are looked for before others have a turn.
const AT_ONCE: u64 = 512 * PAGE_SIZE;

/// Whoever has imported memory that its exporter can take back.
pub(crate) trait Revoked: Send + Sync {
    /// The exporter takes the memory back: where it is mapped, no device may reach it when this
    /// returns, and the import must be dropped soon, also where it is being mapped. Called with the
    /// reservation of the dma-buf, so it does not drop the import itself, and waits for nobody.
    fn revoked(self: Arc<Self>);
}

/// The private data of an attachment, which the exporter's message finds.
#[pin_data]
struct Notice {
    told: Atomic<bool>,
    #[pin]
    importer: Mutex<Option<Arc<dyn Revoked>>>,
}

/// A dma-buf of any driver, with a reference.
///
/// # Invariants
///
/// The pointer is valid.
pub(crate) struct DmaBuf(*mut bindings::dma_buf);

impl DmaBuf {
    /// Returns the dma-buf with the current task's descriptor `fd`, once its exporter has finished
    /// what it does to the memory. A signal ends the wait. `EBADF`: there is no such descriptor;
    /// `EINVAL`: it is not a dma-buf; `EOPNOTSUPP`: its memory may move.
    pub(crate) fn from_fd(fd: i32) -> Result<Self> {
        // SAFETY: Any number may be passed.
        let this = Self(from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?);
        // SAFETY: Valid by the type invariants.
        unsafe {
            if (*(*this.0).ops).pin.is_some() {
                return Err(EOPNOTSUPP);
            }
            if helpers::pinmap_dma_buf_await(this.0) < 0 {
                return Err(EINTR);
            }
        }
        Ok(this)
    }

    /// The length.
    pub(crate) fn pages(&self) -> u64 {
        // SAFETY: Valid by the type invariants.
        unsafe { (*self.0).size as u64 / PAGE_SIZE }
    }
}

impl Clone for DmaBuf {
    fn clone(&self) -> Self {
        // SAFETY: Valid by the type invariants.
        unsafe { helpers::pinmap_dma_buf_get(self.0) };
        // INVARIANT: The new reference is this one's.
        Self(self.0)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: The reference is ours.
        unsafe { bindings::dma_buf_put(self.0) };
    }
}

/// A device that is attached to a dma-buf.
///
/// # Invariants
///
/// The pointer is valid, and `notice` is what its private data point to.
struct Attached {
    raw: *mut bindings::dma_buf_attachment,
    notice: Pin<KBox<Notice>>,
    dma_buf: DmaBuf,
    _function: Function,
}

impl Attached {
    /// Attaches `function`. `EOPNOTSUPP`: the exporter refuses it.
    fn new(dma_buf: DmaBuf, function: &Function, operations: &'static Operations) -> Result<Self> {
        let notice = KBox::pin_init(
            pin_init!(Notice {
                told: Atomic::new(false),
                importer <- new_mutex!(None, "pinmap_notice"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let private = core::ptr::from_ref(&*notice).cast_mut().cast();
        // SAFETY: The function is valid; the notice lives as long as the attachment.
        let raw = from_err_ptr(unsafe {
            let dev = function.as_dev();
            bindings::dma_buf_dynamic_attach(dma_buf.0, dev, &operations.0, private)
        })?;
        Ok(Self {
            raw,
            notice,
            dma_buf,
            _function: function.clone(),
        })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: Attached until now, by the type invariants.
        unsafe { bindings::dma_buf_detach(self.dma_buf.0, self.raw) };
    }
}

/// Memory of another driver. Dropping it lets go of the memory; not with its reservation.
///
/// # Invariants
///
/// `table` is mapped for `attached`, and `runs` are the memory that it describes.
pub(crate) struct Imported {
    table: *mut bindings::sg_table,
    direction: bindings::dma_data_direction,
    attached: Attached,
    runs: KVVec<Run>,
    is_ram: bool,
    writable: bool,
    _charge: Charge,
}

// SAFETY: Nothing in it belongs to a thread.
unsafe impl Send for Imported {}
// SAFETY: Nothing is changed after it was made, except under the lock of `Notice`.
unsafe impl Sync for Imported {}

/// The operations of our attachments.
#[repr(transparent)]
struct Operations(bindings::dma_buf_attach_ops);

// SAFETY: The table is never written to.
unsafe impl Sync for Operations {}

const fn operations(allow_peer2peer: bool) -> Operations {
    Operations(bindings::dma_buf_attach_ops {
        allow_peer2peer,
        invalidate_mappings: Some(invalidate),
    })
}

/// For memory of the host, and for that of devices.
static FOR_HOST: Operations = operations(false);
static FOR_DEVICES: Operations = operations(true);

/// # Safety
///
/// Called by the dma-buf core with an attachment of ours, and its reservation locked.
unsafe extern "C" fn invalidate(attachment: *mut bindings::dma_buf_attachment) {
    // SAFETY: The notice lives as long as the attachment.
    let notice = unsafe { &*(*attachment).importer_priv.cast::<Notice>() };
    notice.told.store(true, Release);
    let importer = notice.importer.lock().take();
    if let Some(importer) = importer {
        importer.revoked();
    }
}

impl Imported {
    /// Imports `dma_buf` for `function`, of which `translate` tells where an address of the DMA API
    /// leads. Called while the function is bound. Keeps `charge`.
    ///
    /// `EOPNOTSUPP`: the exporter refuses, or its addresses do not tell where the memory is;
    /// `EREMOTEIO`: the bus does not let the function reach it; `ESTALE`: it was taken back
    /// already; `EAGAIN`: the exporter has begun something else.
    pub(crate) fn new(
        dma_buf: DmaBuf,
        function: &Function,
        charge: Charge,
        translate: impl Fn(u64) -> Option<u64>,
    ) -> Result<Arc<Self>> {
        // SAFETY: The function is valid.
        if !unsafe { helpers::pinmap_dma_is_plain(function.as_dev()) } {
            return Err(EOPNOTSUPP);
        }
        let again = dma_buf.clone();
        let (attached, is_ram) = match Attached::new(dma_buf, function, &FOR_HOST) {
            // An exporter of memory of a device wants importers that take such memory.
            Err(error) if error == EOPNOTSUPP => {
                (Attached::new(again, function, &FOR_DEVICES), false)
            }
            attached => (attached, true),
        };
        let attached = attached.map_err(|error| if error == ENODEV { ESTALE } else { error })?;
        // SAFETY: The attachment is valid.
        let (table, direction, writable) = unsafe {
            let writable = helpers::pinmap_dma_buf_is_writable(attached.dma_buf.0);
            let direction = helpers::pinmap_dma_direction(writable);
            let table = helpers::pinmap_dma_buf_map(attached.raw, direction);
            (from_err_ptr(table), direction, writable)
        };
        let table = table.map_err(|error| match error {
            EINVAL if !is_ram => EREMOTEIO,
            ENODEV => ESTALE,
            error => error,
        })?;
        // INVARIANT: Mapped just now. Nobody uses the runs before they are those of the table.
        let mut this = Self {
            table,
            direction,
            attached,
            runs: KVVec::new(),
            is_ram,
            writable,
            _charge: charge,
        };
        this.find_runs(translate)?;
        // SAFETY: Valid by the type invariants.
        if !unsafe { helpers::pinmap_dma_buf_is_idle(this.attached.dma_buf.0) } {
            return Err(EAGAIN);
        }
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Finds out where the memory is. `EOPNOTSUPP`: its addresses do not tell.
    fn find_runs(&mut self, translate: impl Fn(u64) -> Option<u64>) -> Result {
        // SAFETY: The table is valid.
        let (mut entry, count) = unsafe { ((*self.table).sgl, (*self.table).nents) };
        let mut found = 0_u64;
        for _ in 0..count {
            if entry.is_null() {
                return Err(EOPNOTSUPP);
            }
            let mut part = helpers::pinmap_bus_run::default();
            // SAFETY: `entry` is an entry of the table.
            entry = unsafe {
                helpers::pinmap_sg_dma(entry, &mut part);
                bindings::sg_next(entry)
            };
            if part.start % PAGE_SIZE != 0 || part.length % PAGE_SIZE != 0 {
                return Err(EOPNOTSUPP);
            }
            let mut done = 0;
            while done < part.length {
                let address = part.start.checked_add(done).ok_or(EOVERFLOW)?;
                let at = translate(address).ok_or(EOPNOTSUPP)?;
                self.add_page(at / PAGE_SIZE)?;
                done = done.saturating_add(PAGE_SIZE);
                if found.saturating_add(done) % AT_ONCE == 0 {
                    task::cond_resched();
                    if task::fatal_signal_pending() {
                        return Err(EINTR);
                    }
                }
            }
            found = found.saturating_add(part.length);
        }
        if found == self.attached.dma_buf.pages().saturating_mul(PAGE_SIZE) {
            Ok(())
        } else {
            Err(EOPNOTSUPP)
        }
    }

    fn add_page(&mut self, pfn: u64) -> Result {
        // SAFETY: Any number may be passed.
        if self.is_ram != unsafe { helpers::pinmap_is_ram(pfn as usize) } {
            return Err(EOPNOTSUPP);
        }
        let page = Run::new(pfn, 1).ok_or(EOPNOTSUPP)?;
        if let Some(last) = self.runs.last_mut() {
            if let Some(joined) = last.join(page) {
                *last = joined;
                return Ok(());
            }
        }
        Ok(self.runs.push(page, GFP_KERNEL_ACCOUNT)?)
    }

    fn notice(&self) -> &Notice {
        &self.attached.notice
    }

    /// Has `importer` be told when the exporter takes the memory back. `ESTALE`: it has.
    pub(crate) fn set_importer(&self, importer: Arc<dyn Revoked>) -> Result {
        let mut place = self.notice().importer.lock();
        if self.notice().told.load(Acquire) {
            return Err(ESTALE);
        }
        let none = place.replace(importer);
        drop(place);
        drop(none);
        Ok(())
    }

    /// Tells nobody any more.
    pub(crate) fn forget_importer(&self) {
        let importer = self.notice().importer.lock().take();
        drop(importer);
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: Mapped until now, by the type invariants.
        unsafe {
            let (attachment, table) = (self.attached.raw, self.table);
            helpers::pinmap_dma_buf_unmap(attachment, table, self.direction);
        }
    }
}

// SAFETY: By the type invariants: the exporter leaves the memory where it is as long as it is
// mapped.
unsafe impl Pages for Imported {
    fn pages(&self) -> u64 {
        pages_of(&self.runs)
    }

    fn blocks(&self) -> usize {
        blocks_of(&self.runs)
    }

    fn block(&self, index: usize) -> &[Run] {
        block_of(&self.runs, index)
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn origin(&self) -> Origin<'_> {
        if self.is_ram {
            Origin::Host
        } else {
            Origin::Foreign
        }
    }
}
