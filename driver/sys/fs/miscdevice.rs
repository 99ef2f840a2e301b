// SPDX-License-Identifier: GPL-2.0
//! Character devices that user space opens.
//!
//! `kernel::miscdevice` has neither `poll`, nor `read` without an iterator, nor a mode, nor a
//! parent.
//!
//! C headers: [`include/linux/miscdevice.h`](srctree/include/linux/miscdevice.h),
//! [`include/linux/fs.h`](srctree/include/linux/fs.h).

use super::attributes::{self, Attribute};
use crate::{
    logic::span::Span,
    sys::{
        helpers,
        mm::vma::{NewArea, Views},
        task::wait::WaitQueue,
    },
};
use core::{marker::PhantomData, mem::ManuallyDrop, pin::Pin};
use kernel::{
    bindings, device,
    error::{from_result, to_result},
    ffi,
    module::this_module,
    prelude::*,
    seq_file::SeqFile,
    str::CString,
    sync::{Arc, ArcBorrow},
    types::Opaque,
    uaccess::{UserPtr, UserSlice, UserSliceWriter},
};

/// The open files of a node.
pub(crate) trait Files: Send + Sync + Sized + 'static {
    /// The device behind a node.
    type Device: Send + Sync + 'static;

    /// The attributes of a device in sysfs, in lists.
    const ATTRIBUTES: &'static [&'static [Attribute<Self::Device>]];

    /// The file operations: one static, whose address tells these files from others.
    fn operations() -> &'static Operations<Self>;

    /// Opens a file. `views` is dropped before [`release`](Self::release) returns.
    fn open(device: &Arc<Self::Device>, views: Views) -> Result<Arc<Self>>;

    /// Ends a file, to which no reference is left.
    fn release(this: Arc<Self>);

    /// Runs an ioctl.
    fn ioctl(this: &Arc<Self>, command: u32, argument: UserPtr) -> Result;

    /// Writes to `out` what there is to read. Waits until there is something, if `may_wait`.
    /// Returns the number of bytes.
    fn read(&self, out: &mut UserSliceWriter, may_wait: bool) -> Result<usize>;

    /// Returns the queue that is woken up when [`readiness`](Self::readiness) changes.
    fn waiters(&self) -> &WaitQueue;

    /// Returns what `poll()` answers: an `EPOLL` mask.
    fn readiness(&self) -> u32;

    /// Maps memory at `area`.
    fn mmap(this: ArcBorrow<'_, Self>, area: NewArea<'_>) -> Result;

    /// Writes the lines of `/proc/PID/fdinfo`.
    fn show(&self, out: &SeqFile);
}

/// `EPOLLIN | EPOLLRDNORM`.
pub(crate) const READABLE: u32 = 0x1 | 0x40;
/// `EPOLLHUP`.
pub(crate) const HUNG_UP: u32 = 0x10;

/// A node in `/dev`. Dropping it removes it; open files stay open.
///
/// # Invariants
///
/// `misc` is registered.
#[pin_data(PinnedDrop)]
pub(crate) struct Node<T: Files> {
    #[pin]
    misc: Opaque<bindings::miscdevice>,
    device: Arc<T::Device>,
    name: CString,
    number: Number,
}

/// The number of a node: the lowest free one.
struct Number(ffi::c_int);

impl Number {
    fn take() -> Result<Self> {
        // SAFETY: No requirements.
        let number = unsafe { helpers::pinmap_take_number() };
        to_result(number)?;
        Ok(Self(number))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // SAFETY: `take` took the number.
        unsafe { helpers::pinmap_return_number(self.0) };
    }
}

// SAFETY: A registered misc device may be used and deregistered from any thread.
unsafe impl<T: Files> Send for Node<T> {}
// SAFETY: A registered misc device may be used and deregistered from any thread.
unsafe impl<T: Files> Sync for Node<T> {}

impl<T: Files> Node<T> {
    /// Makes `/dev/PREFIXn`, with the lowest free `n`. The node belongs to root, has the given
    /// `mode`, and is a child of `parent`.
    pub(crate) fn new<'a>(
        prefix: &'static str,
        mode: u16,
        parent: &'a device::Device,
        device: Arc<T::Device>,
    ) -> impl PinInit<Self, Error> + 'a
    where
        T: 'a,
    {
        pin_init::pin_init_scope(move || {
            let number = Number::take()?;
            let name = CString::try_from_fmt(fmt!("{}{}", prefix, number.0))?;
            let name_ptr = name.as_char_ptr();
            let parent_ptr = core::ptr::from_ref(parent).cast_mut().cast();
            Ok(try_pin_init!(Self {
                device,
                name,
                number,
                misc <- Opaque::try_ffi_init(move |slot: *mut bindings::miscdevice| {
                    let mut misc: bindings::miscdevice = pin_init::zeroed();
                    misc.minor = bindings::MISC_DYNAMIC_MINOR as ffi::c_int;
                    misc.name = name_ptr.cast();
                    misc.fops = &raw const T::operations().table;
                    misc.parent = parent_ptr;
                    misc.mode = mode;
                    misc.groups = attributes::groups::<T>();
                    // SAFETY: `slot` is valid for writing, and pinned until it is deregistered. The
                    // name and the operations live as long.
                    to_result(unsafe {
                        slot.write(misc);
                        bindings::misc_register(slot)
                    })
                }),
            }? Error))
        })
    }
}

impl<T: Files> Node<T> {
    /// The device behind a node.
    ///
    /// # Safety
    ///
    /// `misc` must be that of a node, which stays meanwhile. It may be being registered.
    pub(super) unsafe fn device_of<'a>(misc: *mut bindings::miscdevice) -> &'a T::Device {
        // SAFETY: By the requirements. The device is there before the misc device is registered,
        // and stays as long; nothing else of the node is touched.
        unsafe {
            let node = kernel::container_of!(Opaque::cast_from(misc), Self, misc);
            &(*node).device
        }
    }
}

#[pinned_drop]
impl<T: Files> PinnedDrop for Node<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The device is registered by the type invariants. Waits for a running open.
        unsafe { bindings::misc_deregister(self.misc.get()) };
    }
}

/// Whether `file`, which may be null, is an open file of a node for `T`.
///
/// # Safety
///
/// `file` must be null or valid.
unsafe fn is_ours<T: Files>(file: *const bindings::file) -> bool {
    // SAFETY: By the requirements.
    !file.is_null() && unsafe { core::ptr::eq((*file).f_op, &raw const T::operations().table) }
}

/// Finds the file of ours that the current task has mapped at `address`. Returns it with the offset
/// in the file, as passed to `mmap()`.
pub(crate) fn shown_at<T: Files>(address: u64) -> Option<(Arc<T>, u64)> {
    let task = kernel::current!();
    let lock = task.mm()?.mmap_read_lock();
    let area = lock.vma_lookup(usize::try_from(address).ok()?)?;
    let area: *const bindings::vm_area_struct = area.as_ptr();
    // SAFETY: The area is valid as long as the lock is held, and keeps its file.
    unsafe {
        let file = (*area).vm_file;
        if !is_ours::<T>(file) {
            return None;
        }
        let inside =
            address.checked_sub((*area).__bindgen_anon_1.__bindgen_anon_1.vm_start as u64)?;
        let first = ((*area).vm_pgoff as u64).wrapping_shl(bindings::PAGE_SHIFT);
        Some((
            Operations::<T>::get(file).into(),
            first.saturating_add(inside),
        ))
    }
}

/// An area in which the current task has mapped a file of ours.
pub(crate) struct Shown<T> {
    pub(crate) file: Arc<T>,
    /// The offset in the file, as passed to `mmap()`.
    pub(crate) offset: u64,
    pub(crate) may_read: bool,
    pub(crate) may_write: bool,
}

/// Finds the file of ours that the current task has mapped at all of `span`, in one area.
pub(crate) fn shown<T: Files>(span: Span) -> Option<Shown<T>> {
    let task = kernel::current!();
    let lock = task.mm()?.mmap_read_lock();
    let area = lock.vma_lookup(usize::try_from(span.start()).ok()?)?;
    let area: *const bindings::vm_area_struct = area.as_ptr();
    // SAFETY: The area is valid as long as the lock is held, and keeps its file.
    unsafe {
        let bounds = (*area).__bindgen_anon_1.__bindgen_anon_1;
        let file = (*area).vm_file;
        if !is_ours::<T>(file) || span.last() >= bounds.vm_end as u64 {
            return None;
        }
        let inside = span.start().checked_sub(bounds.vm_start as u64)?;
        let first = ((*area).vm_pgoff as u64).wrapping_shl(bindings::PAGE_SHIFT);
        let flags = (*area).__bindgen_anon_2.vm_flags;
        Some(Shown {
            file: Operations::<T>::get(file).into(),
            offset: first.saturating_add(inside),
            may_read: flags & bindings::VM_READ != 0,
            may_write: flags & bindings::VM_WRITE != 0,
        })
    }
}

/// Returns the first address in `span` at which the current task has mapped `this`. Looks no
/// further than the first address that is not mapped.
pub(crate) fn first_shown<T: Files>(this: &T, span: Span) -> Option<u64> {
    let task = kernel::current!();
    let lock = task.mm()?.mmap_read_lock();
    let mut address = span.start();
    while address <= span.last() {
        let area = lock.vma_lookup(usize::try_from(address).ok()?)?;
        let area: *const bindings::vm_area_struct = area.as_ptr();
        // SAFETY: The area is valid as long as the lock is held, and keeps its file.
        unsafe {
            let file = (*area).vm_file;
            if is_ours::<T>(file) && core::ptr::eq((*file).private_data.cast(), this) {
                return Some(address);
            }
            address = (*area).__bindgen_anon_1.__bindgen_anon_1.vm_end as u64;
        }
    }
    None
}

/// File operations of nodes for `T`. There must be one static for each `T`, since its address tells
/// files of ours from others.
pub(crate) struct Operations<T> {
    table: bindings::file_operations,
    _files: PhantomData<fn() -> T>,
}

// SAFETY: The table is never written to.
unsafe impl<T> Sync for Operations<T> {}

impl<T: Files> Operations<T> {
    /// Makes the operations, for a static: open files use it long after the node is gone. The owner
    /// makes each open file and each mapping hold the module.
    pub(crate) const fn new() -> Self {
        Self {
            table: bindings::file_operations {
                owner: this_module::<crate::LocalModule>().as_ptr(),
                open: Some(Self::open),
                release: Some(Self::release),
                unlocked_ioctl: Some(Self::ioctl),
                compat_ioctl: Some(Self::compat_ioctl),
                read: Some(Self::read),
                poll: Some(Self::poll),
                mmap: Some(Self::mmap),
                get_unmapped_area: Some(helpers::pinmap_get_unmapped_area),
                llseek: Some(bindings::noop_llseek),
                show_fdinfo: Some(Self::show_fdinfo),
                ..pin_init::zeroed()
            },
            _files: PhantomData,
        }
    }

    /// # Safety
    ///
    /// `file` must be one that [`open`](Self::open) opened and that is not released yet.
    unsafe fn get<'a>(file: *mut bindings::file) -> ArcBorrow<'a, T> {
        // SAFETY: `open` put an `Arc` there, which `release` takes.
        unsafe { ArcBorrow::from_raw((*file).private_data.cast::<T>()) }
    }

    /// Returns the `Arc` of an open file, so that callers can clone it.
    ///
    /// # Safety
    ///
    /// `file` must be one that [`open`](Self::open) opened and that is not released yet.
    unsafe fn get_arc(file: *mut bindings::file) -> ManuallyDrop<Arc<T>> {
        // SAFETY: `open` put an `Arc` there, which stays there: this one is not dropped.
        ManuallyDrop::new(unsafe { Arc::from_raw((*file).private_data.cast::<T>()) })
    }

    /// # Safety
    ///
    /// Called by the misc core, with the misc device in `private_data`.
    unsafe extern "C" fn open(_: *mut bindings::inode, file: *mut bindings::file) -> ffi::c_int {
        from_result(|| {
            // SAFETY: `private_data` is the `misc` of a `Node<T>`, which stays registered
            // meanwhile.
            let node = unsafe {
                let misc = (*file).private_data.cast::<bindings::miscdevice>();
                &*kernel::container_of!(Opaque::cast_from(misc), Node<T>, misc)
            };
            // SAFETY: The file is valid; `T` drops the views in `release`.
            let views = unsafe { Views::of(file) }.ok_or(EINVAL)?;
            let opened = T::open(&node.device, views)?;
            // SAFETY: The file is being opened, and only this task has it.
            unsafe {
                (*file).private_data = Arc::into_raw(opened).cast_mut().cast();
                bindings::stream_open(core::ptr::null_mut(), file);
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the VFS.
    unsafe extern "C" fn release(_: *mut bindings::inode, file: *mut bindings::file) -> ffi::c_int {
        // SAFETY: `open` put the `Arc` there, and nobody uses the file any more.
        T::release(unsafe { Arc::from_raw((*file).private_data.cast::<T>()) });
        0
    }

    /// # Safety
    ///
    /// Called by the VFS.
    unsafe extern "C" fn ioctl(
        file: *mut bindings::file,
        command: ffi::c_uint,
        argument: ffi::c_ulong,
    ) -> ffi::c_long {
        // SAFETY: By the requirements.
        let this = unsafe { Self::get_arc(file) };
        from_result(|| T::ioctl(&this, command, UserPtr::from_addr(argument)).map(|()| 0_isize))
    }

    /// # Safety
    ///
    /// Called by the VFS.
    unsafe extern "C" fn compat_ioctl(
        file: *mut bindings::file,
        command: ffi::c_uint,
        argument: ffi::c_ulong,
    ) -> ffi::c_long {
        // The structs are the same for 32-bit programs, and their pointers are zero-extended
        // (compat_ptr() on x86 and arm64).
        //
        // SAFETY: By the requirements.
        unsafe { Self::ioctl(file, command, argument & 0xffff_ffff) }
    }

    /// # Safety
    ///
    /// Called by the VFS.
    unsafe extern "C" fn read(
        file: *mut bindings::file,
        out: *mut ffi::c_char,
        length: usize,
        _: *mut bindings::loff_t,
    ) -> isize {
        // SAFETY: By the requirements.
        let (this, flags) = unsafe { (Self::get(file), (*file).f_flags) };
        let mut out = UserSlice::new(UserPtr::from_ptr(out.cast()), length).writer();
        let may_wait = flags & bindings::O_NONBLOCK == 0;
        from_result(|| {
            let bytes = this.read(&mut out, may_wait)?;
            Ok(isize::try_from(bytes).unwrap_or(isize::MAX))
        })
    }

    /// # Safety
    ///
    /// Called by the VFS.
    unsafe extern "C" fn poll(
        file: *mut bindings::file,
        table: *mut bindings::poll_table_struct,
    ) -> bindings::__poll_t {
        // SAFETY: By the requirements.
        let this = unsafe { Self::get(file) };
        // SAFETY: The arguments are the VFS's. `this` is shared until `release`, so what it returns
        // a reference to exists until then; and who waits in the queue has a reference to the file.
        unsafe { bindings::poll_wait(file, this.waiters().as_raw(), table) };
        this.readiness()
    }

    /// # Safety
    ///
    /// Called by the VFS.
    unsafe extern "C" fn mmap(
        file: *mut bindings::file,
        area: *mut bindings::vm_area_struct,
    ) -> ffi::c_int {
        // SAFETY: By the requirements.
        let this = unsafe { Self::get(file) };
        // SAFETY: `area` is the argument of the file's mmap().
        let area = unsafe { NewArea::from_raw(area) };
        from_result(|| T::mmap(this, area.ok_or(EINVAL)?).map(|()| 0))
    }

    /// # Safety
    ///
    /// Called by the VFS.
    unsafe extern "C" fn show_fdinfo(out: *mut bindings::seq_file, file: *mut bindings::file) {
        // SAFETY: By the requirements.
        let (this, out) = unsafe { (Self::get(file), SeqFile::from_raw(out)) };
        this.show(out);
    }
}
