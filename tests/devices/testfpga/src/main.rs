// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `testfpga`; see `testfpga --help`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use testfpga::Fpga;
use vfio_user_device::{serve_at, Options};

const USAGE: &str = "\
usage: testfpga --socket PATH [--message] [--verbose]
Serves the test FPGA to one QEMU, until that ends:
  -object memory-backend-memfd,id=ram,size=SIZE,share=on -machine q35,memory-backend=ram
  -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"path\":\"PATH\",\"type\":\"unix\"}}'

  --socket PATH  the Unix socket to listen at; it is there as soon as QEMU can connect
  --message      each access to guest memory goes through QEMU's IOMMU (else: mapped, with the same
                 effect but much faster)
  --verbose      say what QEMU maps and resets
  --help         this
";

/// Reads the arguments. An error is a sentence for the user. `None` asks for the usage.
fn parse(
    mut arguments: impl Iterator<Item = OsString>,
) -> Result<Option<(PathBuf, Options)>, String> {
    let (mut socket, mut options) = (None, Options::default());
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--help" | "-h") => return Ok(None),
            Some("--message") => options.message = true,
            Some("--verbose") => options.verbose = true,
            Some("--socket") => {
                socket = Some(arguments.next().ok_or("--socket needs a value")?.into());
            }
            _ => return Err(format!("unknown argument: {}", argument.to_string_lossy())),
        }
    }
    Ok(Some((socket.ok_or("--socket is missing")?, options)))
}

fn main() -> ExitCode {
    let (socket, options) = match parse(std::env::args_os().skip(1)) {
        Ok(Some(request)) => request,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("testfpga: {error} (see --help)");
            return ExitCode::from(2);
        }
    };
    match serve_at(&socket, options, Fpga::start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testfpga: {}: {error}", socket.display());
            ExitCode::FAILURE
        }
    }
}
