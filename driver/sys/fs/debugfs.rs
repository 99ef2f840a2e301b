// SPDX-License-Identifier: GPL-2.0
//! Files in debugfs that root can read.
//!
//! `kernel::debugfs` does not set the owner of its files. Closing such a file after the module was
//! unloaded would call code that is gone.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h).

use crate::sys::helpers;
use core::marker::PhantomData;
use kernel::{bindings, ffi, module::this_module, prelude::*, seq_file::SeqFile, sync::Arc};

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

/// A file: its name, and what writes its content, which may sleep, and can be called several times
/// for one reader.
pub(crate) struct File<T> {
    pub(crate) name: &'static CStr,
    pub(crate) show: fn(&T, &SeqFile),
}

/// A type that files show.
pub(crate) trait Show: Send + Sync + Sized + 'static {
    const FILES: &'static [File<Self>];
}

/// A directory with its files. Dropping it waits for running reads, then removes them all. A file
/// that is still open then holds the module, but cannot be read any more.
///
/// # Invariants
///
/// `directory` is what debugfs returned for the directory. Its files show `what`.
pub(crate) struct Listing<T: Show> {
    directory: *mut bindings::dentry,
    what: Arc<T>,
}

// SAFETY: The pointer is only ever handed to debugfs, which does its own locking.
unsafe impl<T: Show> Send for Listing<T> {}
// SAFETY: The pointer is only ever handed to debugfs, which does its own locking.
unsafe impl<T: Show> Sync for Listing<T> {}

impl<T: Show> Listing<T> {
    /// Makes `directory` in the [`Root`], and in it the files that show `what`. If debugfs fails,
    /// there are none; nothing else depends on them.
    pub(crate) fn new(directory: &CStr, what: Arc<T>) -> Self {
        // SAFETY: The string is copied.
        let directory = unsafe { helpers::pinmap_debug_directory(directory.as_char_ptr()) };
        // INVARIANT: debugfs returned `directory` just now. Its files are made for `what`.
        let this = Self { directory, what };
        let data = Arc::as_ptr(&this.what).cast_mut().cast();
        let table = &raw const Operations::<T>::TABLE.0;
        for file in T::FILES {
            let (name, aux) = (file.name.as_char_ptr(), core::ptr::from_ref(file).cast());
            // SAFETY: The string is copied. The operations and `file` are static, and `data` stays
            // until the file is removed with the directory, which is ours by the type invariants.
            unsafe { helpers::pinmap_debug_file(this.directory, name, data, aux, table) };
        }
        this
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
        owner: this_module::<crate::LocalModule>().as_ptr(),
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
        // removed, and one to a `File<T>` beside it. The reader holds the lock of the seq_file.
        let (what, file, out) = unsafe {
            let what = &*(*out).private.cast::<T>();
            let file = &*bindings::debugfs_get_aux((*out).file).cast::<File<T>>();
            (what, file, SeqFile::from_raw(out))
        };
        (file.show)(what, out);
        0
    }
}
