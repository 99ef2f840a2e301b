// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moments between two states of the core: just started, just ended, just reset; and a card that
//! does not answer any more.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use pinmap::{Access, Buffer, Registration};
use pinmap_xdma::{Channel, ChannelOptions, Core, Error, Failed, Transfer};

use crate::drivers::memory;
use crate::faults::{impatient, returned, works, works_on};
use crate::harness::Outcome;
use crate::setup::{design, error, mapped, pair, DEAD, HOLD, LATE, LINGERS};

pub(crate) fn interrupt_before_the_end_is_enough() -> Outcome {
    let core = mapped()?;
    let (mut to, _from) = pair(&core, ChannelOptions::new())?;
    design(&core)?.write(HOLD, LINGERS)?;
    let mut lent = memory(core.device(), &[1; 64])?;
    // A slow machine may take longer than the channel is waited for.
    for _ in 0..50 {
        to.start(Transfer::new(lent).at(0))?;
        to.interrupt().ok_or("the channel is polled")?.wait()?;
        // No other one comes.
        if to.poll()?.is_some() {
            return Ok(());
        }
        lent = to.wait()?.memory;
    }
    Err("the channel is not looked at again".into())
}

pub(crate) fn stop_before_the_begin_keeps_the_memory() -> Outcome {
    let core = mapped()?;
    let design = design(&core)?;
    let (mut to, _from) = pair(&core, impatient())?;
    design.write(HOLD, LATE)?;
    to.start(Transfer::new(memory(core.device(), &[3; 64])?).at(0))?;
    to.stop();
    // It is not busy, and will look at its descriptors yet.
    for _ in 0..3 {
        assert!(to.poll()?.is_none() && to.in_flight());
    }
    design.write(HOLD, 0u32)?;
    let (late, _) = error(returned(&mut to))?;
    assert!(matches!(late, Error::TimedOut), "{late}");
    Ok(())
}

pub(crate) fn polled_channel_goes_on_after_a_reset() -> Outcome {
    let core = mapped()?;
    let (mut to, mut from) = pair(&core, ChannelOptions::new().polled())?;
    for _ in 0..2 {
        works_on(&core, &mut to, &mut from)?;
        core.device().reset()?;
    }
    works_on(&core, &mut to, &mut from)
}

/// Executes transfers until it is told to end, and counts them. A reset may end any of them.
fn load(core: &Core, index: usize, ends: &AtomicBool, count: &AtomicUsize) -> Result<(), Error> {
    let info = core.channels()[index];
    let mut channel: Channel<Registration> =
        core.channel(info.direction, info.number, impatient())?;
    let mut lent = Buffer::<u8>::new(32 << 10)?.register(core.device(), Access::ReadWrite)?;
    while !ends.load(Ordering::SeqCst) {
        let at = index as u64 * (64 << 10);
        channel.start(Transfer::new(lent).at(at))?;
        lent = match returned(&mut channel) {
            Ok(done) => done.memory,
            Err(Failed {
                error: Error::TimedOut | Error::Status(_) | Error::Confused,
                memory: Some(memory),
            }) => memory,
            Err(failed) => return Err(failed.error),
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

pub(crate) fn resets_under_load_lose_no_memory() -> Outcome {
    let core = mapped()?;
    let (ends, counts) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 4]);
    thread::scope(|threads| {
        let loads: Vec<_> = counts.iter().enumerate().collect();
        let loads = loads.into_iter().map(|(index, count)| {
            let (core, ends) = (&core, &ends);
            threads.spawn(move || load(core, index, ends, count))
        });
        let loads: Vec<_> = loads.collect();
        let mut reset = Ok(());
        for _ in 0..5 {
            let before = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
            let goes_on = || {
                let mut both = counts.iter().zip(before);
                both.all(|(count, before)| count.load(Ordering::SeqCst) > before)
            };
            while !goes_on() && !loads.iter().any(thread::ScopedJoinHandle::is_finished) {
                thread::yield_now();
            }
            reset = reset.and(core.device().reset());
        }
        ends.store(true, Ordering::SeqCst);
        for load in loads {
            load.join().map_err(|_| "a thread has panicked")??;
        }
        Ok::<(), Box<dyn std::error::Error>>(reset?)
    })?;
    works(&core)
}

pub(crate) fn card_that_answers_all_ones_keeps_its_memory() -> Outcome {
    let core = mapped()?;
    let (mut to, mut from) = pair(&core, impatient())?;
    design(&core)?.write(HOLD, 1u32)?;
    to.start(Transfer::new(memory(core.device(), &[7; 4096])?).at(0))?;
    design(&core)?.write(HOLD, 1 | DEAD)?;
    for _ in 0..3 {
        let lost = to.wait().err().ok_or("the transfer is done")?;
        assert!(matches!(lost.error, Error::Gone), "{lost}");
        assert!(lost.memory.is_none() && to.in_flight());
    }
    let new = Transfer::new(memory(core.device(), &[8; 64])?).at(0);
    let (refused, _) = error(from.start(new))?;
    assert!(matches!(refused, Error::Gone), "{refused}");
    // A reset brings it back, and the memory.
    core.device().reset()?;
    let (late, _) = error(returned(&mut to))?;
    assert!(matches!(late, Error::TimedOut), "{late}");
    drop((to, from));
    works(&core)
}
