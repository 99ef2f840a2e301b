// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests with rings and page tables that change while the device reads them.

use crate::rig::{Rig, DATA, RING_PACKETS, RW};
use std::sync::atomic::{AtomicBool, Ordering};
use testgpu::regs;

const BOTH: u64 = regs::CLASS_COPY | regs::CLASS_COMPUTE;
/// Part of the address space whose tables change all the time.
const SHAKY: u64 = 0x7000_0000_0000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.next() as usize % from.len()]
    }

    fn address(&mut self) -> u64 {
        let small = self.next() % 0x10_0000;
        self.of(&[DATA, SHAKY, 0, (1 << 48) - 0x8_0000]) + self.of(&[small, small & !7, 0])
    }

    fn packet(&mut self) -> [u64; 8] {
        let length = self.next() % 0x2_0000;
        let kernel = self.next() % 13;
        let number = self.next();
        let head = (self.next() % 10) | self.of(&[0, 0, 0x100, 0x200]);
        match head & 0xff {
            regs::LAUNCH => {
                let sizes = [length / 4, length % 64, self.next() % 64, 9];
                let [a, b, c] = [self.address(), self.address(), self.address()];
                let count = self.of(&sizes);
                let arguments = self.of(&[[a, count, c, 0], [a, b, count, 0], [a, b, c, 5]]);
                let [a, b, c, d] = arguments;
                [head | (kernel << 32), a, b, c, d, 0, 0, 0]
            }
            regs::COPY => [head, self.address(), self.address(), length, 0, 0, 0, 0],
            regs::FILL => [head, self.address(), length, number & 0xff, 0, 0, 0, 0],
            _ => [head, self.address(), self.of(&[0, number]), 0, 0, 0, 0, 0],
        }
    }

    fn entry(&mut self) -> u64 {
        let bits = self.next() & 0x7f;
        let address = (self.next() % (40 << 20)) & !0xfff;
        self.of(&[
            address | bits | regs::PTE_VALID,
            self.0,
            0,
            address | RW | 0x41,
        ])
    }
}

fn all_had_work(rig: &Rig) -> bool {
    let packets =
        |engine| rig.r(regs::ENGINE + engine * regs::ENGINE_STRIDE + regs::ENGINE_PACKETS);
    (0..6).all(|engine| packets(engine) > 0)
}

#[test]
fn nothing_that_changes_meanwhile_does_harm() {
    let rig = Rig::new();
    rig.w(regs::MAX_RUN_NS, 1_000_000);
    rig.map(1, SHAKY, RW);
    let shaky = rig.table_of(1, SHAKY);
    let queues: Vec<_> = (0..6).map(|id| rig.queue(id, BOTH)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(0x1357_9bdf_0246_8ace);
            while !stop.load(Ordering::Relaxed) {
                for queue in &queues {
                    let place = rig.packet_place(queue, random.next());
                    for (word, value) in (0..).zip(random.packet()) {
                        rig.vram().store(place + 8 * word, value).unwrap();
                    }
                }
                let place = shaky + random.next() % 512 * 8;
                rig.vram().store(place, random.entry()).unwrap();
            }
        });
        let mut sequence = 0;
        // Repeats so often, and until each engine had something to do. On a busy machine that takes
        // longer.
        for round in 0.. {
            if round >= 2000 && all_had_work(&rig) && rig.r(regs::FAULTS) > 10 {
                break;
            }
            assert!(round < 1_000_000, "an engine has nothing to do");
            for queue in &queues {
                let read = rig.slot(queue.slot, regs::SLOT_READ_INDEX);
                match rig.state(queue.slot) {
                    regs::STATE_FREE => rig.bind(queue, read, 0),
                    regs::STATE_FAULTED if sequence % 2 == 0 => {
                        rig.command(queue.slot, regs::COMMAND_CANCEL);
                    }
                    regs::STATE_FAULTED => {
                        rig.command(queue.slot, regs::COMMAND_RETRY);
                    }
                    regs::STATE_ERROR | regs::STATE_WAITING => {
                        rig.command(queue.slot, regs::COMMAND_UNBIND);
                        // Goes on behind the packet that stopped the queue.
                        rig.until("FREE", || rig.state(queue.slot) == regs::STATE_FREE);
                        rig.set_slot(queue.slot, regs::SLOT_READ_INDEX, read + 1);
                    }
                    _ => {}
                }
                rig.device()
                    .write_doorbell(queue.id * 4096, 8, read + RING_PACKETS / 2);
            }
            sequence = rig.submit_invalidate(regs::INV_ALL, 0, u64::MAX);
            rig.until("INVALIDATE", || rig.r(regs::INV_DONE) == sequence);
        }
        stop.store(true, Ordering::Relaxed);
    });
    rig.w(regs::RESET, 1);
    rig.until("RESET", || rig.r(regs::RESET) == 0);
    rig.set_up();
    let mut queue = rig.queue(1, BOTH);
    rig.run(&mut queue, &[&[regs::FENCE_WRITE, DATA, 1]]);
}
