// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of many tests: the cards, registers of their design, memory with some content.

use std::error::Error;

use pinmap::{Bar, Device, Registration};
use pinmap_xdma::{Channel, ChannelOptions, Core, Direction, Failed};

use crate::harness::{skip, Outcome};

/// Registers of the design (tests/devices/xdma/XDMA.md).
pub(crate) const SCRATCH: usize = 0x04;
pub(crate) const INTERRUPTS: usize = 0x08;
const FORBIDDEN: usize = 0x0c;
pub(crate) const HOLD: usize = 0x10;
/// Bits of the last one, besides the first.
pub(crate) const LATE: u32 = 1 << 1;
pub(crate) const LINGERS: u32 = 1 << 2;
pub(crate) const DEAD: u32 = 1 << 3;
/// Bytes of the card's memory, and an address with a slave error.
pub(crate) const MEMORY: u64 = 4 << 20;
pub(crate) const SLAVE_ERROR: u64 = 0x8000_0000;

/// Opens the devices that could be cards.
fn devices() -> Result<Vec<Device>, Box<dyn Error>> {
    let mut found = Vec::new();
    for node in Device::list()? {
        let device = Device::open(&node.path)?;
        if device.info()?.id == (0x10ee, 0x9038) {
            found.push(device);
        }
    }
    match found.len() {
        0 => skip("there is no card with the core bound to pinmap"),
        _ => Ok(found),
    }
}

/// The card with streams, or the other one; or skips the test.
fn card(stream: bool) -> Result<Core, Box<dyn Error>> {
    let mut why = String::from("there is one kind of card only");
    for device in devices()? {
        match Core::open(&device) {
            Ok(core) if core.channels().iter().all(|info| info.stream == stream) => {
                return Ok(core);
            }
            Ok(_) => {}
            // The program may have it already.
            Err(error) => why = error.to_string(),
        }
    }
    Err(why.into())
}

/// The card whose channels reach memory.
pub(crate) fn mapped() -> Result<Core, Box<dyn Error>> {
    card(false)
}

/// The card with streams.
pub(crate) fn streams() -> Result<Core, Box<dyn Error>> {
    card(true)
}

/// The registers of the design.
pub(crate) fn design(core: &Core) -> pinmap::Result<Bar> {
    core.device().bar(0)
}

/// Channel 0 of each direction.
pub(crate) fn pair(
    core: &Core,
    options: ChannelOptions,
) -> pinmap_xdma::Result<(Channel<Registration>, Channel<Registration>)> {
    Ok((
        core.channel(Direction::H2c, 0, options)?,
        core.channel(Direction::C2h, 0, options)?,
    ))
}

/// The error of a transfer that has failed, with its memory.
pub(crate) fn error<M, T>(
    result: Result<T, Failed<M>>,
) -> Result<(pinmap_xdma::Error, M), Box<dyn Error>> {
    match result {
        Ok(_) => Err("the transfer did not fail".into()),
        Err(Failed { error, memory }) => match memory {
            Some(memory) => Ok((error, memory)),
            None => Err(format!("the memory is lost: {error}").into()),
        },
    }
}

pub(crate) fn manual_forbids_nothing_that_was_done() -> Outcome {
    for device in devices()? {
        let forbidden: u32 = device.bar(0)?.read(FORBIDDEN)?;
        assert_eq!(forbidden, 0, "{device}");
    }
    Ok(())
}
