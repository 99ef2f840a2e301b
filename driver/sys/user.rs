// SPDX-License-Identifier: GPL-2.0
//! Single words of user space: `kernel::uaccess` reads and writes with a call for any length.
//!
//! C header: [`include/linux/uaccess.h`](srctree/include/linux/uaccess.h).

use super::helpers;
use kernel::{error::to_result, prelude::*, uaccess::UserPtr};

/// Reads the 4 bytes at `pointer`; `EFAULT`: they cannot be read.
pub(crate) fn read_u32(pointer: UserPtr) -> Result<u32> {
    let mut value = 0;
    // SAFETY: `value` can be written. The call checks the other pointer.
    to_result(unsafe { helpers::pinmap_get_user_u32(pointer.as_const_ptr().addr(), &mut value) })?;
    Ok(value)
}
