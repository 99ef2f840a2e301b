// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a registration is that takes long.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::device::Device;
use crate::error::{ErrorWith, Result};
use crate::memory::Buffer;
use crate::options::RegisterOptions;
use crate::query::State;
use crate::registration::Registration;

/// How far a registration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Bytes that are pinned already.
    pub pinned: u64,
    /// Bytes in all.
    pub total: u64,
}

impl Device {
    /// How far a registration is that another thread is making. None: no registration is being
    /// made that has this user address.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn progress(&self, addr: usize) -> Result<Option<Progress>> {
        let building = |info: &crate::RegistrationInfo| info.state == State::Building;
        Ok(self.query(addr)?.filter(building).map(|info| Progress {
            pinned: info.pinned,
            total: info.len as u64,
        }))
    }
}

impl Buffer {
    /// As [`register`](Self::register), and calls `report` now and then, in a thread of its own,
    /// until it is done.
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
    ) -> Result<Registration, ErrorWith<Self>> {
        let (options, addr) = (options.into(), self.addr());
        let (done, wait) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                // Until the other end is dropped.
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
