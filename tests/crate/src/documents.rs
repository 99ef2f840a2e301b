// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs in README.md, docs/using.md, the crate's own readme and its guides, run as they
//! stand there. Each checks its own results, but that of the guide `files`, which prints them.
#![allow(clippy::all)]

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::lent::faulting;
use crate::programs::bound;
use crate::setup::{device_content, edu};

include!(concat!(env!("OUT_DIR"), "/documents.rs"));

pub(crate) fn documents_have_these_programs() -> Outcome {
    assert_eq!((README.len(), USING.len()), (2, 6));
    assert_eq!((CRATE.len(), FILES.len(), FROM_CUDA.len()), (2, 1, 1));
    assert_eq!(NETWORK_CARD.len(), 1);
    Ok(())
}

pub(crate) fn readme_drives_a_device() -> Outcome {
    // The test is skipped without a device; otherwise the device must be free.
    drop(edu()?);
    README[0]()?;
    // The very device that the program opens: a card that was replugged is not the first one.
    let mut edu = crate::edu::Edu::new(pinmap::Device::open_pci("0000:00:10.0".parse()?)?)?;
    assert_eq!(device_content(&mut edu, 5)?, b"hello");
    Ok(())
}

pub(crate) fn readme_works_in_place() -> Outcome {
    drop(gpu()?);
    README[1]()
}

pub(crate) fn using_hands_memory_over() -> Outcome {
    drop(gpu()?);
    USING[0]()
}

pub(crate) fn using_moves_memory() -> Outcome {
    drop(faulting()?);
    USING.iter().try_for_each(|program| program())
}

pub(crate) fn crate_readme_works_in_place() -> Outcome {
    drop(gpu()?);
    CRATE[0]()
}

pub(crate) fn crate_readme_drives_a_device() -> Outcome {
    drop(edu()?);
    CRATE[1]()?;
    let mut edu = edu()?;
    assert_eq!(device_content(&mut edu, 13)?, b"hello, device");
    Ok(())
}

pub(crate) fn guides_have_programs_that_run() -> Outcome {
    drop(gpu()?);
    FILES[0]()?;
    FROM_CUDA[0]()
}

/// The program compares what the card has sent with what it has received.
pub(crate) fn guide_drives_a_network_card() -> Outcome {
    bound(("0x8086", "0x10c9"), network_card)
}

pub(crate) fn network_card() -> Outcome {
    NETWORK_CARD[0]()
}
