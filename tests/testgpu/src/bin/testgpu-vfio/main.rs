// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the test GPU through vfio-pci, in the VM, as root, without pinmap. TAP on standard output.
//!
//! What the device does inside is tested without a VM; here it is what only QEMU and a kernel can show: that it is found, that
//! interrupts arrive, that DMA goes where the IOMMU says and nowhere else.

mod gpu;
mod tests;
mod vfio;

use gpu::Gpu;
use std::process::ExitCode;
use vfio::{find, say, Function};

fn open() -> Result<Option<Gpu>, String> {
    let found = find("0x1234", "0x7e57").map_err(|error| format!("sysfs: {error}"))?;
    let Some(path) = found.first() else {
        return Ok(None);
    };
    let function = Function::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let gpu = Gpu::new(function).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some(gpu))
}

fn main() -> ExitCode {
    say(format_args!("TAP version 13"));
    let gpu = match open() {
        Ok(Some(gpu)) => gpu,
        Ok(None) => {
            say(format_args!("1..0 # SKIP there is no test GPU"));
            return ExitCode::from(4);
        }
        Err(error) => {
            say(format_args!("Bail out! {error}"));
            return ExitCode::FAILURE;
        }
    };
    say(format_args!("1..{}", tests::ALL.len()));
    let mut failed = false;
    for (number, (name, test)) in (1..).zip(tests::ALL) {
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
