// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads and blocks: where they are, what they share, in which order they run, what they print.

#![allow(clippy::precedence)]

use crate::image::Image;
use crate::launch::{messages, report, word, Launch, FREE, RING, RING_BYTES};
use crate::rig::{Queue, Rig, DATA, HOST, RW};
use std::time::{Duration, Instant};
use testgpu::regs;

/// VA of a page in VRAM, and of one in host memory, for atomic accesses.
const ATOMIC_VRAM: u64 = 0x6000_0000;
const ATOMIC_HOST: u64 = 0x6100_0000;
const PLACE: u64 = 9 << 20;

fn set_up() -> (Rig, Queue, Image) {
    let rig = Rig::new();
    let queue = rig.queue(1, regs::CLASS_COMPUTE);
    let image = Image::c("threads.c", &["-O2"]);
    image.load(&rig);
    rig.map(1, ATOMIC_VRAM, RW | regs::PTE_ATOMIC | PLACE);
    rig.map(1, ATOMIC_HOST, RW | regs::PTE_ATOMIC | HOST | PLACE);
    (rig, queue, image)
}

#[test]
fn registers_tell_where_a_thread_is() {
    let (rig, mut queue, image) = set_up();
    let (grid, block) = ([3, 4, 2], [5, 2, 3]);
    let mut launch = Launch::new(image.symbol("places"), 24, 30).integers(&[FREE]);
    launch.shape(grid, block);
    launch.set(regs::PROGRAM_SHARED, 0x1234);
    launch.set(regs::PROGRAM_SHARED_BYTES, 0x567);
    launch.run(&rig, &mut queue);
    for number in 0..24 * 30_u64 {
        let (thread, block) = (number % 30, number / 30);
        let field = |index: u64| word(&rig, FREE + 128 * number + 8 * index);
        let found: Vec<u64> = (0..13).map(field).collect();
        let place = [
            thread % 5,
            thread / 5 % 2,
            thread / 10,
            block % 3,
            block / 3 % 4,
            block / 12,
        ];
        assert_eq!(found[..6], place);
        let sizes = [
            5 | 2 << 8 | 3 << 16,
            3 | 4 << 8 | 2 << 16,
            thread,
            block,
            0x1234,
            0x567,
        ];
        assert_eq!(found[6..12], sizes);
        assert!((2..6).contains(&found[12]));
    }
    assert_eq!(report(&rig)[6], 24);
}

#[test]
fn barriers_hold_until_all_are_there_or_have_ended() {
    let (rig, mut queue, image) = set_up();
    for threads in [1, 2, 7, 64, 1024] {
        let blocks = 3;
        let count = blocks * threads;
        let input: Vec<u8> = (0..count)
            .flat_map(|i: u32| (i * 7).to_le_bytes())
            .collect();
        rig.host_write(FREE - DATA, &input);
        let mut launch = Launch::new(image.symbol("reverse"), blocks, threads);
        launch.set(regs::PROGRAM_SHARED, FREE + 0x8_0000);
        launch
            .integers(&[FREE, FREE + 0x4_0000, threads.into()])
            .run(&rig, &mut queue);
        let output = rig.host_read(FREE + 0x4_0000 - DATA, 4 * count as usize);
        for (number, bytes) in (0..count).zip(output.chunks_exact(4)) {
            let (block, thread) = (number / threads, number % threads);
            let passed = u32::from(thread != 0 || threads == 1);
            let expected = (block * threads + threads - 1 - thread) * 7 + passed;
            assert_eq!(u32::from_le_bytes(bytes.try_into().unwrap()), expected);
        }
    }
}

#[test]
fn threads_of_a_block_may_wait_for_each_other() {
    let (rig, mut queue, image) = set_up();
    for memory in [ATOMIC_VRAM, ATOMIC_HOST] {
        let count = FREE + if memory == ATOMIC_VRAM { 8 } else { 16 };
        let launch = Launch::new(image.symbol("locked"), 2, 16);
        launch.integers(&[memory, count, 50]).run(&rig, &mut queue);
        assert_eq!(word(&rig, count), 2 * 16 * 50);
    }
    let ping = Launch::new(image.symbol("ping"), 1, 2);
    ping.integers(&[FREE, 1000]).run(&rig, &mut queue);
    assert_eq!(word(&rig, FREE), 2000);
    // Each wait ends the turn, so that no thread waits for a whole one.
    assert!(report(&rig)[5] < 100_000);
}

#[test]
fn arguments_are_those_of_a_function() {
    let (rig, mut queue, image) = set_up();
    let mut launch = Launch::new(image.symbol("many"), 2, 3)
        .integers(&[FREE, 1, 3, 5, 6, 7, 8, 9])
        .floats(&[
            0xffff_ffff_0000_0000 | u64::from(2.5_f32.to_bits()),
            4.25_f64.to_bits(),
            12.5_f64.to_bits(),
        ]);
    launch.arguments.extend([10, 11]);
    launch.run(&rig, &mut queue);
    for thread in 0..6 {
        let field = |index: u64| f64::from_bits(word(&rig, FREE + 128 * thread + 8 * index));
        let found: Vec<f64> = (0..13).map(field).collect();
        let expected = [
            1.0, 2.5, 3.0, 4.25, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.5,
        ];
        assert_eq!(found[..12], expected);
        assert_eq!(found[12], 11.0 + thread as f64);
    }
}

#[test]
fn messages_come_in_the_order_of_execution() {
    let (rig, mut queue, image) = set_up();
    let launch = Launch::new(image.symbol("hello"), 3, 4).integers(&[2]);
    launch.run(&rig, &mut queue);
    let found = messages(&rig);
    assert_eq!(found.len(), 24);
    for (index, (thread, block, text)) in (0..).zip(found) {
        let turn = index / 2;
        assert_eq!((thread, block), (turn % 4, turn / 4));
        assert_eq!(text, format!("block {block:02}, thread {thread:02}\n"));
    }
}

#[test]
fn messages_without_room_are_counted() {
    let (rig, mut queue, image) = set_up();
    let text = "x".repeat(1000);
    rig.host_write(FREE + 0x1000 - DATA, text.as_bytes());
    let launch = Launch::new(image.symbol("fill"), 1, 20).integers(&[1000, FREE, FREE + 0x1000]);
    launch.run(&rig, &mut queue);
    // Each takes 32 + 1024 bytes.
    let room = RING_BYTES / 1056;
    assert_eq!(messages(&rig).len() as u64, room);
    assert_eq!(word(&rig, RING + regs::RING_DROPPED), 20 - room);
    for thread in 0..20 {
        assert_eq!(word(&rig, FREE + 8 * thread), u64::from(thread >= room));
    }
    // The ring goes on at its beginning when software has read.
    let packet = launch.packet(&rig);
    let written = room * 1056;
    for (field, value) in [(regs::RING_WRITTEN, written), (regs::RING_READ, written)] {
        rig.host.bytes.store(RING - DATA + field, value).unwrap();
    }
    rig.run(&mut queue, &[&packet]);
    assert_eq!(word(&rig, RING + regs::RING_WRITTEN), 2 * written);
    assert!(messages(&rig).iter().all(|message| message.2 == text));
    // Without a ring nothing is printed.
    let mut silent = launch.clone();
    silent.set(regs::PROGRAM_RING, 0);
    silent.run(&rig, &mut queue);
    assert_eq!((word(&rig, FREE), word(&rig, RING)), (1, 0));
    // What cannot be a ring.
    let wrong = [
        (regs::RING_BYTES, 96),
        (regs::RING_BYTES, 32),
        (regs::RING_READ, 1),
    ];
    for (id, (field, value)) in (2..).zip(wrong) {
        let packet = launch.packet(&rig);
        rig.host.bytes.store(RING - DATA + field, value).unwrap();
        let mut queue = rig.queue(id, regs::CLASS_COMPUTE);
        assert_eq!(rig.stop(&mut queue, &[&packet]).0, regs::BAD_CALL);
        assert_eq!(report(&rig)[2], regs::CALL_PRINT);
    }
}

#[test]
fn a_deterministic_launch_repeats_itself() {
    let (rig, mut queue, image) = set_up();
    let mut launch = Launch::new(image.symbol("times"), 4, 8).integers(&[FREE, 3000]);
    launch.set(regs::PROGRAM_FLAGS, regs::PROGRAM_DETERMINISTIC);
    let mut first = None;
    for _ in 0..3 {
        launch.run(&rig, &mut queue);
        let found = (rig.host_read(FREE - DATA, 32 * 32), report(&rig));
        assert_eq!(*first.get_or_insert_with(|| found.clone()), found);
    }
    // At a rate, time is what the instructions take.
    let before = word(&rig, FREE);
    assert!(before > 3000 * 3);
    rig.w(regs::PROGRAM_RATE, 500_000_000);
    launch.run(&rig, &mut queue);
    assert_eq!(word(&rig, FREE), 2 * before);
    assert_eq!(
        word(&rig, FREE + 8),
        word(&rig, FREE + 8).max(word(&rig, FREE + 16))
    );
}

#[test]
fn a_rate_holds_programs_back() {
    let (rig, mut queue, image) = set_up();
    rig.w(regs::PROGRAM_RATE, 7);
    assert_eq!(rig.r(regs::PROGRAM_RATE), 1000);
    rig.w(regs::PROGRAM_RATE, 2_000_000);
    let begin = Instant::now();
    let launch = Launch::new(image.symbol("times"), 1, 1).integers(&[FREE, 20_000]);
    launch.run(&rig, &mut queue);
    let executed = report(&rig)[5];
    assert!(begin.elapsed() >= Duration::from_nanos(executed * 500));
    assert!(executed > 60_000);
}

#[test]
fn a_grid_can_be_split_over_queues() {
    let (rig, _, image) = set_up();
    for memory in [ATOMIC_VRAM, ATOMIC_HOST] {
        let mut queues: Vec<Queue> = (0..4)
            .map(|id| {
                rig.queue(
                    id + if memory == ATOMIC_VRAM { 10 } else { 20 },
                    regs::CLASS_COMPUTE,
                )
            })
            .collect();
        let each = 500;
        let mut packets = Vec::new();
        for part in 0..4 {
            let mut launch = Launch::new(image.symbol("sum"), 16, 4);
            launch.set(regs::PROGRAM_FIRST, 4 * part);
            launch.set(regs::PROGRAM_COUNT, 4);
            let launch = launch.integers(&[each, memory, memory + 12]);
            launch.packet(&rig);
            // Descriptors of their own.
            let at = FREE + 256 * part;
            rig.host_write(at - DATA, &rig.host_read(0, 256));
            packets.push(crate::rig::launch(regs::KERNEL_PROGRAM, &[at]));
        }
        for (queue, packet) in queues.iter_mut().zip(&packets) {
            rig.submit(queue, &[packet]);
        }
        for queue in &queues {
            rig.wait_idle(queue);
        }
        let place = |offset| match memory {
            ATOMIC_VRAM => rig.vram().load(PLACE + offset).unwrap(),
            _ => rig.host.bytes.load(PLACE + offset).unwrap(),
        };
        assert_eq!(place(0), each * 64 * 65 / 2);
        assert_eq!(place(8) >> 32, each * 64);
        for page in [ATOMIC_VRAM, ATOMIC_HOST] {
            rig.invalidate(1, page, page);
        }
    }
}

#[test]
fn exit_ends_a_thread() {
    let (rig, mut queue, image) = set_up();
    Launch::new(image.symbol("leave"), 2, 5)
        .integers(&[FREE])
        .run(&rig, &mut queue);
    for thread in 0..10 {
        assert_eq!(word(&rig, FREE + 8 * thread), 1);
    }
}
