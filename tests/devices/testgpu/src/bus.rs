// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host as the device sees it.

use crate::counter::Counters;
use crate::sys::memory::Mapping;
use std::fmt::Debug;
use std::sync::Arc;

/// Host memory refused an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Counts of what the host has mapped for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mappings {
    /// Ranges that are mapped now.
    pub live: u64,
    /// Mappings made so far.
    pub mapped: u64,
    /// Unmappings made so far.
    pub unmapped: u64,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Side<'a> {
    /// A bus address.
    Host(u64),
    /// An offset into memory of the device.
    Device(&'a Mapping, u64),
}

/// Host memory and interrupts.
///
/// A write has reached memory when its method returns. Methods may block until the host answers, so
/// the thread that handles the host's requests must not call them.
pub trait Bus: Debug + Send + Sync {
    /// Reads from a bus address.
    fn read(&self, address: u64, to: &mut [u8], counters: &Counters) -> Result<(), Refused>;
    /// Writes to a bus address. After an error some of the bytes may be written.
    fn write(&self, address: u64, from: &[u8], counters: &Counters) -> Result<(), Refused>;
    /// Copies up to `bytes` directly and returns how many; 0 if the copy takes a read and a write.
    fn copy(&self, from: Side<'_>, to: Side<'_>, bytes: usize) -> usize;
    /// Reads 8 bytes at a multiple of 8, in one access.
    fn load(&self, address: u64, counters: &Counters) -> Result<u64, Refused>;
    /// Writes 8 bytes at a multiple of 8, in one access.
    fn store(&self, address: u64, value: u64, counters: &Counters) -> Result<(), Refused>;
    /// Turns Bus Master on or off. Once it is off and this returns, no access reaches host memory.
    fn set_master(&self, on: bool);
    /// Sends an MSI-X message.
    fn interrupt(&self, vector: usize);
    /// Whether the host checks each access itself (message mode).
    fn is_message(&self) -> bool;
    /// Counts of what is mapped.
    fn mappings(&self) -> Mappings;
}

/// A host that has other owners too.
impl<T: Bus> Bus for Arc<T> {
    fn read(&self, address: u64, to: &mut [u8], counters: &Counters) -> Result<(), Refused> {
        (**self).read(address, to, counters)
    }
    fn write(&self, address: u64, from: &[u8], counters: &Counters) -> Result<(), Refused> {
        (**self).write(address, from, counters)
    }
    fn copy(&self, from: Side<'_>, to: Side<'_>, bytes: usize) -> usize {
        (**self).copy(from, to, bytes)
    }
    fn load(&self, address: u64, counters: &Counters) -> Result<u64, Refused> {
        (**self).load(address, counters)
    }
    fn store(&self, address: u64, value: u64, counters: &Counters) -> Result<(), Refused> {
        (**self).store(address, value, counters)
    }
    fn set_master(&self, on: bool) {
        (**self).set_master(on);
    }
    fn interrupt(&self, vector: usize) {
        (**self).interrupt(vector);
    }
    fn is_message(&self) -> bool {
        (**self).is_message()
    }
    fn mappings(&self) -> Mappings {
        (**self).mappings()
    }
}
