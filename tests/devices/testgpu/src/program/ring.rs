// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring to which programs print.

use crate::fault::Reason;
use crate::pacer::Stop;
use crate::port::Port;
use crate::regs;

/// Longest text of a message.
pub(super) const LONGEST: u64 = 4096;
const HEAD: u64 = 32;
const SIZES: std::ops::RangeInclusive<u64> = 64..=1 << 30;

/// Appends a message with the text at a VA, of a thread in a block. Returns whether it was dropped.
/// If it faults, nothing was appended.
pub(super) fn print(
    port: &mut Port<'_>,
    ring: u64,
    (text, bytes): (u64, u64),
    [thread, block]: [u64; 2],
) -> Result<bool, Stop> {
    let mut head = [0; regs::RING_DATA as usize];
    port.read(ring, &mut head)?;
    let word = |offset: u64| {
        let at = offset as usize;
        head[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
    };
    let (written, dropped) = (word(regs::RING_WRITTEN), word(regs::RING_DROPPED));
    let size = word(regs::RING_BYTES);
    let used = written.wrapping_sub(word(regs::RING_READ));
    if !size.is_power_of_two() || !SIZES.contains(&size) || used > size || written % HEAD != 0 {
        return Err(Reason::BadCall.into());
    }
    let length = HEAD + bytes.next_multiple_of(HEAD);
    if length > size - used {
        port.store(ring + regs::RING_DROPPED, |_| dropped.wrapping_add(1))?;
        return Ok(true);
    }
    let mut message = vec![0; length as usize];
    let words = [bytes, thread, block, dropped];
    message[..HEAD as usize].copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
    port.read(text, &mut message[HEAD as usize..][..bytes as usize])?;
    let begin = written % size;
    let (first, second) = message.split_at(length.min(size - begin) as usize);
    let data = ring + regs::RING_DATA;
    port.write(data + begin, first, &mut 0)?;
    port.write(data, second, &mut 0)?;
    port.store(ring + regs::RING_WRITTEN, |_| written.wrapping_add(length))?;
    Ok(false)
}
