// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the fault queue, RETRY and CANCEL.

use crate::rig::{launch, Rig, DATA, HOST, RW};
use testgpu::regs;

const BOTH: u64 = regs::CLASS_COPY | regs::CLASS_COMPUTE;
const VA: u64 = 0x7000_0000_0000;

#[test]
fn an_entry_says_who_and_what() {
    let rig = Rig::new();
    let mut queue = rig.queue_with(777 % 64, (777 % 64) | (2 << 16) | (BOTH << 24));
    rig.stop(
        &mut queue,
        &[&[regs::NOP], &[regs::COPY, DATA, VA + 5, 100]],
    );
    assert_eq!((rig.r(regs::FAULT_WRITE), rig.r(regs::FAULT_READ)), (1, 0));
    let field = |offset| rig.r(regs::FAULT_ENTRY + offset);
    let info = field(regs::FAULT_INFO);
    assert_eq!(info & 0xf, 2);
    assert_eq!((info >> 8) & 3, regs::ACCESS_WRITE);
    assert_eq!((info >> 12) & 7, 3);
    assert_eq!((info >> 16) & 0xff, regs::NOT_PRESENT);
    assert_eq!((info >> 24) & 0xff, queue.slot);
    assert_eq!((info >> 32) & 0x3ff, queue.id);
    assert_eq!((info >> 48) & 0xff, regs::COPY);
    assert_eq!(
        (field(regs::FAULT_VA), field(regs::FAULT_INDEX)),
        (VA + 5, 1)
    );
    assert!(field(regs::FAULT_TIME) > 0);
    assert_eq!(rig.interrupts(2), 1);
    assert_eq!(rig.r(regs::INT_STATUS), regs::INT_FAULT | regs::INT_SLOT);
    assert_eq!(rig.r(regs::SLOT_EVENT), 1 << queue.slot);
    rig.w(regs::FAULT_READ, 1);
    assert_eq!(rig.r(regs::FAULT_READ), 1);
    let bad = rig.r(regs::BAD_ACCESSES);
    rig.w(regs::FAULT_READ, 2);
    rig.w(regs::FAULT_READ, 0);
    assert_eq!(
        (rig.r(regs::FAULT_READ), rig.r(regs::BAD_ACCESSES)),
        (1, bad + 2)
    );
}

#[test]
fn cancel() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    rig.stop(&mut queue, &[&[regs::FENCE_WRITE, VA, 1], &[regs::NOP]]);
    assert_eq!(
        rig.command(queue.slot, regs::COMMAND_CANCEL),
        regs::RESULT_OK
    );
    assert_eq!(rig.state(queue.slot), regs::STATE_ERROR);
    assert_eq!(rig.slot(queue.slot, regs::SLOT_ERROR), regs::CANCELLED);
    assert_eq!(
        rig.command(queue.slot, regs::COMMAND_RETRY),
        regs::RESULT_BAD_STATE
    );
    assert_eq!(rig.r(regs::FAULT_WRITE), 1);
    rig.unbind(&queue);
    assert!(!rig.pending(1));
}

/// Tests that packets which fault in the middle go on when the page is there, and that in-place
/// kernels change no element twice.
#[test]
fn retry_goes_on_where_it_was() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    let pages = 16;
    let count = pages * 1024;
    for (number, packet) in [
        launch(regs::KERNEL_INCREMENT_F32, &[VA, count]),
        launch(
            regs::KERNEL_SAXPY,
            &[DATA, VA, count, 2.0_f32.to_bits().into()],
        ),
        vec![regs::COPY, DATA, VA, 4 * count],
        vec![
            regs::FILL | (2 << 8),
            VA,
            4 * count,
            5.0_f32.to_bits().into(),
        ],
        launch(regs::KERNEL_MATMUL_F32, &[DATA, DATA, VA, 16, 1024, 1]),
    ]
    .into_iter()
    .enumerate()
    {
        rig.write_f32(0, &vec![1.0; count as usize]);
        rig.write_f32(1 << 20, &vec![3.0; count as usize]);
        for page in 0..pages {
            rig.unmap(1, VA + 4096 * page);
        }
        rig.invalidate(1, 0, u64::MAX);
        rig.submit(&mut queue, &[&packet]);
        for page in 0..pages {
            rig.wait_state(&queue, regs::STATE_FAULTED);
            assert_eq!(rig.slot(queue.slot, regs::SLOT_FAULT_VA), VA + 4096 * page);
            rig.map(1, VA + 4096 * page, RW | HOST | ((1 << 20) + 4096 * page));
            if page == 7 {
                // Also over UNBIND and BIND, which retries.
                let (index, progress) = rig.unbind(&queue);
                rig.bind(&queue, index, progress);
            } else {
                assert_eq!(
                    rig.command(queue.slot, regs::COMMAND_RETRY),
                    regs::RESULT_OK
                );
            }
        }
        rig.wait_idle(&queue);
        let expected = [4.0, 5.0, 1.0, 5.0, 1.0][number];
        assert_eq!(
            rig.read_f32(1 << 20, count as usize),
            vec![expected; count as usize],
            "{number}"
        );
    }
}

/// Tests that whoever serves a fault may wait for INVALIDATE, and that other queues go on.
#[test]
fn invalidate_does_not_wait_for_faults() {
    let rig = Rig::new();
    let mut queues: Vec<_> = (1..32).map(|id| rig.queue(id, BOTH)).collect();
    for queue in &mut queues {
        rig.stop(queue, &[&[regs::FENCE_WRITE, VA, 1]]);
    }
    rig.invalidate(1, 0, u64::MAX);
    let mut other = rig.queue(32, BOTH);
    rig.run(&mut other, &[&[regs::NOP]]);
    rig.map(1, VA, RW | HOST | 0x10_0000);
    rig.invalidate(1, VA, VA);
    for queue in &queues {
        rig.command(queue.slot, regs::COMMAND_RETRY);
        rig.wait_idle(queue);
    }
    assert_eq!(rig.host.bytes.load(0x10_0000), Some(1));
}

#[test]
fn a_full_fault_queue_counts_and_the_slot_still_tells() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    rig.stop(&mut queue, &[&[regs::FENCE_WRITE, VA, 1]]);
    for _ in 0..66 {
        rig.command(queue.slot, regs::COMMAND_RETRY);
        rig.wait_state(&queue, regs::STATE_FAULTED);
    }
    assert_eq!(
        (rig.r(regs::FAULT_WRITE), rig.r(regs::FAULT_DROPPED)),
        (64, 3)
    );
    assert_eq!(rig.r(regs::FAULTS), 67);
    assert_eq!(rig.slot(queue.slot, regs::SLOT_FAULT_VA), VA);
}

#[test]
fn a_kernel_that_runs_too_long_times_out_and_a_wait_does_not() {
    let rig = Rig::new();
    rig.w(regs::MAX_RUN_NS, 30_000_000);
    let mut waits = rig.queue(2, BOTH);
    rig.submit(&mut waits, &[&[regs::FENCE_WAIT, DATA, 1]]);
    let mut queue = rig.queue(1, BOTH);
    let stop = rig.stop(&mut queue, &[&launch(regs::KERNEL_SPIN, &[u64::MAX])]);
    assert_eq!(stop, (regs::TIMEOUT, 0));
    assert_eq!(rig.state(queue.slot), regs::STATE_ERROR);
    assert_eq!(rig.state(waits.slot), regs::STATE_WAITING);
    rig.host.bytes.store(0, 1).unwrap();
    rig.wait_idle(&waits);
}
