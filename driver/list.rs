// SPDX-License-Identifier: GPL-2.0
//! Lists that grow under a lock under which nothing may be allocated.

use core::mem;
use kernel::{
    alloc::{Allocator, Vec},
    prelude::*,
};

/// Moves the entries of `list` into `roomy`, which is empty, and puts `roomy` in its place. Returns
/// the vector that is left over, to be dropped outside of the lock: the old one, or `roomy` if
/// `list` has grown as large already.
pub(crate) fn grow<T, A: Allocator>(
    list: &mut Vec<T, A>,
    mut roomy: Vec<T, A>,
) -> Result<Vec<T, A>> {
    if roomy.capacity() <= list.capacity() {
        return Ok(roomy);
    }
    for entry in list.drain_all() {
        if roomy.push_within_capacity(entry).is_err() {
            return Err(ENOSPC); // Cannot be: there is room for all of them.
        }
    }
    Ok(mem::replace(list, roomy))
}

/// Drops a vector that may have no memory, without asking the allocator to free nothing.
pub(crate) fn drop_empty<T, A: Allocator>(list: Vec<T, A>) {
    if list.capacity() == 0 {
        mem::forget(list);
    }
}
