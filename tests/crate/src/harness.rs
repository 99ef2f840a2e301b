// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the tests and runs one of them, for `tests/runner`, which runs each in a process of its
//! own and looks at what it leaves behind.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::{Command, ExitCode};

/// The result of a test: success, an error, or skipped ([`Skip`]).
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// A test.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> Outcome,
}

/// The reason why a test cannot be run here.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Skip {}

/// Ends a test that cannot be run here.
pub(crate) fn skip<T>(reason: impl Into<String>) -> Result<T, Box<dyn Error>> {
    Err(Skip(reason.into()).into())
}

/// Exit status of a test that was skipped; its last line is the reason.
const SKIPPED: u8 = 4;
/// Time limit of a test in seconds; the runner allows more.
const SECONDS: u32 = 120;
/// Time limit where each DMA access of the test GPU is a message.
const SECONDS_IN_MESSAGES: u32 = 400;

/// Runs the program with its arguments: `--list`, or `--run` and a test's name.
pub(crate) fn main(tests: &[Test], smoke: &[&str], faults: &[&str]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        ["--list"] => list(tests, smoke, faults),
        ["--run", name] => run(tests, name),
        [MISUSE] => misuse(),
        _ => {
            eprintln!("usage: crate-test --list | --run NAME (all tests: run)");
            ExitCode::FAILURE
        }
    }
}

/// The argument with which the program reads freed memory, which AddressSanitizer must find.
const MISUSE: &str = "--misuse";

/// Reads freed memory.
#[allow(unsafe_code)]
fn misuse() -> ExitCode {
    let freed = std::ptr::from_ref(&*Box::new(7u64));
    // SAFETY: It is not safe. AddressSanitizer ends the program here.
    let value = unsafe { freed.read_volatile() };
    println!("freed memory can be read: {value}");
    ExitCode::SUCCESS
}

/// With AddressSanitizer, memory that is freed cannot be read.
pub(crate) fn freed_memory_is_watched() -> Outcome {
    if std::env::var_os("ASAN_OPTIONS").is_none() {
        return skip("this program is without AddressSanitizer");
    }
    let output = Command::new(std::env::current_exe()?)
        .arg(MISUSE)
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(told.contains("heap-use-after-free"), "{told}");
    Ok(())
}

fn list(tests: &[Test], smoke: &[&str], faults: &[&str]) -> ExitCode {
    let seconds = match std::env::var("PINMAP_DMA").as_deref() {
        Ok("message") => SECONDS_IN_MESSAGES,
        _ => SECONDS,
    };
    for name in smoke.iter().chain(faults) {
        if !tests.iter().any(|test| test.name == *name) {
            eprintln!("there is no test {name}");
            return ExitCode::FAILURE;
        }
    }
    for test in tests {
        let flags = [(smoke, "smoke"), (faults, "faults")];
        let flags: Vec<_> = flags
            .iter()
            .filter_map(|(names, flag)| names.contains(&test.name).then_some(*flag))
            .collect();
        let flags = match &flags[..] {
            [] => String::from("-"),
            flags => flags.join(","),
        };
        println!("{seconds} {flags} {}", test.name);
    }
    ExitCode::SUCCESS
}

/// Runs one test in this process.
fn run(tests: &[Test], name: &str) -> ExitCode {
    let Some(test) = tests.iter().find(|test| test.name == name) else {
        eprintln!("there is no test {name}");
        return ExitCode::FAILURE;
    };
    match (test.run)() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<Skip>() {
            Some(Skip(reason)) => {
                print!("{reason}");
                let _ = io::stdout().flush();
                ExitCode::from(SKIPPED)
            }
            None => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Makes tests of functions, which give them their names.
macro_rules! tests {
    ($($module:ident: $($name:ident)*;)*) => {
        &[$($($crate::harness::Test { name: stringify!($name), run: $crate::$module::$name },)*)*]
    };
}
pub(crate) use tests;
