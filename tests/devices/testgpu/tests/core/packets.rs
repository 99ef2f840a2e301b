// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of each packet and each kernel against the CPU's result.

use crate::rig::{launch, noise, Rig, DATA, VRAM_DATA};
use testgpu::regs;

const COPY_CLASS: u64 = regs::CLASS_COPY;
const COMPUTE: u64 = regs::CLASS_COMPUTE;
const BOTH: u64 = COPY_CLASS | COMPUTE;
const MIB: u64 = 1 << 20;

#[test]
fn copies_between_host_and_vram_at_any_alignment() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, COPY_CLASS);
    let data = noise(300_001);
    rig.host_write(5, &data);
    let vram = VRAM_DATA + 8 * MIB + 3;
    rig.run(
        &mut queue,
        &[
            &[regs::COPY, DATA + 5, DATA + MIB + 1, 300_001],
            &[regs::COPY, DATA + MIB + 1, vram, 300_001],
            &[regs::COPY, vram, vram + MIB, 300_001],
            &[regs::COPY, vram + MIB, DATA + 2 * MIB + 7, 300_001],
            &[regs::COPY, 0, 0, 0],
        ],
    );
    assert_eq!(rig.host_read(2 * MIB + 7, 300_001), data);
    let sum = |register| {
        rig.r(regs::ENGINE + register) + rig.r(regs::ENGINE + regs::ENGINE_STRIDE + register)
    };
    assert_eq!(sum(regs::ENGINE_HOST_READ), 600_002);
    assert_eq!(sum(regs::ENGINE_HOST_WRITTEN), 600_002);
    assert_eq!(sum(regs::ENGINE_VRAM_READ), 600_002);
    assert_eq!(sum(regs::ENGINE_PACKETS), 5);
}

#[test]
fn fills_with_elements_of_each_size() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, COPY_CLASS);
    let pattern = 0x1122_3344_5566_7788_u64;
    for size in 0..4_u64 {
        let bytes = 1 << size;
        let value = if size == 3 {
            pattern
        } else {
            pattern & ((1 << (8 * bytes)) - 1)
        };
        let at = 4096 + bytes;
        let length = 100_000 * bytes;
        rig.run(
            &mut queue,
            &[&[regs::FILL | (size << 8), DATA + at, length, value]],
        );
        let expected = value.to_le_bytes()[..bytes as usize].repeat(100_000);
        assert!(
            rig.host_read(at, length as usize) == expected,
            "size {bytes}"
        );
        assert_eq!(rig.host_read(at + length, 1), [0]);
    }
}

#[test]
fn fences_time_stamps_and_interrupts() {
    let rig = Rig::new();
    let mut queue = rig.queue(70, BOTH);
    let before = rig.r(regs::TIME);
    rig.run(
        &mut queue,
        &[
            &[regs::NOP],
            &[regs::TIMESTAMP, DATA],
            &[regs::FENCE_WRITE, DATA + 8, 77],
            &[regs::FENCE_WAIT, DATA + 8, 77],
            &[regs::INTERRUPT],
        ],
    );
    let time = rig.host.bytes.load(0).unwrap();
    assert!((before..rig.r(regs::TIME)).contains(&time));
    assert_eq!(rig.host.bytes.load(8), Some(77));
    assert_eq!(rig.r(regs::COMPLETION_SUMMARY), 2);
    assert_eq!(rig.r(regs::COMPLETION + 8), 1 << 6);
    assert_eq!(rig.r(regs::INT_STATUS), regs::INT_COMPLETION);
    assert_eq!(rig.interrupts(1), 1);
    // The cause is still set, so there is no second message.
    rig.run(&mut queue, &[&[regs::INTERRUPT]]);
    assert_eq!(rig.interrupts(1), 1);
    rig.w(regs::INT_STATUS, regs::INT_COMPLETION);
    rig.w(regs::COMPLETION + 8, 1 << 6);
    assert_eq!(
        (rig.r(regs::INT_STATUS), rig.r(regs::COMPLETION_SUMMARY)),
        (0, 0)
    );
    rig.run(&mut queue, &[&[regs::INTERRUPT]]);
    assert_eq!(rig.interrupts(1), 2);
}

/// A queue waits until another one has stored what each condition asks for, and not before.
#[test]
fn waits_have_conditions() {
    let rig = Rig::new();
    let mut writer = rig.queue(71, BOTH);
    for (slot, (flags, value, unmet, met)) in [
        (regs::FENCE_WAIT_EQ, 5, 6, 5),
        (regs::FENCE_WAIT_AND, 1 << 48, 0xffff, 1 << 48),
        (regs::FENCE_WAIT_NOR, !(1 << 48), 1 << 48, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut waits = rig.queue(72 + slot as u64, BOTH);
        rig.run(
            &mut writer,
            &[
                &[regs::FENCE_WRITE, DATA, unmet],
                &[regs::FENCE_WRITE, DATA + 8, 0],
            ],
        );
        rig.submit(
            &mut waits,
            &[
                &[regs::FENCE_WAIT | (flags << 8), DATA, value],
                &[regs::FENCE_WRITE, DATA + 8, 1],
            ],
        );
        rig.run(&mut writer, &[&[regs::NOP]]);
        assert_eq!(rig.host.bytes.load(8), Some(0), "condition {flags}");
        rig.run(&mut writer, &[&[regs::FENCE_WRITE, DATA, met]]);
        rig.run(&mut waits, &[&[regs::NOP]]);
        assert_eq!(rig.host.bytes.load(8), Some(1), "condition {flags}");
    }
}

#[test]
fn one_queue_mixes_copies_and_kernels_in_order() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    let increment = launch(regs::KERNEL_INCREMENT_F32, &[DATA, 1000]);
    for _ in 0..20 {
        rig.run(
            &mut queue,
            &[
                &[regs::FILL | (2 << 8), DATA, 4000, 41.0_f32.to_bits().into()],
                &increment,
                &[regs::COPY, DATA, DATA + MIB, 4000],
            ],
        );
        assert_eq!(rig.read_f32(MIB, 1000), [42.0; 1000]);
        rig.run(&mut queue, &[&[regs::FILL, DATA + MIB, 4000, 0]]);
    }
}

#[test]
fn simple_kernels() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, COMPUTE);
    let count = 20_000;
    let x: Vec<f32> = (0..count).map(|i| i as f32 * 0.37).collect();
    let y: Vec<f32> = (0..count).map(|i| 1000.0 - i as f32 * 1.1).collect();
    rig.write_f32(4, &x);
    rig.write_f32(MIB, &y);
    let (x_at, y_at, n) = (DATA + 4, DATA + MIB, count as u64);
    let out = DATA + 2 * MIB;
    rig.run(
        &mut queue,
        &[&launch(
            regs::KERNEL_SAXPY,
            &[x_at, y_at, n, 2.5_f32.to_bits().into()],
        )],
    );
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.5 * x + y).collect();
    assert_eq!(rig.read_f32(MIB, count), expected);
    rig.run(
        &mut queue,
        &[
            &launch(regs::KERNEL_SUM_F32, &[x_at, n, out]),
            &launch(regs::KERNEL_COPY, &[out + 4096, x_at, 4 * n]),
            &launch(regs::KERNEL_FILL, &[out + MIB, 999, 0xdead_beef]),
            &launch(regs::KERNEL_SUM_F32, &[x_at, 0, out + 4]),
        ],
    );
    let sum = x.iter().fold(0.0, |sum, x| sum + f64::from(*x)) as f32;
    assert_eq!(rig.read_f32(2 * MIB, 2), [sum, 0.0]);
    assert_eq!(rig.read_f32(2 * MIB + 4096, count), x);
    assert_eq!(
        rig.host_read(3 * MIB, 4000),
        [&[0xef, 0xbe, 0xad, 0xde].repeat(999)[..], &[0; 4]].concat()
    );
    assert_eq!(rig.r(regs::ENGINE + regs::ENGINE_HOST_READ), 0);
}

#[test]
fn histogram_and_crc() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, COMPUTE);
    let data = noise(100_003);
    rig.host_write(1, &data);
    rig.host_write(MIB, b"123456789");
    rig.run(
        &mut queue,
        &[
            &launch(
                regs::KERNEL_HISTOGRAM_U8,
                &[DATA + 1, 100_003, DATA + 2 * MIB],
            ),
            &launch(regs::KERNEL_CRC32C, &[DATA + MIB, 9, DATA + 3 * MIB]),
            &launch(
                regs::KERNEL_CRC32C,
                &[DATA + 1, 100_003, DATA + 3 * MIB + 4],
            ),
        ],
    );
    let mut expected = [0_u32; 256];
    data.iter()
        .for_each(|byte| expected[usize::from(*byte)] += 1);
    assert_eq!(
        rig.host_read(2 * MIB, 1024),
        expected.map(u32::to_le_bytes).as_flattened()
    );
    let bitwise = data.iter().fold(!0_u32, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |s, _| {
            if s & 1 == 1 {
                (s >> 1) ^ 0x82f6_3b78
            } else {
                s >> 1
            }
        })
    });
    let crcs = [0xe306_9283_u32, !bitwise].map(u32::to_le_bytes);
    assert_eq!(rig.host_read(3 * MIB, 8), crcs.as_flattened());
}

#[test]
fn matrix_product() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, COMPUTE);
    let (m, n, k) = (17, 23, 31);
    let a: Vec<f32> = (0..m * k).map(|i| (i % 13) as f32 * 0.7 - 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| (i % 7) as f32 * 1.3 - 2.0).collect();
    rig.write_f32(0, &a);
    rig.write_f32(MIB, &b);
    rig.write_f32(2 * MIB, &vec![9.0; m * n + 1]);
    let arguments = [
        DATA,
        DATA + MIB,
        DATA + 2 * MIB,
        m as u64,
        n as u64,
        k as u64,
    ];
    rig.run(&mut queue, &[&launch(regs::KERNEL_MATMUL_F32, &arguments)]);
    let mut expected = vec![0.0_f32; m * n];
    for (i, sum) in expected.iter_mut().enumerate() {
        for l in 0..k {
            *sum += a[i / n * k + l] * b[l * n + i % n];
        }
    }
    expected.push(9.0);
    assert_eq!(rig.read_f32(2 * MIB, m * n + 1), expected);
    // Sides of zero.
    rig.run(
        &mut queue,
        &[&launch(
            regs::KERNEL_MATMUL_F32,
            &[DATA, DATA, DATA + 2 * MIB, 2, 2, 0],
        )],
    );
    assert_eq!(rig.read_f32(2 * MIB, 4), [0.0; 4]);
    rig.run(
        &mut queue,
        &[&launch(
            regs::KERNEL_MATMUL_F32,
            &[DATA, DATA, DATA, 0, 5, 5],
        )],
    );
    rig.run(
        &mut queue,
        &[&launch(
            regs::KERNEL_MATMUL_F32,
            &[DATA, DATA, DATA, 5, 0, 5],
        )],
    );
}

#[test]
fn arguments_in_memory_and_spin() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, COMPUTE);
    rig.host.bytes.store(64, 20_000_000).unwrap();
    let start = std::time::Instant::now();
    let head = regs::LAUNCH | (regs::LAUNCH_INDIRECT << 8) | (regs::KERNEL_SPIN << 32);
    rig.run(&mut queue, &[&[head, DATA + 64]]);
    assert!(start.elapsed().as_millis() >= 20);
}

#[test]
fn all_engines_at_once() {
    let rig = Rig::new();
    let mut queues: Vec<_> = (0..4).map(|id| rig.queue(id, COMPUTE)).collect();
    // Long enough for the last one to begin before the first one ends, also on a busy machine.
    for queue in &mut queues {
        rig.submit(queue, &[&launch(regs::KERNEL_SPIN, &[1_500_000_000])]);
    }
    let busy = 0b11_1100;
    rig.until("four busy engines", || rig.r(regs::ENGINE_BUSY) == busy);
    let mut copies = rig.queue(9, COPY_CLASS);
    rig.run(&mut copies, &[&[regs::COPY, DATA, DATA + MIB, 4096]]);
    queues.iter().for_each(|queue| rig.wait_idle(queue));
}

#[test]
fn copies_that_name_an_engine_leave_the_other_free() {
    let rig = Rig::new();
    // Engine 0 takes a packet and does not move.
    rig.w(regs::KNOB_STUCK, 1);
    let copy = |flags: u64| [regs::COPY | (flags << 8), DATA, DATA + MIB, 4096];
    let mut first = rig.queue(1, BOTH);
    rig.submit(&mut first, &[&copy(regs::COPY_ENGINE_0)]);
    rig.until("engine 0 is busy", || rig.r(regs::ENGINE_BUSY) == 1);
    // More packets for engine 0, of other queues, wait. Packets for engine 1, or for both, do not.
    let mut second = rig.queue(2, BOTH);
    rig.submit(&mut second, &[&copy(regs::COPY_ENGINE_0)]);
    let before = rig.r(regs::ENGINE + regs::ENGINE_STRIDE + regs::ENGINE_PACKETS);
    let mut third = rig.queue(3, BOTH);
    rig.run(&mut third, &[&copy(regs::COPY_ENGINE_1), &copy(0)]);
    let after = rig.r(regs::ENGINE + regs::ENGINE_STRIDE + regs::ENGINE_PACKETS);
    assert!(after >= before + 2, "{before} {after}");
    assert_eq!(rig.r(regs::ENGINE_BUSY) & 1, 1);
    rig.w(regs::KNOB_STUCK, 0);
    rig.wait_idle(&first);
    rig.wait_idle(&second);
}

#[test]
fn malformed_packets_stop_only_their_queue() {
    let rig = Rig::new();
    let mut good = rig.queue(1, BOTH);
    let cases: &[(&[u64], u64)] = &[
        (&[0], regs::BAD_OPCODE),
        (&[0x99], regs::BAD_OPCODE),
        (&[regs::NOP, 1], regs::BAD_FIELD),
        (
            &[regs::COPY, 0, 0, regs::TRANSFER_LIMIT + 1],
            regs::BAD_LENGTH,
        ),
        (&[regs::FENCE_WRITE, DATA + 4, 1], regs::BAD_ALIGNMENT),
        (&[regs::LAUNCH | (99 << 32)], regs::BAD_KERNEL),
        (
            &[
                regs::LAUNCH | (regs::KERNEL_INCREMENT_F32 << 32),
                DATA + 1,
                1,
            ],
            regs::BAD_ALIGNMENT,
        ),
    ];
    for (id, (packet, code)) in (2..).zip(cases) {
        let mut bad = rig.queue(id, BOTH);
        assert_eq!(
            rig.stop(&mut bad, &[&[regs::NOP], packet]).0,
            *code,
            "{packet:x?}"
        );
        assert_eq!(rig.state(bad.slot), regs::STATE_ERROR);
        assert_eq!(rig.slot(bad.slot, regs::SLOT_READ_INDEX), 1);
        assert_eq!(
            rig.command(bad.slot, regs::COMMAND_RETRY),
            regs::RESULT_BAD_STATE
        );
        rig.unbind(&bad);
        assert!(!rig.pending(id), "an ERROR is not work");
        rig.run(&mut good, &[&[regs::NOP]]);
    }
    let mut wrong = rig.queue(20, COPY_CLASS);
    assert_eq!(
        rig.stop(&mut wrong, &[&launch(regs::KERNEL_SPIN, &[0])]).0,
        regs::BAD_CLASS
    );
    assert_eq!(rig.r(regs::FAULT_WRITE), 1 + cases.len() as u64);
}

#[test]
fn stamps_tell_when_which_engine_had_the_packet_before() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, COPY_CLASS | COMPUTE);
    let stamp = |number: u64| {
        [0, 8, 16, 24].map(|word| rig.host.bytes.load(1024 + 32 * number + word).unwrap())
    };
    let store = |number: u64| {
        let head = regs::TIMESTAMP | (regs::TIMESTAMP_PACKET << 8);
        [head, DATA + 1024 + 32 * number]
    };
    let spin = 3_000_000;
    let by_engine_1 = regs::COPY | (regs::COPY_ENGINE_1 << 8);
    let before = rig.r(regs::TIME);
    rig.run(
        &mut queue,
        &[
            &store(0),
            &launch(regs::KERNEL_SPIN, &[spin]),
            &store(1),
            &[by_engine_1, DATA, DATA + MIB, 4096],
            &store(2),
        ],
    );
    let after = rig.r(regs::TIME);
    // Nothing was before the first.
    assert_eq!(stamp(0)[1..], [0, 0, 0xff]);
    let [now, began, ended, engine] = stamp(1);
    assert!(ended - began >= spin, "{began} {ended}");
    assert!((2..6).contains(&engine), "{engine}");
    assert!(before <= stamp(0)[0] && stamp(0)[0] <= began && ended <= now);
    let [end, began, ended, engine] = stamp(2);
    assert_eq!(engine, 1);
    assert!(now <= began && began <= ended && ended <= end && end <= after);
    // A queue that was away tells nothing of what was before.
    rig.command(queue.slot, regs::COMMAND_UNBIND);
    rig.wait_state(&queue, regs::STATE_FREE);
    rig.command(queue.slot, regs::COMMAND_BIND);
    rig.run(&mut queue, &[&store(3)]);
    assert_eq!(stamp(3)[1..], [0, 0, 0xff]);
}
