// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes are instructions, legal or not, and a descriptor of a launch, or an error.

use testgpu::program::compressed::expand;
use testgpu::program::decode::{decode, Kind, Op, SINK};
use testgpu::program::descriptor::{save_bytes, Descriptor, DESCRIPTOR_SIZE};
use testgpu::regs;

pub(crate) fn run(data: &[u8]) {
    for bytes in data.chunks_exact(4) {
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        check(decode(word | 3));
        if let Some(word) = expand(word as u16) {
            // What is short is legal where it is long, and long.
            assert_eq!(word & 3, 3);
            assert_ne!(decode(word).kind, Kind::Illegal);
        }
    }
    for bytes in data.chunks(DESCRIPTOR_SIZE) {
        let mut descriptor = [0; DESCRIPTOR_SIZE];
        descriptor[..bytes.len()].copy_from_slice(bytes);
        // Half of the time nothing is in the bytes that must be zero.
        if bytes[0] & 1 == 0 {
            descriptor[..8].fill(0);
            descriptor[regs::PROGRAM_SAVE_BYTES as usize + 8..].fill(0);
        }
        match Descriptor::decode(&descriptor) {
            Err(reason) => assert!(!reason.can_be_retried()),
            Ok(descriptor) => {
                let threads = descriptor.threads();
                assert!((1..=1024).contains(&threads));
                assert!(descriptor.save == 0 || descriptor.save_bytes >= save_bytes(threads));
                assert!(descriptor.first + descriptor.count <= 1 << 32);
            }
        }
    }
}

fn check(op: Op) {
    assert_ne!(op.kind, Kind::Unknown);
    assert_eq!(op.length, 4);
    assert!(op.rd <= SINK && op.rs1 < 32 && op.rs2 < 32);
}
