// SPDX-License-Identifier: GPL-2.0
//! The tables that importers of a dma-buf have mapped.

use crate::{
    logic::PAGE_SIZE,
    sys::{
        helpers,
        mm::pages::{Origin, Pages},
    },
};
use kernel::{
    bindings,
    error::{from_err_ptr, to_result},
    prelude::*,
    sync::Arc,
};

pub(super) type Direction = bindings::dma_data_direction;

/// The memory as the device of one importer sees it.
///
/// # Invariants
///
/// Unless `retired`, `entries` are mapped for the device of `attachment`, which is valid, to pages
/// of `pages`.
pub(super) struct Table {
    entries: Entries,
    attachment: *mut bindings::dma_buf_attachment,
    direction: Direction,
    pub(super) retired: bool,
    /// Keeps the pages pinned while they are mapped, and after that until the table is dropped.
    _pages: Arc<dyn Pages>,
}

/// The table of an importer, by who made it.
enum Entries {
    /// We, of pages of the host's memory.
    Pages(bindings::sg_table),
    /// The kernel, of a part of a BAR.
    Bar(*mut bindings::sg_table),
}

// SAFETY: Nothing in the table belongs to a thread.
unsafe impl Send for Table {}

impl Table {
    pub(super) fn new(
        attachment: *mut bindings::dma_buf_attachment,
        pages: Arc<dyn Pages>,
        direction: Direction,
    ) -> Result<KBox<Self>> {
        match pages.origin() {
            Origin::Host => Self::of_pages(attachment, pages, direction),
            Origin::Bar(..) => Self::of_bar(attachment, pages, direction),
            Origin::Foreign => Err(EOPNOTSUPP),
        }
    }

    /// Has the kernel map pages of a BAR, which it does by the way that the bus allows. `EINVAL`:
    /// there is none. The reservation is locked.
    fn of_bar(
        attachment: *mut bindings::dma_buf_attachment,
        pages: Arc<dyn Pages>,
        direction: Direction,
    ) -> Result<KBox<Self>> {
        let Origin::Bar(function, bar) = pages.origin() else {
            return Err(EINVAL);
        };
        // In one piece: the kernel maps several at the same address.
        let first = pages.block(0).first().ok_or(EINVAL)?;
        let mut range = bindings::phys_vec {
            paddr: first.pfn().saturating_mul(PAGE_SIZE),
            len: pages.pages().saturating_mul(PAGE_SIZE) as usize,
        };
        // SAFETY: The attachment is valid and its reservation locked; the range is one of the BAR,
        // which the function has as long as it is mapped.
        let table = from_err_ptr(unsafe {
            helpers::pinmap_dma_buf_map_bar(
                attachment,
                function.as_raw(),
                bar,
                &mut range,
                direction,
            )
        })?;
        // INVARIANT: Mapped just now.
        let this = Self {
            entries: Entries::Bar(table),
            attachment,
            direction,
            retired: false,
            _pages: pages.clone(),
        };
        KBox::new(this, GFP_KERNEL_ACCOUNT).map_err(|_| {
            // SAFETY: Mapped just above, with the reservation locked.
            unsafe { helpers::pinmap_dma_buf_unmap_bar(attachment, table, direction) };
            ENOMEM
        })
    }

    /// Maps pages of the host's memory.
    fn of_pages(
        attachment: *mut bindings::dma_buf_attachment,
        pages: Arc<dyn Pages>,
        direction: Direction,
    ) -> Result<KBox<Self>> {
        // SAFETY: The attachment is valid.
        let dev = unsafe { (*attachment).dev };
        // SAFETY: The importer's device is valid.
        let most = unsafe { helpers::pinmap_dma_max_segment(dev) };
        let most = u64::from(most) >> kernel::page::PAGE_SHIFT;
        let mut entries = 0_u32;
        pages.each(&mut |run| {
            let padded = run.pages().saturating_add(most).saturating_sub(1);
            let parts = padded.checked_div(most).ok_or(EINVAL)?;
            let parts = u32::try_from(parts).map_err(|_| EOVERFLOW)?;
            entries = entries.checked_add(parts).ok_or(EOVERFLOW)?;
            Ok(())
        })?;
        // INVARIANT: Nothing is mapped yet.
        let mut this = KBox::new(
            Self {
                entries: Entries::Pages(bindings::sg_table::default()),
                attachment,
                direction,
                retired: true,
                _pages: pages.clone(),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let table = this.table();
        // SAFETY: The table is ours, and not filled in yet.
        to_result(unsafe {
            bindings::sg_alloc_table(table, entries, bindings::GFP_KERNEL_ACCOUNT)
        })?;
        // SAFETY: The table is ours.
        let mut entry = unsafe { (*table).sgl };
        let filled = pages.each(&mut |run| {
            let mut done = 0;
            while done < run.pages() {
                let part = run.pages().saturating_sub(done).min(most);
                let bytes = part.wrapping_shl(kernel::page::PAGE_SHIFT as u32) as u32;
                let pfn = run.pfn().saturating_add(done) as usize;
                if entry.is_null() {
                    return Err(EINVAL);
                }
                // SAFETY: `entry` is an entry of the table; the run consists of pages.
                entry = unsafe {
                    helpers::pinmap_sg_set_run(entry, pfn, bytes);
                    bindings::sg_next(entry)
                };
                done = done.saturating_add(part);
            }
            Ok(())
        });
        let mapped = filled.and_then(|()| {
            // SAFETY: The device is valid, and the entries are filled in.
            to_result(unsafe { bindings::dma_map_sgtable(dev, table, direction, 0) })
        });
        if let Err(error) = mapped {
            // SAFETY: Allocated above.
            unsafe { bindings::sg_free_table(table) };
            return Err(error);
        }
        // INVARIANT: The table is mapped, and the device stays while it is attached.
        this.retired = false;
        Ok(this)
    }

    /// Unmaps the table, once its importer has finished: its device cannot reach the pages any
    /// more.
    pub(super) fn retire(&mut self) {
        if !self.retired {
            // INVARIANT: The table is unmapped here.
            self.retired = true;
            // SAFETY: Mapped until now by the type invariants, with the reservation locked.
            unsafe {
                match &mut self.entries {
                    Entries::Pages(table) => {
                        let dev = (*self.attachment).dev;
                        bindings::dma_unmap_sgtable(dev, table, self.direction, 0);
                        bindings::sg_free_table(table);
                    }
                    Entries::Bar(table) => {
                        let (attachment, direction) = (self.attachment, self.direction);
                        helpers::pinmap_dma_buf_unmap_bar(attachment, *table, direction);
                    }
                }
            }
        }
    }

    /// The table, as the importer knows it.
    pub(super) fn table(&mut self) -> *mut bindings::sg_table {
        match &mut self.entries {
            Entries::Pages(table) => table,
            Entries::Bar(table) => *table,
        }
    }

    /// Has the CPU's caches synced by `sync`, unless the table is retired or of a BAR, which no
    /// cache holds.
    pub(super) fn sync(
        &mut self,
        sync: unsafe extern "C" fn(*mut bindings::device, *mut bindings::sg_table, Direction),
    ) {
        if let (false, Entries::Pages(table)) = (self.retired, &mut self.entries) {
            // SAFETY: The table is mapped by the type invariants.
            unsafe { sync((*self.attachment).dev, table, self.direction) };
        }
    }
}
