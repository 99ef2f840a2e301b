// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the whole programs in README.md and docs/using.md a part of the tests, as they stand
//! there: `documents.rs` has a module for each.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The documents, by the names of their lists.
const DOCUMENTS: [(&str, &str); 2] = [
    ("README", "../../README.md"),
    ("USING", "../../docs/using.md"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut modules = String::new();
    for (list, path) in DOCUMENTS {
        println!("cargo:rerun-if-changed={path}");
        let text = fs::read_to_string(path).expect("the document");
        let mut names = String::new();
        let programs = text.split("\n```rust").skip(1);
        for (number, program) in programs.enumerate() {
            let (_, program) = program.split_once('\n').expect("a first line");
            let (program, _) = program.split_once("\n```").expect("the end of a block");
            let name = format!("{}_{number}", list.to_lowercase());
            write!(
                modules,
                "mod {name} {{\n{program}\n\
                 pub(super) fn run() -> crate::harness::Outcome {{ Ok(main()?) }}\n}}\n"
            )
            .expect("text");
            write!(names, "{name}::run, ").expect("text");
        }
        let kind = "&[fn() -> crate::harness::Outcome]";
        writeln!(modules, "const {list}: {kind} = &[{names}];").expect("text");
    }
    let to = env::var_os("OUT_DIR").expect("a directory of cargo's");
    fs::write(Path::new(&to).join("documents.rs"), modules).expect("a file");
}
