// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kind of host memory the driver allocates.

use crate::sys;

/// How to allocate host memory: see [`Device::alloc_with`](crate::Device::alloc_with).
///
/// Whatever the options, it is pinned, zeroed, and mapped for the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AllocOptions {
    write_combined: bool,
    node: Option<u32>,
    portable: bool,
}

impl AllocOptions {
    /// Memory that CPUs cache, from where the system's memory policy takes it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Past the CPU's caches: for memory that the CPU writes, in order, and the device reads. The
    /// CPU reads it slowly. On x86 only.
    pub fn write_combined(mut self, on: bool) -> Self {
        self.write_combined = on;
        self
    }

    /// From this NUMA node and no other. By default the policy of the thread decides
    /// (`set_mempolicy()`).
    pub fn node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// On every device that the process has open, also on those that it opens later, at the same
    /// address and with one charge. If one of them cannot have it, allocating fails; later, opening
    /// does. It goes with the allocation.
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    pub(crate) fn to_abi(self, length: usize) -> sys::pinmap_alloc {
        let mut flags = 0;
        if self.write_combined {
            flags |= sys::PINMAP_ALLOC_WRITE_COMBINED;
        }
        if self.node.is_some() {
            flags |= sys::PINMAP_ALLOC_NODE;
        }
        if self.portable {
            flags |= sys::PINMAP_ALLOC_PORTABLE;
        }
        sys::pinmap_alloc {
            flags,
            length: length as u64,
            node: self.node.unwrap_or(0),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags() {
        let plain = AllocOptions::new().to_abi(4096);
        assert_eq!((plain.flags, plain.length, plain.node), (0, 4096, 0));
        let all = AllocOptions::new().write_combined(true).node(3).to_abi(1);
        let flags = sys::PINMAP_ALLOC_WRITE_COMBINED | sys::PINMAP_ALLOC_NODE;
        assert_eq!((all.flags, all.node), (flags, 3));
        let portable = AllocOptions::new().portable().write_combined(true);
        let flags = sys::PINMAP_ALLOC_PORTABLE | sys::PINMAP_ALLOC_WRITE_COMBINED;
        assert_eq!(portable.to_abi(1).flags, flags);
    }
}
