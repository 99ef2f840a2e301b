// SPDX-License-Identifier: GPL-2.0
//! Ranges of device addresses that cannot be mapped.
//!
//! C header: [`include/linux/iommu.h`](srctree/include/linux/iommu.h).

use super::Unfit;
use crate::{
    logic::span::Span,
    sys::{helpers, pci::Function},
};
use kernel::{error::to_result, prelude::*};

/// A range that cannot be mapped.
#[derive(Clone, Copy)]
pub(crate) struct Reserved {
    pub(crate) span: Span,
    /// A `PINMAP_RESERVED_` kind.
    pub(crate) kind: u32,
}

/// The reserved ranges of a function.
pub(super) struct All {
    /// Sorted and disjoint. Of two that overlap, the first one stays whole.
    pub(super) ranges: KVec<Reserved>,
    /// Where the target of interrupts is to be mapped; `None`: nowhere.
    pub(super) messages: Option<u64>,
}

/// Returns the reserved ranges of a function. Fails if one of them does not allow a domain of our
/// own.
pub(super) fn reserved(function: &Function) -> core::result::Result<All, Unfit> {
    const ROOM: usize = 64;
    let mut regions = KVec::from_elem(helpers::pinmap_region::default(), ROOM, GFP_KERNEL)?;
    let mut messages = 0;
    // SAFETY: The device is valid, and there is room for `ROOM` regions.
    let count = unsafe {
        helpers::pinmap_reserved_regions(
            function.as_dev(),
            regions.as_mut_ptr(),
            ROOM as u32,
            &mut messages,
        )
    };
    to_result(count)?;
    let count = count.unsigned_abs() as usize;
    regions.truncate(count);
    let mut reserved = KVec::with_capacity(count, GFP_KERNEL)?;
    // `None` once the last address that there is, is reserved.
    let mut free_from = Some(0);
    let lowest = |regions: &KVec<helpers::pinmap_region>| {
        let all = regions.iter().enumerate();
        let first = all.min_by_key(|(_, region)| region.start);
        first.map(|(index, _)| index)
    };
    while let Some(index) = lowest(&regions) {
        let Ok(region) = regions.remove(index) else {
            break;
        };
        if region.refused != 0 {
            let span = Span::from_bounds(region.start, region.last).ok_or(EINVAL)?;
            return Err(Unfit::Firmware(span));
        }
        let start = free_from.map(|from| region.start.max(from));
        let Some(span) = start.and_then(|start| Span::from_bounds(start, region.last)) else {
            continue;
        };
        reserved.push(
            Reserved {
                span,
                kind: region.kind,
            },
            GFP_KERNEL,
        )?;
        free_from = region.last.checked_add(1);
    }
    Ok(All {
        ranges: reserved,
        messages: (messages != u64::MAX).then_some(messages),
    })
}
