// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `pinmap`: shows the devices, finds out what is missing, gives functions to the
//! driver, tests it with `edu`, and measures with the test GPU what zero-copy is worth.
#![forbid(unsafe_code)]

mod args;
mod bind;
mod copy_test;
mod demo;
mod details;
mod doctor;
mod explain;
mod help;
mod info;
mod limit;
mod report;
mod report_json;
mod size;
mod sysfs;
mod text;
mod words;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use args::Command;

/// A result whose error is shown as one sentence.
type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The exit status for a wrong command line.
const USAGE: u8 = 2;

fn run(command: Command, out: &mut impl Write) -> Result<()> {
    match command {
        Command::Help(topic) => write!(out, "{}", help::text(topic))?,
        Command::Version => writeln!(out, "pinmap {}", env!("CARGO_PKG_VERSION"))?,
        Command::Info(options) => info::run(&options, out)?,
        Command::Bind(pci) => bind::bind(&sysfs::Sysfs::system(), pci, out)?,
        Command::Unbind(pci) => bind::unbind(&sysfs::Sysfs::system(), pci, out)?,
        Command::CopyTest(options) => copy_test::run(&options, out)?,
        Command::Demo(options) => demo::run(&options, out)?,
        Command::Doctor(options) => doctor::run(&options, out)?,
        Command::Explain(options) => explain::run(&options, out)?,
    }
    Ok(out.flush()?)
}

fn main() -> ExitCode {
    let command = match args::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("pinmap: {error}; see `pinmap --help`");
            return ExitCode::from(USAGE);
        }
    };
    let Err(error) = run(command, &mut io::stdout().lock()) else {
        return ExitCode::SUCCESS;
    };
    // If the reader of a pipe is gone, there is nobody to tell.
    let gone = error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if !gone {
        eprintln!("pinmap: {error}");
    }
    ExitCode::FAILURE
}
