// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles kernels in Rust for the test GPU, in the build script of a program.
//!
//! The compiler is the one that builds the program. Of `core` for the device it takes what is
//! installed (`rustup target add riscv64gc-unknown-none-elf`), or it compiles the sources, which
//! are in the package `rust-src` of a distribution, once: that takes some ten seconds. It links
//! with LLVM's `ld.lld`, unless Rust has brought its own.
//!
//! Kernels have the edition and the features of the package, and each `--cfg` in `RUSTFLAGS`. They
//! have neither what its build script sets by `cargo::rustc-cfg`, nor the lints of its manifest.
//! Attributes in the file, such as `#![forbid(unsafe_code)]`, are for them as well.

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// The target that the test GPU is.
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
    let file: PathBuf = package.join(source).components().collect();
    for path in [&file, &library] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let path = file.as_os_str().as_encoded_bytes();
    fs::write(to.join("pinmap-kernels.path"), path).expect("a file");
    let elf = to.join("pinmap-kernels.elf");
    let compiler = Compiler {
        rustc: env::var_os("RUSTC").map_or_else(|| "rustc".into(), PathBuf::from),
        to,
        cfgs: cfgs(
            &env::var("CARGO_CFG_FEATURE").unwrap_or_default(),
            &env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default(),
        ),
        // Cargo does not tell whether the program has its assertions, but what the profile is.
        checked: env::var("PROFILE").is_ok_and(|profile| profile == "debug"),
    };
    let linker = match compiler.prepare() {
        Ok(linker) => linker,
        Err(missing) => {
            let cause = format!("the kernels of {source} were not compiled: {missing}");
            for line in cause.lines() {
                println!("cargo::warning={line}");
            }
            // Looks again each time, for a file that never is there.
            println!(
                "cargo::rerun-if-changed={}",
                elf.with_extension("never").display()
            );
            return fs::write(elf, cause).expect("a file");
        }
    };
    let done = compiler.library(&library);
    match done.and_then(|()| compiler.program(&package, &file, linker, &elf)) {
        Ok(instructions) => instructions.iter().for_each(|it| println!("cargo::{it}")),
        Err(errors) => {
            eprint!("{errors}");
            process::exit(1);
        }
    }
}

/// Where [`MACROS`] is now: the directory of what Cargo makes, in which this program is, too, may
/// have been moved.
fn macros() -> PathBuf {
    let made = Path::new(MACROS);
    let name = made.file_name().unwrap_or_default();
    let program = env::current_exe().unwrap_or_default();
    // `deps/` beside `build/PACKAGE/PROGRAM`.
    let moved = program.ancestors().map(|it| it.join("deps").join(name));
    let all = [made.to_owned()].into_iter().chain(moved);
    let found = all.into_iter().find(|it| it.is_file());
    found.unwrap_or_else(|| made.to_owned())
}

/// Returns the conditions of the program besides those of its target: its features, and the
/// `--cfg` in `RUSTFLAGS`.
fn cfgs(features: &str, flags: &str) -> Vec<String> {
    let features = features.split(',').filter(|it| !it.is_empty());
    let mut all: Vec<_> = features.map(|it| format!("feature={it:?}")).collect();
    let mut flags = flags.split('\x1f');
    while let Some(flag) = flags.next() {
        match flag.strip_prefix("--cfg") {
            Some("") => all.extend(flags.next().map(str::to_owned)),
            Some(rest) => all.extend(rest.strip_prefix('=').map(str::to_owned)),
            None => {}
        }
    }
    all
}

/// Has Cargo run the build script again when a file or a variable changes that the compiler read,
/// as its list of them says. What is in `made` the build script makes itself.
fn watch(list: &str, made: &Path) -> Vec<String> {
    let one = |line: &str| {
        if let Some(variable) = line.strip_prefix("# env-dep:") {
            let name = variable.split('=').next()?;
            return Some(format!("rerun-if-env-changed={name}"));
        }
        // Each file has a line of its own, such as `a\ file.rs:`.
        let file = line.strip_suffix(':')?.replace("\\ ", " ");
        (!Path::new(&file).starts_with(made)).then(|| format!("rerun-if-changed={file}"))
    };
    list.lines().filter_map(one).collect()
}

struct Compiler {
    rustc: PathBuf,
    to: PathBuf,
    /// Conditions, as `--cfg` takes them.
    cfgs: Vec<String>,
    /// Whether they have the assertions of the profile `dev`, such as those of overflows.
    checked: bool,
}

impl Compiler {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.rustc);
        command.args(OPTIONS).arg("-L").arg(&self.to);
        let macros = macros();
        let macros = macros.parent().unwrap_or(Path::new(""));
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
        let version = format!("{version}\n{OPTIONS:?}\n");
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
            .arg(joined("pinmap_kernel_macros=", &macros(), ""));
        run(rustc
            .arg("--out-dir")
            .arg(&self.to)
            .arg(source.join("lib.rs")))
    }

    /// Compiles and links the kernels. Returns when Cargo is to do it again.
    fn program(
        &self,
        package: &Path,
        file: &Path,
        linker: Option<&str>,
        elf: &Path,
    ) -> Result<Vec<String>, String> {
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
        let page = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("x86_64") => 4096,
            // Some machines have pages of 64 KiB.
            _ => 65536,
        };
        let mut rustc = self.command();
        rustc.args(["--edition", &edition(package)]).args([
            "--crate-name=pinmap_made",
            "--crate-type=bin",
            "--emit=link,dep-info",
            // The program is compiled with the names that there are.
            "-Aunexpected_cfgs",
            "--out-dir",
        ]);
        rustc.arg(&self.to);
        for cfg in &self.cfgs {
            rustc.args(["--cfg", cfg]);
        }
        rustc.arg(format!("-Cdebug-assertions={}", self.checked));
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
        run(rustc.arg(main))?;
        let made = self.to.join("pinmap_made");
        let list = fs::read_to_string(made.with_extension("d")).expect("the compiler made it");
        fs::rename(made, elf).expect("the compiler made it");
        Ok(watch(&list, &self.to))
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
            let value = line.trim().strip_prefix("edition")?.trim_start();
            let value = value.strip_prefix('=')?.split('#').next()?.trim();
            Some(value.trim_matches(['"', '\'']).to_owned())
        })
    });
    // Without one it is 2015, which has not what kernels take.
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
