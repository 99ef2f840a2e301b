// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the test GPU through vfio-pci, in the VM, as root, without pinmap. TAP on standard output.
//!
//! What the device does inside is tested without a VM; here it is what only QEMU and a kernel can show: that it is found, that
//! interrupts arrive, that DMA goes where the IOMMU says and nowhere else.
//!
//! usage: `testgpu-vfio [PATTERN...]`: part of a test's name, with or without `testgpu-vfio: ` before it.

mod gpu;
mod tests;
mod vfio;

use gpu::Gpu;
use std::io;
use std::process::ExitCode;
use vfio::{find, say, Function, Taken};

/// The first test GPU, if there is one. What is `Taken` is to be dropped last.
fn open() -> Result<Option<(Taken, Gpu)>, String> {
    let found = find("0x1234", "0x7e57").map_err(|error| format!("sysfs: {error}"))?;
    let Some(path) = found.first() else {
        return Ok(None);
    };
    let open = || {
        let taken = Taken::new(path)?;
        Ok((taken, Gpu::new(Function::open(path)?)?))
    };
    let opened: io::Result<_> = open();
    opened
        .map(Some)
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn main() -> ExitCode {
    say(format_args!("TAP version 13"));
    let patterns: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| {
        let full = format!("testgpu-vfio: {name}");
        patterns.is_empty()
            || patterns
                .iter()
                .any(|pattern| full.contains(pattern.as_str()))
    };
    let chosen: Vec<_> = tests::ALL.iter().filter(|(name, _)| wanted(name)).collect();
    if chosen.is_empty() {
        say(format_args!("1..0 # SKIP no test of that name"));
        return ExitCode::SUCCESS;
    }
    let (_taken, gpu) = match open() {
        Ok(Some(opened)) => opened,
        Ok(None) => {
            say(format_args!("1..0 # SKIP there is no test GPU"));
            return ExitCode::from(4);
        }
        Err(error) => {
            say(format_args!("Bail out! {error}"));
            return ExitCode::FAILURE;
        }
    };
    say(format_args!("1..{}", chosen.len()));
    let mut failed = false;
    for (number, (name, test)) in (1..).zip(chosen) {
        match gpu.set_up().and_then(|()| test(&gpu)) {
            Ok(()) => say(format_args!("ok {number} - {name}")),
            Err(error) => {
                failed = true;
                say(format_args!("# {error}"));
                say(format_args!("not ok {number} - {name}"));
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
