// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries of queues: commands and completions, as the specification lays them out, and the
//! data pointers in commands, which tell where memory is.
//!
//! Memory is one stretch of device addresses. An SGL is a single descriptor then, which fits into
//! the entry. PRP name pages: the entry has the first one, and the second one or a list of all
//! others.

use pinmap::Descriptor;

use crate::error::{demand, Error, Result, Status};
use crate::PAGE;

/// A command: an entry of a submission queue. The words are: opcode, flags (from bit 8 on),
/// identifier (16) and namespace (32); 3 and 4: the data pointer; 5 to 7: command dwords 10 to 15.
pub(crate) type Entry = [u64; 8];

/// Makes an entry with an address in the data pointer, and words 5 and 6.
pub(crate) fn entry(opcode: u8, namespace: u32, addr: u64, words: [u64; 2]) -> Entry {
    let head = u64::from(opcode) | (u64::from(namespace) << 32);
    [head, 0, 0, addr, 0, words[0], words[1], 0]
}

/// Flag of an entry, in its first word: the data pointer is an SGL.
const SGL: u64 = 1 << 14;

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
    pub(crate) fn outcome(&self) -> Result<()> {
        match Status(self.status >> 1) {
            // The other bits alone are no error.
            status if (status.kind(), status.code()) == (0, 0) => Ok(()),
            status => Err(Error::Status(status)),
        }
    }
}

/// A data pointer, as two words of an entry.
#[derive(Debug, PartialEq)]
pub(crate) enum Data {
    /// In the entry: flags of its first word, and the pointer.
    Here(u64, [u64; 2]),
    /// The first page, where the second one begins, and how many there are from there on.
    List(u64, u64, usize),
}

impl Data {
    /// Makes the pointer to some bytes, as an SGL if that may begin at multiples of `sgl` bytes.
    pub(crate) fn new(addr: u64, len: usize, sgl: Option<u64>) -> Result<Self> {
        let alignment = sgl.unwrap_or(4);
        demand!(Invalid, addr % alignment == 0 =>
            "the memory at {addr:#x} is not aligned to {alignment} bytes");
        if sgl.is_some() {
            // The type of descriptor, in the uppermost bits, is 0: a data block.
            return Ok(Self::Here(SGL, [addr, len as u64]));
        }
        let page = PAGE as u64;
        let second = (addr - addr % page).wrapping_add(page);
        let others = ((addr % page) as usize + len).div_ceil(PAGE) - 1;
        Ok(match others {
            0 => Self::Here(0, [addr, 0]),
            1 => Self::Here(0, [addr, second]),
            _ => Self::List(addr, second, others),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_named_or_listed() {
        for (addr, len, data) in [
            (0x7000, 512, Data::Here(0, [0x7000, 0])),
            (0x7000, 4096, Data::Here(0, [0x7000, 0])),
            (0x7ffc, 4, Data::Here(0, [0x7ffc, 0])),
            (0x7ffc, 8, Data::Here(0, [0x7ffc, 0x8000])),
            (0x7004, 8188, Data::Here(0, [0x7004, 0x8000])),
            (0x7004, 8192, Data::List(0x7004, 0x8000, 2)),
            (0x7ffc, 2 << 20, Data::List(0x7ffc, 0x8000, 512)),
            // Behind the last page of all, as memory of others may say.
            (u64::MAX - 4095, 4100, Data::Here(0, [u64::MAX - 4095, 0])),
        ] {
            let found = Data::new(addr, len, None).expect("aligned memory");
            assert_eq!(found, data, "{addr:#x} {len}");
        }
    }

    #[test]
    fn sgl_is_one_descriptor() {
        let data = Data::Here(0x4000, [0x7001, 2 << 20]);
        let found = Data::new(0x7001, 2 << 20, Some(1)).expect("any byte will do");
        assert_eq!(found, data);
        for sgl in [None, Some(4)] {
            let error = Data::new(0x7002, 4, sgl).expect_err("not aligned");
            assert!(error.to_string().contains("aligned to 4"), "{error}");
        }
    }
}
