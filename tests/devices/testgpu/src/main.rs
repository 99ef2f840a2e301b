// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `testgpu`; see `testgpu --help`.

use std::process::ExitCode;
use testgpu::device::Running;
use testgpu::options::{describe, parse, USAGE};
use vfio_user_device::serve_at;

fn main() -> ExitCode {
    let (socket, settings, options) = match parse(std::env::args_os().skip(1)) {
        Ok(Some(request)) => request,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("testgpu: {error} (see --help)");
            return ExitCode::from(2);
        }
    };
    if options.verbose {
        eprintln!(
            "testgpu: link {}; VRAM {}",
            describe(settings.link),
            describe(settings.vram_link)
        );
    }
    match serve_at(&socket, options, |bus| Running::start(settings, bus)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testgpu: {}: {error}", socket.display());
            ExitCode::FAILURE
        }
    }
}
