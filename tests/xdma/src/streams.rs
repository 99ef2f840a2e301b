// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: what is sent to the card comes back.

use std::os::fd::AsFd;
use std::sync::Arc;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use pinmap::Registration;
use pinmap_xdma::{Channel, ChannelOptions, Direction, Error, Transfer};

use crate::drivers::{block_on, content, memory, pattern};
use crate::harness::Outcome;
use crate::setup::{error, pair, streams};

pub(crate) fn packets_have_ends() -> Outcome {
    let core = streams()?;
    for options in [
        ChannelOptions::new().piece(4096),
        ChannelOptions::new().polled(),
    ] {
        let (mut to, mut from) = pair(&core, options)?;
        let mut answer = memory(core.device(), &[0; 4096])?;
        // A packet that the memory for it is larger than, as large as, and smaller than.
        for (seed, len) in [(1, 1), (2, 100), (3, 4096), (4, 10_000), (5, 64 << 10)] {
            let bytes = pattern(seed, len);
            to.start(Transfer::new(memory(core.device(), &bytes)?).part(0..bytes.len()))?;
            let mut received = Vec::new();
            loop {
                let done = from.run(Transfer::new(answer))?;
                answer = done.memory;
                received.extend(content(&answer, done.len)?);
                if done.end_of_packet {
                    break;
                }
                assert_eq!(done.len, 4096);
            }
            assert!(received == bytes, "{len} bytes");
            assert!(to.wait()?.end_of_packet);
        }
        // A packet in two transfers, of which the first has no end.
        let bytes = pattern(6, 1000);
        let lent = memory(core.device(), &bytes)?;
        let done = to.run(Transfer::new(lent).part(0..640).more())?;
        assert!(!done.end_of_packet);
        assert!(
            to.run(Transfer::new(done.memory).part(640..1000))?
                .end_of_packet
        );
        let done = from.run(Transfer::new(answer))?;
        assert_eq!((done.len, done.end_of_packet), (1000, true));
        assert!(content(&done.memory, 1000)? == bytes);
    }
    Ok(())
}

pub(crate) fn futures_are_awaited() -> Outcome {
    let core = streams()?;
    let (mut to, mut from) = pair(&core, ChannelOptions::new())?;
    let mut answer = memory(core.device(), &[0; 4096])?;
    for round in 0..20 {
        let bytes = pattern(round, 2000);
        // The receiver waits before there is something.
        from.start(Transfer::new(answer))?;
        assert!(from.poll()?.is_none());
        to.start(Transfer::new(memory(core.device(), &bytes)?).part(0..bytes.len()))?;
        let received = block_on(from.next())?;
        block_on(to.next())?;
        answer = received.memory;
        assert_eq!((received.len, received.end_of_packet), (2000, true));
        assert!(content(&answer, 2000)? == bytes);
    }
    drop((to, from));
    let (_to, mut from) = pair(&core, ChannelOptions::new().polled())?;
    from.start(Transfer::new(answer))?;
    let refused = block_on(from.next());
    assert!(refused.is_err_and(|failed| failed.error.to_string().contains("polled")));
    let twice = from.start(Transfer::new(memory(core.device(), &[0; 64])?));
    assert!(error(twice)?.0.to_string().contains("busy"));
    // Somebody has to send, or else the channel does not stop.
    let mut to = _to;
    to.run(Transfer::new(memory(core.device(), &[1; 64])?).part(0..64))?;
    assert_eq!(from.wait()?.len, 64);
    Ok(())
}

pub(crate) fn event_loop_polls_the_interrupts_files() -> Outcome {
    let core = streams()?;
    let (mut to, mut from) = pair(&core, ChannelOptions::new())?;
    for round in 0..20 {
        let bytes = pattern(round, 2000);
        from.start(Transfer::new(memory(core.device(), &[0; 4096])?))?;
        to.start(Transfer::new(memory(core.device(), &bytes)?).part(0..bytes.len()))?;
        while to.in_flight() || from.in_flight() {
            let mut files = Vec::new();
            for channel in [&to, &from] {
                let interrupt = channel.interrupt().ok_or("the channel is not polled")?;
                files.push(PollFd::new(interrupt.as_fd(), PollFlags::POLLIN));
            }
            // An interrupt that is lost is waited for in vain.
            assert!(poll(&mut files, PollTimeout::from(60_000_u16))? > 0);
            let readable: Vec<_> = files.iter().map(PollFd::any).collect();
            for (channel, readable) in [&mut to, &mut from].into_iter().zip(readable) {
                if readable != Some(true) {
                    continue;
                }
                let interrupt = channel.interrupt().ok_or("the channel is not polled")?;
                assert!(interrupt.try_wait()?.is_some(), "it was readable");
                if channel.in_flight() {
                    if let Some(done) = channel.poll()? {
                        assert!(content(&done.memory, 2000)? == bytes);
                    }
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn ring_receives_without_a_pause() -> Outcome {
    const BLOCK: usize = 256;
    let core = streams()?;
    for options in [ChannelOptions::new(), ChannelOptions::new().polled()] {
        let mut to: Channel<Registration> = core.channel(Direction::H2c, 0, options)?;
        let mut from: Channel<Arc<Registration>> = core.channel(Direction::C2h, 0, options)?;
        let ring = Arc::new(memory(core.device(), &[0; 5 * BLOCK])?);
        from.receive(Arc::clone(&ring), BLOCK)?;
        let (blocks, mut held) = (ring.len() / BLOCK, 0);
        for round in 0..200_u64 {
            // Packets of no block, of a part of one, and of several, each time around.
            let len = 1 + round as usize * 37 % (4 * BLOCK);
            let bytes = pattern(round, len);
            to.start(Transfer::new(memory(core.device(), &bytes)?).part(0..len))?;
            let mut received = Vec::new();
            loop {
                // Memory alone tells of a block.
                while !from.has_news()? {
                    std::thread::yield_now();
                }
                let Some(block) = from.poll_block()? else {
                    match from.interrupt() {
                        Some(interrupt) => _ = interrupt.wait()?,
                        None => std::thread::yield_now(),
                    }
                    continue;
                };
                let mut part = vec![0; block.bytes.len()];
                ring.read_at(block.bytes.start, &mut part)?;
                received.extend(part);
                // Some are given back late, but in their order.
                held += 1;
                if held == blocks - 1 {
                    (0..held).try_for_each(|_| from.give_back())?;
                    held = 0;
                }
                if block.end_of_packet {
                    break;
                }
            }
            assert!(received == bytes, "{round}: {len} bytes");
            to.wait()?;
        }
        // Full, it holds the design back, and nothing is overwritten.
        (0..held).try_for_each(|_| from.give_back())?;
        assert!(from.give_back().is_err());
        let sent = pattern(99, (blocks + 2) * BLOCK);
        to.start(Transfer::new(memory(core.device(), &sent)?).part(0..sent.len()))?;
        to.wait()?;
        let mut received = Vec::new();
        while received.len() < sent.len() {
            match from.poll_block()? {
                Some(block) => received.push(block.bytes),
                None if received.len() == blocks => break,
                None => std::thread::yield_now(),
            }
        }
        assert!(
            from.poll_block()?.is_none(),
            "a block that nobody gave back"
        );
        let (mut bytes, mut at) = (Vec::new(), 0);
        for number in 0..blocks + 2 {
            let block = match received.get(number) {
                Some(block) => block.clone(),
                None => loop {
                    if let Some(block) = from.poll_block()? {
                        break block.bytes;
                    }
                },
            };
            let mut part = vec![0; block.len()];
            ring.read_at(block.start, &mut part)?;
            bytes.extend(part);
            at = (block.start + BLOCK) % (blocks * BLOCK);
            from.give_back()?;
        }
        assert!(bytes == sent, "the stream has a gap");
        // It has a part of a block when it is stopped, and stops with the next bytes. That block is
        // told before the end.
        let send = |to: &mut Channel<_>, byte, transfer: fn(Transfer<_>) -> Transfer<_>| {
            let memory = memory(core.device(), &[byte; 64])?;
            to.run(transfer(Transfer::new(memory).part(0..64)))?;
            Outcome::Ok(())
        };
        send(&mut to, 1, Transfer::more)?;
        let mut part = [0; 64];
        while part != [1; 64] {
            ring.read_at(at, &mut part)?;
            std::thread::yield_now();
        }
        from.stop();
        send(&mut to, 3, |transfer| transfer)?;
        let last = loop {
            if let Some(block) = from.poll_block()? {
                break block;
            }
        };
        assert_eq!((last.bytes, last.end_of_packet), (at..at + 128, true));
        let stopped = loop {
            if let Err(stopped) = from.poll_block() {
                break stopped;
            }
        };
        assert!(matches!(stopped.error, Error::TimedOut), "{stopped}");
        let back = stopped.memory.ok_or("no memory came back")?;
        assert!(Arc::ptr_eq(&back, &ring) && !from.in_flight());
        let refused = from.poll_block().err().ok_or("there is no ring")?;
        assert!(
            refused.error.to_string().contains("no transfer"),
            "{refused}"
        );
        // Transfers go on without credits.
        send(&mut to, 2, |transfer| transfer)?;
        let done = from.run(Transfer::new(back))?;
        ring.read_at(0, &mut part)?;
        assert_eq!((done.len, part), (64, [2; 64]));
    }
    Ok(())
}

pub(crate) fn rings_are_of_streams_from_the_card() -> Outcome {
    let core = streams()?;
    let (mut to, mut from) = pair(&core, ChannelOptions::new().descriptors(4))?;
    let new = || memory(core.device(), &[0; 4096]);
    for (words, receives, block) in [
        ("H2C 0 has no ring", false, 1024),
        ("ring of 1 blocks", true, 4096),
        ("ring of 8 blocks, but of 2 to 4", true, 512),
        ("multiple of 64", true, 1000),
        ("are none of", true, 0),
    ] {
        let channel = if receives { &mut from } else { &mut to };
        let (refused, _) = error(channel.receive(new()?, block))?;
        assert!(refused.to_string().contains(words), "{words}: {refused}");
    }
    Ok(())
}
