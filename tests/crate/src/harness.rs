// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs each test in a process of its own, so that none disturbs the next, and prints TAP.

use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use pinmap::Device;

use crate::pins::Pins;
use crate::setup::is_slow;

/// How a test ends: well, with an error, or skipped ([`Skip`]).
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// A test.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> Outcome,
}

/// A test cannot be run here, for this reason.
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

/// Exit status of a test's process that was skipped; what it printed is the reason.
const SKIPPED: u8 = 4;
/// After so long a test hangs, and where everything is slow.
const TIMEOUTS: [Duration; 2] = [Duration::from_secs(120), Duration::from_secs(400)];

/// Runs the tests that the arguments select; or, with `--run`, one of them in this process.
pub(crate) fn main(program: &str, tests: &[Test], smoke: &[&str]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [option, name] = &arguments[..] {
        if option == "--run" {
            return child(tests, name);
        }
    }
    let selected: Vec<_> = tests
        .iter()
        .filter(|test| {
            let full = format!("{program}: {}", test.name);
            let is_name = |pattern: &String| tests.iter().any(|test| test.name == pattern);
            // For a machine without an IOMMU: when asked for only.
            if test.name.starts_with("noiommu_") {
                return arguments.iter().any(|pattern| pattern.contains("noiommu"));
            }
            arguments.is_empty()
                || arguments.iter().any(|pattern| match &**pattern {
                    "smoke" => smoke.contains(&test.name),
                    name if is_name(pattern) => test.name == name,
                    glob if glob.contains(['*', '?']) => {
                        matches(&full, glob) || matches(test.name, glob)
                    }
                    part => full.contains(part),
                })
        })
        .collect();
    let none = if selected.is_empty() {
        " # SKIP no test of that name"
    } else {
        ""
    };
    println!("TAP version 13\n1..{}{none}", selected.len());
    let mut good = true;
    for (i, test) in selected.iter().enumerate() {
        // A line that is not marked could pass for a result.
        let remark = |text: &str| text.lines().for_each(|line| println!("# {line}"));
        let (verdict, directive) = match run(test) {
            Ok(Passed::Skipped(reason)) => ("ok", format!(" # SKIP {reason}")),
            Ok(Passed::Done(report)) => {
                remark(&report);
                ("ok", String::new())
            }
            Err(error) => {
                good = false;
                remark(&error);
                ("not ok", String::new())
            }
        };
        println!("{verdict} {} - {}{directive}", i + 1, test.name);
    }
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Whether a text matches a pattern with `*` and `?`.
fn matches(text: &str, pattern: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*') => text
            .char_indices()
            .map(|(i, _)| &text[i..])
            .chain([""])
            .any(|tail| matches(tail, rest.as_str())),
        Some(wanted) => {
            let mut tail = text.chars();
            tail.next().is_some_and(|c| wanted == '?' || c == wanted)
                && matches(tail.as_str(), rest.as_str())
        }
    }
}

/// Runs one test in this process.
fn child(tests: &[Test], name: &str) -> ExitCode {
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

/// How a test passed.
enum Passed {
    /// It could not be run, for this reason.
    Skipped(String),
    /// It was, and printed this.
    Done(String),
}

/// Runs one test in another process, and looks at what it left behind.
fn run(test: &Test) -> Result<Passed, String> {
    let pins = Pins::now();
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut process = Command::new(program)
        .args(["--run", test.name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run it: {error}"))?;
    // Both at once: a full pipe would make the test wait for ever.
    let out = collect(process.stdout.take());
    let err = collect(process.stderr.take());
    let timeout = TIMEOUTS[usize::from(is_slow())];
    let deadline = Instant::now() + timeout;
    let status = loop {
        if let Some(status) = process.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if Instant::now() > deadline {
            let _ = process.kill();
            let _ = process.wait();
            return Err(format!("not done after {timeout:?}"));
        }
        sleep(Duration::from_millis(5));
    };
    let (out, err) = (
        out.join().unwrap_or_default(),
        err.join().unwrap_or_default(),
    );
    let passed = verdict(status, out, &err)?;
    check_leftovers(pins)?;
    Ok(passed)
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn verdict(status: ExitStatus, out: String, err: &str) -> Result<Passed, String> {
    match status.code() {
        Some(0) => Ok(Passed::Done(out)),
        Some(code) if code == SKIPPED.into() => Ok(Passed::Skipped(out.trim().to_owned())),
        _ => Err(format!("{out}{err}\n{status}")),
    }
}

/// Whatever a test does, afterwards no page is pinned and no device has an owner.
fn check_leftovers(before: Option<Pins>) -> Result<(), String> {
    if let Some(Pins { acquired, released }) = before.and_then(Pins::settled_since) {
        if acquired != released {
            return Err(format!(
                "afterwards {} pages are pinned",
                acquired.wrapping_sub(released)
            ));
        }
    }
    for node in Device::list().map_err(|error| error.to_string())? {
        let info = Device::open(&node.path).and_then(|device| device.info());
        if info.map_err(|error| error.to_string())?.owned {
            return Err(format!("afterwards {} has an owner", node.path.display()));
        }
    }
    Ok(())
}
