// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz targets for a bounded time, always with the same input.

#[path = "../fuzz/packet.rs"]
mod packet;
#[path = "../fuzz/pagetable.rs"]
mod pagetable;
#[path = "../fuzz/program.rs"]
mod program;

const ROUNDS: usize = 20_000;

/// Makes bytes of which some are small and many are zero, as in real packets and tables.
fn inputs(mut each: impl FnMut(&[u8])) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..ROUNDS {
        let words = random() % 40;
        let bytes: Vec<u8> = (0..words)
            .flat_map(|_| {
                match random() % 4 {
                    0 => 0,
                    1 => random() % 16,
                    2 => random() & random() & random(),
                    _ => random(),
                }
                .to_le_bytes()
            })
            .collect();
        each(&bytes);
    }
}

#[test]
fn packets() {
    inputs(packet::run);
}

#[test]
fn page_tables() {
    inputs(pagetable::run);
}

#[test]
fn programs() {
    inputs(program::run);
}
