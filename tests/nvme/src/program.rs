// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `pinmap-nvme`.

use std::fs::File;
use std::process::{Command, Output};

use crate::drivers::pattern;
use crate::harness::Outcome;
use crate::setup::{device, on_disk};

/// Runs the command, with a file as its input.
fn run(arguments: &str, input: &str) -> std::io::Result<Output> {
    let arguments = arguments.split_whitespace();
    let input = File::open(input)?;
    Command::new("pinmap")
        .arg("nvme")
        .args(arguments)
        .stdin(input)
        .output()
}

pub(crate) fn command_lists_and_copies() -> Outcome {
    let pci = device()?.info()?.pci;
    let said = |arguments: &str| -> Result<String, Box<dyn std::error::Error>> {
        let output = run(arguments, "/dev/null")?;
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        Ok(String::from_utf8(output.stdout)?)
    };
    let listed = said("list")?;
    assert!(
        listed.starts_with(&pci.to_string()) && listed.contains("pinmap"),
        "{listed}"
    );
    let identified = said(&format!("identify {pci}"))?;
    assert!(
        identified.contains("131072 blocks of 512 bytes"),
        "{identified}"
    );
    assert!(identified.contains("8 bytes of metadata"), "{identified}");

    // More than one command, and no whole number of blocks.
    let content = pattern(21, (1 << 20) + 100);
    let file = "/tmp/pinmap-nvme-content";
    std::fs::write(file, &content)?;
    let written = run(&format!("write {pci} 2 300"), file)?;
    std::fs::remove_file(file)?;
    assert!(written.status.success(), "{written:?}");
    assert!(on_disk(2, 300 * 4096, content.len())? == content);
    let read = run(&format!("read {pci} 2 300 257"), "/dev/null")?;
    assert!(read.status.success() && read.stderr.is_empty());
    assert_eq!(read.stdout.len(), 257 * 4096);
    let (same, rest) = read.stdout.split_at(content.len());
    assert!(same == content && rest.iter().all(|&byte| byte == 0));

    for options in ["-s 512 -d 8 -c 100", "-s 65536 -c 20 -p"] {
        let measured = said(&format!("bench {pci} 1 {options}"))?;
        assert!(measured.contains(" us each") && measured.contains(" reads/s"));
    }
    let job = said("fio-job /dev/nvme0n1 -s 512 -d 8 -p")?;
    for line in ["filename=/dev/nvme0n1", "bs=512", "iodepth=8", "hipri=1"] {
        assert!(job.lines().any(|words| words == line), "{job}");
    }

    for (arguments, words) in [
        (format!("bench {pci} 1 -s 100"), "whole blocks of 512 bytes"),
        (format!("bench {pci} 1 -d"), "-d needs a value"),
        (
            format!("read {pci} 2 16380 9"),
            "has the blocks 0..16384, not 16380..16389",
        ),
        (format!("read {pci} 3 0 1"), "8 bytes of metadata"),
        ("identify 0000:00:1f.0".into(), "0000:00:1f.0"),
        ("identify".into(), "usage: pinmap-nvme list"),
    ] {
        let refused = run(&arguments, "/dev/null")?;
        let said = String::from_utf8(refused.stderr)?;
        assert!(
            !refused.status.success() && refused.stdout.is_empty(),
            "{arguments}"
        );
        assert!(said.contains(words), "{arguments}: {said}");
    }
    Ok(())
}
