// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiled programs give what the same source gives on the host.

use crate::image::{scratch, Image};
use crate::launch::{Launch, FREE, STACKS};
use crate::rig::{Rig, DATA};
use std::process::Command;
use testgpu::regs;

const RESULTS: usize = 8 * 466;

fn on_host() -> Vec<u8> {
    let path = scratch("work");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/c/work.c");
    let flags = [
        "-O1",
        "-DHOST",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-o",
    ];
    let status = Command::new("clang")
        .args(flags)
        .arg(&path)
        .arg(source)
        .status();
    assert!(status.unwrap().success());
    let output = Command::new(&path).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    output.stdout
}

#[test]
fn compiled_programs_compute_what_they_do_on_the_host() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COMPUTE);
    let expected = on_host();
    assert_eq!(expected.len(), RESULTS);
    for flags in [
        &["-O0"][..],
        &["-O2"],
        &["-O3", "-march=rv64g"],
        &["-Os", "-fPIC"],
    ] {
        let image = Image::c(
            "work.c",
            &[&["-ffp-contract=off", "-fno-math-errno"], flags].concat(),
        );
        image.load(&rig);
        let out = FREE;
        rig.host_write(out - DATA, &[0; RESULTS]);
        let mut launch = Launch::new(image.symbol("work"), 1, 1);
        launch.set(regs::PROGRAM_STACKS, STACKS);
        launch.set(regs::PROGRAM_STACK_BYTES, 0x1_0000);
        let arguments = [0x123_4567_89ab_cdef, out, FREE + 0x1_0000];
        launch.integers(&arguments).run(&rig, &mut queue);
        assert!(rig.host_read(out - DATA, RESULTS) == expected, "{flags:?}");
    }
}
