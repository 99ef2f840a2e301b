// SPDX-License-Identifier: MIT OR Apache-2.0
//! What submitting costs: no system call, and less than one.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::ForkResult;
use pinmap::{kernel, Error, Packet, Queue, QueueOptions};

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};

/// From now on any system call of this thread kills the process. False: the kernel cannot do that.
fn forbid_system_calls() -> bool {
    let mut filter = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_KILL_PROCESS,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: Numbers, and a pointer to a filter of the length that is told; the kernel copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    }
}

/// Whether a system call would be noticed: a child makes one.
fn system_calls_are_noticed() -> Result<bool, Box<dyn std::error::Error>> {
    // SAFETY: The child only makes system calls: no lock, no allocation matters, for this process
    // has one thread.
    match unsafe { nix::unistd::fork()? } {
        ForkResult::Child => {
            let forbidden = forbid_system_calls();
            // SAFETY: Ends the child without what the parent would do at its end: itself a system
            // call.
            unsafe { libc::_exit(if forbidden { 0 } else { 77 }) }
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Signaled(_, Signal::SIGSYS, _) => Ok(true),
            WaitStatus::Exited(_, 77) => Ok(false),
            other => Err(format!("a forbidden system call: {other:?}").into()),
        },
    }
}

/// Set when all was submitted and done.
static DONE: AtomicBool = AtomicBool::new(false);

/// Submits, and never returns: there is no way to end a thread without a system call.
fn submit_silently(queue: &mut Queue, gpu: &pinmap::Gpu) -> Result<(), Error> {
    let mut memory = gpu.device().alloc::<f32>(1000)?;
    let mut other = gpu.alloc_vram::<f32>(1000)?;
    queue.scope(|scope| {
        let (mut data, mut other) = (memory.slice_mut(), other.slice_mut());
        if !forbid_system_calls() {
            return Ok(());
        }
        for _ in 0..200 {
            scope.launch(kernel::IncrementF32 { data: &mut data })?;
            scope.copy(&data, &mut other)?;
            let batch = scope.batch();
            scope.launch(kernel::IncrementF32 { data: &mut data })?;
            scope.fill(&mut other, 0.0)?;
            drop(batch);
        }
        let fence = scope.fence()?;
        while !fence.is_done() {
            spin_loop();
        }
        let good = data.get(0)? == 400.0 && data.get(999)? == 400.0;
        DONE.store(good, Ordering::Release);
        loop {
            spin_loop();
        }
    })
}

pub(crate) fn submission_makes_no_system_call() -> Outcome {
    let gpu = gpu()?;
    if !system_calls_are_noticed()? {
        return skip("the kernel has no seccomp filters");
    }
    let mut queue = gpu.queue(QueueOptions::new().packets(4096))?;
    let thread = thread::spawn(move || submit_silently(&mut queue, &gpu));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !DONE.load(Ordering::Acquire) {
        if thread.is_finished() || Instant::now() > deadline {
            return Err("it was not done, or the results are wrong".into());
        }
        sleep(Duration::from_millis(5));
    }
    // The end of the process ends the thread.
    Ok(())
}

/// Packets for each measurement.
const PACKETS: usize = 1024;
/// Measurements of each kind.
const RUNS: usize = 21;

/// CPU time of one packet, submitted in batches, in nanoseconds.
fn cost(queue: &mut Queue, batch: usize) -> Result<f64, Error> {
    let nops = [Packet::nop()];
    queue.scope(|scope| {
        let start = Instant::now();
        for _ in 0..PACKETS / batch {
            let held = scope.batch();
            for _ in 0..batch {
                scope.submit(&nops)?;
            }
            held.submit()?;
        }
        let time = start.elapsed();
        // Not measured, and the same for both.
        scope.wait()?;
        Ok(time.as_nanos() as f64 / PACKETS as f64)
    })
}

pub(crate) fn submission_cost() -> Outcome {
    let gpu = gpu()?;
    let options = QueueOptions::new().packets(4096);
    let mut ring = gpu.queue(options)?;
    let mut ioctl = gpu.queue(options.system_calls())?;
    for batch in [1, 16, 64] {
        let (mut by_ring, mut by_ioctl) = (Vec::new(), Vec::new());
        // In turn, and not counting the first of each.
        for run in 0..=RUNS {
            let costs = (cost(&mut ring, batch)?, cost(&mut ioctl, batch)?);
            if run > 0 {
                by_ring.push(costs.0);
                by_ioctl.push(costs.1);
            }
        }
        let [ring, ioctl] = [by_ring, by_ioctl].map(|mut all| {
            all.sort_by(f64::total_cmp);
            all[RUNS / 2] / 1e3
        });
        println!(
            "batches of {batch}: {ring:.3} µs a packet by the ring, {ioctl:.3} µs by an ioctl \
             (medians of {RUNS}, {PACKETS} packets each)"
        );
    }
    Ok(())
}
