// SPDX-License-Identifier: GPL-2.0
//! Exports memory as dma-bufs, so that other drivers can import it.
//!
//! Lock order, outermost first: `dma_buf`, the reservation of the dma-buf, `tables`. The
//! reservation can be held by a task that reclaims memory, so an MMU notifier must not take any of
//! them.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h).

mod table;

use self::table::{Direction, Table};
use crate::sys::{
    helpers,
    mm::{
        pages::{Origin, Pages},
        vma::NewArea,
    },
    task::{coverage::Covered, work},
};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    bindings,
    error::{from_err_ptr, from_result},
    ffi,
    fs::{
        file::{flags::O_RDWR, FileDescriptorReservation},
        File,
    },
    impl_has_work,
    module::this_module,
    new_condvar, new_mutex, new_work,
    prelude::*,
    sync::{aref::ARef, Arc, CondVar, Mutex},
    workqueue::{Work, WorkItem},
};

#[cfg(not(CONFIG_DMA_SHARED_BUFFER))]
compile_error!("memory is shared as dma-bufs: CONFIG_DMA_SHARED_BUFFER is needed");

/// Memory that other drivers may import.
pub(crate) trait Exporter: Send + Sync + Sized + 'static {
    /// The operations of its dma-bufs: one static, whose address tells them from other drivers'
    /// dma-bufs.
    fn operations() -> &'static Operations<Self>;

    /// Returns the memory. Fails once the memory was taken away.
    fn memory(&self) -> Result<Arc<dyn Pages>>;

    /// Whether importers may write.
    fn is_writable(&self) -> bool;

    /// Whether the memory can be taken away from importers.
    fn is_revocable(&self) -> bool;

    /// Makes `area` a view of the memory.
    fn view(&self, area: NewArea<'_>) -> Result;
}

/// A dma-buf and the memory it exports. This may outlive the dma-buf.
#[pin_data]
pub(crate) struct Shared<T: Exporter> {
    exporter: T,
    #[pin]
    tables: Mutex<KVec<KBox<Table>>>,
    /// Signalled when a table was retired.
    #[pin]
    retired: CondVar,
    /// The dma-buf, until it is released.
    #[pin]
    dma_buf: Mutex<Option<Raw>>,
    /// Drops [`Table`]s that are retired.
    #[pin]
    work: Work<Shared<T>>,
}

struct Raw(NonNull<bindings::dma_buf>);

// SAFETY: A dma-buf may be used from any thread.
unsafe impl Send for Raw {}

impl<T: Exporter> Shared<T> {
    /// Makes the part of an export that importers of this driver need, without a dma-buf.
    pub(crate) fn unshared(exporter: T) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                exporter,
                tables <- new_mutex!(KVec::new(), "pinmap_tables"),
                retired <- new_condvar!("pinmap_retired"),
                dma_buf <- new_mutex!(None, "pinmap_dma_buf"),
                work <- new_work!("pinmap_dma_buf"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Exports `exporter` as a dma-buf of `length` bytes, which is not visible yet.
    pub(crate) fn new(exporter: T, length: u64) -> Result<(Arc<Self>, Unpublished)> {
        let write = exporter.is_writable();
        let this = Self::unshared(exporter)?;
        let info = bindings::dma_buf_export_info {
            exp_name: c"pinmap".as_char_ptr(),
            owner: this_module::<crate::LocalModule>().as_ptr(),
            ops: &T::operations().0,
            size: usize::try_from(length).map_err(|_| EOVERFLOW)?,
            flags: if write { O_RDWR as ffi::c_int } else { 0 },
            resv: core::ptr::null_mut(),
            priv_: Arc::into_raw(this.clone()).cast_mut().cast(),
        };
        // SAFETY: The operations fit what `priv_` points to; the dma-buf gets a reference to that.
        let made = from_err_ptr(unsafe { bindings::dma_buf_export(&info) });
        let dma_buf = made.and_then(|made| NonNull::new(made).ok_or(ENOMEM));
        let dma_buf = dma_buf.inspect_err(|_| {
            // SAFETY: The pointer is from `into_raw`; the dma-buf was not made, so it did not take
            // it.
            drop(unsafe { Arc::from_raw(info.priv_.cast::<Self>()) });
        })?;
        // SAFETY: A dma-buf has a file; the reference that we were given is one to the file.
        let file = unsafe { NonNull::new((*dma_buf.as_ptr()).file) }.ok_or(EINVAL)?;
        // SAFETY: The reference to the file is ours; nobody else has the file, and it has no
        // position.
        let file = unsafe { ARef::from_raw(file.cast::<File>()) };
        *this.dma_buf.lock() = Some(Raw(dma_buf));
        let descriptor = FileDescriptorReservation::get_unused_fd_flags(bindings::O_CLOEXEC)?;
        Ok((this, Unpublished { descriptor, file }))
    }

    /// Returns what the dma-buf with the current task's descriptor `fd` exports.
    /// `None`: another driver exports it. Fails with `EBADF` if there is no such descriptor, and
    /// with `EINVAL` if it is not a dma-buf.
    pub(crate) fn from_fd(fd: i32) -> Result<Option<Arc<Self>>> {
        // SAFETY: Any number may be passed.
        let dma_buf = from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?;
        // SAFETY: The dma-buf is valid, since we were given a reference.
        let ours = unsafe { core::ptr::eq((*dma_buf).ops, &T::operations().0) };
        let found = if ours {
            // SAFETY: `new` made the dma-buf, with a reference to a `Self` that lives as long as
            // the dma-buf.
            Some(unsafe {
                let this = Arc::from_raw((*dma_buf).priv_.cast::<Self>());
                let found = this.clone();
                core::mem::forget(this);
                found
            })
        } else {
            None
        };
        // SAFETY: We were given the reference, and do not use it any more.
        unsafe { bindings::dma_buf_put(dma_buf) };
        Ok(found)
    }

    pub(crate) fn exporter(&self) -> &T {
        &self.exporter
    }

    /// Whether the dma-buf was released.
    pub(crate) fn is_released(&self) -> bool {
        self.dma_buf.lock().is_none()
    }

    /// Tells all importers to let go of the memory, once [`Exporter::memory`] fails. They have done
    /// so when their tables are retired, which can be later. With `finish`, also waits until they
    /// have finished what they had begun. Sleeps; must not be called in an MMU notifier, nor with a
    /// lock that one takes.
    pub(crate) fn invalidate(&self, finish: bool) {
        // The lock keeps the dma-buf from being released meanwhile.
        let dma_buf = self.dma_buf.lock();
        if let Some(raw) = &*dma_buf {
            // SAFETY: The dma-buf is valid until `release` has taken it from `dma_buf`.
            unsafe { helpers::pinmap_dma_buf_invalidate(raw.0.as_ptr(), finish) };
        }
    }

    /// Waits until all importers have let go, which those that can be told have promised to do in
    /// bounded time. For memory that does not outlive a device: pages of the host's memory are kept
    /// by the tables instead.
    pub(crate) fn await_importers(&self) {
        let mut tables = self.tables.lock();
        while tables.iter().any(|table| !table.retired) {
            self.retired.wait(&mut tables);
        }
        drop(tables);
        // A worker does that, too, but whoever waits may want the memory.
        self.sweep();
    }

    fn attach(&self, attachment: *mut bindings::dma_buf_attachment) -> Result {
        // SAFETY: The dma-buf core passes a valid attachment.
        let can_let_go = unsafe { bindings::dma_buf_attach_revocable(attachment) };
        if self.exporter.is_revocable() && !can_let_go {
            return Err(EOPNOTSUPP);
        }
        let memory = self.exporter.memory()?;
        // SAFETY: As above.
        let takes_devices = unsafe { (*attachment).peer2peer };
        if !takes_devices && !matches!(memory.origin(), Origin::Host) {
            return Err(EOPNOTSUPP);
        }
        Ok(())
    }

    fn map(
        &self,
        attachment: *mut bindings::dma_buf_attachment,
        direction: Direction,
    ) -> Result<*mut bindings::sg_table> {
        // SAFETY: No requirements.
        if unsafe { helpers::pinmap_dma_may_write(direction) } && !self.exporter.is_writable() {
            return Err(EACCES);
        }
        // One importer maps at a time, by the reservation, so that this room is there later.
        self.tables.lock().reserve(1, GFP_KERNEL_ACCOUNT)?;
        let mut new = Table::new(attachment, self.exporter.memory()?, direction)?;
        let pointer = new.table();
        let kept = self.tables.lock().push_within_capacity(new);
        kept.map_err(|full| {
            let mut new = full.0;
            new.retire();
            ENOMEM
        })?;
        Ok(pointer)
    }

    fn unmap(this: Arc<Self>, table: *mut bindings::sg_table) {
        for known in &mut *this.tables.lock() {
            if core::ptr::eq(known.table(), table) {
                known.retire();
            }
        }
        this.retired.notify_all();
        // Unpinning takes locks that must not be taken under the reservation, so a worker does it.
        // A worker that is queued already will see this table as well.
        let _ = work::ending().enqueue(this);
    }

    fn each_table(
        &self,
        sync: unsafe extern "C" fn(*mut bindings::device, *mut bindings::sg_table, Direction),
    ) {
        for known in &mut *self.tables.lock() {
            known.sync(sync);
        }
    }

    /// Drops retired tables.
    fn sweep(&self) {
        loop {
            let mut tables = self.tables.lock();
            let index = tables.iter().position(|table| table.retired);
            let retired = index.and_then(|index| tables.remove(index).ok());
            drop(tables);
            if retired.is_none() {
                return;
            }
        }
    }
}

impl_has_work! {
    impl{T: Exporter} HasWork<Self> for Shared<T> { self.work }
}

impl<T: Exporter> WorkItem for Shared<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _covered = Covered::begin();
        this.sweep();
    }
}

/// A dma-buf that no program can use yet. Dropping it releases the dma-buf.
pub(crate) struct Unpublished {
    descriptor: FileDescriptorReservation,
    file: ARef<File>,
}

impl Unpublished {
    /// The number of the file descriptor to come.
    pub(crate) fn descriptor(&self) -> i32 {
        self.descriptor.reserved_fd() as i32
    }

    /// Installs the file descriptor in the current task.
    pub(crate) fn publish(self) {
        self.descriptor.fd_install(self.file);
    }
}

/// The operations of the dma-bufs that export a `T`.
#[repr(transparent)]
pub(crate) struct Operations<T>(bindings::dma_buf_ops, PhantomData<fn(T)>);

// SAFETY: The table is never written to.
unsafe impl<T> Sync for Operations<T> {}

impl<T: Exporter> Operations<T> {
    /// Makes the operations, for a static.
    pub(crate) const fn new() -> Self {
        let operations = bindings::dma_buf_ops {
            attach: Some(Self::attach),
            // The pages are pinned as long as they are mapped.
            pin: Some(Self::pin),
            unpin: Some(Self::unpin),
            map_dma_buf: Some(Self::map),
            unmap_dma_buf: Some(Self::unmap),
            release: Some(Self::release),
            begin_cpu_access: Some(Self::begin),
            end_cpu_access: Some(Self::end),
            mmap: Some(Self::mmap),
            ..pin_init::zeroed()
        };
        Self(operations, PhantomData)
    }

    /// # Safety
    ///
    /// `dma_buf` must be one that [`Shared::new`] made and that is not released yet.
    unsafe fn shared<'a>(
        dma_buf: *const bindings::dma_buf,
    ) -> kernel::sync::ArcBorrow<'a, Shared<T>> {
        // SAFETY: `new` put an `Arc` there, which `release` takes.
        unsafe { kernel::sync::ArcBorrow::from_raw((*dma_buf).priv_.cast::<Shared<T>>()) }
    }

    /// # Safety
    ///
    /// Called by the dma-buf core; all the callbacks that follow are, too.
    unsafe extern "C" fn attach(
        dma_buf: *mut bindings::dma_buf,
        attachment: *mut bindings::dma_buf_attachment,
    ) -> ffi::c_int {
        // SAFETY: By the requirements.
        let shared = unsafe { Self::shared(dma_buf) };
        from_result(|| shared.attach(attachment).map(|()| 0))
    }

    /// # Safety
    ///
    /// See [`attach`](Self::attach).
    unsafe extern "C" fn pin(_: *mut bindings::dma_buf_attachment) -> ffi::c_int {
        0
    }

    /// # Safety
    ///
    /// See [`attach`](Self::attach).
    unsafe extern "C" fn unpin(_: *mut bindings::dma_buf_attachment) {}

    /// # Safety
    ///
    /// See [`attach`](Self::attach).
    unsafe extern "C" fn map(
        attachment: *mut bindings::dma_buf_attachment,
        direction: bindings::dma_data_direction,
    ) -> *mut bindings::sg_table {
        // SAFETY: By the requirements.
        let shared = unsafe { Self::shared((*attachment).dmabuf) };
        let mapped = shared.map(attachment, direction);
        mapped.unwrap_or_else(Error::to_ptr)
    }

    /// # Safety
    ///
    /// See [`attach`](Self::attach).
    unsafe extern "C" fn unmap(
        attachment: *mut bindings::dma_buf_attachment,
        table: *mut bindings::sg_table,
        _: bindings::dma_data_direction,
    ) {
        // SAFETY: By the requirements.
        let shared = unsafe { Self::shared((*attachment).dmabuf) };
        Shared::unmap(shared.into(), table);
    }

    /// # Safety
    ///
    /// See [`attach`](Self::attach).
    unsafe extern "C" fn begin(
        dma_buf: *mut bindings::dma_buf,
        _: bindings::dma_data_direction,
    ) -> ffi::c_int {
        // SAFETY: By the requirements.
        unsafe { Self::shared(dma_buf) }.each_table(helpers::pinmap_dma_sync_for_cpu);
        0
    }

    /// # Safety
    ///
    /// See [`attach`](Self::attach).
    unsafe extern "C" fn end(
        dma_buf: *mut bindings::dma_buf,
        _: bindings::dma_data_direction,
    ) -> ffi::c_int {
        // SAFETY: By the requirements.
        unsafe { Self::shared(dma_buf) }.each_table(helpers::pinmap_dma_sync_for_device);
        0
    }

    /// # Safety
    ///
    /// See [`attach`](Self::attach).
    unsafe extern "C" fn mmap(
        dma_buf: *mut bindings::dma_buf,
        area: *mut bindings::vm_area_struct,
    ) -> ffi::c_int {
        // SAFETY: By the requirements.
        let shared = unsafe { Self::shared(dma_buf) };
        // SAFETY: `area` is the argument of the file's mmap().
        let area = unsafe { NewArea::from_raw(area) };
        from_result(|| shared.exporter.view(area.ok_or(EINVAL)?).map(|()| 0))
    }

    /// # Safety
    ///
    /// See [`attach`](Self::attach).
    unsafe extern "C" fn release(dma_buf: *mut bindings::dma_buf) {
        // SAFETY: `new` put the `Arc` there; nobody uses the dma-buf any more.
        let shared = unsafe { Arc::from_raw((*dma_buf).priv_.cast::<Shared<T>>()) };
        *shared.dma_buf.lock() = None;
        // Nobody is attached any more. The module may be unloaded after this.
        work::cancel(&shared);
        shared.sweep();
    }
}
