// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory: what the program chooses, and faults that cannot be served.

use std::ptr::NonNull;

use nix::libc;
use nix::sys::mman::{mprotect, ProtFlags};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, ForkResult};
use pinmap::accelerator::FaultReason;
use pinmap::accelerator::{Accelerator, Place, Reach, Stream, StreamOptions};
use pinmap::{Error, FaultAccess};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

use crate::harness::Outcome;
use crate::lent::{check, faulting, increment, numbers};
use crate::setup::{pattern, RawMemory, PAGE};

pub(crate) fn managed_ranges_are_what_the_program_chose() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let (mut inside, mut outside) = (numbers(50_000), numbers(50_000));
    let managed = gpu.manage(&inside[..])?;
    let (addr, len) = managed.range().ok_or("it has a range")?;
    let (first, bytes) = (inside.as_ptr().addr(), size_of_val(&inside[..]));
    assert!(addr <= first && first + bytes <= addr + len);
    assert_eq!(gpu.device().own_totals()?.managed.bytes, len as u64);
    assert_eq!(increment(&stream, &mut inside)?, Reach::Managed);
    let reach = increment(&stream, &mut outside)?;
    assert!(matches!(reach, Reach::Registered { .. }), "{reach:?}");
    check(&inside, 1.0);
    check(&outside, 1.0);
    let error = gpu.manage_all().expect_err("a range is managed already");
    assert_eq!(error.errno(), libc::EEXIST, "{error}");
    drop(managed);
    assert_eq!(gpu.device().own_totals()?.managed.number, 0);
    let all = gpu.manage_all()?;
    assert_eq!(increment(&stream, &mut outside)?, Reach::Managed);
    drop((all, stream));
    assert_eq!(gpu.device().own_totals()?.managed.number, 0);
    Ok(())
}

/// A program moves its memory to the device, has it worked on there, and reads it.
pub(crate) fn managed_memory_moves_where_it_is_wanted() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut data = numbers(60_000);
    let error = gpu
        .prefetch(&data[..], Place::Vram)
        .expect_err("nothing is managed");
    assert_eq!(error.errno(), libc::ENOENT, "{error}");
    let _managed = gpu.manage_all()?;
    let error = gpu
        .prefetch(&data[..0], Place::Vram)
        .expect_err("it is empty");
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    let bytes = size_of_val(&data[..]) as u64;
    let free = gpu.info()?.vram_free;
    let there = gpu.prefetch(&data[..], Place::Vram)?;
    assert!(
        there.moved + there.busy >= bytes && there.moved > bytes / 2,
        "{there:?}"
    );
    assert!(gpu.info()?.vram_free <= free - there.moved);
    assert_eq!(increment(&stream, &mut data)?, Reach::Managed);
    let home = gpu.prefetch(&data[..], Place::Host)?;
    assert_eq!(home.moved, there.moved, "{home:?}");
    assert_eq!(gpu.info()?.vram_free, free);
    check(&data, 1.0);
    Ok(())
}

/// An address at which nothing is ever mapped: programs and their libraries lie far above.
const HOLE: usize = 0x10_0000;

/// Has the device access one word by a raw packet, and returns the error.
fn refused(gpu: &Accelerator, addr: usize, access: FaultAccess) -> Result<Error, Error> {
    let own = gpu.device().alloc::<u64>(1)?;
    let (ours, theirs) = (own.device_addr(), addr as u64);
    let packet = match access {
        FaultAccess::Write => packet::copy(ours, theirs, 8),
        _ => packet::copy(theirs, ours, 8),
    };
    let stream = gpu.stream(StreamOptions::new())?;
    // SAFETY: What the device is to write is an allocation, or memory of these tests to which
    // nothing refers and which it cannot write.
    let result = stream.scope(|work| unsafe { work.submit_packets(&[packet]) });
    Ok(result.expect_err("the program cannot do that either"))
}

pub(crate) fn managed_memory_says_why_not() -> Outcome {
    let gpu = faulting()?;
    let managed = gpu.manage_all()?;
    let (constant, none) = (RawMemory::new(2 * PAGE)?, RawMemory::new(PAGE)?);
    constant.fill(&pattern(1, 2 * PAGE));
    constant.protect()?;
    // SAFETY: The mapping is ours, and nothing refers to it.
    unsafe {
        let start = NonNull::new(none.start()).ok_or("an address")?;
        mprotect(start.cast(), PAGE, ProtFlags::PROT_NONE)?;
    }
    for (addr, access, reason, words) in [
        (
            HOLE + 8,
            FaultAccess::Read,
            FaultReason::Hole,
            "nothing mapped there",
        ),
        (
            constant.addr() + PAGE,
            FaultAccess::Write,
            FaultReason::Permission,
            "r--p",
        ),
        (
            none.addr(),
            FaultAccess::Read,
            FaultReason::Permission,
            "---p",
        ),
    ] {
        let error = refused(&gpu, addr, access)?;
        let fault = *error.fault().ok_or("no fault")?;
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert_eq!(
            (fault.access, fault.device_addr, fault.reason, fault.packet),
            (Some(access), Some(addr as u64), Some(reason), 0),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        assert!(error.hint().is_some(), "{text}");
        match fault.area {
            None => assert_eq!(reason, FaultReason::Hole),
            Some(area) => assert!((area.addr..area.addr + area.len).contains(&addr), "{area}"),
        }
    }
    assert!(constant.content(2 * PAGE) == pattern(1, 2 * PAGE));
    // What is not managed at all says so.
    drop(managed);
    let error = refused(&gpu, constant.addr(), FaultAccess::Read)?;
    let reason = error.fault().and_then(|fault| fault.reason);
    assert_eq!(reason, Some(FaultReason::Unmapped), "{error}");
    constant.unmap()?;
    none.unmap()
}

/// A fault that cannot be served ends one stream, which can be reset. Others go on.
pub(crate) fn managed_fault_leaves_others_alone() -> Outcome {
    let gpu = faulting()?;
    let (failing, other) = (
        gpu.stream(StreamOptions::new())?,
        gpu.stream(StreamOptions::new())?,
    );
    let work = |stream: &Stream| -> Outcome {
        let pending = stream.submit(numbers(10_000), |work, numbers| {
            let mut data = work.slice_mut(numbers)?;
            work.launch(testgpu::IncrementF32 { data: &mut data })
        })?;
        check(&pending.wait()?, 1.0);
        Ok(())
    };
    let _managed = gpu.manage_all()?;
    let own = gpu.device().alloc::<u64>(1)?;
    let read = packet::copy(HOLE as u64, own.device_addr(), 8);
    let memory = numbers(10_000);
    let pending = failing.submit(memory, |work, memory| {
        // SAFETY: It writes nothing, because what it reads is not there.
        unsafe { work.submit_packets(&[read])? };
        let mut data = work.slice_mut(memory)?;
        work.launch(testgpu::IncrementF32 { data: &mut data })
    })?;
    let failed = pending.wait().expect_err("it reads what is not there");
    let reason = failed.error.fault().and_then(|fault| fault.reason);
    assert_eq!(reason, Some(FaultReason::Hole), "{}", failed.error);
    let memory = failed.value.try_into_memory();
    check(&memory.map_err(|_| "the stream has failed")?, 0.0);
    work(&other)?;
    failing.reset()?;
    work(&failing)?;
    work(&other)?;
    let totals = gpu.device().own_totals()?;
    assert_eq!(totals.faults.failed, 1);
    Ok(())
}

/// A child has another address space than the one that is managed.
pub(crate) fn managed_memory_of_a_child_is_refused() -> Outcome {
    let gpu = faulting()?;
    // SAFETY: This process has one thread, so that the child can use whatever it likes.
    match unsafe { fork()? } {
        ForkResult::Child => {
            let errno = gpu.manage_all().map_or_else(|error| error.errno(), |_| 0);
            // SAFETY: Ends the child without what the parent would do at its end.
            unsafe { libc::_exit(errno) }
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None)?;
            assert!(
                matches!(ended, WaitStatus::Exited(_, libc::EPERM)),
                "{ended:?}"
            );
        }
    }
    let stream = gpu.stream(StreamOptions::new())?;
    let mut memory = numbers(1000);
    increment(&stream, &mut memory)?;
    check(&memory, 1.0);
    Ok(())
}
