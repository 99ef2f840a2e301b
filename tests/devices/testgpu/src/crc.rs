// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRC-32C, eight bytes at a time.

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[n][b]` is the effect of byte b on the state when n more bytes follow.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 1 {
                (state >> 1) ^ POLYNOMIAL
            } else {
                state >> 1
            };
            bit += 1;
        }
        tables[0][byte] = state;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// Initial state, before the first byte.
pub const START: u32 = !0;

/// Returns the state after more bytes.
pub fn update(mut state: u32, bytes: &[u8]) -> u32 {
    let mut eights = bytes.chunks_exact(8);
    for eight in &mut eights {
        let word = eight.try_into().map_or(0, u64::from_le_bytes) ^ u64::from(state);
        state = 0;
        for (n, table) in TABLES.iter().enumerate() {
            state ^= table[((word >> (8 * (7 - n))) & 0xff) as usize];
        }
    }
    for byte in eights.remainder() {
        state = (state >> 8) ^ TABLES[0][((state ^ u32::from(*byte)) & 0xff) as usize];
    }
    state
}

/// Returns the checksum, given the state after the last byte.
pub fn finish(state: u32) -> u32 {
    !state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        let crc = |bytes: &[u8]| finish(update(START, bytes));
        assert_eq!(crc(b""), 0);
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc(&ascending), 0x46dd_794e);
    }
}
