// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that compile for the device, and those that must not, each with its error.

use super::*;

/// Compiles such a file. An error is what the compiler says.
fn errors(compiler: &Compiler, linker: Option<&str>, kernels: &str) -> Result<(), String> {
    let file = compiler.to.join("kernels.rs");
    fs::write(
        &file,
        format!("use pinmap_kernel::*;\nprogram!();\n{kernels}\n"),
    )
    .expect("a file");
    compiler
        .program(
            &compiler.to,
            &file,
            linker,
            &compiler.to.join("kernels.elf"),
        )
        .map(drop)
}

/// Whether the file for the device has this text.
fn has(compiler: &Compiler, text: &str) -> bool {
    let elf = fs::read(compiler.to.join("kernels.elf")).expect("the file");
    elf.windows(text.len()).any(|it| it == text.as_bytes())
}

#[test]
fn cfgs_are_those_of_the_program() {
    assert_eq!(cfgs("", ""), [""; 0]);
    let flags = "-Cfoo\x1f--cfg\x1fa\x1f--cfg=b=\"c d\"\x1f--check-cfg=cfg(e)";
    let expected = ["feature=\"f\"", "feature=\"g-h\"", "a", "b=\"c d\""];
    assert_eq!(cfgs("f,g-h", flags), expected);
}

#[test]
fn all_that_is_read_is_watched() {
    let list = "/out/pinmap_made: /out/pinmap-kernels.rs src/a\\ b.rs /else/c.txt\n\n\
                /out/pinmap-kernels.rs:\nsrc/a\\ b.rs:\n/else/c.txt:\n\n\
                # env-dep:SIZE=4\n# env-dep:OTHER\n";
    let expected = [
        "rerun-if-changed=src/a b.rs",
        "rerun-if-changed=/else/c.txt",
        "rerun-if-env-changed=SIZE",
        "rerun-if-env-changed=OTHER",
    ];
    assert_eq!(watch(list, Path::new("/out")), expected);
}

#[test]
fn editions_are_those_of_packages() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = fs::read_to_string(package.join("../../../Cargo.toml")).expect("it is there");
    assert!(workspace.contains(&format!("\nedition = \"{}\"\n", edition(package))));
    let own = env::temp_dir().join(format!("pinmap-edition-{}", process::id()));
    fs::create_dir_all(&own).expect("a directory");
    fs::write(
        own.join("Cargo.toml"),
        "[package]\nedition=\"2024\" # new\n",
    )
    .expect("a file");
    assert_eq!(edition(&own), "2024");
    fs::remove_dir_all(own).expect("it was made");
}

#[test]
fn kernels_that_must_not_compile() {
    let to = env::temp_dir().join(format!("pinmap-kernel-{}", process::id()));
    fs::create_dir_all(&to).expect("a directory");
    let mut compiler = Compiler {
        rustc: PathBuf::from("rustc"),
        to,
        cfgs: cfgs("single", ""),
        checked: false,
    };
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
    // Names are no others than the kernel has.
    let names = "#[kernel] pub fn here(_p0: u32) {} #[kernel] pub fn p0(_x: u32) { entry(); }
        #[kernel] pub fn entry() { here(0) } #[kernel] pub fn r#type(r#fn: u8) { p0(r#fn.into()) }";
    errors(&compiler, linker, names).expect("it compiles");
    assert!(has(&compiler, "types:here(u32)") && has(&compiler, "types:type(u8)"));
    let cfg = "#[cfg(feature = \"single\")] #[kernel] pub fn single() {}";
    errors(&compiler, linker, cfg).expect("it compiles");
    assert!(has(&compiler, "single()"), "a feature");
    // All files that are read are watched.
    let part = compiler.to.with_extension("part");
    fs::write(&part, "#[kernel] pub fn part() {}").expect("a file");
    let include = format!("include!({part:?});");
    let kernels = format!("use pinmap_kernel::*;\nprogram!();\n{include}\n");
    let (file, elf) = (
        compiler.to.join("kernels.rs"),
        compiler.to.join("kernels.elf"),
    );
    fs::write(&file, kernels).expect("a file");
    let watched = compiler.program(&compiler.to, &file, linker, &elf);
    let watched = watched.expect("it compiles");
    let wanted = format!("rerun-if-changed={}", part.display());
    assert!(watched.contains(&wanted), "{watched:?}");
    fs::remove_file(part).expect("it was made");
    let adds = "#[kernel] pub fn add(x: DeviceSliceMut<u32>) { x.set(0, x.get(0) + x.get(1)) }";
    for checked in [true, false] {
        compiler.checked = checked;
        errors(&compiler, linker, adds).expect("it compiles");
        assert_eq!(has(&compiler, "attempt to add with overflow"), checked);
    }
    // Modules of the file are where the program finds them, too.
    let module = "use pinmap_kernel::*;\nuse super::Kernels;\n#[kernel] pub fn more() {}\n";
    fs::create_dir(compiler.to.join("kernels")).expect("a directory");
    fs::write(compiler.to.join("kernels/inner.rs"), module).expect("a file");
    errors(&compiler, linker, "pub mod inner;").expect("it compiles");
    assert!(has(&compiler, "\0more()"), "the kernel is there");
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
        // Both sides mean the same, whatever a `cfg` makes of the text.
        (
            "type V = &'static u64; #[kernel] fn bad(x: V) {}",
            "`&'static u64` is no number that a kernel takes",
        ),
        (
            "type V = *const u8; #[kernel] fn bad(x: V) {}",
            "is no number that a kernel takes",
        ),
        (
            "#[kernel] unsafe fn bad(x: *const [u8]) {}",
            "no pointer to what has no fixed size",
        ),
        (
            "element! { pub struct Bad { a: &'static u32 } }",
            "no plain data",
        ),
        ("element! { pub struct Bad { a: u8, b: u32 } }", "padding"),
        (
            "element! { pub struct Bad { #[cfg(not(all()))] a: u32, b: u32 } }",
            "no field `a` on type `Bad`",
        ),
        (
            "element! { #[repr(align(32))] pub struct Bad { b: [u64; 4] } }",
            "the alignment is too large",
        ),
        // Safe macros execute nothing of what they are given.
        (
            "#[kernel] fn bad() { csr!(\"0xccf\\n sd zero, 0(zero) #\"); }",
            "cannot find macro `csr`",
        ),
        (
            "#[forbid(unsafe_code)] mod m { #[pinmap_kernel::kernel] fn a() { unsafe {} } }",
            "`unsafe` block",
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
