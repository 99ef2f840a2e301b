// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries: what the driver knows about a registration or an allocation.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::options::Access;
use crate::sys::{bindings as abi, ioctl};

/// The state of a registration.
///
/// ```no_run
/// # fn f(memory: &pinmap::Registration<()>) -> pinmap::Result<()> {
/// if memory.state()? == pinmap::inspect::State::Stale {
///     println!("somebody has unmapped it");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum State {
    /// The memory is pinned, and the device reaches it by all mappings.
    Live,
    /// The memory left the address space, and the device cannot reach it. The registration can only
    /// be released.
    Stale,
    /// The memory is being registered.
    Building,
    /// A state that this crate does not know, by the driver's number.
    Other(u32),
}

/// The origin of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum BufferKind {
    /// Memory of the program, registered.
    User,
    /// Host memory that the driver allocated.
    Host,
    /// Memory of the device, allocated by the driver.
    Vram,
    /// A part of a file, registered by [`Device::register_file`].
    File,
    /// No memory of its own: a managed range.
    Managed,
    /// A kind that this crate does not know, by the driver's number.
    Other(u32),
}

/// The driver's knowledge of a registration or an allocation.
///
/// ```no_run
/// # fn f(memory: &pinmap::Registration) -> pinmap::Result<()> {
/// let info = memory.query()?;
/// println!("{:?}, {} mappings, {} bytes pinned", info.state, info.mappings, info.pinned);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RegistrationInfo {
    /// The handle, unique in its context; 0 while the memory is being registered.
    pub handle: u64,
    /// The origin of the memory.
    pub kind: BufferKind,
    /// User address of the first page: memory that was rounded outwards may begin within it.
    pub addr: usize,
    /// Length of the whole pages in bytes.
    pub len: usize,
    /// Device address in the first mapping: of the user address that [`Device::query`] was asked
    /// about, or else of the first page. `None` if there is no mapping.
    pub device_addr: Option<u64>,
    /// The access that the device has.
    pub access: Access,
    /// Whether every device that the process has open maps the memory.
    pub portable: bool,
    /// Whether the memory is live, stale or being registered.
    pub state: State,
    /// Number of mappings.
    pub mappings: u32,
    /// 1 after registering, 2 after the registration went stale.
    pub generation: u64,
    /// Offset of the first byte in its file, for a part of a file.
    pub file_offset: Option<u64>,
    /// Bytes that are pinned: fewer than `len` while the memory is being registered.
    pub pinned: u64,
}

impl RegistrationInfo {
    pub(crate) fn from_abi(query: &abi::pinmap_query) -> Self {
        Self {
            handle: query.handle,
            kind: match query.out_kind {
                abi::PINMAP_BUFFER_USER => BufferKind::User,
                abi::PINMAP_BUFFER_HOST => BufferKind::Host,
                abi::PINMAP_BUFFER_VRAM => BufferKind::Vram,
                abi::PINMAP_BUFFER_FILE => BufferKind::File,
                abi::PINMAP_BUFFER_MANAGED => BufferKind::Managed,
                other => BufferKind::Other(other),
            },
            addr: query.out_base as usize,
            len: query.out_length as usize,
            device_addr: (query.out_nr_mappings != 0).then_some(query.out_device_addr),
            access: Access::from_flags(query.out_flags),
            portable: query.out_flags & abi::PINMAP_REGISTER_PORTABLE != 0,
            state: match query.out_state {
                abi::PINMAP_STATE_LIVE => State::Live,
                abi::PINMAP_STATE_STALE => State::Stale,
                abi::PINMAP_STATE_BUILDING => State::Building,
                other => State::Other(other),
            },
            mappings: query.out_nr_mappings,
            generation: query.out_generation,
            file_offset: (query.out_kind == abi::PINMAP_BUFFER_FILE).then_some(query.out_offset),
            pinned: query.out_pinned,
        }
    }
}

impl Device {
    /// Finds the registration or allocation of this context that contains a user address. Returns
    /// `None` if there is none. A stale registration is found until it is released, or until some
    /// of its addresses are registered again.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device, numbers: &[f32]) -> pinmap::Result<()> {
    /// match device.query(numbers.as_ptr().addr())? {
    ///     Some(info) => println!("{:?} memory, at {:x?}", info.kind, info.device_addr),
    ///     None => println!("it is neither registered nor allocated here"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn query(&self, addr: usize) -> Result<Option<RegistrationInfo>> {
        let mut args = abi::pinmap_query {
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
        let mut abi = abi::pinmap_query {
            handle: 3,
            out_base: 0x1000,
            out_length: 0x2000,
            out_device_addr: 0x5000,
            out_flags: abi::PINMAP_REGISTER_WRITE,
            out_state: abi::PINMAP_STATE_LIVE,
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
        abi.out_kind = abi::PINMAP_BUFFER_FILE;
        abi.out_offset = 0x3000;
        abi.out_pinned = 0x2000;
        let info = RegistrationInfo::from_abi(&abi);
        assert_eq!(info.kind, BufferKind::File);
        assert_eq!((info.file_offset, info.pinned), (Some(0x3000), 0x2000));
        abi.out_nr_mappings = 0;
        abi.out_state = abi::PINMAP_STATE_STALE;
        let info = RegistrationInfo::from_abi(&abi);
        assert_eq!((info.device_addr, info.state), (None, State::Stale));
    }
}
