// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of others as referees: e2fsprogs for a file system that is copied to the disk and from
//! it, and nvme-cli for what a controller tells. They are the build root's, with their libraries,
//! which the VM does not have.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use pinmap_nvme::Controller;

use crate::drivers::{memory, pattern};
use crate::harness::{skip, Outcome};
use crate::setup::{controller, queue, returned, with_kernel};

const TOOLS: &str = "/run/vm/tools";

/// Runs one of the programs, and returns its output.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    let program = format!("{TOOLS}/{name}");
    let loaded = [&["--library-path", TOOLS, &program], arguments].concat();
    run(&format!("{TOOLS}/ld-linux-x86-64.so.2"), &loaded)
}

fn run(program: &str, arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    let output = Command::new(program).args(arguments).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("{program} {arguments:?}: {output:?}").into()),
    }
}

/// Whether the programs are there; fetching them takes a network.
pub(crate) fn there() -> bool {
    Path::new(TOOLS).exists()
}

/// Length of the file system, and of each command.
const LEN: usize = 16 << 20;
const STEP: usize = 256 << 10;

/// Copies the file system between its image and the first blocks of the namespace.
fn copy(controller: &Controller, image: &mut [u8], write: bool) -> Outcome {
    let namespace = controller.namespace(1)?;
    let mut queue = queue(controller)?;
    let mut lent = memory(controller.device(), &vec![0; STEP])?;
    for (part, block) in image.chunks_exact_mut(STEP).zip((0..).step_by(STEP / 512)) {
        if write {
            lent.write_at(0, part)?;
            lent = returned(queue.run(namespace.write(block, lent)))?;
        } else {
            lent = returned(queue.run(namespace.read(block, lent)))?;
            lent.read_at(0, part)?;
        }
    }
    Ok(())
}

pub(crate) fn file_system_goes_to_the_kernel_and_back() -> Outcome {
    if !there() {
        return skip("there is no e2fsprogs");
    }
    let (ours, theirs) = (pattern(31, 3 << 20), pattern(32, (1 << 20) + 77));
    let (files, image) = ("/tmp/nvme-files", "/tmp/nvme-image");
    fs::create_dir_all(files)?;
    fs::write(format!("{files}/ours"), &ours)?;
    tool("mke2fs", &["-qFt", "ext4", "-d", files, image, "16M"])?;
    let mut content = fs::read(image)?;
    assert_eq!(content.len(), LEN);
    let first = controller()?;
    copy(&first, &mut content, true)?;
    let mounted = with_kernel(first, |node| {
        run("mount", &["-t", "ext4", node, files])?;
        let found = fs::read(format!("{files}/ours"));
        let written = fs::write(format!("{files}/theirs"), &theirs);
        run("umount", &[files])?;
        written?;
        Ok(found?)
    })?;
    let Some(found) = mounted else {
        return skip("this kernel has no driver for NVMe");
    };
    assert!(found == ours, "the kernel does not read what was written");

    copy(&controller()?, &mut content, false)?;
    fs::write(image, &content)?;
    tool("e2fsck", &["-fn", image])?;
    for (name, bytes) in [("ours", ours), ("theirs", theirs)] {
        let request = format!("dump {name} /tmp/nvme-file");
        tool("debugfs", &["-R", &request, image])?;
        assert!(fs::read("/tmp/nvme-file")? == bytes, "{name}");
    }
    fs::remove_file("/tmp/nvme-file")?;
    fs::remove_dir_all(files)?;
    Ok(fs::remove_file(image)?)
}

/// The values that a member has in JSON, wherever it is, without their quotes.
fn members<'a>(json: &'a str, name: &str) -> Vec<&'a str> {
    let name = format!("\"{name}\":");
    let values = json.split(&name).skip(1);
    let value = |rest: &'a str| rest.split([',', '}', '\n']).next().unwrap_or_default();
    values
        .map(|rest| value(rest).trim_matches([' ', '"']))
        .collect()
}

fn number(json: &str, name: &str, index: usize) -> Result<u64, Box<dyn Error>> {
    let members = members(json, name);
    let member = members
        .get(index)
        .ok_or_else(|| format!("no {name}: {json}"))?;
    Ok(member.parse().map_err(|_| format!("{name}: {member}"))?)
}

pub(crate) fn nvme_cli_tells_the_same() -> Outcome {
    if !there() {
        return skip("there is no nvme-cli");
    }
    let controller = controller()?;
    let identity = controller.identity().clone();
    let ids = controller.namespaces()?;
    let mut namespaces = Vec::new();
    for &id in &ids {
        namespaces.push(match controller.namespace(id) {
            Ok(namespace) => Ok((namespace.blocks(), namespace.block_len() as u64)),
            Err(error) => Err(error.to_string()),
        });
    }
    let told = with_kernel(controller, |node| {
        let ask = |what, more: &[&str]| tool("nvme", &[&[what, node, "-ojson"], more].concat());
        let told: Result<Vec<_>, _> = ids
            .iter()
            .map(|id| ask("id-ns", &["-n", &id.to_string()]))
            .collect();
        Ok((ask("id-ctrl", &[])?, ask("list-ns", &[])?, told?))
    })?;
    let Some((told, listed, each)) = told else {
        return skip("this kernel has no driver for NVMe");
    };

    for (name, ours) in [
        ("sn", &identity.serial),
        ("mn", &identity.model),
        ("fr", &identity.firmware),
    ] {
        assert_eq!(members(&told, name), [ours], "{name}");
    }
    let theirs = |name| number(&told, name, 0);
    let (major, minor, tertiary) = identity.version;
    let version = (u64::from(major) << 16) | (u64::from(minor) << 8) | u64::from(tertiary);
    assert_eq!(theirs("ver")?, version);
    assert_eq!(4096 << theirs("mdts")?, identity.max_transfer);
    let alignment = if theirs("sgls")? & 3 == 1 { 1 } else { 4 };
    assert_eq!(
        (theirs("sgls")? & 3 != 0, alignment),
        (identity.sgl, identity.alignment)
    );
    assert_eq!(theirs("vwc")? & 1 != 0, identity.volatile_cache);
    let optional = identity.optional;
    for (bit, ours) in [
        (0, optional.compare),
        (2, optional.deallocate),
        (3, optional.write_zeroes),
        (7, optional.verify),
    ] {
        assert_eq!((theirs("oncs")? >> bit) & 1 != 0, ours, "bit {bit} of oncs");
    }
    assert!(members(&listed, "nsid")
        .into_iter()
        .eq(ids.iter().map(u32::to_string)));
    for (told, ours) in each.iter().zip(namespaces) {
        let format = number(told, "flbas", 0)? as usize & 15;
        let theirs = (number(told, "nsze", 0)?, 1 << number(told, "ds", format)?);
        match (number(told, "ms", format)?, ours) {
            (0, Ok(ours)) => assert_eq!(theirs, ours),
            (bytes, Err(error)) => assert!(error.contains(&format!("has {bytes} bytes of meta"))),
            (bytes, ours) => return Err(format!("{bytes} bytes of metadata: {ours:?}").into()),
        }
    }
    Ok(())
}
