// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a find smaller.
//!
//! After a find the machine is no longer sound, and may have died of it: what is known is in a
//! folder that outlives the machine, and each machine makes the find smaller once. In the folder
//! `smallest.c` is the smallest find so far, `trying.c` the program that is being played, and
//! `fine` has those after which nothing was wrong.

use crate::{Outcome, Program, Step, Value};
use std::fs;
use std::io;
use std::path::Path;

/// How often a program is played before it counts as one after which nothing is wrong.
const TIMES: u32 = 6;
/// How often the find itself is played before it counts as none.
const FIRST_TIMES: u32 = 40;

/// Looks for a smaller program than `smallest.c` after which something is wrong, too, and puts it
/// there. Returns false then, and true if there is none. The first call for a folder only plays the
/// find itself, and fails if nothing is wrong after it. `play` plays a program up to so many times.
pub fn minimize(
    folder: &Path,
    mut play: impl FnMut(&Program, u32) -> io::Result<Outcome>,
) -> io::Result<bool> {
    let [smallest, trying, fine] = ["smallest.c", "trying.c", "fine"].map(|name| folder.join(name));
    let program: Program = fs::read_to_string(&smallest)?
        .parse()
        .map_err(|error| io::Error::other(format!("{}: {error}", smallest.display())))?;
    let first = !fine.exists();
    let mut known = fs::read_to_string(&fine).unwrap_or_default();
    // Without the file, a find that ends the machine would be the first one for ever.
    fs::write(&fine, &known)?;
    let (candidates, times) = match first {
        true => (vec![program], FIRST_TIMES),
        false => (program.smaller(), TIMES),
    };
    for candidate in &candidates {
        let text = candidate.to_string();
        if known.split("\n\n").any(|fine| fine == text.trim_end()) {
            continue;
        }
        fs::write(&trying, &text)?;
        if let Outcome::Found(what) = play(candidate, times)? {
            fs::write(&smallest, format!("// {what}\n{text}"))?;
            println!("{} steps: {what}", candidate.steps.len());
            return Ok(false);
        }
        known.push_str(&text);
        known.push('\n');
        fs::write(&fine, &known)?;
    }
    match first {
        true => Err(io::Error::other("nothing is wrong after the program")),
        false => Ok(true),
    }
}

impl Program {
    /// Programs with less in them: many steps fewer, a step fewer, all steps plain, one that is
    /// plainer, or a value that is 0.
    fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut program = self.clone();
            change(&mut program);
            if program != *self {
                all.push(program);
            }
        };
        let count = self.steps.len();
        let sizes = (1..).map(|part| count >> part);
        for size in sizes.take_while(|size| *size > 1) {
            for first in (0..=count - size).rev().step_by(size) {
                add(&|program| (0..size).for_each(|_| program.remove(first)));
            }
        }
        for index in (0..count).rev() {
            add(&|program| program.remove(index));
        }
        let plain = |step: &mut Step| {
            (step.actor, step.nowait, step.fail, step.bytes) = (0, false, 0, None);
        };
        add(&|program| program.steps.iter_mut().for_each(plain));
        for (index, step) in self.steps.iter().enumerate() {
            add(&|program| program.steps[index].nowait = false);
            add(&|program| program.steps[index].fail = 0);
            add(&|program| program.steps[index].bytes = None);
            add(&|program| program.steps[index].actor = 0);
            for arg in 0..step.args.len() {
                if let Value::Number(_) = step.args[arg] {
                    add(&|program| program.steps[index].args[arg] = Value::Number(0));
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn parse(text: &str) -> Program {
        text.parse().expect("the text of a program")
    }

    #[test]
    fn smaller_programs_are_smaller() {
        let text = "a0: r0 = open(paged);\n\
                    a1: nowait r1 = ioctl(r0, PINMAP_RELEASE, .handle = 5);\n";
        let smaller = parse(text).smaller();
        let smaller: Vec<String> = smaller.iter().map(Program::to_string).collect();
        let first = "a0: r0 = open(paged);\n";
        assert_eq!(
            smaller,
            [
                first.to_owned(),
                "a1: nowait r0 = ioctl(0, PINMAP_RELEASE, .handle = 5);\n".to_owned(),
                first.to_owned() + "a0: r1 = ioctl(r0, PINMAP_RELEASE, .handle = 5);\n",
                "a0: r0 = open(flat);\n".to_owned() + text.lines().last().unwrap_or("") + "\n",
                first.to_owned() + "a1: r1 = ioctl(r0, PINMAP_RELEASE, .handle = 5);\n",
                first.to_owned() + "a0: nowait r1 = ioctl(r0, PINMAP_RELEASE, .handle = 5);\n",
                first.to_owned() + "a1: nowait r1 = ioctl(r0, PINMAP_RELEASE);\n",
            ]
        );
    }

    #[test]
    fn many_steps_go_first() {
        let smaller = parse(&"a0: r0 = fork();\n".repeat(9)).smaller();
        let lengths: Vec<usize> = smaller.iter().map(|it| it.steps.len()).take(7).collect();
        assert_eq!(lengths, [5, 5, 7, 7, 7, 7, 8]);
    }

    /// A folder with a find of thirty steps, of which the fifth and the twentieth matter.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("pinmap-{name}-{}", std::process::id()));
        let mut lines = vec!["a1: nowait r0 = open(paged);"; 30];
        lines[4] = "a1: fail(3) r4 = dup(7);";
        lines[19] = "a0: r19 = munmap(r4, 0x1000);";
        fs::create_dir_all(&folder).expect("a folder");
        let text = format!("// found\n{}\n// before it\n", lines.join("\n"));
        fs::write(folder.join("smallest.c"), text).expect("a file");
        folder
    }

    /// Whether a program unmaps what dup() returned.
    fn is_wrong(program: &Program) -> bool {
        let is_dup = |value: &Value| match value {
            Value::Result(step, _) => program.steps[*step].what().name == "dup",
            _ => false,
        };
        let mut unmaps = program
            .steps
            .iter()
            .filter(|step| step.what().name == "munmap");
        unmaps.any(|step| is_dup(&step.args[0]))
    }

    const SMALLEST: &str = "a0: r0 = dup(0);\na0: r1 = munmap(r0, 0);\n";

    #[test]
    fn only_what_matters_is_left() {
        let folder = folder("minimize");
        let (mut machines, mut played) = (0, Vec::new());
        let found = |program: &Program| match is_wrong(program) {
            true => Outcome::Found("it is".to_owned()),
            false => Outcome::Fine,
        };
        loop {
            machines += 1;
            let result = minimize(&folder, |program, _| {
                let result = found(program);
                if result == Outcome::Fine {
                    played.push(program.to_string());
                }
                Ok(result)
            });
            if result.expect("a find") {
                break;
            }
        }
        let text = fs::read_to_string(folder.join("smallest.c")).expect("a file");
        assert_eq!(text, format!("// it is\n{SMALLEST}"));
        assert!(machines <= 15, "{machines} machines");
        let count = played.len();
        played.sort();
        played.dedup();
        assert_eq!(played.len(), count, "nothing is played twice in vain");
        fs::remove_dir_all(folder).expect("the folder");
    }

    /// As `scripts/fuzz` does it where the machine dies.
    #[test]
    fn machines_that_die() {
        let folder = folder("die");
        loop {
            let result = minimize(&folder, |program, _| match is_wrong(program) {
                true => Err(io::Error::other("the machine has died")),
                false => Ok(Outcome::Fine),
            });
            match result {
                Ok(done) => {
                    assert!(done);
                    break;
                }
                Err(_) => {
                    let copied = fs::copy(folder.join("trying.c"), folder.join("smallest.c"));
                    copied.expect("the program that was played");
                }
            }
        }
        let text = fs::read_to_string(folder.join("smallest.c")).expect("a file");
        assert_eq!(text, SMALLEST);
        fs::remove_dir_all(folder).expect("the folder");
    }

    #[test]
    fn no_find_is_an_error() {
        let folder = folder("none");
        let result = minimize(&folder, |_, _| Ok(Outcome::Fine));
        let error = result.expect_err("nothing was wrong").to_string();
        assert_eq!(error, "nothing is wrong after the program");
        fs::remove_dir_all(folder).expect("the folder");
    }
}
