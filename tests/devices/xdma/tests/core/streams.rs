// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: packets from one channel to the other.

use crate::card::{Card, BUSY, C2H, DONE, H2C, HOST, LOG, RUN};
use vfio_user_device::testing::wait_until;
use xdma::Options;

const END: u32 = 1 << 4;
const TARGET: u64 = 0x8_0000;
const BACK: u64 = 0x5000;

fn card() -> Card {
    Card::new(Options {
        stream: true,
        ..Options::default()
    })
}

#[test]
fn packets_end_descriptors_and_are_written_back() {
    let card = card();
    // A packet of 1000 + 100 bytes, and one of 64.
    for (place, bytes, control) in [(0, 1000, 0), (1, 100, END), (2, 64, END | DONE)] {
        let source = HOST + 1000 * place;
        card.describe(
            place,
            control,
            source,
            0,
            bytes,
            place + 1,
            1u64.saturating_sub(place),
        );
    }
    card.start(H2C, 2, LOG);
    card.idle(H2C);
    assert_eq!((card.read(H2C + 0x40), card.read(H2C + 0x48)), (6, 3));
    for (place, control) in [(4, 0), (5, 0), (6, DONE)] {
        let (back, target) = (BACK + 64 * place, TARGET + 1024 * place);
        card.describe(
            place,
            control,
            back,
            target,
            1024,
            place + 1,
            5u64.saturating_sub(place),
        );
    }
    card.start_at(C2H, 4, 2, LOG);
    card.idle(C2H);
    for (place, end, bytes) in [(4, 0, 1024), (5, 1, 76), (6, 1, 64)] {
        assert_eq!(card.word(BACK + 64 * place), 0x52b4_0000 | end);
        assert_eq!(card.word(BACK + 64 * place + 4), bytes, "{place}");
    }
    assert_eq!(card.memory(TARGET + 4096, 1100), card.memory(HOST, 1100));
    assert_eq!(card.memory(TARGET + 6144, 64), card.memory(HOST + 2000, 64));
    assert_eq!(card.forbidden(), 0);
}

#[test]
fn full_stream_holds_the_sender_back() {
    let card = card();
    card.copy(H2C, HOST, 0, 64 << 10, LOG);
    card.describe(1, DONE | END, HOST, 0, 4096, 0, 0);
    card.start_at(H2C, 1, 0, LOG);
    // The other channel goes on.
    card.copy(H2C + 0x100, HOST, 0, 64, LOG);
    assert_eq!(card.read(H2C + 0x140), 6);
    assert_eq!(card.read(H2C + 0x40) & BUSY, 1);
    card.copy(C2H, BACK, TARGET, 68 << 10, LOG | (1 << 27));
    card.idle(H2C);
    assert_eq!(card.memory(TARGET, 64 << 10), card.memory(HOST, 64 << 10));
    // No metadata, as the control register says.
    assert_eq!((card.word(BACK), card.read(C2H + 0x48)), (0, 1));
}

#[test]
fn receiver_waits_for_data_even_if_it_is_to_stop() {
    let card = card();
    card.describe(4, DONE, BACK, TARGET, 128, 0, 0);
    card.start_at(C2H, 4, 0, LOG);
    card.copy(H2C, HOST, 0, 64, LOG);
    wait_until("the first bytes", || {
        card.memory(TARGET, 64) == card.memory(HOST, 64)
    });
    card.write(C2H + 0x0c, RUN);
    assert_eq!(card.read(C2H + 0x40), BUSY);
    // Only the end of a packet may be less than the data path is wide.
    card.copy(H2C, HOST, 0, 36, LOG);
    assert_eq!(card.read(H2C + 0x40), 1 << 5);
    card.describe(0, DONE | END, HOST + 64, 0, 36, 0, 0);
    card.start(H2C, 0, LOG);
    card.idle(C2H);
    assert_eq!((card.word(BACK), card.word(BACK + 4)), (0x52b4_0001, 100));
    assert_eq!(card.memory(TARGET, 100), card.memory(HOST, 100));
    // Lengths for receiving.
    card.describe(4, DONE, BACK, TARGET, 100, 0, 0);
    card.start_at(C2H, 4, 0, LOG);
    card.idle(C2H);
    assert_eq!(card.read(C2H + 0x40), 1 << 5);
}
