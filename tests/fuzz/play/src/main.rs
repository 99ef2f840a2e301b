// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the programs of `tests/fuzz/corpus` and plays one of them, for `tests/runner`; plays those
//! that are named, for people; or makes one smaller, for `scripts/fuzz`.
//!
//! usage: fuzz --list | --run NAME | [--times N] FILE... | --minimize FOLDER

use play::{Outcome, Player, Program};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

const CORPUS: &str = "/src/tests/fuzz/corpus";
/// Time limit of a program in seconds; the runner allows more.
const SECONDS: u32 = 90;

/// The programs in a file, or in a folder's files.
fn files(path: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

fn name(file: &Path) -> String {
    file.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn list() -> Result<bool, Box<dyn Error>> {
    for file in files(CORPUS.as_ref())? {
        println!("{SECONDS} faults {}", name(&file));
    }
    Ok(true)
}

/// Plays programs, each so many times, and tells what was wrong.
fn play(files: &[PathBuf], times: u32) -> Result<bool, Box<dyn Error>> {
    let mut player = Player::new(1)?;
    let mut good = true;
    for file in files {
        let program: Program = fs::read_to_string(file)?
            .parse()
            .map_err(|error| format!("{}: {error}", file.display()))?;
        for _ in 0..times {
            if let Outcome::Found(what) = player.play(&program, true)? {
                println!("{}: {what}\n{program}", name(file));
                good = false;
                break;
            }
        }
    }
    Ok(good)
}

/// Makes a find smaller once.
fn minimize(folder: &Path) -> Result<bool, Box<dyn Error>> {
    let mut first = 0;
    let done = play::minimize(folder, |program, times| {
        // No two players have the same patterns.
        let mut player = Player::new(first)?;
        first += times;
        for _ in 1..times {
            let outcome = player.play(program, true)?;
            if outcome != Outcome::Fine {
                return Ok(outcome);
            }
        }
        player.play(program, true)
    })?;
    Ok(done)
}

/// The exit status if something was found.
const FOUND: u8 = 10;

fn run() -> Result<bool, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (times, paths) = match &arguments[..] {
        ["--list"] => return list(),
        ["--run", name] => return play(&[Path::new(CORPUS).join(format!("{name}.c"))], 4),
        ["--minimize", folder] => return minimize(folder.as_ref()),
        ["--times", times, paths @ ..] => (times.parse()?, paths),
        paths => (1, paths),
    };
    let mut all = Vec::new();
    for path in paths {
        all.extend(files(path.as_ref())?);
    }
    play(&all, times)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FOUND),
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}
