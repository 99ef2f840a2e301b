// SPDX-License-Identifier: GPL-2.0
//! Host memory that the driver allocates, charged to the account that asked for it.

use crate::{
    failure::Failure,
    sys::{
        mm::folios::{Folios, Kind},
        task::account::{Account, Charge},
    },
};
use kernel::{prelude::*, sync::Arc};

/// Allocates `pages` zeroed pages. Sleeps; a fatal signal stops it.
pub(crate) fn host_memory(account: &Arc<Account>, pages: u64) -> Result<Arc<Folios>, Failure> {
    host_memory_of_kind(account, pages, Kind::default())
}

/// Allocates `pages` zeroed pages of a kind. Sleeps; a fatal signal stops it.
pub(crate) fn host_memory_of_kind(
    account: &Arc<Account>,
    pages: u64,
    kind: Kind,
) -> Result<Arc<Folios>, Failure> {
    let charge = Charge::new(account, pages)?;
    let folios = Folios::new(pages, kind, charge)?;
    Ok(Arc::new(folios, GFP_KERNEL_ACCOUNT)?)
}
