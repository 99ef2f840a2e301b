// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `testgpu`; see `testgpu --help`.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use testgpu::options::{describe, parse, Request, USAGE};
use testgpu::server::{serve, serve_fpga};

/// Listens at `path`. The path appears when connections are accepted, and not earlier.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    for old in [path, partial] {
        match std::fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let listener = UnixListener::bind(partial)?;
    std::fs::rename(partial, path)?;
    Ok(listener)
}

fn main() -> ExitCode {
    let request = match parse(std::env::args_os().skip(1)) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("testgpu: {error} (see --help)");
            return ExitCode::from(2);
        }
    };
    let accept = |socket: &Path| Ok(listen(socket)?.accept()?.0);
    let (socket, result) = match request {
        Request::Help => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Request::Serve(socket, settings, mode) => {
            if mode.verbose {
                eprintln!(
                    "testgpu: link {}; VRAM {}",
                    describe(settings.link),
                    describe(settings.vram_link)
                );
            }
            let result = accept(&socket).and_then(|stream| serve(stream, settings, mode));
            (socket, result)
        }
        Request::ServeFpga(socket, mode) => {
            let result = accept(&socket).and_then(|stream| serve_fpga(stream, mode));
            (socket, result)
        }
    };
    // Nobody can use a socket at which no process listens.
    let _ = std::fs::remove_file(&socket);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testgpu: {}: {error}", socket.display());
            ExitCode::FAILURE
        }
    }
}
