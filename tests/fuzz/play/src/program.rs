// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs, and their text, which reads as C:
//!
//! ```text
//! a0: r0 = open(paged);
//! a0: r1 = ioctl(r0, PINMAP_REGISTER, .flags = WRITE, .addr = pool + 0x1000, .length = 0x2000);
//! a1: nowait r2 = munmap(pool + 0x1000, 0x1000);
//! a0: fail(3) r3 = ioctl(r0, PINMAP_RELEASE, .handle = r1.out_handle);
//! ```
//!
//! `a0` and `a1` are threads of one process, `a2` and `a3` those of its child, which `fork()`
//! makes. `nowait` begins the next step before this one has ended. `fail(n)` has the kernel's n-th
//! allocation or copy in the call fail. `.bytes[0x8] = 1` writes a word into the struct after all
//! fields. Fields that are not named are 0.

use crate::calls::{call, Arg, Call, How, Kind, Names, COUNT_OF_CALLS};
use std::fmt;

/// The steps that a program may have.
pub const MOST_STEPS: usize = 96;
/// The threads that a program has.
pub const ACTORS: usize = 4;

/// A value of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Value {
    /// A number.
    Number(u64),
    /// An address: the distance from the beginning of the pool in bytes.
    Pool(u64),
    /// A result of an earlier step: 0 is the value that it returned, then the fields that it
    /// wrote.
    Result(usize, usize),
}

/// A call that a thread makes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    /// The thread.
    pub actor: usize,
    /// Whether the next step begins before this one has ended.
    pub nowait: bool,
    /// Which allocation or copy of the kernel's fails; 0: none.
    pub fail: u32,
    /// The number of the call.
    pub call: usize,
    /// A value for each argument.
    pub args: Vec<Value>,
    /// A word that is written into the struct of an ioctl at last, behind its offset in bytes.
    pub bytes: Option<(usize, u64)>,
}

impl Step {
    /// The call.
    pub fn what(&self) -> &'static Call {
        call(self.call)
    }
}

/// Calls, in the order in which they begin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Program {
    /// The calls.
    pub steps: Vec<Step>,
}

impl Program {
    /// Removes a step. What came of it is 0 from now on.
    pub fn remove(&mut self, index: usize) {
        self.steps.remove(index);
        self.renumber(index, |step| {
            step.checked_sub(1).filter(|step| *step >= index)
        });
    }

    /// Inserts a step.
    pub fn insert(&mut self, index: usize, step: Step) {
        self.renumber(index, |step| Some(step + 1));
        self.steps.insert(index, step);
    }

    /// Changes the numbers, from `index` on, of the steps whose results are used.
    fn renumber(&mut self, index: usize, change: impl Fn(usize) -> Option<usize>) {
        for value in self.steps.iter_mut().flat_map(|step| &mut step.args) {
            if let Value::Result(step, out) = *value {
                if step >= index {
                    *value = change(step).map_or(Value::Number(0), |step| Value::Result(step, out));
                }
            }
        }
    }

    /// Whether only one thing happens at a time.
    pub fn is_sequential(&self) -> bool {
        self.steps.iter().all(|step| !step.nowait)
    }
}

fn write_number(f: &mut fmt::Formatter<'_>, number: u64) -> fmt::Result {
    match number {
        0..=9 => write!(f, "{number}"),
        _ => write!(f, "{number:#x}"),
    }
}

fn write_flags(f: &mut fmt::Formatter<'_>, names: Names, number: u64) -> fmt::Result {
    let mut left = number;
    let mut first = true;
    for (name, bits) in names {
        if left & bits == *bits {
            left &= !bits;
            write!(f, "{}{name}", if first { "" } else { " | " })?;
            first = false;
        }
    }
    if left != 0 || first {
        f.write_str(if first { "" } else { " | " })?;
        write_number(f, left)?;
    }
    Ok(())
}

fn write_value(f: &mut fmt::Formatter<'_>, steps: &[Step], arg: &Arg, value: Value) -> fmt::Result {
    match (value, arg.kind) {
        (Value::Pool(0), _) => f.write_str("pool"),
        (Value::Pool(distance), _) => write!(f, "pool + {distance:#x}"),
        (Value::Result(step, 0), _) => write!(f, "r{step}"),
        (Value::Result(step, out), _) => {
            let outs = steps.get(step).map_or(&[][..], |step| step.what().outs);
            match outs.get(out - 1) {
                Some(out) => write!(f, "r{step}.{}", out.name),
                None => write!(f, "0"),
            }
        }
        (Value::Number(number), Kind::Flags(names)) => write_flags(f, names, number),
        (Value::Number(number), Kind::Choice(names)) => {
            match names.iter().find(|name| name.1 == number) {
                Some((name, _)) => f.write_str(name),
                None => write_number(f, number),
            }
        }
        (Value::Number(number), _) => write_number(f, number),
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            let what = step.what();
            write!(f, "a{}: ", step.actor)?;
            if step.nowait {
                f.write_str("nowait ")?;
            }
            if step.fail != 0 {
                write!(f, "fail({}) ", step.fail)?;
            }
            write!(f, "r{index} = ")?;
            let ioctl = matches!(what.how, How::Ioctl(..));
            if ioctl {
                f.write_str("ioctl(")?;
            } else {
                write!(f, "{}(", what.name)?;
            }
            for (number, (arg, value)) in what.args.iter().zip(&step.args).enumerate() {
                if ioctl && number > 0 {
                    if *value == Value::Number(0) {
                        continue;
                    }
                    write!(f, ", .{} = ", arg.name)?;
                } else if number > 0 {
                    f.write_str(", ")?;
                }
                write_value(f, &self.steps, arg, *value)?;
                if ioctl && number == 0 {
                    write!(f, ", {}", ioctl_name(what))?;
                }
            }
            if let Some((offset, word)) = step.bytes {
                write!(f, ", .bytes[{offset:#x}] = ")?;
                write_number(f, word)?;
            }
            f.write_str(");\n")?;
        }
        Ok(())
    }
}

/// The name that the header has for an ioctl.
fn ioctl_name(call: &Call) -> String {
    call.name.replace("_CMD_", "_")
}

/// A line of a text that is no step: its number, from 1 on, and the line.
#[derive(Debug)]
pub struct ParseError(usize, String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} is no step: {}", self.0, self.1)
    }
}

impl std::str::FromStr for Program {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut program = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with("//") {
                continue;
            }
            let step = parse_step(line, &program.steps)
                .filter(|_| program.steps.len() < MOST_STEPS)
                .ok_or_else(|| ParseError(number + 1, line.to_owned()))?;
            program.steps.push(step);
        }
        Ok(program)
    }
}

fn parse_step(line: &str, before: &[Step]) -> Option<Step> {
    let (actor, mut rest) = line.strip_prefix('a')?.split_once(": ")?;
    let actor = actor.parse().ok().filter(|actor| *actor < ACTORS)?;
    let (mut nowait, mut fail) = (false, 0);
    if let Some(after) = rest.strip_prefix("nowait ") {
        (nowait, rest) = (true, after);
    }
    if let Some(after) = rest.strip_prefix("fail(") {
        let (number, after) = after.split_once(") ")?;
        (fail, rest) = (number.parse().ok()?, after);
    }
    let (_, rest) = rest.split_once(" = ")?;
    let (name, rest) = rest.split_once('(')?;
    let texts = rest.strip_suffix(");")?;
    let texts: Vec<&str> = match texts {
        "" => Vec::new(),
        _ => texts.split(", ").collect(),
    };
    let mut step = Step {
        actor,
        nowait,
        fail,
        call: 0,
        args: Vec::new(),
        bytes: None,
    };
    let is = |wanted: &Call| match wanted.how {
        How::Ioctl(..) => name == "ioctl" && texts.get(1) == Some(&&*ioctl_name(wanted)),
        _ => name == wanted.name,
    };
    step.call = (0..COUNT_OF_CALLS).find(|number| is(call(*number)))?;
    let what = step.what();
    if name != "ioctl" {
        if texts.len() != what.args.len() {
            return None;
        }
        for (arg, text) in what.args.iter().zip(texts) {
            step.args.push(parse_value(text, arg, before)?);
        }
        return Some(step);
    }
    step.args = vec![Value::Number(0); what.args.len()];
    step.args[0] = parse_value(texts[0], &what.args[0], before)?;
    for text in &texts[2..] {
        let (name, text) = text.strip_prefix('.')?.split_once(" = ")?;
        if let Some(offset) = name.strip_prefix("bytes[") {
            let offset = parse_number(offset.strip_suffix(']')?)?;
            step.bytes = Some((usize::try_from(offset).ok()?, parse_number(text)?));
            continue;
        }
        let index = what.args.iter().skip(1).position(|arg| arg.name == name)? + 1;
        step.args[index] = parse_value(text, &what.args[index], before)?;
    }
    Some(step)
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn parse_value(text: &str, arg: &Arg, before: &[Step]) -> Option<Value> {
    if text == "pool" {
        return Some(Value::Pool(0));
    }
    if let Some(distance) = text.strip_prefix("pool + ") {
        return Some(Value::Pool(parse_number(distance)?));
    }
    if let Some(result) = text
        .strip_prefix('r')
        .filter(|t| t.starts_with(|c: char| c.is_ascii_digit()))
    {
        let (step, out) = result
            .split_once('.')
            .map_or((result, None), |(s, o)| (s, Some(o)));
        let step: usize = step.parse().ok()?;
        let outs = before.get(step)?.what().outs;
        let out = match out {
            Some(name) => outs.iter().position(|out| out.name == name)? + 1,
            None => 0,
        };
        return Some(Value::Result(step, out));
    }
    match arg.kind {
        Kind::Choice(names) => match names.iter().find(|name| name.0 == text) {
            Some((_, number)) => Some(Value::Number(*number)),
            None => parse_number(text).map(Value::Number),
        },
        Kind::Flags(names) => {
            let mut number = 0;
            for text in text.split(" | ") {
                number |= match names.iter().find(|name| name.0 == text) {
                    Some((_, bits)) => *bits,
                    None => parse_number(text)?,
                };
            }
            Some(Value::Number(number))
        }
        _ => parse_number(text).map(Value::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that has each call, with a value of each kind.
    fn everything() -> Program {
        let mut program = Program::default();
        for number in 0..COUNT_OF_CALLS {
            let what = call(number);
            let args = what
                .args
                .iter()
                .enumerate()
                .map(|(index, arg)| match (index, arg.kind) {
                    (_, Kind::Choice(names)) => Value::Number(names[names.len() - 1].1),
                    (_, Kind::Flags(names)) => {
                        Value::Number(names.iter().fold(1 << 40, |all, name| all | name.1))
                    }
                    (_, Kind::Address) => Value::Pool(0x1000 * index as u64),
                    (_, Kind::Made(_)) if number > 0 => Value::Result(0, 0),
                    _ => Value::Number(0x123),
                });
            program.steps.push(Step {
                actor: number % ACTORS,
                nowait: number % 3 == 0,
                fail: (number % 2) as u32,
                call: number,
                args: args.collect(),
                bytes: matches!(what.how, How::Ioctl(..)).then_some((8, 1)),
            });
        }
        program
    }

    #[test]
    fn text_tells_everything() {
        let program = everything();
        let text = program.to_string();
        let parsed: Program = text.parse().expect("the text of a program");
        assert_eq!(parsed, program, "{text}");
    }

    #[test]
    fn results_follow_their_steps() {
        let text = "a0: r0 = fork();\n\
                    a0: r1 = open(flat);\n\
                    a0: r2 = close(r1);\n\
                    a0: r3 = dup(r1);\n";
        let mut program: Program = text.parse().expect("the text of a program");
        program.remove(0);
        assert_eq!(program.steps[1].args, [Value::Result(0, 0)]);
        let fork = "a0: r0 = fork();"
            .parse::<Program>()
            .expect("a step")
            .steps
            .remove(0);
        program.insert(1, fork);
        assert_eq!(program.steps[2].args, [Value::Result(0, 0)]);
        assert_eq!(program.steps[3].args, [Value::Result(0, 0)]);
        program.remove(0);
        assert_eq!(program.steps[2].args, [Value::Number(0)]);
    }

    #[test]
    fn what_is_no_step_is_named() {
        for line in [
            "a4: r0 = fork();",
            "a0: r0 = fork(1);",
            "a0: r0 = forks();",
            "a0: r0 = open(nothing);",
            "a0: r0 = ioctl(r0, PINMAP_RELEASE, .handle = 1);",
            "a0: r0 = ioctl(1, PINMAP_RELEASE, .handles = 1);",
        ] {
            let error = format!("// fine\n{line}")
                .parse::<Program>()
                .expect_err(line);
            assert_eq!(error.to_string(), format!("line 2 is no step: {line}"));
        }
    }
}
