// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data pointers: how the entry of a command tells where its memory is.
//!
//! Memory is one stretch of device addresses. An SGL is a single descriptor then, which fits into
//! the entry. PRP name pages: the entry has the first one, and the second one or a list of all
//! others.

use crate::error::{Error, Result};
use crate::PAGE;

/// Flag of an entry: its pointer is an SGL.
const SGL: u8 = 1 << 6;

/// A data pointer, as two words of an entry.
#[derive(Debug, PartialEq)]
pub(crate) enum Data {
    /// In the entry: its flags, and the pointer.
    Here(u8, [u64; 2]),
    /// The first page, where the second one begins, and how many there are from there on.
    List(u64, u64, usize),
}

impl Data {
    /// Makes the pointer to some bytes, as an SGL if that may begin at multiples of `sgl` bytes.
    pub(crate) fn new(addr: u64, len: usize, sgl: Option<u64>) -> Result<Self> {
        let alignment = sgl.unwrap_or(4);
        if addr % alignment != 0 {
            let words = format!("the memory at {addr:#x} is not aligned to {alignment} bytes");
            return Err(Error::Invalid(words));
        }
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

    fn of(addr: u64, len: usize, sgl: Option<u64>) -> Data {
        Data::new(addr, len, sgl).expect("aligned memory")
    }

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
            assert_eq!(of(addr, len, None), data, "{addr:#x} {len}");
        }
    }

    #[test]
    fn sgl_is_one_descriptor() {
        let data = Data::Here(0x40, [0x7001, 2 << 20]);
        assert_eq!(of(0x7001, 2 << 20, Some(1)), data);
        for sgl in [None, Some(4)] {
            let error = Data::new(0x7002, 4, sgl).expect_err("not aligned");
            assert!(error.to_string().contains("aligned to 4"), "{error}");
        }
    }
}
