// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap trace`: runs a program and writes what its queues, the engines and the driver did.

mod kernel;
mod perfetto;

use std::fs::File;
use std::io::BufWriter;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use pinmap::inspect::trace::{Trace, PATH_VARIABLE};
use signal_hook::consts::{SIGINT, SIGQUIT};

use crate::args::TraceOptions;
use crate::words::count;
use crate::{style, Result};

use kernel::{Events, Instance};
use perfetto::Summary;

/// Runs the program. The exit status is the program's, as a shell reports it.
pub(crate) fn run(options: &TraceOptions) -> Result<ExitCode> {
    let TraceOptions {
        output,
        size,
        program,
    } = options;
    // Before the program runs, so that nothing is lost if this fails.
    let file = File::create(output)
        .map_err(|error| format!("cannot write {}: {error}", output.display()))?;
    let trace = Trace::create(*size)?;
    let kernel = Instance::start();
    // A terminal sends these to the program, too. It decides, and what it did is written.
    for signal in [SIGINT, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let (name, arguments) = program.split_first().ok_or("there is no program to run")?;
    let status = Command::new(name)
        .args(arguments)
        .env(PATH_VARIABLE, trace.path())
        .status()
        .map_err(|error| format!("cannot run {}: {error}", name.to_string_lossy()))?;
    let events = match kernel {
        Ok(kernel) => kernel.end()?,
        Err(error) => {
            note(&format!(
                "the driver's faults, migrations and calls are not in the trace, because tracefs \
                 cannot be used ({error}): {}",
                kernel::remedy(&error)
            ));
            Events::default()
        }
    };
    let contents = trace.read();
    let summary = perfetto::write(&contents, &events, &mut BufWriter::new(file))?;
    let lost = contents.lost + events.lost;
    if lost != 0 {
        note(&format!(
            "{} lost; --size makes more room for those of queues",
            count(lost, "event")
        ));
    }
    if contents.contexts.is_empty() {
        note("the program opened no device with this crate, or as another user");
    }
    let Summary {
        queues,
        activities,
        unfinished,
        flows,
        faults,
        migrations,
    } = summary;
    let activities = match activities {
        1 => "1 activity".to_owned(),
        _ => format!("{activities} activities"),
    };
    anstream::eprintln!(
        "pinmap: {activities} of {} ({unfinished} not finished), {} for another, {} and {} are in \
         {}; https://ui.perfetto.dev opens it",
        count(queues as u64, "queue"),
        count(flows as u64, "wait"),
        count(faults as u64, "fault"),
        count(migrations as u64, "migration"),
        output.display()
    );
    Ok(code(status))
}

fn note(text: &str) {
    let (on, off) = (style::NOTE, style::NOTE.render_reset());
    anstream::eprintln!("{on}pinmap:{off} {text}");
}

/// The exit status of a program: its own, or 128 more than the signal that ended it.
fn code(status: ExitStatus) -> ExitCode {
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
