// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs as users write them, from `tests/programs`. Each checks its own results.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::run;
use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::setup::{device, pattern};

/// Runs a program, which succeeds, and returns what it prints.
fn program(line: &str) -> Result<String, Box<dyn std::error::Error>> {
    let (status, out, err) = run(&format!("program-{line}"))?;
    assert_eq!((status, &*err), (Some(0), ""), "{line}: {out}");
    Ok(out)
}

/// The CRC-32C of bytes, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

pub(crate) fn program_increment() -> Outcome {
    drop(gpu()?);
    program("increment").map(drop)
}

/// The program of docs/kernels.md, made by the commands and of the files there.
pub(crate) fn program_of_the_guide_to_kernels() -> Outcome {
    drop(gpu()?);
    let document = include_str!("../../../docs/kernels.md");
    let block = document
        .split("```text\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    assert_eq!(Some(&*program("saxpy")?), block);
    Ok(())
}

pub(crate) fn program_two_streams() -> Outcome {
    drop(gpu()?);
    let content = pattern(9, 200_001);
    let path = std::env::temp_dir().join("pinmap-two-streams");
    fs::write(&path, &content)?;
    let out = program(&format!("two_streams {}", path.display()))?;
    fs::remove_file(&path)?;
    let expected = format!("CRC-32C {:08x}", crc32c(&content));
    assert!(out.contains(&expected), "{expected}: {out}");
    Ok(())
}

pub(crate) fn program_tokio() -> Outcome {
    drop(gpu()?);
    program("tokio_increment").map(drop)
}

pub(crate) fn program_compress() -> Outcome {
    drop(gpu()?);
    let path = |name: &str| std::env::temp_dir().join(format!("pinmap-compress-{name}"));
    let (from, packed, to) = (path("from"), path("packed"), path("to"));
    let run = |options: &str, from: &Path, to: &Path| {
        run(&format!(
            "program-compress{options} {} {}",
            from.display(),
            to.display()
        ))
    };
    let text = (0..60_000).flat_map(|number| format!("line {number}\n").into_bytes());
    for content in [
        text.collect(),
        pattern(9, 600_001),
        vec![7; 256 << 10],
        b"x".to_vec(),
        Vec::new(),
    ] {
        fs::write(&from, &content)?;
        assert_eq!(
            run("", &from, &packed)?,
            (Some(0), String::new(), String::new())
        );
        assert_eq!(run(" --decompress", &packed, &to)?.0, Some(0));
        assert!(fs::read(&to)? == content, "{} bytes", content.len());
    }
    // The device finds what is wrong.
    fs::write(&from, vec![7; 100_000])?;
    run("", &from, &packed)?;
    let mut bytes = fs::read(&packed)?;
    bytes[12] ^= 1;
    fs::write(&packed, bytes)?;
    let (status, _, err) = run(" --decompress", &packed, &to)?;
    assert_eq!(status, Some(1));
    assert!(err.contains("chunk 0 is corrupt"), "{err}");
    for path in [from, packed, to] {
        fs::remove_file(path)?;
    }
    Ok(())
}

pub(crate) fn program_key_value() -> Outcome {
    drop(gpu()?);
    let puts = (1..=1200).map(|number| format!("put key{number} value number {number}\n"));
    let commands = "get key7\ndelete key8\nget key8\nput key7 something longer than before\n\
                    get key7\nput empty \nscrub\ncorrupt key1000\ncorrupt key3\nscrub\n\
                    put key3 anew\nscrub\n";
    let mut child = Command::new("program-key_value")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    puts.clone()
        .try_for_each(|put| stdin.write_all(put.as_bytes()))?;
    stdin.write_all(commands.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    assert!(output.status.success());
    let expected = "key7 = value number 7\nkey8 deleted: true\nkey8 is not there\n\
                    key7 = something longer than before\ncorrupt: [] of 1200\n\
                    corrupt: [\"key1000\", \"key3\"] of 1200\ncorrupt: [\"key1000\"] of 1200\n";
    assert_eq!(String::from_utf8(output.stdout)?, expected);
    Ok(())
}

/// Gives the function with these ids, which no driver has, to pinmap while something runs. The test
/// is skipped if there is no such function.
pub(crate) fn bound(ids: (&str, &str), run_with_it: impl FnOnce() -> Outcome) -> Outcome {
    for function in fs::read_dir("/sys/bus/pci/devices")? {
        let function = function?;
        let read = |name| fs::read_to_string(function.path().join(name));
        if (read("vendor")?.trim(), read("device")?.trim()) != ids {
            continue;
        }
        let pci = function.file_name().to_string_lossy().into_owned();
        let (status, _, err) = run(&format!("pinmap bind {pci}"))?;
        assert_eq!((status, &*err), (Some(0), ""));
        let ran = run_with_it();
        let (status, _, err) = run(&format!("pinmap unbind {pci}"))?;
        assert_eq!((status, &*err), (Some(0), ""));
        return ran;
    }
    skip(format!("there is no function {ids:?}"))
}

pub(crate) fn program_fpga_ring() -> Outcome {
    bound(("0x10ee", "0xbeef"), || program("fpga_ring").map(drop))
}

pub(crate) fn program_fpga_finds_no_device() -> Outcome {
    let (status, _, err) = run("program-fpga_ring")?;
    assert_eq!(status, Some(1));
    assert!(
        err.contains("the driver is bound to no such function"),
        "{err}"
    );
    Ok(())
}

/// Futures that a runtime's own reactor wakes.
pub(crate) fn program_reactors() -> Outcome {
    drop(device()?);
    program("reactors tokio")?;
    program("reactors async-io").map(drop)
}

pub(crate) fn program_features() -> Outcome {
    drop(gpu()?);
    program("features").map(drop)
}
