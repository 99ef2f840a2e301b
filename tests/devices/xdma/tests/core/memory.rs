// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers, transfers of memory, interrupts, errors.

use crate::card::{Card, BUSY, C2H, DONE, H2C, HOST, LOG, POLL, RUN};
use vfio_user_device::testing::wait_until;
use vfio_user_device::Function;
use xdma::Options;

#[test]
fn parts_of_the_core_identify_themselves() {
    let card = Card::new(Options::default());
    for (at, identifier) in [
        (0x0000, 0x1fc0_0006),
        (0x0100, 0x1fc0_0106),
        (0x0200, 0),
        (0x1000, 0x1fc1_0006),
        (0x2000, 0x1fc2_0006),
        (0x3000, 0x1fc3_0006),
        (0x4100, 0x1fc4_0106),
        (0x5000, 0x1fc5_0006),
        (0x5200, 0),
        (0x6000, 0x1fc6_0006),
        (0x004c, 0x0001_0140),
    ] {
        assert_eq!(card.read(at), identifier, "{at:#x}");
    }
    let card = Card::new(Options {
        pairs: 4,
        stream: true,
        ..Options::default()
    });
    assert_eq!(card.read(0x1300), 0x1fc1_8306);
    assert_eq!(card.read(0x5300), 0x1fc5_8306);
    assert_eq!(card.forbidden(), 0);
}

#[test]
fn registers_keep_set_and_clear() {
    let card = Card::new(Options::default());
    for at in [0x004, 0x190, 0x2004] {
        card.write(at, 0x202);
        card.write(at + 4, 0x404);
        card.write(at + 8, 0x002);
        assert_eq!(card.read(at), 0x604, "{at:#x}");
    }
    card.write(0x2080, 0xffff_ffff);
    assert_eq!(card.read(0x2080), 0x1f1f_1f1f);
    card.write(0x6020, 0xffff_ffff);
    card.write(0x6028, 0x1);
    assert_eq!(card.read(0x6020), 0x000f_000e);
    card.write(0x408c, 0x300);
    assert_eq!((card.read(0x408c), card.forbidden()), (0, 1));
    card.write(0x418c, 0x300);
    card.write(0x418c, 0x300);
    assert_eq!(card.read(0x418c), 0x3ff);
    card.card.reset();
    assert_eq!((card.read(0x190), card.read(0x6020)), (0, 0));
    assert_eq!(card.forbidden(), 1);
}

#[test]
fn what_the_manual_forbids_is_counted() {
    let card = Card::new(Options::default());
    let mut bytes = [0; 8];
    card.card.read(1, 0, &mut bytes);
    assert_eq!(bytes, [0xff; 8]);
    card.card.write(1, 0x4080, &[0; 8]);
    card.write(0x0000, 1); // an identifier
    card.write(0x0048, 1); // a count
    card.write(0x0204, 1); // a channel that is not there
    assert_eq!(card.forbidden(), 5);

    // While a channel is busy its list stays as it is, and it is not started again.
    card.board(0x10, 1);
    card.describe(0, DONE, HOST, 0, 64, 0, 0);
    card.start(H2C, 0, POLL);
    card.write(0x4080, 0);
    card.write(H2C + 0x04, 0);
    card.write(H2C + 0x04, POLL);
    assert_eq!(card.forbidden(), 7);
    card.board(0x10, 0);
    card.idle(H2C);

    // Descriptors: unaligned, across 4 KiB, with wrong neighbours, reserved bits, no bytes.
    for (control, bytes, next, adjacent, count) in [
        (DONE | 0x20, 64, 0, 0, 8),
        (DONE, 0, 0, 0, 9),
        (2, 64, 2, 0, 10),
        (2, 64, 1, 1, 11),
    ] {
        card.describe(0, control, HOST, 0, bytes, next, adjacent);
        for place in 1..4 {
            card.describe(place, DONE, HOST, 0, 64, 0, 0);
        }
        card.start(H2C, u32::from(control == 2), POLL);
        card.idle(H2C);
        assert_eq!(card.forbidden(), count, "{control:#x} {bytes} {next}");
    }
    for place in 126..130 {
        let (control, left) = if place == 129 {
            (DONE, 0)
        } else {
            (2, 128 - place)
        };
        card.describe(place, control, HOST, 0, 64, place + 1, left);
    }
    card.start_at(H2C, 126, 3, POLL);
    card.idle(H2C);
    assert_eq!(card.forbidden(), 12);
    card.describe(0, DONE, HOST, 0, 64, 0, 0);
    card.write(0x4080, 0x1_0010);
    card.write(H2C + 0x04, 0);
    card.write(H2C + 0x04, POLL);
    card.idle(H2C);
    assert_eq!(card.forbidden(), 13);
}

#[test]
fn lists_of_adjacent_blocks_copy_there_and_back() {
    let card = Card::new(Options::default());
    // 40 descriptors, in blocks that end where a page does: 100 to 127, and 128 to 139.
    for (channel, from_host) in [(H2C, true), (C2H + 0x100, false)] {
        for number in 0..40_u64 {
            let place = 100 + number;
            let control = if number == 39 { DONE } else { 0 };
            let host = HOST + 0x2_0000 * u64::from(!from_host) + number * 1001;
            let axi = 0x100 + number * 1001;
            let left = if place < 127 {
                126u64.checked_sub(place)
            } else {
                138u64.checked_sub(place)
            };
            let left = if place == 127 { 11 } else { left.unwrap_or(0) };
            let (source, target) = if from_host { (host, axi) } else { (axi, host) };
            card.describe(place, control, source, target, 1001, place + 1, left);
        }
        card.start_at(channel, 100, 27, LOG);
        card.idle(channel);
        assert_eq!(card.read(channel + 0x48), 40);
        assert_eq!(card.read(channel + 0x40), 6);
    }
    assert_eq!(
        card.memory(HOST, 40 * 1001),
        card.memory(HOST + 0x2_0000, 40 * 1001)
    );
    // The bypass BAR is the same memory.
    let mut bytes = [0; 64];
    card.card.read(2, 0x100, &mut bytes);
    assert_eq!(bytes.to_vec(), card.memory(HOST, 64));
    card.card.write(2, 0x100, &[7; 64]);
    card.copy(C2H, 0x100, HOST, 32, LOG);
    assert_eq!(card.memory(HOST, 32), [7; 32]);
    assert_eq!(card.forbidden(), 0);
}

#[test]
fn poll_mode_writes_the_count_back() {
    let card = Card::new(Options::default());
    card.write(H2C + 0x88, 0x4000);
    let all = [2, 0, 2, DONE];
    for (place, control) in (0..).zip(all) {
        card.describe(
            place,
            control,
            HOST,
            0,
            64,
            place + 1,
            2u64.saturating_sub(place),
        );
    }
    card.start_at(H2C, 0, 3, POLL);
    card.idle(H2C);
    assert_eq!((card.word(0x4000), card.read(H2C + 0x48)), (4, 4));
    // Without the bit that logs completion it is written back, too; status has nothing.
    assert_eq!(card.read(H2C + 0x40), 0);
    // An error is told by bit 31; the count begins anew.
    card.copy(H2C, HOST, 0x100_0000, 64, POLL | LOG);
    assert_eq!(card.word(0x4000), 0x8000_0000);
}

#[test]
fn errors_set_their_bits_and_stop_the_engine() {
    let card = Card::new(Options {
        alignment: 8,
        ..Options::default()
    });
    assert_eq!(card.read(0x4c), 0x0008_0840);
    let nothing = 4 << 20;
    card.host.refused.lock().unwrap().insert(0x5000);
    for (channel, source, target, status) in [
        (H2C, HOST, nothing, 1 << 14),
        (H2C, HOST, 0x8000_0800, 1 << 15),
        (H2C, 0x5000, 0, 1 << 9),
        (H2C, HOST + 1, 8, 1 << 3),
        (C2H, nothing, HOST, 1 << 9),
        (C2H, 0x8000_0000, HOST, 1 << 10),
        (C2H, 9, HOST, 1 << 3),
        // A write that the host refuses is not told.
        (C2H, 0, 0x5000, 6),
    ] {
        card.copy(channel, source, target, 64, LOG);
        assert_eq!(card.read(channel + 0x40), status, "{source:#x} {target:#x}");
        assert_eq!(card.read(channel + 0x48), u32::from(status == 6));
    }
    // Nothing is logged, and the engine goes on, without the bits in the control register.
    card.copy(H2C, HOST, nothing, 64, RUN);
    assert_eq!((card.read(H2C + 0x40), card.read(H2C + 0x48)), (0, 1));
    // Descriptors: of another magic, and where nobody answers.
    card.host.bytes.write(0x1_0000, &[0; 32]).unwrap();
    card.start(H2C, 0, LOG);
    card.idle(H2C);
    assert_eq!(card.read(H2C + 0x44), 1 << 4);
    assert_eq!(card.read(H2C + 0x44), 0);
    card.write(0x4084, 1);
    card.write(H2C + 4, 0);
    card.write(H2C + 4, LOG);
    card.idle(H2C);
    assert_eq!(card.read(H2C + 0x40), 1 << 19);
    card.write(H2C + 0x40, 1 << 19);
    assert_eq!(card.read(H2C + 0x40), 0);
}

#[test]
fn interrupts_come_by_their_vectors_once_for_each_request() {
    let card = Card::new(Options::default());
    card.write(0x20a0, 0x0403_0201);
    card.write(0x2084, 0x0000_0900);
    // The bit of C2H 0 is behind those of all H2C channels.
    card.write(0x2014, 0b0101);
    card.write(H2C + 0x90, 0b10);
    card.write(C2H + 0x94, 0xff_fe3a);
    card.copy(H2C, HOST, 0, 64, LOG);
    wait_until("the interrupt", || card.interrupts(1) == 1);
    assert_eq!((card.read(0x2044), card.read(0x204c)), (1, 1));
    // The same request again, masked and unmasked.
    card.write(H2C + 0x98, 0b10);
    assert_eq!(card.read(0x2044), 0);
    card.write(H2C + 0x94, 0b10);
    assert_eq!(card.interrupts(1), 2);
    card.read(H2C + 0x44);
    assert_eq!(card.read(0x204c), 0);
    // An error that is not masked; a channel that is not enabled.
    card.copy(C2H, 1 << 40, HOST, 64, LOG);
    wait_until("the interrupt", || card.interrupts(3) == 1);
    card.write(C2H + 0x190, 0b10);
    card.copy(C2H + 0x100, 0, HOST, 64, LOG);
    assert_eq!((card.read(0x204c), card.read(0x2044)), (0b1100, 0b0100));
    assert_eq!(card.interrupts(4), 0);

    // User interrupt 5.
    card.board(0x08, 0x20);
    assert_eq!((card.read(0x2048), card.read(0x2040)), (0x20, 0));
    assert_eq!(card.interrupts(9), 0);
    card.write(0x2008, 0x20);
    assert_eq!((card.read(0x2040), card.interrupts(9)), (0x20, 1));
    card.board(0x08, 0x20);
    assert_eq!(card.interrupts(9), 1);
    card.board(0x08, 0);
    card.board(0x08, 0x21);
    assert_eq!((card.interrupts(9), card.read(0x2048)), (2, 0x21));
    assert_eq!(card.forbidden(), 0);
}

#[test]
fn cleared_run_ends_the_list_after_a_descriptor() {
    let card = Card::new(Options::default());
    for place in 0..2 {
        let control = if place == 1 { DONE } else { 2 };
        card.describe(place, control, HOST, 64 * place, 64, 1, 0);
    }
    card.board(0x10, 1);
    card.start(H2C, 1, LOG);
    card.write(H2C + 0x0c, 1);
    card.board(0x10, 0);
    card.idle(H2C);
    // idle_stopped, and completed if it had begun.
    let done = card.read(H2C + 0x48);
    assert!(done <= 1);
    assert_eq!(card.read(H2C + 0x40), 0x40 | (done << 2));

    // A reset ends what is held back, and nothing of it is seen later.
    card.board(0x10, 1);
    card.start(H2C, 1, LOG);
    card.card.reset();
    card.idle(H2C);
    assert_eq!((card.read(H2C + 0x40), card.read(H2C + 0x48)), (0, 0));
    card.copy(H2C, HOST, 0, 64, LOG);
    assert_eq!(card.read(H2C + 0x40), 6);
}

#[test]
fn credits_and_halt_hold_descriptors_back() {
    let card = Card::new(Options::default());
    for place in 0..4 {
        let control = if place == 3 { DONE } else { 2 };
        let left = 2u64.saturating_sub(place);
        card.describe(place, control, HOST, 64 * place, 64, place + 1, left);
    }
    card.write(0x6024, 1);
    card.start(H2C, 3, LOG);
    card.write(0x408c, 3);
    wait_until("three descriptors", || card.read(H2C + 0x48) == 3);
    assert_eq!((card.read(0x408c), card.read(H2C + 0x40) & BUSY), (0, 1));
    card.write(0x6014, 1);
    card.write(0x408c, 5);
    assert_eq!((card.read(0x408c), card.read(H2C + 0x48)), (5, 3));
    card.write(0x6018, 1);
    card.idle(H2C);
    assert_eq!((card.read(0x408c), card.read(H2C + 0x48)), (4, 4));
    // They are lost with Run.
    card.write(H2C + 4, 0);
    assert_eq!((card.read(0x408c), card.forbidden()), (0, 0));
}

#[test]
fn card_behaves_as_it_is_told() {
    let card = Card::new(Options::default());
    card.describe(0, DONE, HOST, 0, 64, 0, 0);
    // No descriptor is fetched, and the channel is not busy.
    card.board(0x10, 2);
    card.start(H2C, 0, LOG);
    assert_eq!((card.read(H2C + 0x40), card.read(H2C + 0x48)), (0, 0));
    // Then it is busy for three reads that find it stopped.
    card.board(0x10, 4);
    let mut found = 0;
    wait_until("the end", || {
        let status = card.read(H2C + 0x40) & 3;
        found += u32::from(status == 3);
        status == 2
    });
    assert_eq!((found, card.read(H2C + 0x48)), (3, 1));
    card.board(0x10, 8);
    card.write(H2C + 4, 0);
    assert_eq!(
        (card.read(H2C + 0x40), card.forbidden()),
        (u32::MAX, u32::MAX)
    );
    card.card.reset();
    assert_eq!((card.read(H2C + 0x40), card.forbidden()), (0, 0));
}

#[test]
fn fixed_addresses_and_the_monitor() {
    let card = Card::new(Options::default());
    card.write(C2H + 0xc0, 0b101);
    card.card.write(2, 0x40, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    card.copy(C2H, 0x40, HOST, 24, LOG | (1 << 25));
    assert_eq!(card.memory(HOST, 24), [1, 2, 3, 4, 5, 6, 7, 8].repeat(3));
    assert_eq!((card.read(C2H + 0xcc), card.read(C2H + 0xc4)), (3, 35));
    // It has stopped by itself, with the last descriptor.
    assert_eq!(card.read(C2H + 0xc0), 0b100);
    card.write(C2H + 0xc0, 0b010);
    assert_eq!((card.read(C2H + 0xcc), card.read(C2H + 0xc0)), (0, 0));
}
