// SPDX-License-Identifier: GPL-2.0
//! A part of a base address register as memory that other devices may reach.

use super::{Function, NR_BARS};
use crate::{
    logic::{
        runs::{Run, MAX_PAGES},
        span::Span,
        PAGE_SIZE,
    },
    sys::mm::pages::{block_of, blocks_of, pages_of, Origin, Pages},
};
use kernel::{prelude::*, sync::Arc};

/// Pages of a BAR, and what keeps them from being given to somebody else.
///
/// # Invariants
///
/// The runs lie in the BAR. Whoever maps them unmaps them before the function is unbound.
pub(crate) struct BarPages<K> {
    function: Function,
    bar: u32,
    runs: KVec<Run>,
    _keep: K,
}

impl<K: Send + Sync + 'static> BarPages<K> {
    /// Makes the pages of `part` of the BAR `bar` of `function`, which `keep` keeps. `EINVAL`: the
    /// part leaves the BAR.
    ///
    /// # Safety
    ///
    /// Before the function is unbound, the pages must have been unmapped wherever they were mapped.
    pub(crate) unsafe fn new(
        function: &Function,
        bar: u32,
        part: Span,
        keep: K,
    ) -> Result<Arc<Self>> {
        let whole = function.bar(bar);
        if part.last() >= whole.length {
            return Err(EINVAL);
        }
        let mut pfn = whole.start.checked_add(part.start()).ok_or(EOVERFLOW)? / PAGE_SIZE;
        let mut left = part.pages();
        let mut runs = KVec::with_capacity(1, GFP_KERNEL_ACCOUNT)?;
        while left != 0 {
            let pages = left.min(MAX_PAGES);
            runs.push(Run::new(pfn, pages).ok_or(EINVAL)?, GFP_KERNEL_ACCOUNT)?;
            pfn = pfn.saturating_add(pages);
            left = left.saturating_sub(pages);
        }
        // INVARIANT: Checked above; the rest is by the requirements.
        let this = Self {
            function: function.clone(),
            bar,
            runs,
            _keep: keep,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }
}

impl Function {
    /// Returns the BAR that has the page frame `pfn`, and its offset there.
    pub(crate) fn bar_of_frame(&self, pfn: u64) -> Option<(u32, u64)> {
        let address = pfn.checked_mul(PAGE_SIZE)?;
        (0..NR_BARS).find_map(|index| {
            let bar = self.bar(index);
            let offset = address.checked_sub(bar.start)?;
            (offset < bar.length).then_some((index, offset))
        })
    }
}

// SAFETY: By the type invariants.
unsafe impl<K: Send + Sync> Pages for BarPages<K> {
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
        true
    }

    fn origin(&self) -> Origin<'_> {
        Origin::Bar(&self.function, self.bar)
    }

    fn is_cached(&self) -> bool {
        false
    }
}
