// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings: device addresses that memory has besides its first one.

use std::mem;
use std::sync::Arc;

use nix::errno::Errno;
use pinmap::{ErrorKind, Mapping, RegisterOptions};

use crate::error::{Error, Result};
use crate::memory::{Memory, Owner};

/// A device address that memory has besides its first one. Dropping it takes the address away.
#[derive(Debug)]
pub struct MemoryMapping {
    mapping: Option<Mapping<'static>>,
    memory: Arc<Memory>,
}

impl Memory {
    /// Gives registered memory or a registered file one more device address.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: this kind of memory cannot be mapped again; otherwise as for
    /// [`Registration::map`](pinmap::Registration::map).
    pub fn map(self: &Arc<Self>, options: RegisterOptions) -> Result<MemoryMapping> {
        let mapping = self.with(|held| {
            let mapping = match &held.owner {
                Owner::Registration(registration) => registration.map(options)?,
                Owner::File(file) => file.map(options)?,
                _ => {
                    let text = "only registered memory and registered files are mapped again";
                    let errno = Errno::EOPNOTSUPP;
                    return Err(Error::new(errno, ErrorKind::Unsupported, text));
                }
            };
            // SAFETY: The registration is not released as long as there is a mapping, and it stays
            // where it is.
            let mapping = unsafe { mem::transmute::<Mapping<'_>, Mapping<'static>>(mapping) };
            held.mappings += 1;
            Ok(mapping)
        })?;
        Ok(MemoryMapping {
            mapping: Some(mapping),
            memory: Arc::clone(self),
        })
    }
}

impl MemoryMapping {
    /// The device address of the first byte.
    pub fn device_addr(&self) -> u64 {
        self.mapping.as_ref().map_or(0, Mapping::device_addr)
    }

    /// Takes the address away.
    ///
    /// # Errors
    ///
    /// As for [`Mapping::unmap`].
    pub fn unmap(mut self) -> Result<()> {
        Ok(self.mapping.take().map_or(Ok(()), Mapping::unmap)?)
    }
}

impl Drop for MemoryMapping {
    fn drop(&mut self) {
        drop(self.mapping.take());
        // The memory cannot be released as long as there is a mapping.
        let _ = self.memory.with(|held| {
            held.mappings -= 1;
            Ok(())
        });
    }
}
