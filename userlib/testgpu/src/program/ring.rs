// SPDX-License-Identifier: MIT OR Apache-2.0
//! The print ring: what kernels print, in the order in which they did.

use super::launch::number_at;

/// Bytes before the ring's data.
pub(super) const HEAD: usize = 64;

const WRITTEN: usize = 0x00;
const DROPPED: usize = 0x08;
const READ: usize = 0x20;
const BYTES: usize = 0x28;

/// Bytes that a thread printed by one call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Number of the block.
    pub block: u64,
    /// Number of the thread in its block.
    pub thread: u64,
    /// The bytes that were printed: text, if the kernel prints only such.
    pub text: Vec<u8>,
}

/// Makes an empty ring of this memory.
pub(super) fn clear(ring: &mut [u8]) {
    let bytes = (ring.len() - HEAD) as u64;
    ring[..HEAD].fill(0);
    ring[BYTES..][..8].copy_from_slice(&bytes.to_le_bytes());
}

/// Takes all messages, and says for how many there was no room.
pub(super) fn take(ring: &mut [u8]) -> (Vec<Message>, u64) {
    let (written, dropped) = (number_at(ring, WRITTEN), number_at(ring, DROPPED));
    let mut read = number_at(ring, READ);
    let data = &ring[HEAD..];
    let byte = |at: u64| data[(at % data.len() as u64) as usize];
    let number = |at| u64::from_le_bytes(std::array::from_fn(|i| byte(at + i as u64)));
    let mut messages = Vec::new();
    while read < written {
        let len = number(read);
        // A program can write into the ring, too: what comes then is not known.
        let next = len
            .checked_next_multiple_of(32)
            .and_then(|len| read.checked_add(32 + len))
            .filter(|&next| next <= written && len <= data.len() as u64);
        let Some(next) = next else { break };
        messages.push(Message {
            block: number(read + 16),
            thread: number(read + 8),
            text: (0..len).map(|i| byte(read + 32 + i)).collect(),
        });
        read = next;
    }
    clear(ring);
    (messages, dropped)
}

/// Finds what a thread said of a panic in Rust, as one line: "panicked at FILE:LINE:COLUMN: WHY".
pub(super) fn panic(messages: &[Message], block: u64, thread: u64) -> Option<String> {
    let who = format!("block {block}, thread {thread} ");
    // A long text is several messages, and those of other threads may be between them.
    let own = messages.iter();
    let own = own.filter(|it| (it.block, it.thread) == (block, thread));
    let own: Vec<&[u8]> = own.map(|it| it.text.as_slice()).collect();
    let begin = format!("{who}panicked at ");
    let first = own
        .iter()
        .rposition(|it| it.starts_with(begin.as_bytes()))?;
    let text = own[first..].concat();
    let text = String::from_utf8_lossy(&text[who.len()..]);
    Some(text.lines().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_round() {
        let mut ring = vec![0; HEAD + 128];
        clear(&mut ring);
        assert_eq!(number_at(&ring, BYTES), 128);
        assert_eq!(take(&mut ring), (Vec::new(), 0));
        // One of 40 bytes, at 96 of 128, so that its text goes on at the beginning.
        for (at, number) in [(WRITTEN, 96 + 96), (READ, 96), (DROPPED, 3)] {
            ring[at..][..8].copy_from_slice(&u64::to_le_bytes(number));
        }
        for (at, number) in [(96, 40), (104, 7), (112, 9)] {
            ring[HEAD + at..][..8].copy_from_slice(&u64::to_le_bytes(number));
        }
        ring[HEAD..][..40].fill(b'x');
        let (messages, dropped) = take(&mut ring);
        assert_eq!((messages.len(), dropped), (1, 3));
        assert_eq!((messages[0].thread, messages[0].block), (7, 9));
        assert_eq!(messages[0].text, [b'x'; 40]);
        assert_eq!(take(&mut ring), (Vec::new(), 0));
    }

    #[test]
    fn a_panic_is_told_by_its_thread() {
        let say = |thread, text: &str| Message {
            block: 2,
            thread,
            text: text.as_bytes().to_vec(),
        };
        let all = [
            say(1, "block 2, thread 1 panicked at a.rs:1:2:\n"),
            say(3, "block 2, thread 3 panicked at b.rs:3:4:\nthere is no "),
            say(1, "not this\n"),
            say(3, "element\n"),
        ];
        let told = panic(&all, 2, 3);
        assert_eq!(
            told.as_deref(),
            Some("panicked at b.rs:3:4: there is no element")
        );
        assert_eq!(panic(&all, 3, 3), None);
        assert_eq!(panic(&[say(3, "kernels.c:7: assertion")], 2, 3), None);
    }

    #[test]
    fn a_ring_that_was_overwritten_ends() {
        let mut ring = vec![0xff; HEAD + 64];
        clear(&mut ring);
        ring[WRITTEN..][..8].copy_from_slice(&64u64.to_le_bytes());
        assert_eq!(take(&mut ring), (Vec::new(), 0));
    }
}
