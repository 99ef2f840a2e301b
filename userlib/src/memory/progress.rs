// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress of registrations that take long.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::device::Device;
use crate::error::{ErrorWith, Result};
use crate::memory::buffer::Buffer;
use crate::memory::options::RegisterOptions;
use crate::memory::query::{RegistrationInfo, State};
use crate::memory::registration::Registration;

/// The progress of a registration.
///
/// ```no_run
/// # fn f(device: &pinmap::Device, addr: usize) -> pinmap::Result<()> {
/// // Another thread is registering the memory at `addr`.
/// while let Some(pinmap::inspect::Progress { pinned, total, .. }) = device.progress(addr)? {
///     println!("{} %", 100 * pinned / total);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Progress {
    /// Bytes that are pinned so far.
    pub pinned: u64,
    /// Bytes of the whole registration.
    pub total: u64,
}

impl Device {
    /// Asks how far a registration is that another thread is making, by a user address in it.
    /// Returns `None` if no registration is being made there.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device, addr: usize) -> pinmap::Result<()> {
    /// // Another thread is registering the memory at `addr`.
    /// if let Some(progress) = device.progress(addr)? {
    ///     println!("{} of {} bytes are pinned", progress.pinned, progress.total);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn progress(&self, addr: usize) -> Result<Option<Progress>> {
        let building = |info: &RegistrationInfo| info.state == State::Building;
        Ok(self.query(addr)?.filter(building).map(|info| Progress {
            pinned: info.pinned,
            total: info.len as u64,
        }))
    }
}

impl<T: Send> Buffer<T> {
    /// Registers the buffer as [`register`](Self::register) does, and meanwhile calls `report` at
    /// intervals of `every`, on a thread of its own.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use pinmap::{Access, Buffer};
    /// # fn f(device: &pinmap::Device, buffer: Buffer) -> pinmap::Result<()> {
    /// let every = Duration::from_millis(100);
    /// let registration = buffer.register_reporting(device, Access::Read, every, |progress| {
    ///     println!("{}%", 100 * progress.pinned / progress.total);
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    pub fn register_reporting(
        self,
        device: &Device,
        options: impl Into<RegisterOptions>,
        every: Duration,
        mut report: impl FnMut(Progress) + Send,
    ) -> Result<Registration<T>, ErrorWith<Self>> {
        let (options, addr) = (options.into(), self.addr());
        let (done, wait) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                // It is disconnected when the registration is done.
                while wait.recv_timeout(every) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Ok(Some(progress)) = device.progress(addr) {
                        report(progress);
                    }
                }
            });
            let result = self.register(device, options);
            drop(done);
            result
        })
    }
}
