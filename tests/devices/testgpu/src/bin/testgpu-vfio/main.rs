// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the test GPU through vfio-pci, in the virtual machine, as root, without pinmap.
//!
//! The inside of the device is tested without a virtual machine. These tests show what takes QEMU
//! and a kernel: the device is found, interrupts arrive, and DMA goes where the IOMMU says and
//! nowhere else.
//!
//! usage: `testgpu-vfio --list` prints the tests, one in a line: the seconds that it may take,
//! "faults" or "-" (whether the IOMMU reports faults), the name. `testgpu-vfio --run NAME` runs one
//! test. The exit status is 0 if it passes, 1 if it fails, 4 if it cannot be run.

mod gpu;
mod tests;
mod vfio;

use gpu::Gpu;
use std::io;
use std::process::ExitCode;
use vfio::{find, say, Function, Taken};

/// Takes the first test GPU, if there is one. Drop `Taken` last.
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

/// Seconds after which a test is considered to hang.
const SECONDS: u32 = 120;
/// Exit status of a test that cannot be run.
const SKIPPED: u8 = 4;

fn run(name: &str) -> Result<(), ExitCode> {
    let fail = |error: String| {
        eprintln!("{error}");
        ExitCode::FAILURE
    };
    let mut all = tests::ALL.iter();
    let Some((.., test)) = all.find(|(known, ..)| *known == name) else {
        return Err(fail(format!("there is no test {name}")));
    };
    let Some((_taken, gpu)) = open().map_err(fail)? else {
        say(format_args!("there is no test GPU"));
        return Err(ExitCode::from(SKIPPED));
    };
    gpu.set_up().and_then(|()| test(&gpu)).map_err(fail)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        ["--list"] => {
            for (name, faults, _) in tests::ALL {
                let flags = if *faults { "faults" } else { "-" };
                say(format_args!("{SECONDS} {flags} {name}"));
            }
            ExitCode::SUCCESS
        }
        ["--run", name] => run(name).err().unwrap_or(ExitCode::SUCCESS),
        _ => {
            eprintln!("usage: testgpu-vfio --list | --run NAME");
            ExitCode::FAILURE
        }
    }
}
