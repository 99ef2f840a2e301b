// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many instructions a second a slot executes.

use crate::image::Image;
use crate::launch::{report, Launch, FREE};
use crate::rig::{Queue, Rig, DATA, HOST, RW};
use std::time::Instant;
use testgpu::regs;

/// Runs a launch many times, and takes the shortest time, in which nothing else ran.
fn measure(rig: &Rig, queue: &mut Queue, name: &str, launch: &Launch) {
    let mut best = f64::MAX;
    for _ in 0..50 {
        let begin = Instant::now();
        launch.run(rig, queue);
        best = best.min(begin.elapsed().as_secs_f64());
    }
    let instructions = report(rig)[5] as f64;
    println!(
        "{name}: {:.0} million instructions a second",
        instructions / best / 1e6
    );
}

/// Prints instructions a second. `cargo test --release -- --ignored --nocapture speed`.
#[test]
#[ignore = "measures"]
fn speed() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COMPUTE);
    let image = Image::c("speed.c", &["-O2"]);
    image.load(&rig);
    let one = 0xffff_ffff_0000_0000 | u64::from(1.5_f32.to_bits());
    let n = 1 << 17;
    let (x, y) = (FREE, FREE + 4 * n);
    let values: Vec<f32> = (0..n).map(|i| i as f32 * 0.3).collect();
    rig.write_f32(FREE - DATA, &values);
    let saxpy = Launch::new(image.symbol("saxpy"), (n / 256) as u32, 256);
    measure(
        &rig,
        &mut queue,
        "saxpy",
        &saxpy.integers(&[n, x, y]).floats(&[one]),
    );
    let rows = Launch::new(image.symbol("saxpy_rows"), 1, 64);
    let rows = rows.integers(&[n / 64, x, y]).floats(&[one]);
    measure(&rig, &mut queue, "saxpy, many elements a thread", &rows);
    let matmul = Launch::new(image.symbol("matmul"), 8, 256);
    let matmul = matmul.integers(&[128, x, y, y + (1 << 20)]);
    measure(&rig, &mut queue, "matmul", &matmul);
    let mut other = rig.queue(2, regs::CLASS_COMPUTE);
    let packet = matmul.packet(&rig);
    let begin = Instant::now();
    for _ in 0..10 {
        rig.submit(&mut queue, &[&packet]);
        rig.submit(&mut other, &[&packet]);
    }
    rig.wait_idle(&queue);
    rig.wait_idle(&other);
    let executed = 20.0 * report(&rig)[5] as f64;
    let rate = executed / begin.elapsed().as_secs_f64() / 1e6;
    println!("matmul in two slots: {rate:.0} million instructions a second in all");
    for page in 0..1 {
        let at = page * regs::PAGE;
        rig.map(1, 0x6000_0000 + at, RW | regs::PTE_ATOMIC | (9 << 20));
        rig.map(
            1,
            0x6100_0000 + at,
            RW | regs::PTE_ATOMIC | HOST | (1 << 20),
        );
    }
    for (name, counts) in [("VRAM", 0x6000_0000), ("host memory", 0x6100_0000)] {
        let histogram = Launch::new(image.symbol("histogram"), 1, 64);
        let histogram = histogram.integers(&[n / 64, x, counts]);
        measure(
            &rig,
            &mut queue,
            &format!("histogram, counts in {name}"),
            &histogram,
        );
    }
    for (name, nodes) in [("2 MiB", 1 << 15), ("8 MiB", 1 << 17)] {
        // A permutation with one cycle.
        let node = |index: u64| FREE + 64 * index;
        let mut at = 0;
        for _ in 0..nodes {
            let next = (at * 5 + 12345) % nodes;
            rig.host.bytes.store(node(at) - DATA, node(next)).unwrap();
            at = next;
        }
        let chase = Launch::new(image.symbol("chase"), 1, 1);
        let chase = chase.integers(&[1_000_000, node(0), DATA + 0x8000]);
        measure(
            &rig,
            &mut queue,
            &format!("pointer chase in {name}"),
            &chase,
        );
    }
}
