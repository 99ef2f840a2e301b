// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever is executed, the device stays whole: the next launch works.

#![allow(clippy::precedence)]

use crate::image::{Image, CODE};
use crate::launch::{Launch, FREE};
use crate::random::Random;
use crate::rig::{Rig, DATA};
use testgpu::regs;

#[test]
fn any_bytes_can_be_executed() {
    let rig = Rig::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    rig.w(regs::MAX_RUN_NS, 1_000_000);
    let mut stops = 0;
    for round in 0..300 {
        let mut queue = rig.queue(1, regs::CLASS_COMPUTE);
        let words: Vec<u32> = (0..1024)
            .map(|_| match random.next() % 4 {
                // Mostly legal.
                0 => random.next() as u32,
                1 => random.next() as u32 & 0xfe0f_8fff | 0x33,
                2 => random.next() as u32 & 0x00ff_ffff | 0x13,
                _ => random.next() as u32 & !3 | 0x0101_0001,
            })
            .collect();
        Image::flat(&words).load(&rig);
        let mut launch = Launch::new(CODE, 2, 8).integers(&[DATA + (8 << 20); 8]);
        launch.set(regs::PROGRAM_SAVE, if round % 2 == 0 { FREE } else { 0 });
        let packet = launch.packet(&rig);
        rig.submit(&mut queue, &[&packet]);
        let ended = [regs::STATE_IDLE, regs::STATE_FAULTED, regs::STATE_ERROR];
        rig.until("an end", || ended.contains(&rig.state(queue.slot)));
        stops += u32::from(rig.state(queue.slot) != regs::STATE_IDLE);
        rig.unbind(&queue);
        rig.w(regs::DOORBELL_VALUE + 8 * queue.id, 0);
    }
    assert!(stops > 100);
    let mut queue = rig.queue(2, regs::CLASS_COMPUTE);
    Image::flat(&[0x00b5_3023, 0x0000_8067]).load(&rig);
    let store = Launch::new(CODE, 1, 1).integers(&[FREE, 77]);
    store.run(&rig, &mut queue);
    assert_eq!(crate::launch::word(&rig, FREE), 77);
}
