// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the whole programs in README.md a part of the tests, as they stand there: `documents.rs`
//! has a module for each.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const README: &str = "../../README.md";

fn main() {
    println!("cargo:rerun-if-changed={README}");
    println!("cargo:rerun-if-changed=build.rs");
    let text = fs::read_to_string(README).expect("README.md");
    let mut modules = String::new();
    let mut names = String::new();
    let programs = text.split("\n```rust").skip(1);
    for (number, program) in programs.enumerate() {
        let (_, program) = program.split_once('\n').expect("a first line");
        let (program, _) = program.split_once("\n```").expect("the end of a block");
        write!(
            modules,
            "mod readme_{number} {{\n{program}\n\
             pub(super) fn run() -> crate::harness::Outcome {{ Ok(main()?) }}\n}}\n"
        )
        .expect("text");
        write!(names, "readme_{number}::run, ").expect("text");
    }
    let list = format!("const README: &[fn() -> crate::harness::Outcome] = &[{names}];\n");
    let to = env::var_os("OUT_DIR").expect("a directory of cargo's");
    fs::write(Path::new(&to).join("documents.rs"), modules + &list).expect("a file");
}
