// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host as the device sees it.

use crate::sys::memory::{Mapping, Page};
use std::fmt::Debug;

/// Host memory refused an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Counts of what the host has mapped for the device, and of accesses to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ranges that are mapped now.
    pub live: u64,
    /// Mappings made so far.
    pub mapped: u64,
    /// Unmappings made so far.
    pub unmapped: u64,
    /// Accesses to host memory that were made by messages.
    pub messages: u64,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Side<'a> {
    /// A bus address.
    Host(u64),
    /// An offset into memory of the device.
    Device(&'a Mapping, u64),
}

/// Guard of what the host has mapped, which does not change meanwhile.
#[derive(Debug)]
pub struct Held<'a> {
    /// Number of times that something was unmapped.
    pub generation: u64,
    pub(crate) _guard: Option<Box<dyn Debug + 'a>>,
}

/// Host memory and interrupts.
///
/// A write has reached memory when its method returns. Methods may block until the host answers, so
/// the thread that handles the host's requests must not call them.
pub trait Bus: Debug + Send + Sync {
    /// Reads from a bus address.
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Refused>;
    /// Writes to a bus address. After an error some of the bytes may be written.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Refused>;
    /// Copies up to `bytes` directly and returns how many; 0 if the copy takes a read and a write.
    fn copy(&self, from: Side<'_>, to: Side<'_>, bytes: usize) -> usize;
    /// Reads 8 bytes at a multiple of 8, in one access.
    fn load(&self, address: u64) -> Result<u64, Refused>;
    /// Writes 8 bytes at a multiple of 8, in one access.
    fn store(&self, address: u64, value: u64) -> Result<(), Refused>;
    /// Returns the page of 4096 bytes at a bus address, and the generation of what is mapped. The
    /// page may be accessed while [`hold`](Self::hold) says that the generation is still that one.
    /// `None` if it takes the other methods.
    fn page(&self, address: u64, write: bool) -> Option<(Page, u64)>;
    /// Keeps what is mapped. Meanwhile the same thread must not call the methods that access
    /// memory.
    fn hold(&self) -> Held<'_>;
    /// Sends an MSI-X message.
    fn interrupt(&self, vector: usize);
    /// Whether the host checks each access itself (message mode).
    fn is_message(&self) -> bool;
    /// Returns the counts.
    fn counts(&self) -> Counts;
}
