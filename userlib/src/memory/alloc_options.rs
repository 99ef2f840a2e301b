// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of an allocation of host memory.

use crate::sys::bindings as abi;

/// Options of an allocation of host memory.
///
/// Passed to [`Device::alloc_with`](crate::Device::alloc_with). With any options, the memory is
/// pinned, zeroed, and mapped for the device.
///
/// ```no_run
/// use pinmap::AllocOptions;
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// // The CPU only writes commands there, in order, and the device reads them.
/// let options = AllocOptions::new().write_combined().node(0);
/// let mut commands = gpu.alloc_with::<u64>(4096, options)?;
/// commands[..3].copy_from_slice(&[1, 2, 3]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AllocOptions {
    write_combined: bool,
    node: Option<u32>,
    portable: bool,
}

impl AllocOptions {
    /// Options for memory that CPUs cache, on the NUMA node that the system's memory policy
    /// chooses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the memory write-combined, which bypasses the CPU's caches. This suits memory that the
    /// CPU only writes, in order, and the device reads; reads of the CPU are slow. On x86 only.
    #[must_use]
    pub fn write_combined(mut self) -> Self {
        self.write_combined = true;
        self
    }

    /// Sets the NUMA node from which all of the memory is taken. By default the memory policy of
    /// the thread decides (`set_mempolicy()`).
    #[must_use]
    pub fn node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// Maps the memory for every device that the process has open or opens later, at the same
    /// address and with one charge. If one of the open devices cannot map the memory, allocating
    /// fails; if a later one cannot, opening that device fails. Dropping the allocation removes all
    /// mappings.
    #[must_use]
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    pub(crate) fn is_portable(&self) -> bool {
        self.portable
    }

    pub(crate) fn to_abi(self, length: usize) -> abi::pinmap_alloc {
        let mut flags = 0;
        if self.write_combined {
            flags |= abi::PINMAP_ALLOC_WRITE_COMBINED;
        }
        if self.node.is_some() {
            flags |= abi::PINMAP_ALLOC_NODE;
        }
        if self.portable {
            flags |= abi::PINMAP_ALLOC_PORTABLE;
        }
        abi::pinmap_alloc {
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
        let all = AllocOptions::new().write_combined().node(3).to_abi(1);
        let flags = abi::PINMAP_ALLOC_WRITE_COMBINED | abi::PINMAP_ALLOC_NODE;
        assert_eq!((all.flags, all.node), (flags, 3));
        let portable = AllocOptions::new().portable().write_combined();
        let flags = abi::PINMAP_ALLOC_PORTABLE | abi::PINMAP_ALLOC_WRITE_COMBINED;
        assert_eq!(portable.to_abi(1).flags, flags);
    }
}
