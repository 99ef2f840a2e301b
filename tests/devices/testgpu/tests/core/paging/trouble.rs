// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of copies that are stuck, late, abandoned or reset.

use super::*;
use testgpu::state::Reset;

#[test]
fn a_stuck_copy_and_the_reset_of_its_engine() {
    let rig = Rig::new();
    rig.w(regs::KNOB_STUCK, BIT);
    rig.w(regs::MAX_RUN_NS, 1_000_000);
    rig.w(regs::KNOB_NO_ACK, regs::NO_ACK_ENGINE_RESET);
    rig.host_write(MIB, &[9; 8192]);
    let lost = rig.submit_copy(host(MIB), VRAM, regs::PAGE);
    let next = rig.submit_copy(host(MIB), VRAM + MIB, regs::PAGE);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(
        (rig.r(regs::ENGINE_BUSY), rig.r(regs::PAGING_DONE)),
        (BIT, 0)
    );
    rig.w(regs::ENGINE_RESET, BIT);
    assert_eq!(
        (rig.r(regs::KNOB_STUCK), rig.r(regs::ENGINE_RESET)),
        (0, BIT)
    );
    // The reset is not acknowledged.
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(
        (rig.r(regs::ENGINE_RESET), rig.r(regs::PAGING_DONE)),
        (BIT, 0)
    );
    assert_eq!(rig.r(regs::INT_STATUS) & regs::INT_RESET, 0);
    rig.w(regs::MAX_RUN_NS, 2_000_000_000);
    rig.w(regs::KNOB_NO_ACK, 0);
    rig.until("the reset", || rig.r(regs::ENGINE_RESET) == 0);
    assert!(rig.r(regs::PAGING_DONE) >= lost);
    assert_eq!(rig.r(regs::PAGING_ERROR), regs::ENGINE_LOST);
    assert_ne!(rig.r(regs::INT_STATUS) & regs::INT_RESET, 0);
    rig.until("the next copy", || rig.r(regs::PAGING_DONE) == next);
    assert_eq!(rig.vram().load(VRAM), Some(0));
    assert_eq!(
        rig.vram().load(VRAM + MIB),
        Some(u64::from_le_bytes([9; 8]))
    );
    // The reset of an idle engine finishes at once.
    rig.w(regs::INT_STATUS, u64::MAX);
    rig.w(regs::ENGINE_RESET, BIT);
    assert_eq!(rig.r(regs::ENGINE_RESET), 0);
    assert_eq!(rig.r(regs::INT_STATUS), regs::INT_RESET);
    check_works(&rig);
}

#[test]
fn a_copy_that_moves_can_be_abandoned() {
    let rig = Rig::new();
    slow_link(&rig);
    let sequence = rig.submit_copy(host(0), VRAM, 4 * MIB);
    rig.until("some bytes", || {
        counter(&rig, regs::ENGINE_VRAM_WRITTEN) > 0
    });
    rig.w(regs::ENGINE_RESET, BIT);
    rig.until("the reset", || rig.r(regs::ENGINE_RESET) == 0);
    assert_eq!(rig.r(regs::PAGING_DONE), sequence);
    assert_eq!(rig.r(regs::PAGING_ERROR), regs::ENGINE_LOST);
    rig.w(regs::LINK_BANDWIDTH, 0);
    check_works(&rig);
}

#[test]
fn a_knob_that_is_turned_back_lets_a_stuck_copy_go_on() {
    let rig = Rig::new();
    rig.w(regs::KNOB_STUCK, BIT);
    let sequence = rig.submit_copy(host(0), VRAM, BYTES);
    rig.until("a busy engine", || rig.r(regs::ENGINE_BUSY) == BIT);
    rig.w(regs::KNOB_STUCK, 0);
    rig.until("the copy", || rig.r(regs::PAGING_DONE) == sequence);
    assert_eq!(rig.r(regs::PAGING_ERROR), 0);
}

#[test]
fn copies_that_are_not_acknowledged() {
    let rig = Rig::new();
    rig.w(regs::KNOB_NO_ACK, regs::NO_ACK_PAGING);
    rig.host_write(MIB, &[5; 4096]);
    rig.submit_copy(VRAM, VRAM + MIB, 1);
    rig.submit_copy(host(MIB), VRAM, regs::PAGE);
    rig.until("the copy", || counter(&rig, regs::ENGINE_PACKETS) == 1);
    rig.until("an idle engine", || rig.r(regs::ENGINE_BUSY) == 0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.vram().load(VRAM), Some(u64::from_le_bytes([5; 8])));
    assert_eq!(
        (rig.r(regs::PAGING_DONE), rig.r(regs::PAGING_FREE)),
        (0, 62)
    );
    assert_eq!((rig.r(regs::PAGING_ERROR), rig.r(regs::INT_STATUS)), (0, 0));
    rig.w(regs::KNOB_NO_ACK, 0);
    rig.until("both", || rig.r(regs::PAGING_DONE) == 2);
    assert_eq!(rig.r(regs::PAGING_FREE), 64);
    assert_eq!(rig.r(regs::PAGING_ERROR), regs::BAD_ALIGNMENT);
    assert_eq!(rig.r(regs::INT_STATUS), regs::INT_PAGING);
}

#[test]
fn copies_that_end_late() {
    let rig = Rig::new();
    rig.w(regs::KNOB_DELAY_NS, 50_000_000);
    let start = Instant::now();
    let sequence = rig.submit_copy(host(0), VRAM, regs::PAGE);
    let size = rig.r(regs::VRAM_SIZE);
    rig.submit_copy(size, VRAM, regs::PAGE);
    rig.until("the copy", || {
        let done = rig.r(regs::PAGING_DONE) >= sequence;
        assert!(done || rig.r(regs::PAGING_FREE) == 62 || start.elapsed().as_millis() >= 50);
        done
    });
    assert!(start.elapsed() >= Duration::from_millis(50));
    rig.until("the error", || {
        rig.r(regs::PAGING_ERROR) == regs::VRAM_RANGE
    });
    rig.until("both", || rig.r(regs::PAGING_FREE) == 64);
}

/// Makes a rig whose paging engine copies for seconds, with others waiting behind and one that
/// failed before.
fn copying_rig() -> Rig {
    let rig = Rig::new();
    slow_link(&rig);
    assert_eq!(rig.page(VRAM, VRAM, 1), regs::BAD_ALIGNMENT);
    for _ in 0..3 {
        rig.submit_copy(host(0), VRAM, 8 * MIB);
    }
    rig.until("some bytes", || {
        counter(&rig, regs::ENGINE_VRAM_WRITTEN) > 0
    });
    rig.w(
        regs::KNOB_NO_ACK,
        regs::NO_ACK_PAGING | regs::NO_ACK_ENGINE_RESET,
    );
    rig.w(regs::KNOB_DELAY_NS, 1_000_000);
    rig
}

#[test]
fn resets_while_a_copy_runs() {
    for reset in [Reset::Device, Reset::Function] {
        let rig = copying_rig();
        let start = Instant::now();
        rig.device().reset(reset);
        rig.until("the reset", || rig.r(regs::RESET) == 0);
        assert!(
            start.elapsed() < Duration::from_secs(6),
            "the copy was not abandoned"
        );
        for register in [
            regs::PAGING_SOURCE,
            regs::PAGING_TARGET,
            regs::PAGING_BYTES,
            regs::PAGING_DONE,
            regs::PAGING_ERROR,
            regs::ENGINE_BUSY,
            regs::INT_STATUS,
            regs::KNOB_NO_ACK,
        ] {
            assert_eq!(rig.r(register), 0, "{register:#x}");
        }
        assert_eq!(rig.r(regs::PAGING_FREE), 64);
        // Nothing is left that copies.
        let written = counter(&rig, regs::ENGINE_VRAM_WRITTEN);
        assert_eq!(written == 0, reset == Reset::Function);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(counter(&rig, regs::ENGINE_VRAM_WRITTEN), written);
        assert_eq!(rig.r(regs::PAGING_DONE), 0);
        rig.w(regs::LINK_BANDWIDTH, 0);
        rig.set_up();
        check_works(&rig);
    }
}

#[test]
fn the_device_can_be_ended_while_it_copies() {
    drop(copying_rig());
}
