// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles kernels in Rust for the test GPU, in the build script of a program.
//!
//! The compiler is the one that builds the program. Of `core` for the device it takes what is
//! installed (`rustup target add riscv64gc-unknown-none-elf`), or it compiles the sources, which
//! are in the package `rust-src` of a distribution, once: that takes some ten seconds. It links
//! with LLVM's `ld.lld`, unless Rust has brought its own.

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// What the test GPU executes.
const TARGET: &str = "riscv64gc-unknown-none-elf";
/// How all that it executes is compiled.
const OPTIONS: [&str; 7] = [
    "--target",
    TARGET,
    "-Copt-level=2",
    "-Cpanic=abort",
    "-Crelocation-model=pic",
    "-Ccodegen-units=1",
    "-Cembed-bitcode=no",
];

/// The macros of `pinmap-kernel`, which the compiler has made for this crate already.
const MACROS: &str = pinmap_kernel_macros::file!();

/// Compiles a file with kernels, which the program has as a module, and what it has as modules
/// itself: `pinmap_kernel_build::compile("src/kernels.rs")`.
///
/// Ends the build script if the kernels have errors, which the compiler has printed then. Where
/// there is no compiler for the device, the program is built with a warning, and says so when it
/// loads the kernels.
///
/// # Panics
///
/// Unless this is the build script of a package that depends on `pinmap-kernel`.
pub fn compile(source: &str) {
    let to = PathBuf::from(env::var_os("OUT_DIR").expect("this is for build scripts"));
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("as above"));
    let library = env::var_os("DEP_PINMAP_KERNEL_SOURCE");
    let library = PathBuf::from(library.expect("the package does not depend on `pinmap-kernel`"));
    let modules = package.join(source).with_extension("");
    for path in [&package.join(source), &modules, &library] {
        // What is not there is not watched, or the script would run each time.
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    fs::write(to.join("pinmap-kernels.path"), source).expect("a file");
    let elf = to.join("pinmap-kernels.elf");
    let compiler = Compiler {
        rustc: env::var_os("RUSTC").map_or_else(|| "rustc".into(), PathBuf::from),
        to,
    };
    let linker = match compiler.prepare() {
        Ok(linker) => linker,
        Err(missing) => {
            let cause = format!("the kernels of {source} were not compiled: {missing}");
            println!("cargo::warning={cause}");
            // Looks again each time, for a file that never is there.
            println!(
                "cargo::rerun-if-changed={}",
                elf.with_extension("never").display()
            );
            return fs::write(elf, cause).expect("a file");
        }
    };
    let file = package.join(source);
    let done = compiler.library(&library);
    if let Err(errors) = done.and_then(|()| compiler.program(&package, &file, linker, &elf)) {
        eprint!("{errors}");
        process::exit(1);
    }
}

struct Compiler {
    rustc: PathBuf,
    to: PathBuf,
}

impl Compiler {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.rustc);
        command.args(OPTIONS).arg("-L").arg(&self.to);
        let macros = Path::new(MACROS).parent().unwrap_or(Path::new(""));
        command.arg(joined("-Ldependency=", macros, ""));
        command
    }

    /// Returns what the compiler prints.
    fn ask(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.rustc).args(arguments).output();
        let output = output.expect("the compiler runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Makes `core` if there is none, and returns the linker if it is not Rust's own. An error is
    /// what is missing.
    fn prepare(&self) -> Result<Option<&'static str>, String> {
        let sysroot = PathBuf::from(self.ask(&["--print", "sysroot"]));
        let version = self.ask(&["-vV"]);
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        let own = sysroot.join("lib/rustlib").join(host.unwrap_or_default());
        let linker = if own.join("bin/rust-lld").exists() {
            None
        } else if Command::new("ld.lld").arg("--version").output().is_ok() {
            Some("-Clinker=ld.lld")
        } else {
            return Err("there is no `ld.lld`, which the package `lld` has".to_owned());
        };
        let installed = self.ask(&["--target", TARGET, "--print", "target-libdir"]);
        let mut libraries = fs::read_dir(installed).into_iter().flatten().flatten();
        if libraries.any(|it| it.file_name().to_string_lossy().starts_with("libcore-")) {
            return Ok(linker);
        }
        let source = sysroot.join("lib/rustlib/src/rust/library/core");
        if !source.join("Cargo.toml").exists() {
            return Err(format!(
                "there is no `core` for {TARGET}, and no source of it: run `rustup target add \
                 {TARGET}`, or install the package `rust-src`"
            ));
        }
        let made = self.to.join("core.version");
        if fs::read_to_string(&made).is_ok_and(|made| made == version) {
            return Ok(linker);
        }
        let core = self.rlib("core", &source.join("src/lib.rs"), &edition(&source));
        // The compiler wants it beside `core`; the crate `pinmap-kernel` has what is used of it.
        let builtins = self.to.join("compiler_builtins.rs");
        let empty = "#![no_std]\n#![feature(compiler_builtins)]\n#![compiler_builtins]\n";
        fs::write(&builtins, empty).expect("a file");
        core.and_then(|()| self.rlib("compiler_builtins", &builtins, "2021"))
            .map_err(|errors| format!("`core` cannot be compiled: {errors}"))?;
        fs::write(made, version).expect("a file");
        Ok(linker)
    }

    /// Makes a library of Rust itself, as Rust's own build does.
    fn rlib(&self, name: &str, source: &Path, edition: &str) -> Result<(), String> {
        let mut rustc = self.command();
        rustc
            .env("RUSTC_BOOTSTRAP", "1")
            .args(["--edition", edition, "--crate-name", name]);
        rustc.args([
            "--crate-type=rlib",
            "--cap-lints=allow",
            "-Zforce-unstable-if-unmarked",
        ]);
        run(rustc.arg("--out-dir").arg(&self.to).arg(source))
    }

    /// Compiles the crate `pinmap-kernel`.
    fn library(&self, source: &Path) -> Result<(), String> {
        let mut rustc = self.command();
        rustc.args([
            "--edition=2021",
            "--crate-name=pinmap_kernel",
            "--crate-type=rlib",
        ]);
        rustc
            .arg("--extern")
            .arg(format!("pinmap_kernel_macros={MACROS}"));
        run(rustc
            .arg("--out-dir")
            .arg(&self.to)
            .arg(source.join("lib.rs")))
    }

    /// Compiles and links the kernels.
    fn program(
        &self,
        package: &Path,
        file: &Path,
        linker: Option<&str>,
        elf: &Path,
    ) -> Result<(), String> {
        // The file is a module here, too, so that its modules are where the program finds them.
        let name = file.parent().zip(file.file_stem().and_then(OsStr::to_str));
        let (folder, module) = name.ok_or_else(|| format!("{} is no file", file.display()))?;
        let root = format!(
            "#![no_std]\n#![no_main]\nextern crate pinmap_kernel;\n\
             #[path = {folder:?}] mod root {{ pub mod {module}; }}\n"
        );
        let main = self.to.join("pinmap-kernels.rs");
        fs::write(&main, root).expect("a file");
        let exports = self.to.join("pinmap-kernels.exports");
        fs::write(&exports, "{ global: \"*(*\"; local: *; };\n").expect("a file");
        let checked = env::var_os("CARGO_CFG_DEBUG_ASSERTIONS").is_some();
        let page = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("x86_64") => 4096,
            // Some machines have pages of 64 KiB.
            _ => 65536,
        };
        let mut rustc = self.command();
        rustc
            .args([
                "--edition=2021",
                "--crate-name=kernels",
                "--crate-type=bin",
                "-o",
            ])
            .arg(elf);
        rustc.arg(format!("-Cdebug-assertions={checked}"));
        rustc
            .arg(joined("--remap-path-prefix=", package, "/="))
            .args(linker);
        for option in [
            "-pie",
            "--no-dynamic-linker",
            "-ztext",
            "-e0",
            "--export-dynamic",
        ] {
            rustc.arg(format!("-Clink-arg={option}"));
        }
        rustc.arg(format!("-Clink-arg=-zmax-page-size={page}"));
        rustc.arg(joined("-Clink-arg=--version-script=", &exports, ""));
        run(rustc.arg(main))
    }
}

/// The edition of a package, which its manifest has, or that of its workspace.
fn edition(package: &Path) -> String {
    let texts = package
        .ancestors()
        .map(|it| fs::read_to_string(it.join("Cargo.toml")));
    let edition = texts.flatten().find_map(|text| {
        let mut lines = text.lines();
        lines.find_map(|line| {
            Some(
                line.strip_prefix("edition = ")?
                    .trim_matches('"')
                    .to_owned(),
            )
        })
    });
    edition.unwrap_or_else(|| "2021".to_owned())
}

fn joined(begin: &str, path: &Path, end: &str) -> std::ffi::OsString {
    [begin.as_ref(), path.as_os_str(), OsStr::new(end)]
        .into_iter()
        .collect()
}

/// Runs a compiler. An error is what it prints.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().expect("the compiler runs");
    let told = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(told.into_owned());
    }
    eprint!("{told}");
    Ok(())
}
