// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `xdma`; see `xdma --help`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use vfio_user_device::serve_at;
use xdma::{Options, Xdma};

const USAGE: &str = "\
usage: xdma --socket PATH [--stream] [--pairs N] [--align N] [--message] [--verbose]
Serves a card with AMD's DMA core for PCI Express (PG195) to one QEMU, until that ends:
  -object memory-backend-memfd,id=ram,size=SIZE,share=on -machine q35,memory-backend=ram
  -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"path\":\"PATH\",\"type\":\"unix\"}}'

  --socket PATH  the Unix socket to listen at; it is there as soon as QEMU can connect
  --stream       the channels are streams, each pair a loop (else: they reach AXI memory)
  --pairs N      channels in each direction, 1 to 4 (else: 2)
  --align N      what addresses are aligned to, 1 to 64 (else: 1)
  --message      each access to guest memory goes through QEMU's IOMMU (else: mapped, with the same
                 effect but much faster)
  --verbose      say what QEMU maps and resets
  --help         this
What the manual forbids is reported on standard error, and counted in a register (XDMA.md).
";

/// A request of the command line.
struct Request {
    socket: PathBuf,
    options: Options,
    server: vfio_user_device::Options,
}

/// Reads the arguments. An error is a sentence for the user. `None` asks for the usage.
fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Option<Request>, String> {
    let (mut socket, mut options) = (None, Options::default());
    let mut server = vfio_user_device::Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = |name: &str| arguments.next().ok_or(format!("{name} needs a value"));
        let number = |value: OsString| {
            let number = value.to_str().and_then(|value| value.parse::<u64>().ok());
            number.ok_or(format!("no number: {}", value.to_string_lossy()))
        };
        match argument.to_str() {
            Some("--help" | "-h") => return Ok(None),
            Some("--message") => server.message = true,
            Some("--verbose") => server.verbose = true,
            Some("--stream") => options.stream = true,
            Some("--pairs") => options.pairs = number(value("--pairs")?)? as usize,
            Some("--align") => options.alignment = number(value("--align")?)?,
            Some("--socket") => socket = Some(value("--socket")?.into()),
            _ => return Err(format!("unknown argument: {}", argument.to_string_lossy())),
        }
    }
    if !(1..=4).contains(&options.pairs) {
        return Err("--pairs is 1 to 4".into());
    }
    if !options.alignment.is_power_of_two() || options.alignment > 64 {
        return Err("--align is a power of two, at most 64".into());
    }
    Ok(Some(Request {
        socket: socket.ok_or("--socket is missing")?,
        options,
        server,
    }))
}

fn main() -> ExitCode {
    let request = match parse(std::env::args_os().skip(1)) {
        Ok(Some(request)) => request,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("xdma: {error} (see --help)");
            return ExitCode::from(2);
        }
    };
    let start = |bus| Xdma::start(bus, request.options);
    match serve_at(&request.socket, request.server, start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xdma: {}: {error}", request.socket.display());
            ExitCode::FAILURE
        }
    }
}
