// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool, a range of addresses that all calls share so that they collide, and the patterns by
//! which memory of other programs is known.

use crate::sys;
use std::fs;
use std::io;

/// Where the pool is in each process.
pub(crate) const POOL: u64 = 0x10_0000_0000;
/// The size of the pool in bytes: two huge pages.
pub(crate) const POOL_LENGTH: u64 = 4 << 20;
/// The size of a page in bytes.
pub(crate) const PAGE: u64 = 4096;
/// The most bytes that one step of a thread touches.
const MOST: u64 = 32 * PAGE;
/// The upper bits of each word of a pattern.
const MARK: u64 = 0x5eed;

/// The words of one program: `MARK`, the program's number, and the step that wrote them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pattern {
    /// The number of the program. No other program of the player has it.
    pub(crate) program: u32,
}

impl Pattern {
    fn word(self, step: usize) -> u64 {
        (MARK << 48) | (u64::from(self.program) << 16) | step as u64
    }

    /// Writes a word to each 64 bytes of the range, until that fails. Returns how many bytes it
    /// went over.
    pub(crate) fn fill(self, step: usize, addr: u64, length: u64) -> u64 {
        let words = length.min(MOST) / 64;
        let done = (0..words)
            .take_while(|word| sys::store(addr.wrapping_add(word * 64) & !7, self.word(step)))
            .count();
        done as u64 * 64
    }

    /// Looks for words of another program, until a word cannot be read. Registers of devices are
    /// left out: they keep what was written if the device has no reset, as QEMU's edu has none.
    pub(crate) fn foreign(self, addr: u64, length: u64) -> Option<(u64, u64)> {
        for word in 0..length.min(MOST) / 8 {
            let addr = addr.wrapping_add(word * 8) & !7;
            let value = sys::load(addr)?;
            let foreign = value >> 48 == MARK && (value >> 16) as u32 != self.program;
            if foreign && is_memory(addr) && sys::load(addr) == Some(value) {
                return Some((addr, value));
            }
        }
        None
    }

    /// Looks for words of another program in the pages of the pool that programs use most.
    pub(crate) fn foreign_in_pool(self) -> Option<(u64, u64)> {
        (0..16).find_map(|page| self.foreign(POOL + page * PAGE, PAGE))
    }
}

/// Whether an address of this process is mapped, and not to a BAR.
fn is_memory(addr: u64) -> bool {
    fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps_memory(&maps, addr))
}

/// Whether a line of `/proc/PID/maps` has the address, and is not of a BAR.
fn maps_memory(maps: &str, addr: u64) -> bool {
    /// The driver gives BARs the offsets below, and other memory those from here on.
    const BEHIND_BARS: u64 = 6 << 40;
    let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
    maps.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let offset = words.nth(1).map_or(0, number);
        let is_here = range.is_some_and(|(from, to)| (number(from)..number(to)).contains(&addr));
        let is_bar = line.contains(" /dev/pinmap") && offset < BEHIND_BARS;
        is_here && !is_bar
    })
}

/// Memory of another user than the program's, who takes pages that are free.
#[derive(Debug)]
pub(crate) struct Others {
    addr: u64,
    pages: u64,
}

impl Others {
    /// The number that stands for the user in patterns.
    const PATTERN: Pattern = Pattern { program: u32::MAX };

    /// Takes pages, the same number from what each processor has free.
    pub(crate) fn new(pages: u64) -> io::Result<Self> {
        let pages = pages.clamp(1, 512);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let addr = sys::map(0, (pages * PAGE) as usize, flags, -1)? as u64;
        // SAFETY: The call has no requirements.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u64;
        for page in 0..pages {
            if page % pages.div_ceil(processors) == 0 {
                sys::run_on(Some(page / pages.div_ceil(processors)));
            }
            Self::PATTERN.fill(0, addr + page * PAGE, PAGE);
        }
        sys::run_on(None);
        Ok(Self { addr, pages })
    }

    /// The first word that somebody else has changed, and what it is now.
    pub(crate) fn changed(&self) -> Option<(u64, u64)> {
        let words = (0..self.pages * PAGE).step_by(64);
        let mut words = words.map(|at| (at, sys::load(self.addr + at).unwrap_or(0)));
        words.find(|(_, word)| *word != Self::PATTERN.word(0))
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        // SAFETY: The mapping is this value's.
        unsafe { libc::munmap(self.addr as *mut libc::c_void, (self.pages * PAGE) as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_no_memory() {
        let maps = "\
1000000000-1000001000 rw-p 00000000 00:00 0
1000001000-1000002000 rw-s 00000000 00:06 93     /dev/pinmap0
1000002000-1000003000 rw-s 50000000000 00:06 93  /dev/pinmap1
1000003000-1000004000 rw-s 80000000000 00:06 93  /dev/pinmap0
1000004000-1000005000 rw-s 00000000 00:01 7      /memfd:play (deleted)
";
        let memory = [0, 1, 2, 3, 4, 5].map(|page| maps_memory(maps, POOL + page * PAGE + 0xff8));
        assert_eq!(memory, [true, false, false, true, true, false]);
    }
}
