// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `pinmap-xdma`.

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::drivers::pattern;
use crate::harness::Outcome;
use crate::setup::{mapped, streams};

fn run(arguments: &str) -> std::io::Result<Output> {
    let arguments = arguments.split_whitespace();
    Command::new("pinmap").arg("xdma").args(arguments).output()
}

/// Runs the command, which must succeed, and returns its output.
fn said(arguments: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let output = run(arguments)?;
    let succeeds = output.status.success() && output.stderr.is_empty();
    assert!(succeeds, "{arguments}: {output:?}");
    Ok(output.stdout)
}

pub(crate) fn command_moves_bytes() -> Outcome {
    let pci = mapped()?.device().info()?.pci;
    let info = String::from_utf8(said(&format!("info {pci}"))?)?;
    assert!(
        info.contains("BAR 1") && info.contains("C2H 1      memory-mapped"),
        "{info}"
    );
    let bytes = pattern(31, (1 << 20) + 77);
    let (file, back) = ("/tmp/pinmap-xdma-file", "/tmp/pinmap-xdma-back");
    fs::write(file, &bytes)?;
    said(&format!("to-device {pci} -n 1 -a 0x101 -f {file}"))?;
    let read = said(&format!("from-device {pci} -a 257 -s {} -p", bytes.len()))?;
    assert!(read == bytes);
    said(&format!("to-device {pci} -s 4096 -a 0 -c 3 -f {file} -p"))?;
    said(&format!("from-device {pci} -s 0x1000 -c 2 -f {back}"))?;
    assert!(fs::read(back)? == bytes[..4096].repeat(2));
    said(&format!("reg {pci} 0 4 w 0xabcd"))?;
    assert_eq!(said(&format!("reg {pci} 0 0"))?, b"0x58444d41\n");
    let perf = String::from_utf8(said(&format!("perf {pci} -s 4096 -c 5"))?)?;
    assert!(
        perf.lines().count() == 2 && perf.contains("544 cycles"),
        "{perf}"
    );

    // The card is reset when the command ends, so only `perf` sends and receives.
    let pci = streams()?.device().info()?.pci;
    assert!(String::from_utf8(said(&format!("info {pci}"))?)?.contains("C2H 0      stream"));
    fs::write(file, &bytes[..10_000])?;
    said(&format!("to-device {pci} -f {file}"))?;
    let perf = String::from_utf8(said(&format!("perf {pci} -s 4096 -c 5 -p"))?)?;
    assert!(
        perf.starts_with("loop") && perf.contains("544 cycles"),
        "{perf}"
    );
    for (arguments, words) in [
        (format!("to-device {pci} -a"), "-a needs a value"),
        (format!("to-device {pci} -x"), "unknown option: -x"),
        (format!("from-device {pci} -n 7"), "no channel C2H 7"),
        (
            format!("to-device {pci} -s 20000 -f {file}"),
            "10000 bytes only",
        ),
        (format!("reg {pci} 0 4 q"), "b, h or w, not q"),
        ("info 0000:00:1f.0".into(), "0000:00:1f.0"),
        ("info".into(), "usage: pinmap-xdma info"),
    ] {
        let refused = run(&arguments)?;
        let said = String::from_utf8(refused.stderr)?;
        assert!(
            !refused.status.success() && refused.stdout.is_empty(),
            "{arguments}"
        );
        assert!(said.contains(words), "{arguments}: {said}");
    }
    // What comes in is sent, if there is no file.
    let mut child = Command::new("pinmap-xdma")
        .args(["to-device", &pci.to_string()])
        .stdin(Stdio::from(fs::File::open(file)?))
        .spawn()?;
    assert!(child.wait()?.success());
    fs::remove_file(file)?;
    Ok(fs::remove_file(back)?)
}
