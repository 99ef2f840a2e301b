// SPDX-License-Identifier: MIT OR Apache-2.0
//! The comparison as a table, and the checks of what it must show.

use std::io::Write;
use std::time::Duration;

use pinmap::accelerator::AcceleratorInfo;
use pinmap_samples::work::Times;

use super::checks::{note_again, Checks};
use super::rows::Row;
use crate::{size, Result};

/// From this number of bytes on, the bandwidth decides.
const LARGE: u64 = 64 << 10;

/// Writes the table.
pub(crate) fn write(rows: &[Row], info: &AcceleratorInfo, out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "\n4. add 1 to floats: in host memory (zero-copy), or copied to the device and back \
         (copy).\n   Host memory: {}; device memory: {}. Medians.\n",
        super::link(info.link),
        super::link(info.vram)
    )?;
    let [first, second] = ["", "bytes"].map(|title| format!("{title:>10}"));
    writeln!(
        out,
        "{first} {:>5} {:>24}   {:>24}   {:>16}",
        "", "device time", "wall time", "winner"
    )?;
    writeln!(
        out,
        "{second} {:>5} {:>12}{:>12}   {:>12}{:>12}   {:>16}",
        "uses", "zero-copy", "copy", "zero-copy", "copy", "device / wall"
    )?;
    for row in rows {
        let Row {
            zero_copy, copy, ..
        } = row;
        writeln!(
            out,
            "{:>10} {:>5} {:>12}{:>12}   {:>12}{:>12}   {:>16}",
            size::format(row.bytes),
            row.uses,
            time(zero_copy.device),
            time(copy.device),
            time(zero_copy.wall),
            time(copy.wall),
            format!(
                "{} / {}",
                winner(row, |times| times.device),
                winner(row, |times| times.wall)
            )
        )?;
    }
    writeln!(out)?;
    Ok(())
}

/// The faster way, by one of the times.
fn winner(row: &Row, by: fn(&Times) -> Duration) -> &'static str {
    match by(&row.zero_copy).cmp(&by(&row.copy)) {
        std::cmp::Ordering::Less => "zero",
        std::cmp::Ordering::Equal => "none",
        std::cmp::Ordering::Greater => "copy",
    }
}

/// A time with three digits and a unit.
pub(crate) fn time(time: Duration) -> String {
    let micros = time.as_nanos() as f64 / 1e3;
    let (value, unit) = if micros < 1e3 {
        (micros, "µs")
    } else if micros < 1e6 {
        (micros / 1e3, "ms")
    } else {
        (micros / 1e6, "s")
    };
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// Whether the times by the device's clock are as its model of a link makes them: zero-copy is
/// faster for data that is used once, copying for large data that is used often. For small data
/// that is used often, either may be.
pub(crate) fn as_expected(row: &Row) -> bool {
    let winner = winner(row, |times| times.device);
    match row.uses {
        1 => winner == "zero",
        _ => row.bytes < LARGE || winner == "copy",
    }
}

/// Checks what the rows are to show.
pub(crate) fn check(rows: &[Row], checks: &mut Checks, out: &mut impl Write) -> Result<()> {
    let right = rows.iter().all(|row| row.right);
    checks.add(out, right, "every float is right in the end, in every row")?;
    note_again(out, rows.iter().map(|row| row.again).sum())?;
    let (once, often): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.uses == 1);
    let all = |rows: &[&Row]| rows.iter().all(|row| as_expected(row));
    checks.add_timed(
        out,
        all(&once),
        "used once: zero-copy is faster, at every size",
    )?;
    let what = format!(
        "used often: copying is faster, from {} on",
        size::format(LARGE)
    );
    checks.add_timed(out, all(&often), &what)
}

#[cfg(test)]
mod tests {
    use super::super::checks::verdict;
    use super::*;

    fn row(bytes: u64, uses: u32, zero_copy: u64, copy: u64) -> Row {
        let times = |micros| Times {
            device: Duration::from_micros(micros),
            wall: Duration::from_micros(2 * micros),
        };
        Row {
            bytes,
            uses,
            zero_copy: times(zero_copy),
            copy: times(copy),
            right: true,
            again: 0,
        }
    }

    fn failures(rows: &[Row]) -> String {
        let (mut checks, mut out) = (Checks::default(), Vec::new());
        check(rows, &mut checks, &mut out).expect("written");
        verdict(&checks.all).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn times_have_three_digits() {
        let text = |nanos| time(Duration::from_nanos(nanos));
        assert_eq!(text(0), "0.00 µs");
        assert_eq!(text(9_990), "9.99 µs");
        assert_eq!(text(9_999), "10.0 µs");
        assert_eq!(text(123_456), "123 µs");
        assert_eq!(text(67_100_000), "67.1 ms");
        assert_eq!(text(1_500_000_000), "1.50 s");
    }

    #[test]
    fn what_must_be_seen_is_checked() {
        let good = [
            row(4, 1, 5, 9),
            row(LARGE, 1, 66, 133),
            row(4, 10, 50, 40),
            row(LARGE, 10, 660, 200),
        ];
        assert_eq!(failures(&good), "");
        let mut bad = good;
        bad[0].zero_copy = bad[0].copy;
        assert!(failures(&bad).contains("used once"));
        // For small data that is used often, either way may be faster.
        let mut fine = good;
        fine[2].copy = fine[1].copy;
        assert_eq!(failures(&fine), "");
        let mut bad = good;
        bad[3].copy.device = Duration::from_secs(1);
        assert!(failures(&bad).contains("used often"));
        let mut bad = good;
        bad[3].right = false;
        assert!(failures(&bad).contains("every float"));
    }

    #[test]
    fn rows_name_their_winners() {
        let row = row(LARGE, 10, 660, 200);
        assert_eq!(winner(&row, |times| times.wall), "copy");
        let (mut checks, mut out) = (Checks::default(), Vec::new());
        check(&[row], &mut checks, &mut out).expect("written");
        assert!(String::from_utf8_lossy(&out).contains("from 64 KiB on"));
    }
}
