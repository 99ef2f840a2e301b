// SPDX-License-Identifier: MIT OR Apache-2.0
//! A list of the functions that one call executes, by what QEMU wrote down
//! (`tests/bench/profile/plugin.c`) and the kernel's list of its symbols (`/proc/kallsyms`).

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// A function of the kernel.
struct Symbol {
    address: u64,
    name: String,
}

/// A block of code that was executed, in the order of execution.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    instructions: u64,
}

/// Cost of a function.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct Cost {
    /// How often it was called.
    calls: u64,
    /// Instructions in the function itself, and with all that it called.
    own: u64,
    all: u64,
}

/// The kernel's half of the addresses.
const KERNEL: u64 = 1 << 63;
/// The name of everything that is not the kernel's.
const PROGRAM: &str = "(the program)";

fn symbols(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let kind = words.next()?;
            let name = words.next()?;
            let module = words.next().unwrap_or_default();
            if !matches!(kind, "t" | "T" | "w" | "W") || name.starts_with("__pfx_") {
                return None;
            }
            let name = format!("{:#}", rustc_demangle::demangle(name));
            let name = format!("{name} {module}").trim_end().to_owned();
            Some(Symbol { address, name })
        })
        .collect();
    symbols.sort_by_key(|symbol| symbol.address);
    // Of several names for one address the first one in the list is as good as any.
    symbols.dedup_by_key(|symbol| symbol.address);
    symbols
}

fn blocks(text: &str) -> Result<Vec<Block>, Box<dyn Error>> {
    text.lines()
        .map(|line| {
            let (address, instructions) = line.split_once(' ').ok_or("a line without a count")?;
            Ok(Block {
                address: u64::from_str_radix(address, 16)?,
                instructions: instructions.parse()?,
            })
        })
        .collect()
}

/// Returns the name of the function at `address`, and whether that is its first instruction.
fn function(symbols: &[Symbol], address: u64) -> (&str, bool) {
    if address < KERNEL {
        return (PROGRAM, false);
    }
    let behind = symbols.partition_point(|symbol| symbol.address <= address);
    match behind.checked_sub(1).and_then(|index| symbols.get(index)) {
        Some(symbol) => (&symbol.name, symbol.address == address),
        None => ("(unknown)", false),
    }
}

/// Adds up what each function took. The stack of calls is found again like this: the first
/// instruction of a function is a call; to go on in a function further out is a return to it.
fn costs<'a>(symbols: &'a [Symbol], blocks: &[Block]) -> HashMap<&'a str, Cost> {
    let mut costs: HashMap<&str, Cost> = HashMap::new();
    let mut stack: Vec<&str> = Vec::new();
    for block in blocks {
        let (name, is_start) = function(symbols, block.address);
        let here = stack.iter().rposition(|&open| open == name);
        match here {
            Some(depth) if !is_start => stack.truncate(depth + 1),
            _ => {
                stack.push(name);
                costs.entry(name).or_default().calls += 1;
            }
        }
        costs.entry(name).or_default().own += block.instructions;
        for (depth, open) in stack.iter().enumerate() {
            // Once for a function that calls itself.
            if !stack[..depth].contains(open) {
                costs.entry(open).or_default().all += block.instructions;
            }
        }
    }
    costs
}

/// Returns the list, with the functions that take most at its beginning.
pub(crate) fn list(trace: &Path, kallsyms: &Path) -> Result<String, Box<dyn Error>> {
    let symbols = symbols(&fs::read_to_string(kallsyms)?);
    let blocks = blocks(&fs::read_to_string(trace)?)?;
    if blocks.is_empty() {
        return Err("nothing was written down: no mark was executed".into());
    }
    let total: u64 = blocks.iter().map(|block| block.instructions).sum();
    let pages: Vec<u64> = {
        let mut pages: Vec<u64> = blocks.iter().map(|block| block.address >> 12).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    };
    let mut costs: Vec<_> = costs(&symbols, &blocks).into_iter().collect();
    costs.sort_by_key(|&(name, cost)| (std::cmp::Reverse(cost.own), name));
    let mut text = format!(
        "{total} instructions in {} pages of code\n{:>8}{:>8}{:>7}  function\n",
        pages.len(),
        "own",
        "all",
        "calls"
    );
    for (name, cost) in costs {
        writeln!(
            text,
            "{:>8}{:>8}{:>7}  {name}",
            cost.own, cost.all, cost.calls
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "ffffffff81000000 T outer\nffffffff81000100 t inner\n\
                            ffffffff81000200 D no_code\nffffffff81000300 t leaf [pinmap]\n";

    #[test]
    fn calls_and_returns_are_told_apart() {
        let symbols = symbols(KALLSYMS);
        let block = |offset: u64, instructions| Block {
            address: 0xffff_ffff_8100_0000 + offset,
            instructions,
        };
        let program = Block {
            address: 0x40_0000,
            instructions: 2,
        };
        // The program, outer, inner twice (the second time with leaf), back in outer, the program.
        let all = [
            program,
            block(0, 5),
            block(0x100, 3),
            block(0x20, 1),
            block(0x100, 3),
            block(0x300, 7),
            block(0x110, 2),
            block(0x30, 4),
            program,
        ];
        let costs = costs(&symbols, &all);
        let of = |name| costs[name];
        let cost = |calls, own, all| Cost { calls, own, all };
        assert_eq!(of("outer"), cost(1, 10, 25));
        assert_eq!(of("inner"), cost(2, 8, 15));
        assert_eq!(of("leaf [pinmap]"), cost(1, 7, 7));
        assert_eq!(of(PROGRAM), cost(1, 4, 29));
    }

    #[test]
    fn what_is_no_function_has_no_name() {
        let symbols = symbols(KALLSYMS);
        assert_eq!(symbols.len(), 3);
        assert_eq!(
            function(&symbols, 0xffff_ffff_8000_0000),
            ("(unknown)", false)
        );
        assert!(blocks("ffff").is_err());
    }
}
