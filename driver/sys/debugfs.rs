// SPDX-License-Identifier: GPL-2.0
//! Files in debugfs that root can read.
//!
//! `kernel::debugfs` does not set the owner of its files: closing one after the module is gone would call
//! code that is gone.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h).

use super::{compat, helpers};
use core::marker::PhantomData;
use kernel::{bindings, ffi, prelude::*, seq_file::SeqFile, sync::Arc};

/// The module's directory. Dropping it removes it.
pub(crate) struct Root(());

impl Root {
    /// Makes it. At most one may exist at a time; as long as there are [`Listing`]s.
    pub(crate) fn new() -> Self {
        // SAFETY: No requirements: a second one would be refused by its name.
        unsafe { helpers::pinmap_debug_begin() };
        Self(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: Made in `new`.
        unsafe { helpers::pinmap_debug_end() };
    }
}

/// What a file shows.
pub(crate) trait Show: Send + Sync + 'static {
    /// Writes all of it. May sleep, and may be called several times for one reader.
    fn show(&self, out: &SeqFile);
}

/// A directory with a file. Dropping it removes both, once nobody reads any more; who has the file still
/// open then reads no more from it, and holds the module.
///
/// # Invariants
///
/// `directory` is what debugfs returned for it; its file shows what `_what` keeps.
pub(crate) struct Listing<T: Show> {
    directory: *mut bindings::dentry,
    _what: Arc<T>,
}

// SAFETY: The pointer is only ever handed to debugfs, which does its own locking.
unsafe impl<T: Show> Send for Listing<T> {}
// SAFETY: As above.
unsafe impl<T: Show> Sync for Listing<T> {}

impl<T: Show> Listing<T> {
    /// `name` in a directory of its own in the [`Root`]. Where it cannot be made there is none.
    pub(crate) fn new(directory: &CStr, name: &CStr, what: Arc<T>) -> Self {
        let data = Arc::as_ptr(&what).cast_mut().cast::<ffi::c_void>();
        // SAFETY: The strings are copied. The operations are static, and `data` stays until the file is
        // removed.
        let directory = unsafe {
            helpers::pinmap_debug_files(
                directory.as_char_ptr(),
                name.as_char_ptr(),
                data,
                &raw const Operations::<T>::TABLE.0,
            )
        };
        // INVARIANT: Just made.
        Self {
            directory,
            _what: what,
        }
    }
}

impl<T: Show> Drop for Listing<T> {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariants. Waits for whoever reads.
        unsafe { bindings::debugfs_remove(self.directory) };
    }
}

#[repr(transparent)]
struct Table(bindings::file_operations);
// SAFETY: Never written to.
unsafe impl Sync for Table {}

struct Operations<T>(PhantomData<T>);

impl<T: Show> Operations<T> {
    /// The owner makes every open file hold the module: its release comes after the removal.
    const TABLE: &'static Table = &Table(bindings::file_operations {
        owner: compat::this_module().as_ptr(),
        open: Some(Self::open),
        read: Some(bindings::seq_read),
        llseek: Some(bindings::seq_lseek),
        release: Some(bindings::single_release),
        ..pin_init::zeroed()
    });

    /// # Safety
    ///
    /// Called by debugfs, which has not removed the file, and does not meanwhile.
    unsafe extern "C" fn open(
        inode: *mut bindings::inode,
        file: *mut bindings::file,
    ) -> ffi::c_int {
        // SAFETY: By the requirements; `show` finds there what `Listing::new` put there.
        unsafe { bindings::single_open(file, Some(Self::show), (*inode).i_private) }
    }

    /// # Safety
    ///
    /// Called by a read that debugfs has let pass: the file is not removed before it returns.
    unsafe extern "C" fn show(out: *mut bindings::seq_file, _: *mut ffi::c_void) -> ffi::c_int {
        // SAFETY: `Listing::new` put a pointer to a `T` there, which stays until the file is removed; the
        // seq_file is locked by its reader.
        let (what, out) = unsafe { (&*(*out).private.cast::<T>(), SeqFile::from_raw(out)) };
        what.show(out);
        0
    }
}
