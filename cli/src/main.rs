// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `pinmap`: shows the devices, finds out what is missing, gives functions to the
//! driver, tests it with `edu`, and measures with the test GPU what zero-copy is worth.
#![forbid(unsafe_code)]

mod args;
mod bind;
mod cdi;
mod copy_test;
mod demo;
mod details;
mod doctor;
mod explain;
mod info;
mod limit;
mod manual;
mod names;
mod progress;
mod replug;
mod report;
mod report_json;
mod size;
mod style;
mod sysfs;
mod text;
mod top;
mod trace;
mod words;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, ExitCode};

use args::{Cli, Command};
use clap::Parser;

/// A result whose error is shown as one sentence.
type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn run(command: Command, out: &mut impl Write) -> Result<ExitCode> {
    match command {
        Command::Info(options) => info::run(&options, out)?,
        Command::Bind { function } => bind::bind(&sysfs::Sysfs::system(), function, out)?,
        Command::Unbind { function } => bind::unbind(&sysfs::Sysfs::system(), function, out)?,
        Command::Replug(options) => replug::run(&sysfs::Sysfs::system(), &options, out)?,
        Command::CopyTest(options) => copy_test::run(&options, out)?,
        Command::Demo(options) => demo::run(&options, out)?,
        Command::Doctor(options) => doctor::run(&options, out)?,
        Command::Top(options) => top::run(&options, out)?,
        Command::Explain(options) => explain::run(&options, out)?,
        Command::Trace(options) => return trace::run(&options),
        Command::Nvme(options) => return become_program("nvme", &options.arguments),
        Command::Xdma(options) => return become_program("xdma", &options.arguments),
        Command::Cdi(options) => cdi::run(&options, out)?,
        Command::Completions { shell } => manual::completions(shell, out)?,
        Command::Man { directory } => manual::write(&directory, out)?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs another program in place of this one. Returns only if that fails.
fn become_program(name: &str, arguments: &[OsString]) -> Result<ExitCode> {
    let program = format!("pinmap-{name}");
    let error = process::Command::new(&program).args(arguments).exec();
    let hint = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("; `cargo install --locked --path devices/{name}` installs it")
        }
        _ => String::new(),
    };
    Err(format!("run {program}: {error}{hint}").into())
}

fn main() -> ExitCode {
    // A usage error ends the process here, with exit status 2; help and version with 0.
    let cli = Cli::parse();
    style::choose(cli.color);
    let error = match run(cli.command, &mut anstream::stdout().lock()) {
        Ok(code) => return code,
        Err(error) => error,
    };
    // If the reader of a pipe is gone, there is nobody to tell.
    let gone = error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if !gone {
        let (on, off) = (style::ERROR, style::ERROR.render_reset());
        anstream::eprintln!("{on}pinmap:{off} {error}");
    }
    ExitCode::FAILURE
}
