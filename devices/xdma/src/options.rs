// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of channels: how waits wait, for how long, and how memory is cut.

use std::time::Duration;

use crate::error::{Error, Result};

/// Bytes of a descriptor at most: its field has 28 bits. A multiple of all alignments.
const MOST: usize = (1 << 28) - 4096;

/// Options of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelOptions {
    pub(crate) polled: bool,
    pub(crate) timeout: Duration,
    pub(crate) descriptors: usize,
    pub(crate) piece: usize,
}

impl ChannelOptions {
    /// Options for transfers that may take 10 seconds, and whose ends raise an interrupt.
    pub fn new() -> Self {
        Self {
            polled: false,
            timeout: Duration::from_secs(10),
            descriptors: 1024,
            piece: MOST,
        }
    }

    /// Makes waits poll, in memory to which the core writes (poll mode), and never sleep. The
    /// channel takes no interrupt vector.
    #[must_use]
    pub fn polled(mut self) -> Self {
        self.polled = true;
        self
    }

    /// Sets how long a transfer may take before the channel is stopped, and then how long it may
    /// take to stop.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many descriptors a transfer can have.
    #[must_use]
    pub fn descriptors(mut self, descriptors: usize) -> Self {
        self.descriptors = descriptors;
        self
    }

    /// Sets how many bytes a descriptor has at most, a multiple of 64 below 2^28: a transfer that
    /// takes too long is stopped after a descriptor.
    #[must_use]
    pub fn piece(mut self, bytes: usize) -> Self {
        self.piece = bytes;
        self
    }

    /// Checks that the options make sense.
    pub(crate) fn check(&self) -> Result<()> {
        let (descriptors, piece) = (self.descriptors, self.piece);
        let most = 1 << 20;
        if descriptors == 0 || descriptors > most {
            let words = format!("a channel has 1 to {most} descriptors, not {descriptors}");
            return Err(Error::Invalid(words));
        }
        if piece == 0 || piece % 64 != 0 || piece > MOST {
            let words =
                format!("a descriptor has a multiple of 64 bytes up to {MOST}, not {piece}");
            return Err(Error::Invalid(words));
        }
        Ok(())
    }
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self::new()
    }
}
