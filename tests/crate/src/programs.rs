// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs as users write them, from `tests/programs`. Each checks its own results.

use std::fs;

use crate::command::run;
use crate::gpu::gpu;
use crate::harness::Outcome;
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

/// There is no such FPGA; `ring_is_worked_off_by_dma` has a device that works a ring off.
pub(crate) fn program_fpga_finds_no_device() -> Outcome {
    drop(device()?);
    let (status, _, err) = run("program-fpga_ring")?;
    assert_eq!(status, Some(1));
    assert!(
        err.contains("the driver is bound to no such function"),
        "{err}"
    );
    Ok(())
}

/// What users of an earlier version tried first, and could not write.
pub(crate) fn programs_of_accelerators() -> Outcome {
    drop(gpu()?);
    for name in [
        "alloc_as_slice",
        "into_under_lock",
        "other_elements",
        "own_kernel",
        "part_then_whole",
        "pending_await",
        "pending_chain",
        "pending_not_sync",
        "raw_is_no_operand",
        "read_into_alloc",
        "scope_needs_annotation",
        "serde_info",
        "struct_element",
    ] {
        program(&format!("rejected {name}"))?;
    }
    Ok(())
}

/// The same for flat devices.
pub(crate) fn programs_of_flat_devices() -> Outcome {
    drop(device()?);
    for name in ["buffer_from_vec", "register_word_f32", "tokio_interrupt"] {
        program(&format!("rejected {name}"))?;
    }
    Ok(())
}
