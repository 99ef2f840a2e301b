// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries of queues: commands and completions, as the specification lays them out.

use pinmap::Descriptor;

use crate::error::Status;

pinmap::element! {
    /// A command: an entry of a submission queue.
    #[derive(Debug, Default, PartialEq)]
    pub(crate) struct Entry {
        pub(crate) opcode: u8,
        pub(crate) flags: u8,
        pub(crate) id: u16,
        pub(crate) namespace: u32,
        pub(crate) reserved: u64,
        pub(crate) metadata: u64,
        /// Where the memory is.
        pub(crate) data: [u64; 2],
        /// Command dwords 10 to 15.
        pub(crate) words: [u32; 6],
    }
}

pinmap::element! {
    /// A completion: an entry of a completion queue.
    #[derive(Debug, Default, PartialEq)]
    pub(crate) struct Completion {
        pub(crate) result: u32,
        pub(crate) reserved: u32,
        pub(crate) head: u16,
        pub(crate) queue: u16,
        pub(crate) id: u16,
        pub(crate) status: u16,
    }
}

impl Entry {
    /// An entry of the admin queue, with the address of a page and command dwords 10 and 11.
    pub(crate) fn new(opcode: u8, page: u64, words: [u32; 2]) -> Self {
        Self {
            opcode,
            data: [page, 0],
            words: [words[0], words[1], 0, 0, 0, 0],
            ..Self::default()
        }
    }
}

impl Descriptor for Completion {
    type Status = u16;
    const STATUS: usize = std::mem::offset_of!(Completion, status);

    fn is_done(status: u16) -> bool {
        Self::is_done_in_lap(status, 0)
    }

    fn is_done_in_lap(status: u16, lap: u64) -> bool {
        (status & 1 != 0) == (lap % 2 == 0)
    }
}

impl Completion {
    /// Whether the command succeeded.
    pub(crate) fn outcome(&self) -> Result<(), Status> {
        match Status::new(self.status >> 1) {
            status if status.is_success() => Ok(()),
            status => Err(status),
        }
    }
}
