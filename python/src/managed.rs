// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory: where its pages are, and where they should be.

use std::ptr;

use pinmap::{Advice, Place};
use pinmap_dynamic as dynamic;
use pyo3::prelude::*;

use crate::device::{Device, Shared};
use crate::error::{detached, invalid};
use crate::info::{Prefetched, Residency};

/// The place that an argument names: a device, which must be the memory's, or a word.
fn place(shared: &Shared, to: &Bound<'_, PyAny>) -> PyResult<Place> {
    if let Ok(other) = to.cast::<Device>() {
        if other.get().shared()?.device.path() == shared.device.path() {
            return Ok(Place::Vram);
        }
        return Err(invalid("that is another device than the memory's"));
    }
    match to.extract::<String>().as_deref() {
        Ok("host") => Ok(Place::Host),
        Ok("device") => Ok(Place::Vram),
        _ => {
            let to = to.repr()?;
            Err(invalid(format!(
                "there is no place {to}: \"host\" and \"device\" are the ones"
            )))
        }
    }
}

fn bytes(memory: &dynamic::Memory) -> *const [u8] {
    ptr::slice_from_raw_parts(ptr::with_exposed_provenance(memory.addr()), memory.len())
}

pub(crate) fn prefetch(
    py: Python<'_>,
    memory: &dynamic::Memory,
    shared: &Shared,
    to: &Bound<'_, PyAny>,
) -> PyResult<Prefetched> {
    let place = place(shared, to)?;
    let done = detached(py, || {
        memory.device_addr(0)?;
        Ok(shared.accelerator()?.prefetch(bytes(memory), place)?)
    })?;
    Ok(done.into())
}

pub(crate) fn advise(
    py: Python<'_>,
    memory: &dynamic::Memory,
    shared: &Shared,
    (prefer, accessed, read): (Option<&Bound<'_, PyAny>>, bool, bool),
) -> PyResult<()> {
    let mut advice = Advice::new();
    if let Some(to) = prefer {
        advice = advice.prefer(place(shared, to)?);
    }
    if accessed {
        advice = advice.accessed_by_device();
    }
    if read {
        advice = advice.read_mostly();
    }
    detached(py, || {
        memory.device_addr(0)?;
        Ok(shared.accelerator()?.advise(bytes(memory), advice)?)
    })
}

pub(crate) fn residency(
    py: Python<'_>,
    memory: &dynamic::Memory,
    shared: &Shared,
) -> PyResult<Residency> {
    let found = detached(py, || {
        memory.device_addr(0)?;
        Ok(shared.accelerator()?.residency(bytes(memory))?)
    })?;
    Ok(found.into())
}
