// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of `pinmap info`, before it is put into words.

use nix::sys::sysinfo::sysinfo;
use pinmap::inspect::{Memlock, Preflight};

use crate::details::Entry;
use crate::limit::{own_memlock, raise};
use crate::sysfs::Sysfs;
use crate::{size, words, Result};

/// Everything that is shown.
pub(crate) struct Report {
    /// Whether sysfs is there, which tells the next two.
    pub(crate) has_sysfs: bool,
    /// Whether the driver is loaded.
    pub(crate) driver_loaded: bool,
    /// Names of the IOMMUs.
    pub(crate) iommus: Vec<String>,
    pub(crate) memlock: Memlock,
    /// Whether a device could be asked what is used of the limit.
    pub(crate) used_known: bool,
    /// Bytes of memory that the machine has.
    pub(crate) memory: u64,
    /// Whether the needed bytes could be registered, if somebody asks and the driver can be asked.
    pub(crate) preflight: Option<pinmap::Result<Preflight>>,
    pub(crate) devices: Vec<Entry>,
    /// Advice if there is no device.
    pub(crate) hint: Option<String>,
}

impl Report {
    pub(crate) fn new(sysfs: &Sysfs, mut devices: Vec<Entry>) -> Self {
        let has_sysfs = sysfs.is_there();
        let driver_loaded = sysfs.driver_loaded();
        // The driver counts for the user, so all devices tell the same.
        let known = devices
            .iter()
            .find_map(|entry| Some(entry.details.as_ref().ok()?.info.memlock));
        let preflight = devices
            .iter_mut()
            .find_map(|entry| entry.details.as_mut().ok()?.preflight.take());
        let iommus = sysfs.iommus();
        let hint = devices.is_empty().then(|| match has_sysfs {
            true => words::no_device(driver_loaded, !iommus.is_empty()),
            false => words::NO_SYSFS.to_owned(),
        });
        let memlock = known.unwrap_or_else(own_memlock);
        Self {
            has_sysfs,
            driver_loaded,
            iommus,
            memlock,
            used_known: known.is_some(),
            memory: sysinfo().map_or(u64::MAX, |info| info.ram_total()),
            preflight,
            devices,
            hint,
        }
    }

    /// Fails if this many bytes are more than the machine has. No limit says so.
    pub(crate) fn check_memory(&self, need: u64) -> Result<()> {
        if need <= self.memory {
            return Ok(());
        }
        let [need, memory] = [need, self.memory].map(size::format);
        Err(format!("{need} cannot be registered: this machine has {memory} of memory").into())
    }

    /// How to be allowed to lock more, if the limit is low.
    pub(crate) fn raise(&self) -> Option<String> {
        raise(self.memlock)
    }
}
