// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes: numbers of bytes as people write them.

/// The units, with their powers of two.
const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Parses a number of bytes, such as 16384, 16K or 1G.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let unit = UNITS
        .iter()
        .find(|(letter, _)| text.ends_with([*letter, letter.to_ascii_lowercase()]));
    let (digits, shift) = match unit {
        Some(&(_, shift)) => (&text[..text.len() - 1], shift),
        None => (text, 0),
    };
    // The standard library would accept "+1".
    digits.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Formats a number of bytes in the largest unit that is exact.
pub(crate) fn format(bytes: u64) -> String {
    let exact = |&&(_, shift): &&(char, u32)| bytes != 0 && bytes % (1 << shift) == 0;
    match UNITS.iter().rev().find(exact) {
        Some((letter, shift)) => format!("{} {letter}iB", bytes >> shift),
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("16K", 16384),
            ("1m", 1 << 20),
            ("3G", 3 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "+1",
            "1.5G",
            "16 K",
            "16KB",
            "16777216T",
            "0x10",
            "1é",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_written() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (4097, "4097 bytes"),
            (4096, "4 KiB"),
            (3 << 20, "3 MiB"),
            (1 << 50, "1024 TiB"),
        ] {
            assert_eq!(format(bytes), text);
        }
    }
}
