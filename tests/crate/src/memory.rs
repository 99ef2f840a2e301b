// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers of all kinds of memory, as the device sees them.

use std::fs::{self, File};

use nix::libc;
use nix::sys::memfd::{memfd_create, MFdFlags};
use pinmap::{Access, Buffer, Pages};

use crate::edu::Edu;
use crate::harness::{skip, Outcome};
use crate::setup::{edu, fill_device, pattern, PAGE};

/// Checks that the device reads and writes at the beginning, in the middle and at the end.
fn check(edu: &mut Edu, mut memory: Buffer) -> Result<Buffer, Box<dyn std::error::Error>> {
    let len = memory.len();
    memory.copy_from_slice(&pattern(1, len));
    let memory = memory.register(edu.device(), Access::ReadWrite)?;
    let start = memory.device_addr()?;
    let offsets = [0, len / 2, len - 256];
    for offset in offsets {
        edu.fetch(start + offset as u64, 0, 128)?;
        edu.store(start + offset as u64 + 128, 0, 128)?;
    }
    let memory = memory.release()?;
    let mut expected = pattern(1, len);
    for offset in offsets {
        expected.copy_within(offset..offset + 128, offset + 128);
    }
    assert!(*memory == expected[..], "the content is not as expected");
    Ok(memory)
}

pub(crate) fn buffer_of_transparent_huge_pages() -> Outcome {
    let mut edu = edu()?;
    check(
        &mut edu,
        Buffer::<u8>::with_pages(4 << 20, Pages::Transparent)?,
    )?;
    Ok(())
}

pub(crate) fn buffer_of_huge_pages() -> Outcome {
    const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let Ok(before) = fs::read_to_string(POOL) else {
        return skip("the kernel has no huge pages of 2 MiB");
    };
    fs::write(POOL, "2\n")?;
    let result = huge();
    fs::write(POOL, before)?;
    result
}

fn huge() -> Outcome {
    const LEN: usize = 2 << 20;
    let mut edu = edu()?;
    let memory = match Buffer::<u8>::with_pages(LEN, Pages::Huge { bits: 21 }) {
        Err(error) if error.errno() == libc::ENOMEM => return skip("no huge page is free"),
        memory => memory?,
    };
    assert_eq!((memory.len(), memory.addr() % (2 << 20)), (LEN, 0));
    drop(check(&mut edu, memory)?);
    // More huge pages than there are.
    let error =
        Buffer::<u8>::with_pages(1 << 40, Pages::Huge { bits: 21 }).expect_err("no such pool");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("vm.nr_hugepages")),
        "{error}"
    );
    Ok(())
}

pub(crate) fn buffer_of_a_memfd() -> Outcome {
    let mut edu = edu()?;
    let file = File::from(memfd_create(c"pinmap-test", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(8 * PAGE as u64)?;
    // SAFETY: Nothing else writes to the file as long as the buffer is not registered, and it is
    // long enough.
    let memory = unsafe { Buffer::<u8>::from_file(&file, 4 * PAGE as u64, 4 * PAGE)? };
    drop(check(&mut edu, memory)?);

    // The file sees what the device writes.
    // SAFETY: As above.
    let memory = unsafe { Buffer::<u8>::from_file(&file, 0, PAGE)? };
    let memory = memory.register(edu.device(), Access::ReadWrite)?;
    fill_device(&mut edu, &pattern(9, PAGE))?;
    edu.store(memory.device_addr()?, 0, PAGE)?;
    let mut content = vec![0; PAGE];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut content, 0)?;
    assert_eq!(content, pattern(9, PAGE));
    Ok(())
}

pub(crate) fn buffer_larger_than_the_device() -> Outcome {
    let mut edu = edu()?;
    check(&mut edu, Buffer::<u8>::new(64 << 20)?)?;
    let too_much = edu.fetch(0, 1, Edu::MEMORY_LEN).expect_err("refused");
    assert!(too_much.to_string().contains("not inside"), "{too_much}");
    Ok(())
}
