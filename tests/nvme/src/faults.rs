// SPDX-License-Identifier: MIT OR Apache-2.0
//! Controllers that do not answer, have failed, or are gone. The tests bring that about by writing
//! the controller's registers behind the back of the crate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use pinmap::{Bar, Registration};
use pinmap_nvme::{Controller, Error, Queue, QueueOptions};

use crate::drivers::{content, killed, memory, pattern};
use crate::harness::Outcome;
use crate::kernel::bind;
use crate::setup::{controller, error, on_disk, queue, returned, NAMESPACES, SLOW};

/// Offsets of registers.
const CONFIGURATION: usize = 0x14;
const ADMIN_SUBMISSIONS: usize = 0x28;

/// A queue that does not wait for long.
fn impatient(controller: &Controller) -> pinmap_nvme::Result<Queue<Registration>> {
    controller.queue(QueueOptions::new().timeout(Duration::from_secs(3)))
}

/// Makes the controller forget everything, so that it never answers.
fn disable(bar: &Bar) -> Outcome {
    bar.write(CONFIGURATION, 0u32)?;
    while bar.read::<u32>(0x1c)? & 1 != 0 {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Shows that the queue works, and its memory is the program's again.
pub(crate) fn works(
    controller: &Controller,
    queue: &mut Queue<Registration>,
    block: u64,
) -> Outcome {
    let namespace = controller.namespace(1)?;
    let bytes = pattern(block, 4096);
    let memory = memory(controller.device(), &bytes)?;
    let memory = returned(queue.run(namespace.write(block, memory)))?;
    memory.write_at(0, &[0; 4096])?;
    let memory = returned(queue.run(namespace.read(block, memory)))?;
    assert!(content(&memory, 4096)? == bytes);
    assert!(memory.release()?[..4096] == bytes[..]);
    Ok(())
}

pub(crate) fn done_command_is_not_late() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let time = Duration::from_secs(1);
    let mut queue = controller.queue::<Registration>(QueueOptions::new().timeout(time))?;
    queue.submit(namespace.read(0, memory(controller.device(), &[5; 512])?))?;
    queue.interrupt().ok_or("it is not polled")?.wait()?;
    std::thread::sleep(time);
    queue.check()?;
    let done = queue.poll()?.ok_or("it was done")?;
    done.result?;
    Ok(())
}

/// Runs a slow command, again and again if it is done before `hurry` can do anything about it.
fn run_slow(
    controller: &Controller,
    options: QueueOptions,
    hurry: impl Fn(&mut Queue<Registration>, u64) -> pinmap_nvme::Result<()>,
) -> Result<Error, Box<dyn std::error::Error>> {
    let namespace = controller.namespace(SLOW)?;
    let mut queue = controller.queue(options)?;
    for _ in 0..60 {
        let lent = memory(controller.device(), &[5; 512])?;
        let number = queue.submit(namespace.read(0, lent))?;
        hurry(&mut queue, number)?;
        let done = queue.wait()?;
        assert!(
            done.number == number && done.memory.is_some(),
            "the memory is lost"
        );
        if let Err(error) = done.result {
            drop(queue);
            works(controller, &mut crate::setup::queue(controller)?, 32)?;
            return Ok(error);
        }
    }
    Err("a slow command is done too early each time".into())
}

pub(crate) fn command_is_aborted() -> Outcome {
    let controller = controller()?;
    let mut other = queue(&controller)?;
    let namespace = controller.namespace(SLOW)?;
    let number = other.submit(namespace.flush())?;
    let abort = |queue: &mut Queue<_>, number| match queue.abort(number) {
        Err(Error::Invalid(_)) => Ok(()), // it is done already
        aborted => aborted,
    };
    let aborted = run_slow(&controller, QueueOptions::new(), abort)?;
    let Error::Status(status) = aborted else {
        return Err(aborted.into());
    };
    assert_eq!((status.kind(), status.code()), (0, 0x07), "{status}");
    // Nothing else is ended by that.
    let done = other.wait()?;
    assert_eq!(done.number, number);
    done.result?;
    let error = other.abort(number).expect_err("it is done");
    let words = "no command 0 is in flight";
    assert!(error.to_string().contains(words), "{error}");
    Ok(())
}

pub(crate) fn late_command_is_aborted_or_reset() -> Outcome {
    let controller = controller()?;
    // The command comes back after the abort, or only with the reset.
    for milliseconds in [200, 50] {
        let options = QueueOptions::new().timeout(Duration::from_millis(milliseconds));
        for options in [options, options.polled()] {
            let late = run_slow(&controller, options, |_, _| Ok(()))?;
            assert!(matches!(late, Error::TimedOut), "{late}");
        }
    }
    Ok(())
}

pub(crate) fn lost_command_ends_with_a_reset() -> Outcome {
    let controller = controller()?;
    let bar = controller.device().bar(0)?;
    let namespace = controller.namespace(1)?;
    let options = QueueOptions::new().timeout(Duration::from_secs(3));
    for options in [options, options.polled()] {
        let mut queue = controller.queue::<Registration>(options)?;
        disable(&bar)?;
        let lent = memory(controller.device(), &[5; 4096])?;
        let lost = error(queue.run(namespace.read(0, lent)), true)?;
        assert!(matches!(lost, Error::TimedOut), "{lost}");
        works(&controller, &mut queue, 16)?;
    }
    Ok(())
}

pub(crate) fn reset_ends_commands_of_other_threads() -> Outcome {
    let controller = controller()?;
    let bar = controller.device().bar(0)?;
    let namespace = controller.namespace(1)?;
    let (submitted, all_submitted) = channel();
    let mut others = Vec::new();
    for number in 0..3 {
        let (controller, namespace) = (controller.clone(), namespace.clone());
        let (submitted, (disabled, go)) = (submitted.clone(), channel::<()>());
        let body = move || -> Outcome {
            let mut queue = queue(&controller)?;
            submitted.send(())?;
            go.recv()?;
            queue.submit(namespace.read(0, memory(controller.device(), &[5; 512])?))?;
            submitted.send(())?;
            let done = queue.wait()?;
            assert!(matches!(done.result, Err(Error::Reset)), "{done:?}");
            assert!(done.memory.is_some(), "the memory is lost");
            works(&controller, &mut queue, 100 * (number + 1))
        };
        let body = move || body().map_err(|error| error.to_string());
        others.push((disabled, std::thread::spawn(body)));
    }
    let mut queue = impatient(&controller)?;
    others.iter().try_for_each(|_| all_submitted.recv())?;
    disable(&bar)?;
    for (disabled, _) in &others {
        disabled.send(())?;
    }
    others.iter().try_for_each(|_| all_submitted.recv())?;
    let lent = memory(controller.device(), &[5; 512])?;
    let lost = error(queue.run(namespace.read(0, lent)), true)?;
    assert!(matches!(lost, Error::TimedOut), "{lost}");
    works(&controller, &mut queue, 16)?;
    for (_, thread) in others {
        thread.join().map_err(|_| "a thread has panicked")??;
    }
    Ok(())
}

pub(crate) fn failed_controller_is_reset() -> Outcome {
    let controller = controller()?;
    let bar = controller.device().bar(0)?;
    let namespace = controller.namespace(1)?;
    let mut queue = queue(&controller)?;
    disable(&bar)?;
    // An admin queue that does not begin with a page is a failure.
    bar.write(ADMIN_SUBMISSIONS, 0x123u64)?;
    bar.write(CONFIGURATION, 0x0046_0001u32)?;
    assert_eq!(
        bar.read::<u32>(0x1c)? & 2,
        2,
        "the controller has not failed"
    );
    let lent = memory(controller.device(), &[5; 512])?;
    let failed = error(queue.run(namespace.read(0, lent)), true)?;
    assert!(matches!(failed, Error::Fatal), "{failed}");
    works(&controller, &mut queue, 16)?;
    // A reset that the program wants is one like any other.
    queue.submit(namespace.flush())?;
    controller.reset()?;
    let done = queue.wait()?;
    assert!(matches!(done.result, Err(Error::Reset)), "{done:?}");
    works(&controller, &mut queue, 24)
}

/// Writes blocks again and again until told to stop, and counts them; what a reset has ended is
/// written once more. Then all blocks are as the last writes have left them.
fn write_and_check(
    controller: &Controller,
    first: u64,
    written: &AtomicU64,
    stop: &AtomicBool,
) -> Outcome {
    let (namespace, device) = (controller.namespace(1)?, controller.device());
    let mut queue = controller.queue::<Registration>(QueueOptions::new().depth(8))?;
    let content_of = |lap: u64, place: u64| pattern((lap << 8) | place, 4096);
    let (mut lap, mut in_flight) = (0, HashMap::new());
    while !stop.load(Ordering::Relaxed) {
        lap += 1;
        for place in 0..8 {
            let lent = memory(device, &content_of(lap, place))?;
            let number = queue.submit(namespace.write(first + 8 * place, lent))?;
            in_flight.insert(number, place);
        }
        while queue.in_flight() != 0 {
            let done = queue.wait()?;
            let place = in_flight.remove(&done.number).ok_or("it is done twice")?;
            let lent = done.memory.ok_or("the memory is lost")?;
            assert!(content(&lent, 4096)? == content_of(lap, place));
            match done.result {
                Ok(()) => _ = written.fetch_add(1, Ordering::Relaxed),
                Err(Error::Reset) => {
                    let number = queue.submit(namespace.write(first + 8 * place, lent))?;
                    in_flight.insert(number, place);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    for place in 0..8 {
        let found = on_disk(1, 512 * first + 4096 * place, 4096)?;
        assert!(found == content_of(lap, place), "{first} {place}");
    }
    Ok(())
}

pub(crate) fn resets_under_load_lose_nothing() -> Outcome {
    let controller = controller()?;
    let (written, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| -> Outcome {
        let thread = |number| {
            let (controller, written, stop) = (&controller, &written, &stop);
            let body = move || write_and_check(controller, 800 * number, written, stop);
            scope.spawn(move || body().map_err(|error| error.to_string()))
        };
        let threads: Vec<_> = (0..4u64).map(thread).collect();
        let works = || threads.iter().all(|thread| !thread.is_finished());
        let mut reset = Ok(());
        for round in 1..=10 {
            while written.load(Ordering::Relaxed) < 20 * round && works() {
                std::thread::yield_now();
            }
            reset = reset.and_then(|()| controller.reset());
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a thread has panicked")??;
        }
        Ok(reset?)
    })
}

pub(crate) fn gone_controller_gives_memory_back() -> Outcome {
    let controller = controller()?;
    let bar = controller.device().bar(0)?;
    let namespace = controller.namespace(1)?;
    let function = controller.device().info()?.pci.to_string();
    let mut queue = queue(&controller)?;
    disable(&bar)?;
    drop(bar);
    queue.submit(namespace.read(0, memory(controller.device(), &[5; 512])?))?;
    let rebind = std::thread::spawn({
        let function = function.clone();
        move || bind(&function, "pinmap").map_err(|error| error.to_string())
    });
    let done = queue.wait()?;
    assert!(matches!(done.result, Err(Error::Gone)), "{done:?}");
    let lent = done.memory.ok_or("the memory is lost")?;
    assert!(lent.release()?[..512].iter().all(|&byte| byte == 5));
    let lent = memory(controller.device(), &[5; 512]);
    assert!(lent.is_err(), "a device that is gone takes no memory");
    let gone = error(queue.submit(namespace.flush()), false)?;
    assert!(matches!(gone, Error::Gone), "{gone}");
    assert!(matches!(controller.namespace(1), Err(Error::Gone)));
    assert!(matches!(controller.reset(), Err(Error::Gone)));
    drop((queue, namespace, controller));
    rebind.join().map_err(|_| "binding has panicked")??;
    let controller = crate::setup::controller()?;
    assert_eq!(controller.namespaces()?, NAMESPACES);
    Ok(())
}

/// Set for the program that is to be killed.
const VICTIM: &str = "PINMAP_NVME_VICTIM";

/// Submits commands until the process is killed, and says when the first ones are done.
fn submit_for_ever() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let most = controller.identity().max_transfer;
    let mut queue = controller.queue(QueueOptions::new().depth(4))?;
    for number in 0.. {
        let memory = match queue.room() {
            0 => queue.wait()?.memory.ok_or("the memory is lost")?,
            _ => memory(controller.device(), &vec![0; most])?,
        };
        queue.submit(namespace.read(0, memory))?;
        if number == 200 {
            println!("200 commands");
        }
    }
    Ok(())
}

pub(crate) fn killed_program_leaves_a_controller_that_comes_up() -> Outcome {
    if std::env::var_os(VICTIM).is_some() {
        return submit_for_ever();
    }
    drop(controller()?);
    let test = "killed_program_leaves_a_controller_that_comes_up";
    for _ in 0..3 {
        let line = killed(test, VICTIM)?;
        assert_eq!(line, "200 commands\n");
        let controller = controller()?;
        works(&controller, &mut queue(&controller)?, 16)?;
    }
    Ok(())
}
