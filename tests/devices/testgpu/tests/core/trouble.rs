// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that the trouble knobs do what the manual says, and nothing else.

use crate::rig::{launch, Rig, DATA, HOST, RW};
use std::time::{Duration, Instant};
use testgpu::regs;

const BOTH: u64 = regs::CLASS_COPY | regs::CLASS_COMPUTE;
const VA: u64 = 0x7000_0000_0000;

#[test]
fn lost_interrupts_leave_their_cause() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    rig.w(regs::KNOB_LOSE_INTERRUPTS, 1);
    rig.run(&mut queue, &[&[regs::INTERRUPT]]);
    assert_eq!(
        (rig.interrupts(1), rig.r(regs::INT_STATUS)),
        (0, regs::INT_COMPLETION)
    );
    assert_eq!(
        (
            rig.r(regs::LOST_INTERRUPTS),
            rig.r(regs::KNOB_LOSE_INTERRUPTS)
        ),
        (1, 0)
    );
    rig.w(regs::INT_STATUS, regs::INT_COMPLETION);
    rig.run(&mut queue, &[&[regs::INTERRUPT]]);
    assert_eq!(rig.interrupts(1), 1);
}

#[test]
fn late_completions() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    rig.w(regs::KNOB_DELAY_NS, 50_000_000);
    let late = |what: &dyn Fn()| {
        let start = Instant::now();
        what();
        start.elapsed() >= Duration::from_millis(50)
    };
    assert!(late(&|| rig.invalidate(1, 0, 0)));
    rig.put(&mut queue, &[regs::INTERRUPT]);
    assert!(late(&|| {
        rig.ring(&queue);
        rig.until("COMPLETION", || rig.r(regs::COMPLETION_SUMMARY) != 0);
    }));
    rig.wait_idle(&queue);
    assert!(late(&|| {
        rig.unbind(&queue);
    }));
}

#[test]
fn a_write_after_the_acknowledgement() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    for refused in [false, true] {
        let page = 0x30_0000;
        rig.map(1, VA, RW | HOST | page);
        rig.run(&mut queue, &[&[regs::FENCE_WRITE, VA + 8, 1]]);
        if refused {
            rig.host.refused.lock().unwrap().insert(page);
        }
        rig.host.bytes.store(page, 0).unwrap();
        let delay = Duration::from_millis(50);
        let start = Instant::now();
        rig.w(regs::KNOB_AFTER_UNMAP, 50_000_000);
        rig.invalidate(1, VA, VA);
        let result = rig.r(regs::KNOB_AFTER_RESULT);
        assert!(result == 0 || start.elapsed() >= delay, "not before");
        rig.until("the write", || rig.r(regs::KNOB_AFTER_RESULT) != 0);
        let expected = if refused {
            (2, 0)
        } else {
            (1, regs::AFTER_UNMAP_MARKER)
        };
        assert_eq!(
            (
                rig.r(regs::KNOB_AFTER_RESULT),
                rig.host.bytes.load(page).unwrap()
            ),
            expected
        );
        assert_eq!(
            (
                rig.r(regs::KNOB_AFTER_ADDRESS),
                rig.r(regs::KNOB_AFTER_UNMAP)
            ),
            (page, 0)
        );
    }
}

#[test]
fn a_stuck_engine_and_its_reset() {
    let rig = Rig::new();
    rig.w(regs::KNOB_STUCK, 1 << 2);
    // One of four queues gets the stuck engine.
    let mut queues: Vec<_> = (1..5)
        .map(|id| rig.queue(id, regs::CLASS_COMPUTE))
        .collect();
    let spin = launch(regs::KERNEL_SPIN, &[30_000_000]);
    queues
        .iter_mut()
        .for_each(|queue| rig.submit(queue, &[&spin]));
    let stuck = |rig: &Rig| {
        queues
            .iter()
            .find(|q| rig.slot(q.slot, regs::SLOT_ENGINE) == 2)
            .copied()
    };
    rig.until("one stuck", || stuck(&rig).is_some());
    let victim = stuck(&rig).unwrap();
    for queue in queues.iter().filter(|queue| queue.id != victim.id) {
        rig.wait_idle(queue);
    }
    assert_eq!(rig.state(victim.slot), regs::STATE_RUNNING);
    rig.command(victim.slot, regs::COMMAND_UNBIND);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.state(victim.slot), regs::STATE_UNBINDING);
    rig.w(regs::ENGINE_RESET, 1 << 2);
    rig.wait_state(&victim, regs::STATE_FREE);
    assert_eq!(rig.slot(victim.slot, regs::SLOT_ERROR), regs::ENGINE_LOST);
    assert_eq!((rig.r(regs::KNOB_STUCK), rig.r(regs::ENGINE_RESET)), (0, 0));
    assert_ne!(rig.r(regs::INT_STATUS) & regs::INT_RESET, 0);
    // The reset of an idle engine harms nobody.
    rig.w(regs::ENGINE_RESET, 0xff);
    let mut others: Vec<_> = queues
        .iter()
        .filter(|queue| queue.id != victim.id)
        .copied()
        .collect();
    others
        .iter_mut()
        .for_each(|queue| rig.run(queue, &[&[regs::NOP]]));
}

/// Tests that COMMAND_RESET ends the packet of its slot and no other, even if the engine has
/// another one by then.
#[test]
fn a_slot_whose_packet_has_ended_resets_nobody() {
    let rig = Rig::new();
    let mut ended = rig.queue(1, regs::CLASS_COMPUTE);
    rig.run(&mut ended, &[&[regs::NOP]]);
    let mut others: Vec<_> = (2..6)
        .map(|id| rig.queue(id, regs::CLASS_COMPUTE))
        .collect();
    let spin = launch(regs::KERNEL_SPIN, &[200_000_000]);
    others
        .iter_mut()
        .for_each(|queue| rig.submit(queue, &[&spin]));
    rig.until("all engines busy", || {
        rig.r(regs::ENGINE_BUSY) & 0b11_1100 == 0b11_1100
    });
    let result = rig.command(ended.slot, regs::COMMAND_RESET);
    assert_eq!(result, regs::RESULT_BAD_STATE);
    assert_eq!(rig.r(regs::ENGINE_RESET), 0);
    // Resets one of the slots whose packet an engine holds: that packet ends, and no other.
    rig.command(others[0].slot, regs::COMMAND_RESET);
    rig.wait_state(&others[0], regs::STATE_ERROR);
    assert_eq!(
        rig.slot(others[0].slot, regs::SLOT_ERROR),
        regs::ENGINE_LOST
    );
    assert_eq!(rig.slot(others[0].slot, regs::SLOT_ENGINE), 0xff);
    others[1..].iter().for_each(|queue| rig.wait_idle(queue));
}

#[test]
fn a_slot_that_is_unbinding_can_be_reset() {
    let rig = Rig::new();
    rig.w(regs::KNOB_STUCK, 3);
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    rig.submit(&mut queue, &[&[regs::FENCE_WRITE, DATA, 1]]);
    rig.until("a busy engine", || rig.r(regs::ENGINE_BUSY) != 0);
    rig.command(queue.slot, regs::COMMAND_UNBIND);
    rig.command(queue.slot, regs::COMMAND_RESET);
    rig.wait_state(&queue, regs::STATE_FREE);
    assert_eq!(rig.slot(queue.slot, regs::SLOT_ERROR), regs::ENGINE_LOST);
}

#[test]
fn a_knob_that_is_turned_back_lets_things_go_on() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    rig.w(regs::KNOB_STUCK, 3);
    rig.submit(&mut queue, &[&[regs::FENCE_WRITE, DATA, 1]]);
    rig.wait_state(&queue, regs::STATE_RUNNING);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.state(queue.slot), regs::STATE_RUNNING);
    rig.w(regs::KNOB_STUCK, 0);
    rig.wait_idle(&queue);
    rig.w(
        regs::KNOB_NO_ACK,
        regs::NO_ACK_INVALIDATE | regs::NO_ACK_UNBIND,
    );
    let sequence = rig.submit_invalidate(1, 0, u64::MAX);
    rig.command(queue.slot, regs::COMMAND_UNBIND);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.state(queue.slot), regs::STATE_UNBINDING);
    assert_eq!(
        (rig.r(regs::INV_DONE), rig.r(regs::INV_FREE)),
        (sequence - 1, 63)
    );
    rig.w(regs::KNOB_NO_ACK, 0);
    rig.until("both", || {
        rig.state(queue.slot) == regs::STATE_FREE && rig.r(regs::INV_DONE) == sequence
    });
}

#[test]
fn an_engine_reset_that_is_not_acknowledged() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    rig.w(regs::KNOB_STUCK, 3);
    rig.w(regs::KNOB_NO_ACK, regs::NO_ACK_ENGINE_RESET);
    rig.submit(&mut queue, &[&[regs::FENCE_WRITE, DATA, 1]]);
    rig.until("a busy engine", || rig.r(regs::ENGINE_BUSY) != 0);
    let engine = rig.r(regs::ENGINE_BUSY);
    rig.w(regs::ENGINE_RESET, 3);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.r(regs::ENGINE_RESET), engine);
    assert_eq!(rig.state(queue.slot), regs::STATE_RUNNING);
    rig.w(regs::KNOB_NO_ACK, 0);
    rig.until("the reset", || rig.r(regs::ENGINE_RESET) == 0);
    rig.wait_state(&queue, regs::STATE_ERROR);
}

#[test]
fn too_many_invalidates() {
    let rig = Rig::new();
    rig.w(regs::KNOB_NO_ACK, regs::NO_ACK_INVALIDATE);
    for _ in 0..64 {
        rig.submit_invalidate(1, 0, 0);
    }
    let bad = rig.r(regs::BAD_ACCESSES);
    rig.submit_invalidate(1, 0, 0);
    assert_eq!(
        (rig.r(regs::INV_FREE), rig.r(regs::BAD_ACCESSES)),
        (0, bad + 1)
    );
    rig.w(regs::KNOB_NO_ACK, 0);
    rig.until("all", || rig.r(regs::INV_DONE) == 64);
    assert_eq!(rig.r(regs::INV_FREE), 64);
}

#[test]
fn invalidates_held_back_until_so_many_wait() {
    let rig = Rig::new();
    rig.w(regs::KNOB_HOLD, 3);
    rig.submit_invalidate(1, 0, 0);
    rig.submit_invalidate(1, 0, 0);
    rig.until("both", || rig.r(regs::INVALIDATES) == 2);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.r(regs::INV_DONE), 0);
    rig.submit_invalidate(1, 0, 0);
    rig.until("all", || rig.r(regs::INV_DONE) == 3);
    assert_eq!(rig.r(regs::KNOB_HOLD), 0);

    // The queue is full and one more is wanted: first by reading `INV_FREE`, then by submitting.
    for (round, ask) in [(1, true), (2, false)] {
        rig.w(regs::KNOB_HOLD, u64::MAX);
        assert_eq!(rig.r(regs::KNOB_HOLD), 65);
        for _ in 0..64 {
            assert!(rig.r(regs::INV_FREE) > 0);
            rig.submit_invalidate(1, 0, 0);
        }
        rig.until("64", || rig.r(regs::INVALIDATES) == 3 + round * 64);
        assert_eq!(rig.r(regs::KNOB_HOLD), 65);
        if ask {
            assert_eq!(rig.r(regs::INV_FREE), 0);
        } else {
            rig.w(regs::INV_SUBMIT, 1 << 20);
        }
        rig.until("all", || rig.r(regs::INV_FREE) == 64);
        assert_eq!(rig.r(regs::INV_DONE), 3 + round * 64);
        assert_eq!(rig.r(regs::KNOB_HOLD), 0);
    }

    // Writing 0 releases what is held back.
    rig.w(regs::KNOB_HOLD, 2);
    let sequence = rig.submit_invalidate(1, 0, 0);
    rig.w(regs::KNOB_HOLD, 0);
    rig.until("it", || rig.r(regs::INV_DONE) == sequence);
}

#[test]
fn posted_writes_arrive_late_in_order_and_before_reads() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    rig.run(&mut queue, &[&[regs::INTERRUPT]]);
    assert_eq!(rig.r(regs::INT_STATUS), regs::INT_COMPLETION);
    let messages = rig.interrupts(1);
    rig.w(regs::KNOB_POST_NS, 60_000_000_000);
    assert_eq!(rig.r(regs::KNOB_POST_NS), 10_000_000_000);
    // The clearing write is posted. A cause that happens before it arrives sends no message.
    rig.w(regs::INT_STATUS, regs::INT_COMPLETION);
    rig.w(regs::SCRATCH, 1);
    rig.w(regs::SCRATCH, 2);
    let before = rig.device().hardware().counters.read(regs::DOORBELL_WRITES);
    rig.put(&mut queue, &[regs::INTERRUPT]);
    rig.ring(&queue);
    std::thread::sleep(Duration::from_millis(30));
    let after = rig.device().hardware().counters.read(regs::DOORBELL_WRITES);
    assert_eq!((before, rig.interrupts(1)), (after, messages));
    // Any read makes all of them arrive, in order.
    assert_eq!(rig.r(regs::SCRATCH), 2);
    rig.wait_idle(&queue);
    assert_eq!(rig.interrupts(1), messages + 1);
    // So does time.
    rig.w(regs::KNOB_POST_NS, 20_000_000);
    rig.w(regs::INT_STATUS, regs::INT_COMPLETION);
    rig.put(&mut queue, &[regs::INTERRUPT]);
    rig.ring(&queue);
    rig.until("the doorbell arrives", || rig.interrupts(1) == messages + 2);
    // A write of the knob is not posted, and makes earlier writes arrive.
    rig.w(regs::SCRATCH, 3);
    rig.w(regs::KNOB_POST_NS, 0);
    assert_eq!((rig.r(regs::KNOB_POST_NS), rig.r(regs::SCRATCH)), (0, 3));
}
