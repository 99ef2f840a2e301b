// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which devices there are, and opening one.

use std::path::PathBuf;

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_dynamic as dynamic;
use pyo3::prelude::*;

use crate::device::Device;
use crate::error::detached;
use crate::info::DeviceNode;

/// Opens a device: by the path of its file, such as "/dev/pinmap0"; by the address of its PCI
/// function, such as "0000:01:00.0"; or the first one that there is.
///
/// Raises Error: ENOENT, there is no such device; EACCES, the user is not in the group of the file.
#[pyfunction]
#[pyo3(signature = (name = None))]
pub(crate) fn open(py: Python<'_>, name: Option<PathBuf>) -> PyResult<Device> {
    let device = detached(py, || {
        let Some(name) = name else {
            let first = pinmap::Device::list()?.into_iter().next();
            let first = first.ok_or_else(|| {
                let text = "no device is bound to pinmap";
                dynamic::Error::new(Errno::ENOENT, ErrorKind::NotFound, text)
                    .with_hint("`pinmap doctor` says why, and `pinmap bind` binds a function")
            })?;
            return Ok(pinmap::Device::open(first.path)?);
        };
        let pci = name.to_str().and_then(|name| name.parse().ok());
        Ok(match pci {
            Some(pci) => pinmap::Device::open_pci(pci)?,
            None => pinmap::Device::open(name)?,
        })
    })?;
    Ok(Device::new(device))
}

/// Opens the first device with these PCI ids.
///
/// Raises Error: ENODEV, there is none; otherwise as open() does.
#[pyfunction]
pub(crate) fn find(py: Python<'_>, vendor: u16, device: u16) -> PyResult<Device> {
    let found = detached(py, || Ok(pinmap::Device::find(vendor, device)?))?;
    Ok(Device::new(found))
}

/// Opens the first device that has streams: an accelerator whose packets this module knows.
///
/// Raises Error: ENODEV, there is none; otherwise as open() does.
#[pyfunction]
pub(crate) fn find_accelerator(py: Python<'_>) -> PyResult<Device> {
    detached(py, || Ok(pinmap_testgpu::find()?.device().clone())).map(Device::new)
}

/// Lists the devices of the driver, in the order of their numbers.
#[pyfunction]
pub(crate) fn list(py: Python<'_>) -> PyResult<Vec<DeviceNode>> {
    let nodes = detached(py, || Ok(pinmap::Device::list()?))?;
    Ok(nodes.into_iter().map(Into::into).collect())
}
