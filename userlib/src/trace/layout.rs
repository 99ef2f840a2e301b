// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of a file of traces, in words of 8 bytes.
//!
//! The file begins with a page for all programs, and goes on with chunks. A program takes a chunk
//! by advancing [`header::USED`]. A chunk describes a context, or a queue of one with records of
//! its activities; a queue with many of them has several chunks. The device writes the first four
//! words of a record, and the program the others, [`activity::CODE`] last.

/// The page for all programs.
pub(super) mod header {
    /// The length in bytes.
    pub(in crate::trace) const LEN: usize = 4096;
    pub(in crate::trace) const MAGIC: usize = 0;
    /// "pinmap" and the version of this layout.
    pub(in crate::trace) const MAGIC_VALUE: u64 = u64::from_le_bytes(*b"pinmap\x00\x01");
    /// The length of the file in bytes.
    pub(in crate::trace) const SIZE: usize = 1;
    /// How much of it is taken, in bytes. Beyond [`SIZE`] if a program wanted more than there was.
    pub(in crate::trace) const USED: usize = 2;
    /// How many activities were not recorded.
    pub(in crate::trace) const LOST: usize = 3;
}

/// A chunk. Its first words describe it.
pub(super) mod chunk {
    use std::ops::Range;

    /// The length in bytes.
    pub(in crate::trace) const LEN: usize = 64 << 10;
    /// Words before the records.
    pub(in crate::trace) const HEADER: usize = 512;
    /// One of the next two; stored last.
    pub(in crate::trace) const KIND: usize = 0;
    pub(in crate::trace) const CONTEXT: u64 = 1;
    pub(in crate::trace) const QUEUE: u64 = 2;
    pub(in crate::trace) const PROCESS: usize = 1;
    pub(in crate::trace) const CONTEXT_ID: usize = 2;
    pub(in crate::trace) const QUEUE_ID: usize = 3;
    pub(in crate::trace) const PRIORITY: usize = 4;
    pub(in crate::trace) const BEFORE: usize = 5;
    pub(in crate::trace) const DEVICE_TIME: usize = 6;
    pub(in crate::trace) const AFTER: usize = 7;
    pub(in crate::trace) const COPY_ENGINES: usize = 8;
    pub(in crate::trace) const COMPUTE_SLOTS: usize = 9;
    pub(in crate::trace) const COMMAND: Range<usize> = 10..12;
    pub(in crate::trace) const PCI: Range<usize> = 12..16;
    pub(in crate::trace) const NODE: Range<usize> = 16..48;
}

/// A record of an activity.
pub(super) mod activity {
    use std::ops::Range;

    pub(in crate::trace) const WORDS: usize = 16;
    /// The device's clock behind the packet.
    pub(in crate::trace) const TIME: usize = 0;
    /// When an engine took the packet, and when it was done; 0: not known.
    pub(in crate::trace) const BEGUN: usize = 1;
    pub(in crate::trace) const ENDED: usize = 2;
    pub(in crate::trace) const ENGINE: usize = 3;
    /// A number of [`code`](super::code).
    pub(in crate::trace) const CODE: usize = 4;
    pub(in crate::trace) const SUBMITTED: usize = 5;
    pub(in crate::trace) const POSITION: usize = 6;
    /// Values whose meaning depends on the kind.
    pub(in crate::trace) const FIRST: usize = 7;
    pub(in crate::trace) const SECOND: usize = 8;
    pub(in crate::trace) const THIRD: usize = 9;
    pub(in crate::trace) const NAME: Range<usize> = 10..16;
}

/// The kinds of activities.
pub(super) mod code {
    pub(in crate::trace) const KINDS: u64 = 0xff;
    /// Added if the device stores all four words, and not only the first.
    pub(in crate::trace) const STAMP: u64 = 0x100;
    pub(in crate::trace) const TO_DEVICE: u64 = 1;
    pub(in crate::trace) const TO_HOST: u64 = 2;
    pub(in crate::trace) const INSIDE: u64 = 3;
    pub(in crate::trace) const FILL: u64 = 4;
    pub(in crate::trace) const KERNEL: u64 = 5;
    pub(in crate::trace) const WAIT_QUEUE: u64 = 6;
    pub(in crate::trace) const WAIT_VALUE: u64 = 7;
    pub(in crate::trace) const WRITE_VALUE: u64 = 8;
    pub(in crate::trace) const HOST_FUNCTION: u64 = 9;
    pub(in crate::trace) const RAW_PACKET: u64 = 10;
}

/// Text in words, cut if it is too long, with zeros behind it.
pub(super) mod text {
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(in crate::trace) fn store(words: &[AtomicU64], text: &str) {
        let mut bytes = text.bytes();
        for word in words {
            let next = std::array::from_fn(|_| bytes.next().unwrap_or(0));
            word.store(u64::from_le_bytes(next), Ordering::Relaxed);
        }
    }

    pub(in crate::trace) fn load(words: &[AtomicU64]) -> String {
        let words = words.iter();
        let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
