// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever the tables hold, and even if they change during the walk, a walk ends, reads only
//! entries of tables, and finds only leaves that an entry describes.

use testgpu::fault::{Access, Reason};
use testgpu::pagetable::walk;
use testgpu::regs;

pub(crate) fn run(data: &[u8]) {
    let mut numbers = data.chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    });
    while let (Some(root), Some(va)) = (numbers.next(), numbers.next()) {
        // Half of the time the address and the root let the walk begin.
        let (root, va) = match root >> 62 {
            0 | 1 => (root | regs::ROOT_ENABLE, va % regs::VA_END),
            _ => (root, va),
        };
        let mut entries = Vec::new();
        let result = walk(root, va, |_, address| {
            assert_eq!(address & !(regs::PTE_ADDRESS | 0xff8), 0);
            let entry = numbers.next().ok_or(Reason::Bus)?;
            // Three quarters of the entries have no reserved bits.
            let entry = match entry >> 62 {
                0 => entry,
                1 => (entry & regs::PTE_ADDRESS) | regs::PTE_VALID,
                _ => (entry & (regs::PTE_ADDRESS | 0x7f)) | regs::PTE_VALID,
            };
            entries.push(entry);
            Ok(entry)
        });
        assert!(entries.len() <= 4);
        let Ok(leaf) = result else { continue };
        let last = entries.last().copied().unwrap_or(0);
        assert_ne!(last & regs::PTE_LEAF, 0);
        assert_eq!(leaf.permits(Access::Write), last & regs::PTE_WRITE != 0);
        assert_eq!(usize::from(leaf.level), 4 - entries.len());
        let (address, left) = leaf.place(va);
        assert!(left > 0 && address + (left - 1) == leaf.address + (leaf.size() - 1));
    }
}
