// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfers that are refused, fail, take too long, or end with the card.

use std::error::Error as StdError;
use std::fs;
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use pinmap::{Access, Buffer, Device, Registration};
use pinmap_xdma::{
    Channel, ChannelOptions, Core, Direction, Done, Error, Failed, Memory, Transfer,
};

use crate::drivers::{block_on, content, killed, memory, pattern};
use crate::harness::Outcome;
use crate::setup::{design, error, mapped, pair, streams};
use crate::setup::{HOLD, MEMORY, SLAVE_ERROR};

/// Shows that the channels work.
pub(crate) fn works(core: &Core) -> Outcome {
    let (mut to, mut from) = pair(core, ChannelOptions::new())?;
    works_on(core, &mut to, &mut from)
}

pub(crate) fn works_on(
    core: &Core,
    to: &mut Channel<Registration>,
    from: &mut Channel<Registration>,
) -> Outcome {
    let bytes = pattern(77, 5000);
    let lent = to
        .run(Transfer::new(memory(core.device(), &bytes)?).at(3))?
        .memory;
    lent.write_at(0, &[0; 5000])?;
    let lent = from.run(Transfer::new(lent).at(3))?.memory;
    assert!(content(&lent, 5000)? == bytes);
    Ok(())
}

/// Options for transfers that are late at once, with short descriptors.
pub(crate) fn impatient() -> ChannelOptions {
    ChannelOptions::new().piece(64).timeout(Duration::ZERO)
}

pub(crate) fn bad_input_is_refused() -> Outcome {
    let core = mapped()?;
    let device = core.device();
    let (mut to, mut from) = pair(&core, ChannelOptions::new().descriptors(2).piece(4096))?;
    let new = || Ok::<_, Box<dyn StdError>>(Transfer::new(memory(device, &[9; 10_000])?));
    for (words, transfer) in [
        ("needs an address", new()?),
        ("are none of", new()?.at(0).part(0..0)),
        ("are none of", new()?.at(0).part(5..100_000)),
        ("64 bits of addresses", new()?.at(u64::MAX - 5)),
        ("3 descriptors, and at most 2", new()?.at(0)),
    ] {
        let (refused, lent) = error(to.run(transfer))?;
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        assert!(refused.to_string().contains(words), "{words}: {refused}");
        assert!(!to.in_flight() && content(&lent, 10_000)? == [9; 10_000]);
    }
    assert!(to
        .wait()
        .is_err_and(|failed| failed.error.to_string().contains("no transfer")));
    let readable = Buffer::<u8>::new(4096)?.register(device, Access::Read)?;
    let (refused, _) = error(from.run(Transfer::new(readable).at(0)))?;
    assert!(refused.to_string().contains("Access::Read"), "{refused}");
    let other = streams()?;
    let foreign = memory(other.device(), &[0; 64])?;
    let (refused, _) = error(to.run(Transfer::new(foreign).at(0)))?;
    assert!(
        refused.to_string().contains("the memory is of"),
        "{refused}"
    );
    works_on(&core, &mut to, &mut from)?;

    let (mut to, mut from) = pair(&other, ChannelOptions::new().piece(4096))?;
    let new = || Ok::<_, Box<dyn StdError>>(Transfer::new(memory(other.device(), &[9; 8192])?));
    for (words, receives, transfer) in [
        ("is a stream", true, new()?.at(0)),
        ("is a stream", false, new()?.at(0)),
        ("is a stream", false, new()?.fixed()),
        ("multiple of 64", true, new()?.part(0..100)),
        ("multiple of 64", false, new()?.part(0..100).more()),
        ("more than 4096", true, new()?),
    ] {
        let channel = if receives { &mut from } else { &mut to };
        let (refused, _) = error(channel.run(transfer))?;
        assert!(refused.to_string().contains(words), "{words}: {refused}");
    }
    drop((to, from));
    for options in [
        ChannelOptions::new().descriptors(0),
        ChannelOptions::new().piece(100),
        ChannelOptions::new().piece(1 << 28),
    ] {
        assert!(
            matches!(pair(&other, options), Err(Error::Invalid(_))),
            "{options:?}"
        );
    }
    let none = other.channel::<Registration>(Direction::C2h, 2, ChannelOptions::new());
    let words = "no channel C2H 2, but H2C 0, H2C 1, C2H 0, C2H 1";
    assert!(none.is_err_and(|error| error.to_string() == words));
    assert!(matches!(other.user_interrupt(16), Err(Error::Invalid(_))));
    Ok(())
}

pub(crate) fn other_cores_are_refused() -> Outcome {
    // Where edu has no registers, it reads as all ones.
    let edu = Device::find(0x1234, 0x11e8)?;
    let refused = Core::open(&edu).err().ok_or("edu has a core")?;
    assert!(
        matches!(&refused, Error::Invalid(words) if words.contains("all ones")),
        "{refused}"
    );
    Ok(())
}

pub(crate) fn errors_are_named() -> Outcome {
    let core = mapped()?;
    for options in [ChannelOptions::new(), ChannelOptions::new().polled()] {
        let (mut to, mut from) = pair(&core, options)?;
        for (at, words) in [
            (MEMORY - 32, "write_error 0"),
            (u64::MAX - 63, "write_error 0"),
            (SLAVE_ERROR, "write_error 1"),
        ] {
            let lent = memory(core.device(), &[1; 64])?;
            let (failed, lent) = error(to.run(Transfer::new(lent).part(0..64).at(at)))?;
            assert!(
                failed.to_string().starts_with("H2C 0 has the status"),
                "{failed}"
            );
            assert!(failed.to_string().contains(words), "{failed}");
            let words = words.replace("write", "read");
            let (failed, lent) = error(from.run(Transfer::new(lent).part(0..64).at(at)))?;
            assert!(
                failed.to_string().starts_with("C2H 0 has the status"),
                "{failed}"
            );
            assert!(failed.to_string().contains(&words), "{failed}");
            let Error::Status(status) = failed else {
                return Err(failed.into());
            };
            assert_eq!(status.channel(), *from.info());
            assert!(status.bits().is_power_of_two());
            assert_eq!(content(&lent, 64)?, [1; 64]);
        }
        works_on(&core, &mut to, &mut from)?;
    }
    Ok(())
}

/// Waits until a channel has given the memory of its transfer back.
pub(crate) fn returned<M: Memory>(channel: &mut Channel<M>) -> Result<Done<M>, Failed<M>> {
    loop {
        match channel.wait() {
            Err(failed) if failed.memory.is_none() && channel.in_flight() => {
                assert!(matches!(failed.error, Error::TimedOut), "{failed}");
            }
            other => return other,
        }
    }
}

pub(crate) fn late_transfer_stops_after_a_descriptor() -> Outcome {
    let core = mapped()?;
    let design = design(&core)?;
    for options in [impatient(), impatient().polled()] {
        let (mut to, from) = pair(&core, options)?;
        design.write(HOLD, 1u32)?;
        to.start(Transfer::new(memory(core.device(), &[3; 4096])?).at(0))?;
        to.stop();
        design.write(HOLD, 0u32)?;
        // One descriptor at most, of 64.
        let (late, lent) = error(returned(&mut to))?;
        assert!(matches!(late, Error::TimedOut), "{late}");
        assert!(content(&lent, 4096)? == [3; 4096]);
        drop((to, from));
        works(&core)?;
    }
    Ok(())
}

/// The receiving channel of a stream, and its memory.
type Receiver = (Channel<Arc<Registration>>, Arc<Registration>);

/// A channel that has received 64 of 128 bytes, and waits for the others: it does not stop.
fn half_received(core: &Core, options: ChannelOptions) -> Result<Receiver, Box<dyn StdError>> {
    let mut to = core.channel(Direction::H2c, 0, ChannelOptions::new())?;
    let mut from = core.channel(Direction::C2h, 0, options.piece(4096))?;
    let answer = Arc::new(memory(core.device(), &[0; 128])?);
    from.start(Transfer::new(Arc::clone(&answer)).part(0..128))?;
    let half = memory(core.device(), &[4; 64])?;
    to.run(Transfer::new(half).part(0..64).more())?;
    while content(&answer, 64)? != [4; 64] {
        std::thread::yield_now();
    }
    Ok((from, answer))
}

pub(crate) fn channel_that_does_not_stop_keeps_its_memory() -> Outcome {
    let core = streams()?;
    for options in [impatient(), impatient().polled()] {
        let (mut from, answer) = half_received(&core, options)?;
        for _ in 0..3 {
            let late = from.wait().err().ok_or("half of the bytes were enough")?;
            assert!(matches!(late.error, Error::TimedOut), "{late}");
            assert!(late.memory.is_none() && from.in_flight());
        }
        let mut to = core.channel(Direction::H2c, 0, ChannelOptions::new())?;
        to.run(Transfer::new(memory(core.device(), &[5; 36])?).part(0..36))?;
        // The descriptor that it had was the last one.
        let done = returned(&mut from)?;
        assert_eq!((done.len, done.end_of_packet), (100, true));
        assert_eq!(
            content(&answer, 100)?,
            [[4; 64].as_slice(), &[5; 36]].concat()
        );
        assert!(!from.in_flight());
    }
    Ok(())
}

pub(crate) fn dropped_channel_that_does_not_stop_is_taken() -> Outcome {
    let core = mapped()?;
    let (mut to, from) = pair(&core, ChannelOptions::new())?;
    // This one stops.
    to.start(Transfer::new(memory(core.device(), &[6; 4096])?).at(0))?;
    drop((to, from));
    works(&core)?;

    let core = streams()?;
    let (from, answer) = half_received(&core, impatient())?;
    drop(from);
    assert_eq!(Arc::strong_count(&answer), 2, "the memory is free");
    let taken =
        |core: &Core| core.channel::<Registration>(Direction::C2h, 0, ChannelOptions::new());
    assert!(matches!(taken(&core), Err(Error::Busy)));
    // Until the program ends, whoever opens the core.
    let device = core.device().clone();
    drop(core);
    assert!(matches!(taken(&Core::open(&device)?), Err(Error::Busy)));
    device.reset()?;
    assert!(matches!(taken(&Core::open(&device)?), Err(Error::Busy)));
    Ok(())
}

pub(crate) fn reset_ends_a_transfer() -> Outcome {
    let core = mapped()?;
    let (mut to, from) = pair(&core, impatient())?;
    design(&core)?.write(HOLD, 1u32)?;
    to.start(Transfer::new(memory(core.device(), &[7; 4096])?).at(0))?;
    core.device().reset()?;
    let (late, _) = error(returned(&mut to))?;
    assert!(matches!(late, Error::TimedOut), "{late}");
    drop((to, from));
    works(&core)
}

/// Gives a function to the driver anew.
fn bind_again(function: &str) -> Result<(), String> {
    let path = Path::new("/sys/bus/pci/devices").join(function);
    let write = |file: &str| fs::write(path.join(file), function);
    write("driver/unbind").map_err(|error| error.to_string())?;
    fs::write("/sys/bus/pci/drivers/pinmap/bind", function).map_err(|error| error.to_string())
}

pub(crate) fn gone_card_gives_memory_back() -> Outcome {
    let core = mapped()?;
    let function = core.device().info()?.pci.to_string();
    design(&core)?.write(HOLD, 1u32)?;
    let (mut to, from) = pair(&core, ChannelOptions::new())?;
    to.start(Transfer::new(memory(core.device(), &[8; 4096])?).at(0))?;
    let (rebind, (gone, lent)) = {
        // It has looked at the card, and now waits for the interrupt alone: each register of a card
        // that is gone raises SIGBUS.
        let mut next = pin!(to.next());
        let first = next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(first.is_pending());
        let rebind = std::thread::spawn(move || bind_again(&function));
        (rebind, error(block_on(next))?)
    };
    assert!(matches!(gone, Error::Gone), "{gone}");
    assert!(lent.release()?[..4096].iter().all(|&byte| byte == 8));
    assert!(!to.in_flight() && Core::open(core.device()).is_err());
    drop((to, from, core));
    rebind.join().map_err(|_| "binding has panicked")??;
    works(&mapped()?)
}

/// Set for the program that is to be killed.
const VICTIM: &str = "PINMAP_XDMA_VICTIM";

pub(crate) fn killed_program_leaves_a_card_that_works() -> Outcome {
    if std::env::var_os(VICTIM).is_some() {
        let core = mapped()?;
        let (mut to, mut from) = pair(&core, ChannelOptions::new())?;
        let mut both = (
            memory(core.device(), &[0; 1 << 20])?,
            memory(core.device(), &[0; 1 << 20])?,
        );
        for number in 0.. {
            to.start(Transfer::new(both.0).at(0))?;
            from.start(Transfer::new(both.1).at(0))?;
            both = (to.wait()?.memory, from.wait()?.memory);
            if number == 3 {
                println!("transfers");
            }
        }
    }
    drop(mapped()?);
    for _ in 0..3 {
        let line = killed("killed_program_leaves_a_card_that_works", VICTIM)?;
        assert_eq!(line, "transfers\n");
        works(&mapped()?)?;
    }
    Ok(())
}

/// Memory that lies about where it is.
struct Elsewhere(Registration);

impl Memory for Elsewhere {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn access(&self) -> Access {
        self.0.access()
    }

    fn pieces(
        &self,
        bytes: Range<usize>,
        _: usize,
        each: &mut dyn FnMut(u64, usize),
    ) -> pinmap::Result<()> {
        // Nothing is there.
        each(0x1000, bytes.len());
        Ok(())
    }
}

pub(crate) fn host_refuses_memory() -> Outcome {
    let core = mapped()?;
    let mut to = core.channel(Direction::H2c, 0, ChannelOptions::new())?;
    let lent = Elsewhere(memory(core.device(), &[2; 64])?);
    let (failed, _) = error(to.run(Transfer::new(lent).at(0)))?;
    assert!(failed.to_string().contains("read_error 0"), "{failed}");
    drop(to);
    works(&core)
}
