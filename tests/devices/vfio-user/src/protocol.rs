// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wire format of vfio-user: the part of version 0.0 that QEMU 11.1 uses.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

/// Size of a header in bytes.
pub(crate) const HEADER: usize = 16;
/// Bytes of data that one message may carry. QEMU fails on replies that its socket takes in parts.
pub(crate) const MAX_DATA: usize = 32 << 10;
/// Size limit of a message. A longer one is refused.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;

/// Error numbers of Linux.
pub(crate) const EINVAL: u32 = 22;
/// The command is not supported.
pub(crate) const ENOTSUP: u32 = 95;

const REPLY: u32 = 1;
const NO_REPLY: u32 = 0x10;
const ERROR: u32 = 0x20;

/// Commands.
pub(crate) mod command {
    #![allow(missing_docs)]
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const GET_INFO: u16 = 4;
    pub(crate) const GET_REGION_INFO: u16 = 5;
    pub(crate) const GET_IRQ_INFO: u16 = 7;
    pub(crate) const SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DMA_READ: u16 = 11;
    pub(crate) const DMA_WRITE: u16 = 12;
    pub(crate) const RESET: u16 = 13;
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Id of the message; a reply has the id of its request.
    pub(crate) id: u16,
    /// Command of the message.
    pub(crate) command: u16,
    /// Size in bytes, including the header.
    pub(crate) size: u32,
    flags: u32,
    error: u32,
}

impl Header {
    /// Makes the header of a request with so many bytes after it.
    pub(crate) fn request(id: u16, command: u16, payload: usize) -> Self {
        Self {
            id,
            command,
            size: (HEADER + payload) as u32,
            flags: 0,
            error: 0,
        }
    }

    /// Makes the header of a reply to `self`.
    pub(crate) fn reply(&self, payload: usize) -> Self {
        Self {
            size: (HEADER + payload) as u32,
            flags: REPLY,
            error: 0,
            ..*self
        }
    }

    /// Makes the header of an error reply to `self`.
    pub(crate) fn refusal(&self, error: u32) -> Self {
        Self {
            size: HEADER as u32,
            flags: REPLY | ERROR,
            error,
            ..*self
        }
    }

    /// Decodes a header.
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Self {
        let mut reader = Reader(bytes);
        Self {
            id: reader.u16().unwrap_or_default(),
            command: reader.u16().unwrap_or_default(),
            size: reader.u32().unwrap_or_default(),
            flags: reader.u32().unwrap_or_default(),
            error: reader.u32().unwrap_or_default(),
        }
    }

    /// Encodes the header, with room for what follows.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size as usize);
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.command.to_le_bytes());
        for word in [self.size, self.flags, self.error] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    /// Returns the bytes after the header, if the size is possible.
    pub(crate) fn payload(&self) -> Option<usize> {
        (self.size as usize)
            .checked_sub(HEADER)
            .filter(|payload| *payload <= MAX_MESSAGE)
    }

    /// Returns whether the message is a reply.
    pub(crate) fn is_reply(&self) -> bool {
        self.flags & 0xf == REPLY
    }

    /// Returns whether the sender wants no reply.
    pub(crate) fn no_reply(&self) -> bool {
        self.flags & NO_REPLY != 0
    }

    /// Returns whether the message is an error reply.
    pub(crate) fn is_error(&self) -> bool {
        self.flags & ERROR != 0
    }
}

/// Reads numbers from the front of a byte slice.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*front)
    }

    /// Reads two bytes.
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    /// Reads four bytes.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// Reads eight bytes.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Encodes 32-bit words.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Payload of DMA_MAP.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) struct Map {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

impl Map {
    /// Decodes the payload of a message.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        reader.u32()?;
        let flags = reader.u32()?;
        Some(Self {
            readable: flags & 1 != 0,
            writable: flags & 2 != 0,
            offset: reader.u64()?,
            address: reader.u64()?,
            size: reader.u64()?,
        })
    }
}

/// Payload of DMA_UNMAP.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) struct Unmap {
    pub(crate) all: bool,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

impl Unmap {
    /// Decodes the payload of a message.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        reader.u32()?;
        let all = reader.u32()? & 2 != 0;
        Some(Self {
            all,
            address: reader.u64()?,
            size: reader.u64()?,
        })
    }
}

/// First part of REGION_READ and REGION_WRITE.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) struct Region {
    pub(crate) offset: u64,
    pub(crate) region: u32,
    pub(crate) count: usize,
}

impl Region {
    /// Size of this part in bytes.
    pub(crate) const SIZE: usize = 16;

    /// Decodes the payload of a message.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        let (offset, region) = (reader.u64()?, reader.u32()?);
        let count = usize::try_from(reader.u32()?).ok()?;
        (count <= MAX_DATA).then_some(Self {
            offset,
            region,
            count,
        })
    }
}

/// First part of SET_IRQS.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) struct SetIrqs {
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) start: usize,
    pub(crate) count: usize,
}

impl SetIrqs {
    /// No data. With a count of zero, all vectors are disabled.
    pub(crate) const DATA_NONE: u32 = 1;
    /// The data are file descriptors.
    pub(crate) const DATA_EVENTFD: u32 = 4;

    /// Decodes the payload of a message.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        reader.u32()?;
        Some(Self {
            flags: reader.u32()?,
            index: reader.u32()?,
            start: usize::try_from(reader.u32()?).ok()?,
            count: usize::try_from(reader.u32()?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers() {
        let header = Header::request(7, command::DMA_READ, 16);
        let bytes: [u8; HEADER] = header.to_bytes().try_into().unwrap();
        assert_eq!(Header::parse(&bytes), header);
        assert_eq!(header.payload(), Some(16));
        let reply = header.refusal(EINVAL);
        assert!(reply.is_reply() && reply.is_error() && !header.is_reply());
        let wrong = Header { size: 15, ..header };
        assert_eq!(wrong.payload(), None);
        let long = Header {
            size: u32::MAX,
            ..header
        };
        assert_eq!(long.payload(), None);
    }

    proptest! {
        #[test]
        fn any_payload(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (Map::parse(&payload), Unmap::parse(&payload), SetIrqs::parse(&payload));
            if let Some(region) = Region::parse(&payload) {
                prop_assert!(region.count <= MAX_DATA);
            }
        }
    }
}
