// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles: an object of Python holds one until it is closed.
//!
//! After `fork()` the driver's objects are the parent's. A child that released what it inherited
//! would take it from its parent, and Python drops objects when it likes. So a handle knows its
//! process: in another one it refuses all use, and dropping it does nothing.

use std::mem;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_dynamic::Error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::raise;

/// Holds a value until the object of Python is closed.
pub(crate) struct Handle<T: Send + Sync> {
    what: &'static str,
    process: u32,
    slot: Mutex<Option<Arc<T>>>,
}

impl<T: Send + Sync> Handle<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self {
            what,
            process: process::id(),
            slot: Mutex::new(Some(Arc::new(value))),
        }
    }

    /// Refuses use in another process.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.process == process::id() {
            return Ok(());
        }
        let text = format!(
            "the {} belongs to the process that this one forked from",
            self.what
        );
        let error = Error::new(Errno::EPERM, ErrorKind::PermissionDenied, text);
        Err(raise(
            error.with_hint("open the device again in this process"),
        ))
    }

    fn swap(&self, with: Option<Arc<T>>) -> Option<Arc<T>> {
        mem::replace(&mut *self.lock(), with)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<T>>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value.
    ///
    /// # Errors
    ///
    /// `ValueError`: it is closed; `EPERM`: this is another process.
    pub(crate) fn get(&self) -> PyResult<Arc<T>> {
        self.check_process()?;
        let held = self.lock().clone();
        held.ok_or_else(|| PyValueError::new_err(format!("the {} is closed", self.what)))
    }

    /// Whether it is not closed.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    /// Closes it: gives up what is held, without the interpreter's lock. Nothing is held after
    /// that, and in another process nothing is done.
    pub(crate) fn close(&self) {
        let held = self.swap(None);
        self.drop_held(held);
    }

    /// Takes the value out, so that nothing is held any more.
    pub(crate) fn take(&self) -> PyResult<Option<Arc<T>>> {
        self.check_process()?;
        Ok(self.swap(None))
    }

    fn drop_held(&self, held: Option<Arc<T>>) {
        if self.process != process::id() {
            mem::forget(held);
            return;
        }
        let mut held = held;
        Python::try_attach(|py| py.detach(|| drop(held.take())));
        // At the end of the interpreter there is no lock.
        drop(held);
    }
}

impl<T: Send + Sync> Drop for Handle<T> {
    fn drop(&mut self) {
        self.close();
    }
}
