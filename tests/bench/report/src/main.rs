// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns the bench's records, one JSON object a line, into a table, plots and one JSON file.
//!
//! usage: `bench-report [--json FILE] [--svg DIRECTORY] RECORDS...`, or
//! `bench-report --counts RECORDED [--record] RECORDS...` for instructions a page, or
//! `bench-report --profile TRACE KALLSYMS` for instructions by function.

mod counts;
mod moving;
mod plot;
mod profile;
mod record;
mod table;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use record::Record;

#[derive(Default)]
struct Options {
    json: Option<PathBuf>,
    svg: Option<PathBuf>,
    counts: Option<PathBuf>,
    record: bool,
    profile: Option<PathBuf>,
    inputs: Vec<PathBuf>,
}

fn parse() -> Result<Options, Box<dyn Error>> {
    let mut options = Options::default();
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let missing = || format!("{argument:?} needs a value");
            arguments.next().map(PathBuf::from).ok_or_else(missing)
        };
        match argument.to_str() {
            Some("--json") => options.json = Some(value()?),
            Some("--svg") => options.svg = Some(value()?),
            Some("--counts") => options.counts = Some(value()?),
            Some("--profile") => options.profile = Some(value()?),
            Some("--record") => options.record = true,
            _ => options.inputs.push(argument.into()),
        }
    }
    Ok(options)
}

fn run() -> Result<bool, Box<dyn Error>> {
    let options = parse()?;
    if let Some(trace) = &options.profile {
        let [symbols] = &options.inputs[..] else {
            return Err("--profile takes a trace and a list of symbols".into());
        };
        print!("{}", profile::list(trace, symbols)?);
        return Ok(true);
    }
    let mut records = Vec::new();
    for input in &options.inputs {
        let text = fs::read_to_string(input)?;
        for line in text.lines().filter(|line| line.starts_with('{')) {
            records.push(line.parse::<Record>()?);
        }
    }
    if records.is_empty() {
        return Err("there are no records".into());
    }
    if let Some(recorded) = options.counts {
        return counts::check(&records, &recorded, options.record);
    }
    if let Some(path) = options.json {
        let lines: Vec<String> = records.iter().map(Record::to_string).collect();
        fs::write(path, format!("[\n{}\n]\n", lines.join(",\n")))?;
    }
    if let Some(directory) = options.svg {
        fs::create_dir_all(&directory)?;
        for (name, svg) in plot::plots(&records)? {
            fs::write(directory.join(name), svg)?;
        }
    }
    let parts = [
        table::table(&records),
        table::ways(&records),
        table::slopes(&records),
        table::goals(&records),
        moving::table(&records),
    ];
    // A part without a line below its heading is left out.
    for part in parts.iter().filter(|part| part.trim().lines().count() > 1) {
        print!("{part}");
    }
    Ok(true)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-report: {error}");
            ExitCode::from(2)
        }
    }
}
