// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of resets: what each one resets, and what it keeps.

use crate::rig::{launch, Rig, DATA};
use testgpu::regs;
use testgpu::state::Reset;

const BOTH: u64 = regs::CLASS_COPY | regs::CLASS_COMPUTE;

fn busy_rig() -> Rig {
    let rig = Rig::new();
    for id in 0..4 {
        let mut queue = rig.queue(id, BOTH);
        rig.submit(&mut queue, &[&launch(regs::KERNEL_SPIN, &[u64::MAX])]);
    }
    let mut waits = rig.queue(9, BOTH);
    rig.submit(&mut waits, &[&[regs::FENCE_WAIT, DATA, 1]]);
    rig.wait_state(&waits, regs::STATE_WAITING);
    rig.until("busy engines", || {
        rig.r(regs::ENGINE_BUSY) & 0b11_1100 == 0b11_1100
    });
    rig.device().write_doorbell(500 * 4096, 8, 1);
    rig.w(regs::KNOB_NO_ACK, 3);
    rig.w(regs::KNOB_STUCK, 3);
    rig.w(regs::KNOB_DELAY_NS, 5);
    rig.w(regs::SCRATCH, 5);
    rig.w(regs::LINK_LATENCY, 77);
    rig.submit_invalidate(1, 0, 0);
    rig.vram().store(3 << 20, 55).unwrap();
    rig
}

fn check(rig: &Rig) {
    for register in [
        regs::PENDING_SUMMARY,
        regs::COMPLETION_SUMMARY,
        regs::DOORBELL_ENABLE,
        regs::DOORBELL_VALUE + 8 * 500,
        regs::INT_STATUS,
        regs::INT_ENABLE,
        regs::SLOT_EVENT,
        regs::SCRATCH,
        regs::INV_DONE,
        regs::FAULT_WRITE,
        regs::ENGINE_BUSY,
        regs::ROOT + 8,
        regs::KNOB_NO_ACK,
        regs::KNOB_STUCK,
        regs::KNOB_DELAY_NS,
    ] {
        assert_eq!(rig.r(register), 0, "{register:#x}");
    }
    for slot in 0..32 {
        assert_eq!(rig.slot(slot, regs::SLOT_STATE), 0);
    }
    // The device works again.
    rig.set_up();
    let mut queue = rig.queue(1, BOTH);
    rig.run(
        &mut queue,
        &[
            &launch(regs::KERNEL_SPIN, &[1]),
            &[regs::FENCE_WRITE, DATA + 64, 1],
        ],
    );
    rig.invalidate(1, 0, 0);
}

#[test]
fn device_reset() {
    let rig = busy_rig();
    let binds = rig.r(regs::BINDS);
    rig.w(regs::RESET, 2);
    assert_eq!(rig.r(regs::RESET), 0);
    rig.w(regs::RESET, 1);
    rig.until("RESET", || rig.r(regs::RESET) == 0);
    assert_eq!((rig.r(regs::BINDS), rig.r(regs::LINK_LATENCY)), (binds, 77));
    assert_eq!(rig.vram().load(3 << 20), Some(55));
    check(&rig);
}

#[test]
fn function_level_reset() {
    let rig = busy_rig();
    rig.device().reset(Reset::Function);
    rig.until("the reset", || rig.r(regs::RESET) == 0);
    assert_eq!((rig.r(regs::BINDS), rig.r(regs::LINK_LATENCY)), (0, 0));
    assert_eq!(rig.vram().load(3 << 20), Some(0));
    check(&rig);
}

#[test]
fn the_device_can_be_ended_while_it_works() {
    drop(busy_rig());
}
