// SPDX-License-Identifier: MIT OR Apache-2.0
//! Channels that reach memory of the card; and user interrupts.

use std::sync::Arc;
use std::time::Duration;

use pinmap::{Access, ErrorKind};
use pinmap_xdma::{Channel, ChannelOptions, Core, Direction, Error, Memory, Transfer};

use crate::drivers::{content, memory, pattern};
use crate::harness::Outcome;
use crate::setup::{design, mapped, pair, streams};
use crate::setup::{INTERRUPTS, MEMORY, SCRATCH};

pub(crate) fn core_is_found() -> Outcome {
    let core = mapped()?;
    assert_eq!(core.bar(), 1);
    let names = core.channels().iter().map(ToString::to_string);
    assert!(names.eq(["H2C 0", "H2C 1", "C2H 0", "C2H 1"]));
    for channel in core.channels() {
        let lengths = (channel.alignment, channel.granularity, channel.address_bits);
        assert_eq!(
            (lengths, channel.version, channel.stream),
            ((1, 1, 64), 6, false)
        );
    }
    assert!(streams()?.channels().iter().all(|channel| channel.stream));
    Ok(())
}

pub(crate) fn core_opened_twice_is_one() -> Outcome {
    let core = mapped()?;
    let again = Core::open(core.device())?;
    let held = pair(&core, ChannelOptions::new().polled())?;
    let taken = pair(&again, ChannelOptions::new().polled());
    assert!(matches!(taken, Err(Error::Busy)));
    drop((core, held));
    pair(&again, ChannelOptions::new().polled())?;
    Ok(())
}

pub(crate) fn bytes_go_there_and_back() -> Outcome {
    let core = mapped()?;
    // The card's memory, past its channels.
    let bypass = core.device().bar(core.bar() + 1)?;
    for (seed, options) in [
        (1, ChannelOptions::new()),
        (2, ChannelOptions::new().polled()),
    ] {
        let (mut to, mut from) = pair(&core, options)?;
        assert_eq!(to.interrupt().is_some(), seed == 1);
        for (len, at) in [
            (1, 0),
            (63, 1),
            (4096, 0x1000),
            (5000, 77),
            ((1 << 20) + 3, 0x10_0001),
        ] {
            let bytes = pattern(seed + at, len);
            let lent = memory(core.device(), &bytes)?;
            let done = to.run(Transfer::new(lent).part(0..len).at(at))?;
            assert_eq!((done.len, done.end_of_packet), (len, false));
            let last = bypass.read::<u8>(at as usize + len - 1)?;
            assert_eq!(Some(&last), bytes.last(), "{len}");
            done.memory.write_at(0, &vec![0; len])?;
            let done = from.run(Transfer::new(done.memory).part(0..len).at(at))?;
            assert!(
                content(&done.memory, len)? == bytes,
                "{len} bytes at {at:#x}"
            );
            assert!(!from.in_flight());
        }
    }
    Ok(())
}

pub(crate) fn memory_of_all_kinds() -> Outcome {
    let core = mapped()?;
    let device = core.device();
    let bytes = pattern(3, 10_000);
    let options = ChannelOptions::new();
    let mut to: Channel<Box<dyn Memory>> = core.channel(Direction::H2c, 1, options)?;
    let vector = device.register(bytes.clone(), Access::Read)?;
    to.run(Transfer::new(Box::new(vector) as Box<dyn Memory>).at(0))?;
    let mut allocation = device.alloc::<u32>(2500)?;
    allocation.write(0, &[0x0403_0201; 2500])?;
    let shared = Arc::new(memory(device, &bytes)?);
    to.run(Transfer::new(Box::new(allocation) as Box<dyn Memory>).at(0x4000))?;
    let part = Transfer::new(Box::new(Arc::clone(&shared)) as Box<dyn Memory>).part(4097..5000);
    to.run(part.at(0x8000))?;

    let mut from = core.channel(Direction::C2h, 1, options)?;
    let shared = from.run(Transfer::new(shared).at(0))?.memory;
    assert!(content(&shared, 10_000)? == bytes);
    let shared = from
        .run(Transfer::new(shared).part(100..1003).at(0x8000))?
        .memory;
    let mut expected = bytes.clone();
    expected.copy_within(4097..5000, 100);
    assert!(content(&shared, 10_000)? == expected);
    let shared = from.run(Transfer::new(shared).at(0x4000))?.memory;
    assert!(content(&shared, 10_000)? == [1, 2, 3, 4].repeat(2500));
    Ok(())
}

pub(crate) fn long_lists_of_descriptors() -> Outcome {
    let core = mapped()?;
    for options in [
        ChannelOptions::new().piece(64),
        ChannelOptions::new().piece(64).polled(),
    ] {
        let (mut to, mut from) = pair(&core, options)?;
        // The last one: as many descriptors as there can be.
        for (first, len) in [
            (0, 64),
            (1, 65),
            (3, 64 * 64),
            (0, 64 * 65),
            (5, 20_000),
            (0, 1 << 16),
        ] {
            let bytes = pattern(len as u64, first + len);
            let lent = memory(core.device(), &bytes)?;
            let lent = to
                .run(Transfer::new(lent).part(first..first + len).at(9))?
                .memory;
            lent.write_at(first, &vec![0; len])?;
            let lent = from
                .run(Transfer::new(lent).part(first..first + len).at(9))?
                .memory;
            assert!(content(&lent, first + len)? == bytes, "{len} bytes");
        }
    }
    Ok(())
}

pub(crate) fn fixed_address_is_a_fifo() -> Outcome {
    let core = mapped()?;
    let (mut to, mut from) = pair(&core, ChannelOptions::new().piece(64))?;
    let lent = memory(core.device(), &pattern(5, 256))?;
    let lent = to
        .run(Transfer::new(lent).part(0..256).at(0x100).fixed())?
        .memory;
    let last = content(&lent, 256)?.split_off(248);
    // Not fixed any more.
    let lent = from.run(Transfer::new(lent).part(0..16).at(0x100))?.memory;
    assert_eq!(content(&lent, 8)?, last);
    let lent = from
        .run(Transfer::new(lent).part(0..256).at(0x100).fixed())?
        .memory;
    assert_eq!(content(&lent, 256)?, last.repeat(32));
    Ok(())
}

pub(crate) fn channels_of_several_threads() -> Outcome {
    let core = mapped()?;
    let device = core.device();
    let run = |number: usize| -> Outcome {
        let options = match number {
            0 => ChannelOptions::new().piece(4096),
            _ => ChannelOptions::new().polled(),
        };
        let mut to = core.channel(Direction::H2c, number, options)?;
        let mut from = core.channel(Direction::C2h, number, options)?;
        let start = number as u64 * MEMORY / 2;
        let mut both = (memory(device, &[0; 40_000])?, memory(device, &[0; 40_000])?);
        for round in 0..100 {
            let len = 1 + (round as usize * 7919) % 40_000;
            let at = start + (round * 104_729) % (MEMORY / 2 - 40_000);
            let bytes = pattern(round ^ start, len);
            both.0.write_at(0, &bytes)?;
            // The other one, of the round before, comes back meanwhile.
            to.start(Transfer::new(both.0).part(0..len).at(at))?;
            both.0 = to.wait()?.memory;
            from.start(Transfer::new(both.1).part(0..len).at(at))?;
            both.1 = from.wait()?.memory;
            assert!(content(&both.1, len)? == bytes, "{len} bytes at {at:#x}");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| {
            let run = &run;
            scope.spawn(move || run(number).map_err(|error| error.to_string()))
        });
        for thread in threads {
            thread.join().map_err(|_| "a thread has panicked")??;
        }
        Ok(())
    })
}

pub(crate) fn channels_are_taken_and_given_back() -> Outcome {
    let core = mapped()?;
    for _ in 0..3 {
        let (to, from) = pair(&core, ChannelOptions::new())?;
        let twice = pair(&core.clone(), ChannelOptions::new());
        assert!(matches!(twice, Err(Error::Busy)));
        // Nor does another context of this program get the card.
        let other = mapped().and_then(|core| Ok(pair(&core, ChannelOptions::new())?));
        assert!(other.is_err());
        drop((to, from));
    }
    Ok(())
}

pub(crate) fn user_interrupts_come() -> Outcome {
    let core = mapped()?;
    let design = design(&core)?;
    design.write(SCRATCH, 0x1234_5678u32)?;
    assert_eq!(design.read::<u32>(SCRATCH)?, 0x1234_5678);
    let (third, last) = (core.user_interrupt(3)?, core.user_interrupt(15)?);
    let wait = Duration::from_secs(20);
    for _ in 0..3 {
        design.write(INTERRUPTS, 0x8u32)?;
        assert_eq!(third.interrupt().wait_timeout(wait)?, 1);
        assert!(third.is_pending() && !last.is_pending());
        design.write(INTERRUPTS, 0x8000u32)?;
        assert_eq!(last.interrupt().wait_timeout(wait)?, 1);
        assert!(!third.is_pending() && last.is_pending());
        assert_eq!(third.interrupt().try_wait()?, None);
        design.write(INTERRUPTS, 0u32)?;
    }
    // A request that is there already when the interrupt is taken comes, too.
    drop(third);
    design.write(INTERRUPTS, 0x8u32)?;
    let third = core.user_interrupt(3)?;
    assert_eq!(third.interrupt().wait_timeout(wait)?, 1);
    design.write(INTERRUPTS, 0u32)?;
    let twice = core.user_interrupt(3);
    assert!(matches!(twice, Err(Error::Pinmap(error)) if error.kind() == ErrorKind::AlreadyExists));
    Ok(())
}

/// The example of the guide, in from_udmabuf_xdma.md.
pub(crate) fn guide_drives_the_core() -> Outcome {
    let core = mapped()?;
    let device = core.device();
    let image = memory(device, &pattern(8, 1 << 20))?;
    let (core, interrupt) = (device.bar(core.bar())?, device.interrupt(0)?);
    let mut list = device.alloc::<u64>(4)?;
    list.write(0, &[(1 << 52) | 0xad4b_0003, image.device_addr()?, 0, 0])?;
    core.write(0x2014, 1u32)?;
    core.write(0x0090, 2u32)?;
    core.write(0x4080, list.device_addr() as u32)?;
    core.write(0x4084, (list.device_addr() >> 32) as u32)?;
    core.write(0x4088, 0u32)?;
    core.write(0x0004, 3u32)?;
    interrupt.wait_timeout(Duration::from_secs(20))?;
    let bypass = device.bar(2)?;
    let last = content(&image, 1 << 20)?.split_off((1 << 20) - 8);
    assert_eq!(bypass.read::<u64>((1 << 20) - 8)?.to_le_bytes(), *last);
    Ok(())
}
