// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver knows about a registration.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::ioctl;
use crate::options::Access;
use crate::sys;

/// Whether a registration can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Pinned, and mapped if it has mappings.
    Live,
    /// Its memory went away, and the device cannot reach it; only releasing is left.
    Stale,
    /// It is being registered.
    Building,
    /// A state that a newer driver has, by its number.
    Other(u32),
}

/// Where memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BufferKind {
    /// Registered memory of the program.
    User,
    /// Host memory that the driver allocated.
    Host,
    /// Memory of the device.
    Vram,
    /// A part of a file ([`Device::register_file`]).
    File,
    /// A kind that a newer driver has, by its number.
    Other(u32),
}

/// A registration or an allocation, as the driver sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RegistrationInfo {
    /// The driver's name for it, unique in its context; 0 while it is being registered.
    pub handle: u64,
    /// Where the memory comes from.
    pub kind: BufferKind,
    /// User address of its first byte.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
    /// Device address of what was asked for, in the first mapping: of the user address, or, asked
    /// by registration, of the first byte. None: no mapping.
    pub device_addr: Option<u64>,
    /// What the device may do.
    pub access: Access,
    /// Whether it is on every device that the process has open.
    pub portable: bool,
    /// Whether it can be used.
    pub state: State,
    /// How many mappings it has now.
    pub mappings: u32,
    /// 1 when registered, 2 once it went stale.
    pub generation: u64,
    /// Where in its file it begins, of a part of a file.
    pub file_offset: Option<u64>,
    /// Bytes that are pinned: fewer than `len` while it is being registered.
    pub pinned: u64,
}

impl RegistrationInfo {
    pub(crate) fn from_abi(query: &sys::pinmap_query) -> Self {
        Self {
            handle: query.handle,
            kind: match query.out_kind {
                sys::PINMAP_BUFFER_USER => BufferKind::User,
                sys::PINMAP_BUFFER_HOST => BufferKind::Host,
                sys::PINMAP_BUFFER_VRAM => BufferKind::Vram,
                sys::PINMAP_BUFFER_FILE => BufferKind::File,
                other => BufferKind::Other(other),
            },
            addr: query.out_base as usize,
            len: query.out_length as usize,
            device_addr: (query.out_nr_mappings != 0).then_some(query.out_device_addr),
            access: Access::from_flags(query.out_flags),
            portable: query.out_flags & sys::PINMAP_REGISTER_PORTABLE != 0,
            state: match query.out_state {
                sys::PINMAP_STATE_LIVE => State::Live,
                sys::PINMAP_STATE_STALE => State::Stale,
                sys::PINMAP_STATE_BUILDING => State::Building,
                other => State::Other(other),
            },
            mappings: query.out_nr_mappings,
            generation: query.out_generation,
            file_offset: (query.out_kind == sys::PINMAP_BUFFER_FILE).then_some(query.out_offset),
            pinned: query.out_pinned,
        }
    }
}

impl Device {
    /// Finds the registration or allocation of this context that has a user address, which may lie
    /// anywhere inside. None: there is none. A stale one is found until it is released, or some of its
    /// addresses are registered again.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn query(&self, addr: usize) -> Result<Option<RegistrationInfo>> {
        let mut args = sys::pinmap_query {
            addr: addr as u64,
            ..Default::default()
        };
        match ioctl::query(self.as_fd(), &mut args) {
            Ok(()) => Ok(Some(RegistrationInfo::from_abi(&args))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => {
                let attempt = format!("look up {addr:#x} with {self}");
                Err(Error::new(Operation::Query, attempt, errno))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_fields_become_typed() {
        let mut abi = sys::pinmap_query {
            handle: 3,
            out_base: 0x1000,
            out_length: 0x2000,
            out_device_addr: 0x5000,
            out_flags: sys::PINMAP_REGISTER_WRITE,
            out_state: sys::PINMAP_STATE_LIVE,
            out_nr_mappings: 1,
            out_generation: 1,
            ..Default::default()
        };
        let info = RegistrationInfo::from_abi(&abi);
        assert_eq!((info.handle, info.addr, info.len), (3, 0x1000, 0x2000));
        assert_eq!(
            (info.device_addr, info.access),
            (Some(0x5000), Access::ReadWrite)
        );
        assert_eq!(
            (info.state, info.mappings, info.generation),
            (State::Live, 1, 1)
        );
        assert_eq!((info.file_offset, info.pinned), (None, 0));
        abi.out_kind = sys::PINMAP_BUFFER_FILE;
        abi.out_offset = 0x3000;
        abi.out_pinned = 0x2000;
        let info = RegistrationInfo::from_abi(&abi);
        assert_eq!(info.kind, BufferKind::File);
        assert_eq!((info.file_offset, info.pinned), (Some(0x3000), 0x2000));
        abi.out_nr_mappings = 0;
        abi.out_state = sys::PINMAP_STATE_STALE;
        let info = RegistrationInfo::from_abi(&abi);
        assert_eq!((info.device_addr, info.state), (None, State::Stale));
    }
}
