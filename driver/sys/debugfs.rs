// SPDX-License-Identifier: GPL-2.0
//! Files in debugfs that root can read.
//!
//! `kernel::debugfs` does not set the owner of its files. Closing such a file after the module was
//! unloaded would call code that is gone.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h).

use super::{compat, helpers};
use core::marker::PhantomData;
use kernel::{bindings, ffi, prelude::*, seq_file::SeqFile, sync::Arc};

/// The module's directory. Dropping it removes the directory.
pub(crate) struct Root(());

impl Root {
    /// Makes the directory. At most one may exist at a time, and it must outlive all [`Listing`]s.
    pub(crate) fn new() -> Self {
        // SAFETY: No requirements: debugfs would refuse a second directory of the same name.
        unsafe { helpers::pinmap_debug_begin() };
        Self(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: `new` made the directory.
        unsafe { helpers::pinmap_debug_end() };
    }
}

/// Content of a file.
pub(crate) trait Show: Send + Sync + 'static {
    /// Writes the content. May sleep; can be called several times for one reader.
    fn show(&self, out: &SeqFile);
}

/// A directory with one file. Dropping it waits for running reads, then removes both. A file that
/// is still open then holds the module, but cannot be read any more.
///
/// # Invariants
///
/// `directory` is what debugfs returned for the directory. Its file shows `_what`.
pub(crate) struct Listing<T: Show> {
    directory: *mut bindings::dentry,
    _what: Arc<T>,
}

// SAFETY: The pointer is only ever handed to debugfs, which does its own locking.
unsafe impl<T: Show> Send for Listing<T> {}
// SAFETY: The pointer is only ever handed to debugfs, which does its own locking.
unsafe impl<T: Show> Sync for Listing<T> {}

impl<T: Show> Listing<T> {
    /// Makes `directory` in the [`Root`], and in it a file `name` that shows `what`. If debugfs
    /// fails, there is no file; nothing else depends on it.
    pub(crate) fn new(directory: &CStr, name: &CStr, what: Arc<T>) -> Self {
        let data = Arc::as_ptr(&what).cast_mut().cast::<ffi::c_void>();
        // SAFETY: The strings are copied. The operations are static, and `data` stays until the
        // file is removed.
        let directory = unsafe {
            helpers::pinmap_debug_files(
                directory.as_char_ptr(),
                name.as_char_ptr(),
                data,
                &raw const Operations::<T>::TABLE.0,
            )
        };
        // INVARIANT: debugfs returned `directory` just now, for a file that shows `_what`.
        Self {
            directory,
            _what: what,
        }
    }
}

impl<T: Show> Drop for Listing<T> {
    fn drop(&mut self) {
        // SAFETY: `directory` is ours by the type invariants. The call waits for running reads.
        unsafe { bindings::debugfs_remove(self.directory) };
    }
}

#[repr(transparent)]
struct Table(bindings::file_operations);
// SAFETY: Never written to.
unsafe impl Sync for Table {}

struct Operations<T>(PhantomData<T>);

impl<T: Show> Operations<T> {
    /// The operations. Their owner makes each open file hold the module, for a file can be released
    /// after it was removed.
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
    /// Called by debugfs, which does not remove the file meanwhile.
    unsafe extern "C" fn open(
        inode: *mut bindings::inode,
        file: *mut bindings::file,
    ) -> ffi::c_int {
        // SAFETY: By the requirements; `show` finds in `i_private` what `Listing::new` put there.
        unsafe { bindings::single_open(file, Some(Self::show), (*inode).i_private) }
    }

    /// # Safety
    ///
    /// Called for a read that debugfs has admitted: the file is not removed before this returns.
    unsafe extern "C" fn show(out: *mut bindings::seq_file, _: *mut ffi::c_void) -> ffi::c_int {
        // SAFETY: `Listing::new` put a pointer to a `T` there, which stays until the file is
        // removed. The reader holds the lock of the seq_file.
        let (what, out) = unsafe { (&*(*out).private.cast::<T>(), SeqFile::from_raw(out)) };
        what.show(out);
        0
    }
}
