// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of doorbells, BIND and UNBIND, waiting, fairness.

use crate::rig::{launch, Rig, DATA};
use std::time::{Duration, Instant};
use testgpu::regs;

const BOTH: u64 = regs::CLASS_COPY | regs::CLASS_COMPUTE;

#[test]
fn a_doorbell_of_an_unbound_queue_is_pending_until_bind_takes_it() {
    let rig = Rig::new();
    let mut queue = rig.queue(100, BOTH);
    rig.unbind(&queue);
    assert!(!rig.pending(100));
    rig.w(regs::INT_STATUS, u64::MAX);
    rig.submit(&mut queue, &[&[regs::FENCE_WRITE, DATA, 5]]);
    assert!(rig.pending(100));
    assert_eq!((rig.r(regs::PENDING_SUMMARY), rig.interrupts(0)), (2, 1));
    rig.bind(&queue, 0, 0);
    assert!(!rig.pending(100));
    rig.wait_idle(&queue);
    assert_eq!(rig.host.bytes.load(0), Some(5));
    assert_eq!(rig.slot(queue.slot, regs::SLOT_WRITE_INDEX), 1);
}

#[test]
fn doorbells_that_are_not_heard() {
    let rig = Rig::new();
    let device = rig.device();
    rig.w(regs::DOORBELL_ENABLE, !(1 << 5));
    device.write_doorbell(5 * 4096, 8, 1);
    device.write_doorbell(6 * 4096, 4, 1);
    device.write_doorbell(6 * 4096 + 8, 8, 1);
    device.write_doorbell(1024 * 4096, 8, 1);
    device.write_doorbell(u64::MAX, 8, 1);
    assert_eq!(
        (rig.r(regs::IGNORED_DOORBELLS), rig.r(regs::DOORBELL_WRITES)),
        (5, 0)
    );
    assert_eq!(
        (rig.r(regs::PENDING), rig.r(regs::DOORBELL_VALUE + 40)),
        (0, 0)
    );
    // A recycled queue id.
    device.write_doorbell(6 * 4096, 8, 9);
    rig.w(regs::DOORBELL_VALUE + 48, 0);
    assert_eq!(rig.r(regs::DOORBELL_VALUE + 48), 0);
}

#[test]
fn unbind_leaves_what_is_needed_to_go_on_elsewhere() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    let spin = launch(regs::KERNEL_SPIN, &[50_000_000]);
    rig.submit(
        &mut queue,
        &[
            &spin,
            &[regs::FENCE_WRITE, DATA, 1],
            &[regs::FENCE_WRITE, DATA + 8, 2],
        ],
    );
    rig.wait_state(&queue, regs::STATE_RUNNING);
    rig.until("the kernel", || {
        rig.slot(queue.slot, regs::SLOT_ENGINE) >= 2
    });
    rig.command(queue.slot, regs::COMMAND_UNBIND);
    assert_eq!(rig.state(queue.slot), regs::STATE_UNBINDING);
    assert_eq!(
        rig.command(queue.slot, regs::COMMAND_UNBIND),
        regs::RESULT_BAD_STATE
    );
    rig.wait_state(&queue, regs::STATE_FREE);
    let index = rig.slot(queue.slot, regs::SLOT_READ_INDEX);
    assert_eq!((index, rig.host.bytes.load(0)), (1, Some(0)));
    assert!(rig.pending(1), "work is left");
    assert_eq!(rig.r(regs::SLOT_EVENT), 1 << queue.slot);
    assert_eq!(rig.interrupts(3), 1);
    queue.slot = 20;
    rig.bind(&queue, index, 0);
    rig.wait_idle(&queue);
    assert_eq!(
        (rig.host.bytes.load(0), rig.host.bytes.load(8)),
        (Some(1), Some(2))
    );
}

#[test]
fn a_queue_that_waits_for_a_fence_can_be_unbound_and_goes_on_later() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    rig.submit(
        &mut queue,
        &[
            &[regs::FENCE_WAIT, DATA, 10],
            &[regs::FENCE_WRITE, DATA + 8, 1],
        ],
    );
    rig.wait_state(&queue, regs::STATE_WAITING);
    let since = rig.slot(queue.slot, regs::SLOT_SINCE);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(
        rig.slot(queue.slot, regs::SLOT_SINCE),
        since,
        "polling is no change"
    );
    assert_eq!(rig.unbind(&queue), (0, 0));
    assert!(rig.pending(1));
    rig.host.bytes.store(0, 10).unwrap();
    rig.bind(&queue, 0, 0);
    rig.wait_idle(&queue);
    assert_eq!(rig.host.bytes.load(8), Some(1));
}

#[test]
fn fences_between_queues() {
    let rig = Rig::new();
    let mut first = rig.queue(1, regs::CLASS_COPY);
    let mut second = rig.queue(2, regs::CLASS_COMPUTE);
    for round in 1..200 {
        rig.put(&mut second, &[regs::FENCE_WAIT, DATA, round]);
        rig.put(&mut second, &[regs::FENCE_WRITE, DATA + 8, round]);
        rig.ring(&second);
        rig.put(&mut first, &[regs::FENCE_WRITE, DATA, round]);
        rig.put(&mut first, &[regs::FENCE_WAIT, DATA + 8, round]);
        rig.run(&mut first, &[]);
    }
    rig.wait_idle(&second);
}

#[test]
fn bind_checks() {
    let rig = Rig::new();
    let queue = rig.queue(1, BOTH);
    let try_bind = |config, ring, size| {
        rig.set_slot(9, regs::SLOT_CONFIG, config);
        rig.set_slot(9, regs::SLOT_RING, ring);
        rig.set_slot(9, regs::SLOT_SIZE, size);
        rig.command(9, regs::COMMAND_BIND)
    };
    let good = 9 | (BOTH << 24);
    assert_eq!(try_bind(1 | (BOTH << 24), 0, 4), regs::RESULT_BOUND);
    assert_eq!(try_bind(9, 0, 4), regs::RESULT_BAD_CONFIG);
    assert_eq!(try_bind(good, 64, 4), regs::RESULT_BAD_CONFIG);
    assert_eq!(try_bind(good, 1 << 48, 4), regs::RESULT_BAD_CONFIG);
    for size in [0, 17, 64, u64::MAX] {
        assert_eq!(try_bind(good, 0, size), regs::RESULT_BAD_CONFIG);
    }
    assert_eq!(rig.state(9), regs::STATE_FREE);
    assert_eq!(rig.command(9, regs::COMMAND_UNBIND), regs::RESULT_BAD_STATE);
    assert_eq!(rig.command(9, 99), regs::RESULT_BAD_STATE);
    assert_eq!(try_bind(good, 0, 16), regs::RESULT_OK);
    let bad = rig.r(regs::BAD_ACCESSES);
    rig.set_slot(queue.slot, regs::SLOT_RING, 0);
    assert_eq!(rig.slot(queue.slot, regs::SLOT_RING), queue.ring());
    assert_eq!(rig.r(regs::BAD_ACCESSES), bad + 1);
}

#[test]
fn impossible_write_indexes() {
    let rig = Rig::new();
    for (id, index) in (1..).zip([65, u64::MAX, 1 << 40]) {
        let mut queue = rig.queue(id, BOTH);
        queue.written = index;
        assert_eq!(rig.stop(&mut queue, &[]), (regs::BAD_INDEX, 0));
    }
    // The indexes may wrap.
    let mut queue = rig.queue(9, BOTH);
    rig.unbind(&queue);
    rig.w(regs::DOORBELL_VALUE + 8 * 9, u64::MAX - 1);
    rig.bind(&queue, u64::MAX - 1, 0);
    queue.written = u64::MAX - 1;
    for _ in 0..3 {
        rig.put(&mut queue, &[regs::NOP]);
    }
    rig.ring(&queue);
    rig.wait_idle(&queue);
    assert_eq!(rig.slot(queue.slot, regs::SLOT_READ_INDEX), 1);
}

/// Leaves one compute slot, which is busy at first, so that later packets queue up.
fn keep_one_compute_slot(rig: &Rig) {
    rig.w(regs::KNOB_STUCK, 0b11_1000);
    let mut blockers: Vec<_> = (0..4)
        .map(|id| rig.queue(id, regs::CLASS_COMPUTE))
        .collect();
    let long = launch(regs::KERNEL_SPIN, &[60_000_000]);
    blockers
        .iter_mut()
        .for_each(|queue| rig.submit(queue, &[&long]));
    rig.until("full", || rig.r(regs::ENGINE_BUSY) == 0b11_1100);
}

#[test]
fn equals_take_turns_and_a_higher_priority_goes_first() {
    let rig = Rig::new();
    let spin = launch(regs::KERNEL_SPIN, &[500_000]);
    keep_one_compute_slot(&rig);
    let mut low: Vec<_> = (8..16)
        .map(|id| rig.queue(id, regs::CLASS_COMPUTE))
        .collect();
    for queue in &mut low {
        for _ in 0..10 {
            rig.put(queue, &spin);
            let (at, value) = (DATA + 64 * queue.id, queue.written / 2 + 1);
            rig.put(queue, &[regs::FENCE_WRITE, at, value]);
        }
        rig.ring(queue);
    }
    let mut high = rig.queue_with(20, 20 | (1 << 16) | (regs::CLASS_COMPUTE << 24) | (3 << 28));
    rig.submit(&mut high, &[&[regs::TIMESTAMP, DATA + 4096]]);
    rig.wait_idle(&high);
    let done = |rig: &Rig| -> Vec<u64> {
        (8..16)
            .map(|id| rig.host.bytes.load(64 * id).unwrap())
            .collect()
    };
    assert!(
        done(&rig).iter().all(|count| *count <= 1),
        "the high one was first"
    );
    let mut spread = 0;
    rig.until("the end", || {
        let counts = done(&rig);
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        spread = spread.max(most - least);
        *least == 10
    });
    assert!(spread <= 2, "nobody gets ahead of the others by {spread}");
}

#[test]
fn address_spaces_take_turns_whatever_their_priorities() {
    let rig = Rig::new();
    keep_one_compute_slot(&rig);
    let spin = launch(regs::KERNEL_SPIN, &[200_000]);
    let queue = |id: u64, vmid: u64, priority: u64| {
        let config = id | (vmid << 16) | (regs::CLASS_COMPUTE << 24) | (priority << 28);
        rig.queue_with(id, config)
    };
    // Eight greedy queues of one address space, and one queue of another.
    let mut greedy: Vec<_> = (8..16).map(|id| queue(id, 1, 3)).collect();
    let mut modest = queue(20, 2, 0);
    for queue in greedy.iter_mut().chain([&mut modest]) {
        for _ in 0..20 {
            rig.put(queue, &spin);
        }
    }
    for queue in greedy.iter().chain([&modest]) {
        rig.ring(queue);
    }
    rig.wait_idle(&modest);
    let done: u64 = greedy
        .iter()
        .map(|queue| rig.slot(queue.slot, regs::SLOT_READ_INDEX))
        .sum();
    assert!(
        (15..=30).contains(&done),
        "20 packets of the one, {done} of the others"
    );
}

#[test]
fn a_storm_of_doorbells() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let rig = &rig;
            scope.spawn(move || {
                for i in 0..20_000_u64 {
                    let id = 32 + (i * 7 + thread) % 900;
                    rig.device().write_doorbell(
                        id * 4096,
                        8,
                        i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    );
                }
            });
        }
        for _ in 0..50 {
            rig.run(&mut queue, &[&[regs::NOP]]);
        }
    });
    assert_eq!(rig.r(regs::DOORBELL_WRITES), 60_050);
    assert_ne!(rig.r(regs::PENDING_SUMMARY), 0);
}

/// Tests that doorbells, BIND and UNBIND in any order lose no packet.
#[test]
fn no_doorbell_is_lost_around_bind_and_unbind() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    let total = 2000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut owner = queue;
            for _ in 0..total {
                while owner.written - rig.host.bytes.load(0).unwrap() >= 60 {
                    std::thread::yield_now();
                }
                let value = owner.written + 1;
                rig.submit(&mut owner, &[&[regs::FENCE_WRITE, DATA, value]]);
            }
        });
        let start = Instant::now();
        let mut index = 0;
        while index < total {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "stopped at {index}"
            );
            std::thread::sleep(Duration::from_micros(200));
            (index, _) = rig.unbind(&queue);
            while index < total && !rig.pending(1) {
                assert!(
                    start.elapsed() < Duration::from_secs(30),
                    "stopped at {index}"
                );
                std::hint::spin_loop();
            }
            rig.bind(&queue, index, 0);
        }
    });
    queue.written = total;
    rig.wait_idle(&queue);
    assert_eq!(rig.host.bytes.load(0), Some(total));
}
