// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any 64 bytes are a packet that can be executed, or an error; any packet's kernel likewise.

use testgpu::packet::{decode, words, Arguments, Packet, PACKET_SIZE};
use testgpu::{kernel, regs};

pub(crate) fn run(data: &[u8]) {
    for bytes in data.chunks(PACKET_SIZE) {
        let mut packet = [0; PACKET_SIZE];
        packet[..bytes.len()].copy_from_slice(bytes);
        match decode(words(&packet)) {
            Err(reason) => assert!(!reason.can_be_retried()),
            Ok(decoded) => check(decoded),
        }
    }
}

fn check(packet: Packet) {
    assert_ne!(packet.kinds(), 0);
    match packet {
        Packet::Copy { bytes, .. } | Packet::Fill { bytes, .. } => {
            assert!(bytes <= regs::TRANSFER_LIMIT);
        }
        Packet::Launch {
            kernel,
            arguments: Arguments::Inline(arguments),
        } => {
            if let Err(reason) = kernel::decode(kernel, arguments) {
                assert!(!reason.can_be_retried());
            }
        }
        Packet::FenceWrite { va, .. }
        | Packet::FenceWait { va, .. }
        | Packet::Timestamp { va, .. }
        | Packet::Launch {
            arguments: Arguments::Indirect(va),
            ..
        } => assert_eq!(va % 8, 0),
        Packet::Nop | Packet::Interrupt => {}
    }
}
