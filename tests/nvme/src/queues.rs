// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: how they wait, how many there are, and what becomes of commands that are dropped.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use pinmap::Registration;
use pinmap_nvme::{Error, QueueOptions};

use crate::drivers::{block_on, content, memory, pattern};
use crate::harness::Outcome;
use crate::setup::{controller, error, on_disk, queue, returned, NAMESPACES};

pub(crate) fn waits_poll_or_sleep() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let options = QueueOptions::new();
    for (seed, options) in [
        (1, options),
        (2, options.polled()),
        (3, options.poll_first(Duration::from_secs(9))),
        (4, options.poll_first(Duration::from_micros(1))),
    ] {
        let mut queue = controller.queue::<Registration>(options)?;
        assert_eq!(queue.interrupt().is_some(), seed != 2);
        let bytes = pattern(seed, 4096);
        for round in 0..20 {
            let memory = memory(controller.device(), &bytes)?;
            let memory = returned(queue.run(namespace.write(8 * round, memory)))?;
            memory.write_at(0, &[0; 4096])?;
            let memory = returned(queue.run(namespace.read(8 * round, memory)))?;
            assert!(content(&memory, 4096)? == bytes, "{options:?}");
        }
    }
    Ok(())
}

pub(crate) fn full_queue_refuses() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    for depth in [1, 3, 64] {
        let mut queue = controller.queue::<Registration>(QueueOptions::new().depth(depth))?;
        for lap in 0..5u64 {
            for number in 0..u64::from(depth) {
                let memory = memory(controller.device(), &[0; 512])?;
                let submitted = queue.push(namespace.read(number, memory))?;
                assert_eq!(submitted, lap * u64::from(depth) + number);
            }
            assert_eq!((queue.room(), queue.in_flight()), (0, depth.into()));
            let memory = memory(controller.device(), &[0; 512])?;
            let full = error(queue.push(namespace.read(0, memory)), true)?;
            assert!(matches!(full, Error::Full), "{full}");
            let mut numbers = Vec::new();
            while queue.in_flight() != 0 {
                let done = queue.wait()?;
                // What is done and not taken has no room yet.
                assert_eq!(queue.room() + queue.in_flight(), depth.into());
                done.result?;
                assert!(done.memory.is_some());
                numbers.push(done.number);
            }
            numbers.sort_unstable();
            let first = lap * u64::from(depth);
            assert!(numbers.into_iter().eq(first..first + u64::from(depth)));
        }
    }
    Ok(())
}

pub(crate) fn futures_are_awaited() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let mut queue = queue(&controller)?;
    for number in 0..8 {
        let memory = memory(controller.device(), &pattern(number, 4096))?;
        queue.submit(namespace.write(8 * number, memory))?;
    }
    block_on(async {
        while queue.in_flight() != 0 {
            queue.next().await?.result?;
        }
        Ok::<_, Error>(())
    })?;
    for number in 0..8 {
        assert!(on_disk(1, 4096 * number, 4096)? == pattern(number, 4096));
    }
    let mut polled = controller.queue::<Registration>(QueueOptions::new().polled())?;
    polled.submit(namespace.flush())?;
    let error = block_on(polled.next());
    // It may be done already.
    assert!(error.map_or_else(|error| error.to_string().contains("polled"), |_| true));
    Ok(())
}

pub(crate) fn event_loop_polls_the_interrupts_file() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let mut queue = queue(&controller)?;
    for _ in 0..100 {
        for number in 0..8 {
            let memory = memory(controller.device(), &[0; 512])?;
            queue.submit(namespace.read(number, memory))?;
        }
        while queue.in_flight() != 0 {
            let interrupt = queue.interrupt().ok_or("the queue is not polled")?;
            let mut file = [PollFd::new(interrupt.as_fd(), PollFlags::POLLIN)];
            // An interrupt that is lost is waited for in vain.
            assert_eq!(poll(&mut file, PollTimeout::from(60_000_u16))?, 1);
            assert!(interrupt.try_wait()?.is_some(), "it was readable");
            while let Some(done) = queue.poll()? {
                done.result?;
            }
        }
    }
    Ok(())
}

pub(crate) fn several_commands_are_told_at_once() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let mut queue = queue(&controller)?;
    for number in 0..32 {
        let memory = memory(controller.device(), &pattern(100 + number, 512))?;
        queue.push(namespace.write(number, memory).part(0..512))?;
    }
    while queue.in_flight() != 0 {
        queue.wait()?.result?;
    }
    for number in 0..32 {
        assert!(on_disk(1, 512 * number, 512)? == pattern(100 + number, 512));
    }
    Ok(())
}

pub(crate) fn queues_run_out_and_come_back() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let options = QueueOptions::new().depth(2);
    for _ in 0..2 {
        let mut queues = Vec::new();
        let error = loop {
            match controller.queue::<Registration>(options) {
                Ok(queue) => queues.push(queue),
                Err(error) => break error,
            }
        };
        assert!(queues.len() >= 4, "{} and then: {error}", queues.len());
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        for queue in &mut queues {
            queue.run(namespace.flush())?;
        }
    }
    Ok(())
}

pub(crate) fn dropped_queue_ends_commands() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let most = controller.identity().max_transfer;
    for _ in 0..10 {
        let mut queue = queue(&controller)?;
        for _ in 0..16 {
            let memory = memory(controller.device(), &vec![0; most])?;
            queue.submit(namespace.read(0, memory))?;
        }
    }
    // A controller that is dropped with all that it has comes up again.
    drop((namespace, controller));
    let controller = crate::setup::controller()?;
    assert_eq!(controller.namespaces()?, NAMESPACES);
    Ok(())
}
