// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the whole programs in the documents a part of the tests, as they stand there:
//! `documents.rs` has a module for each. Compiles the kernels, where there are compilers.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The documents, by the names of their lists.
const DOCUMENTS: [(&str, &str); 6] = [
    ("README", "../../README.md"),
    ("USING", "../../docs/using.md"),
    ("CRATE", "../../userlib/README.md"),
    ("FILES", "../../userlib/src/guide/files.md"),
    ("FROM_CUDA", "../../userlib/src/guide/from_cuda.md"),
    ("NETWORK_CARD", "../../userlib/src/guide/network_card.md"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut modules = String::new();
    for (list, path) in DOCUMENTS {
        println!("cargo:rerun-if-changed={path}");
        let text = fs::read_to_string(path).expect("the document");
        let mut names = String::new();
        // Every second piece is a block; a whole program is one that hides nothing.
        let blocks = text.split("\n```").skip(1).step_by(2);
        let programs = blocks
            .filter_map(|block| block.split_once('\n'))
            .filter(|(language, _)| ["rust,no_run", "no_run"].contains(language))
            .filter(|(_, program)| program.contains("\nfn main()"));
        for (number, (_, program)) in programs.enumerate() {
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
    let to = PathBuf::from(env::var_os("OUT_DIR").expect("a directory of cargo's"));
    fs::write(to.join("documents.rs"), modules).expect("a file");
    compile(&to.join("kernels.elf"));
    pinmap_kernel_build::compile("src/rust_kernels.rs");
    compile_opencl(&to);
}

/// Where the headers of kernels are.
const INCLUDE: &str = "../../userlib/testgpu/include";

/// Compiles the kernels with the command in `docs/kernels.md`. Without clang the file is empty, and
/// the tests of kernels are skipped.
fn compile(to: &Path) {
    const SOURCE: &str = "kernels/kernels.c";
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed={INCLUDE}");
    let document = fs::read_to_string("../../docs/kernels.md").expect("the document");
    println!("cargo:rerun-if-changed=../../docs/kernels.md");
    let flags = document
        .split_once("```sh\nclang ")
        .and_then(|(_, rest)| rest.split_once("-I"))
        .map(|(flags, _)| flags.replace("\\\n", " "))
        .expect("the command");
    let clang = Command::new("clang")
        .args(flags.split_whitespace())
        .args(["-Wall", "-Wextra", "-Werror", "-I", INCLUDE, SOURCE, "-o"])
        .arg(to)
        .status();
    match clang {
        Ok(status) => assert!(status.success(), "the kernels cannot be compiled"),
        Err(_) => fs::write(to, []).expect("a file"),
    }
}

/// Compiles the kernels in OpenCL C with the command in `docs/opencl-kernels.md`. Without clang and
/// the library of mathematics the file is empty, and the tests are skipped.
fn compile_opencl(to: &Path) {
    const SOURCE: &str = "kernels/kernels.cl";
    const LIBRARY: &str = "/usr/lib/riscv64-linux-musl/libc.a";
    const DOCUMENT: &str = "../../docs/opencl-kernels.md";
    for path in [SOURCE, LIBRARY, DOCUMENT] {
        println!("cargo:rerun-if-changed={path}");
    }
    let document = fs::read_to_string(DOCUMENT).expect("the document");
    let command = document
        .split_once("```sh\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(command, _)| command.replace("\nclang ", "\nclang -Wall -Werror "))
        .expect("the command");
    let include = fs::canonicalize(INCLUDE).expect("the headers");
    let command = command.replace("userlib/testgpu/include", &include.to_string_lossy());
    let opencl = to.join("opencl");
    fs::create_dir_all(&opencl).expect("a directory");
    fs::write(opencl.join("kernels.elf"), []).expect("a file");
    fs::copy(SOURCE, opencl.join("kernels.cl")).expect("a copy");
    if Command::new("clang").arg("--version").output().is_err() || !Path::new(LIBRARY).exists() {
        return;
    }
    let mut shell = Command::new("sh");
    let status = shell.args(["-ec", &command]).current_dir(opencl).status();
    assert!(status.expect("a shell").success(), "kernels.cl");
}
