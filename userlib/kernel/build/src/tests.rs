// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that compile for the device, and those that must not, each with its error.

use super::*;

/// What the compiler says to such a file.
fn errors(compiler: &Compiler, linker: Option<&str>, kernels: &str) -> Result<(), String> {
    let file = compiler.to.join("kernels.rs");
    fs::write(
        &file,
        format!("use pinmap_kernel::*;\nprogram!();\n{kernels}\n"),
    )
    .expect("a file");
    compiler.program(
        &compiler.to,
        &file,
        linker,
        &compiler.to.join("kernels.elf"),
    )
}

#[test]
fn kernels_that_must_not_compile() {
    let to = env::temp_dir().join(format!("pinmap-kernel-{}", process::id()));
    fs::create_dir_all(&to).expect("a directory");
    let rustc = PathBuf::from("rustc");
    let compiler = Compiler { rustc, to };
    let linker = match compiler.prepare() {
        Ok(linker) => linker,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    compiler.library(&library).expect("the crate");
    let good = "#[kernel] pub fn good(mut a: u8, x: DeviceSlice<'_, u8>, y: DeviceSliceMut<u8>) {
        a += x.get(0);
        y.set(usize::from(a), x.get(1));
    }";
    errors(&compiler, linker, good).expect("it compiles");
    for (kernel, expected) in [
        // References would promise what nobody keeps.
        (
            "#[kernel] fn bad(x: &[f32]) {}",
            "a kernel takes no references",
        ),
        (
            "#[kernel] fn bad(x: DeviceSlice<f32>) { x.set(0, 1.0) }",
            "error[E0599]",
        ),
        (
            "#[kernel] fn bad(x: DeviceSliceMut<f32>) { *x.get(0) = 1.0 }",
            "error[E0614]",
        ),
        // Memory stays with the launch: no slice gets out.
        (
            "#[kernel] fn bad(x: DeviceSlice<'static, f32>) {}",
            "error[E0597]: `here` does not live long enough",
        ),
        (
            "#[kernel] fn bad(x: Shared<'static, f32, 4>) {}",
            "error[E0597]",
        ),
        // Elements are plain data, of the same length on both sides.
        (
            "#[kernel] fn bad(x: DeviceSlice<&'static str>) { x.get(0); }",
            "no plain data",
        ),
        (
            "#[kernel] fn bad(x: DeviceSlice<usize>) { x.get(0); }",
            "no plain data",
        ),
        (
            "#[kernel] fn bad(x: Shared<bool, 4>) { x.set(0, true); }",
            "no plain data",
        ),
        (
            "#[kernel] fn bad(n: usize) {}",
            "the same length on both sides",
        ),
        // Atomics are of integers.
        (
            "#[kernel] fn bad(x: DeviceSliceMut<f32>) { x.atomic(0); }",
            "`f32: Integer`",
        ),
        // All threads have what is static.
        (
            "#[device] static BAD: core::cell::Cell<u32> = core::cell::Cell::new(0);",
            "error[E0277]",
        ),
        (
            "static mut A: u32 = 0; #[kernel] fn bad() { A += 1 }",
            "error[E0133]",
        ),
        // Pointers are unsafe.
        ("#[kernel] fn bad(to: *mut u32) {}", "is an `unsafe fn`"),
        (
            "#[kernel] unsafe fn bad(to: *mut u32) {} #[kernel] fn b() { bad(1 as _) }",
            "E0133",
        ),
        // Kernels are functions of their own.
        ("#[kernel] fn bad<T>(x: T) {}", "a kernel is not generic"),
        (
            "#[kernel] fn bad() -> u32 { 1 }",
            "a kernel returns nothing",
        ),
        (
            "#[kernel] fn bad(_: u32) {}",
            "a parameter of a kernel has a name",
        ),
        (
            "#[kernel] fn a() {} mod other { #[pinmap_kernel::kernel] fn a() {} }",
            "symbol `a()` is already defined",
        ),
    ] {
        let told = errors(&compiler, linker, kernel).expect_err(kernel);
        assert!(told.contains(expected), "{kernel}: {told}");
        let place = told.contains("--> kernels.rs:3:") || told.contains("already defined");
        assert!(place, "{kernel}: {told}");
    }
    fs::remove_dir_all(&compiler.to).expect("it was made");
}
