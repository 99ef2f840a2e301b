// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream between two channels: packets, in pieces.

use std::collections::VecDeque;

/// Bytes for which there is room. While there are as many, the sender waits.
const ROOM: usize = 64 << 10;

#[derive(Debug)]
struct Piece {
    bytes: VecDeque<u8>,
    /// Whether the packet ends here.
    ends: bool,
}

/// A stream, with all that was sent and not yet received.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pieces: VecDeque<Piece>,
    bytes: usize,
}

impl Stream {
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= ROOM
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Sends some bytes, at least one.
    pub(crate) fn send(&mut self, bytes: &[u8], ends: bool) {
        self.bytes += bytes.len();
        let bytes = bytes.iter().copied().collect();
        self.pieces.push_back(Piece { bytes, ends });
    }

    /// Receives at most so many bytes of one packet, and whether it has ended.
    pub(crate) fn receive(&mut self, most: usize) -> (Vec<u8>, bool) {
        let Some(piece) = self.pieces.front_mut() else {
            return (Vec::new(), false);
        };
        let bytes: Vec<u8> = piece.bytes.drain(..most.min(piece.bytes.len())).collect();
        self.bytes -= bytes.len();
        let ended = piece.bytes.is_empty() && piece.ends;
        if piece.bytes.is_empty() {
            self.pieces.pop_front();
        }
        (bytes, ended)
    }
}
