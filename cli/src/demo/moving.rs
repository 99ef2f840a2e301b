// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part about memory that moves: managed memory against zero-copy against copies, and a
//! timeline of pages moving.

use std::io::Write;
use std::time::Duration;

use pinmap::accelerator::{Accelerator, Advice, Place};
use pinmap_samples::moving::{self, Load, Moment, System};

use super::checks::{note_again, Checks, TRIES};
use super::report::{LoadReport, ManagedReport, MomentReport, Moves};
use super::table::time;
use crate::progress::during;
use crate::report_json::nanos;
use crate::{size, Result};

/// The loads, with what they are called, and with what their times are to show.
const LOADS: [(&str, Load, Claim); 3] = [
    (
        "by the device once",
        Load { turns: 1, uses: 1 },
        Claim {
            zero_copy_wins: true,
            what: "used once: zero-copy is faster than copying",
        },
    ),
    (
        "by the device ten times",
        Load { turns: 1, uses: 10 },
        Claim {
            zero_copy_wins: false,
            what: "used ten times: copying is faster than zero-copy",
        },
    ),
    (
        "by both, six times in turn",
        Load { turns: 6, uses: 1 },
        Claim {
            zero_copy_wins: true,
            what: "used by both in turn: zero-copy is faster than copying",
        },
    ),
];

/// Claim that the times of a load are to show.
struct Claim {
    /// Zero-copy is faster than copying, or the other way round.
    zero_copy_wins: bool,
    what: &'static str,
}

impl Claim {
    fn holds(&self, times: &Times) -> bool {
        let [_, _, zero_copy, copy] = times;
        match self.zero_copy_wins {
            true => zero_copy < copy,
            false => copy < zero_copy,
        }
    }
}

/// How often each is measured. The number is odd, so that the median is one of the times.
const RUNS: usize = 3;
/// How many columns the timeline has.
const COLUMNS: usize = 72;

/// The times of a load, in the order of [`System::ALL`]. They are medians.
type Times = [Duration; System::ALL.len()];

/// Measures, and draws a timeline. Returns nothing if the kernel manages no memory.
pub(crate) fn run(
    gpu: &Accelerator,
    checks: &mut Checks,
    out: &mut impl Write,
) -> Result<Option<ManagedReport>> {
    let len = moving::COUNT * size_of::<f32>();
    let bytes = size::format(len as u64);
    writeln!(
        out,
        "\n5. {bytes} of floats are used, and then read and written by the CPU. They move when \
         touched (managed)\n   or are moved (prefetched); stay in host memory (zero-copy); or are \
         copied there and back (copy).\n"
    )?;
    if !gpu.device().info()?.managed {
        writeln!(
            out,
            "   the kernel lets no driver follow the memory of programs"
        )?;
        return Ok(None);
    }
    writeln!(
        out,
        "{:>29} {:>12}{:>12}{:>12}{:>12}   {:>10}",
        "used", "managed", "prefetched", "zero-copy", "copy", "winner"
    )?;
    let what = "measuring memory that moves";
    let Measured { rows, right, again } = during(what, || measure_all(gpu))?;
    for ((name, ..), times) in LOADS.iter().zip(&rows) {
        write!(out, "{name:>29} ")?;
        for system in times {
            write!(out, "{:>12}", time(*system))?;
        }
        writeln!(out, "   {:>10}", winner(times))?;
    }
    writeln!(out)?;
    checks.add(out, right, "every float is right, whoever used it last")?;
    note_again(out, again)?;
    for ((_, _, claim), times) in LOADS.iter().zip(&rows) {
        checks.add_timed(out, claim.holds(times), claim.what)?;
    }
    let loads = LOADS
        .iter()
        .zip(&rows)
        .map(|(load, times)| report(load, *times));
    Ok(Some(ManagedReport {
        bytes: len,
        loads: loads.collect(),
        moves: draw(gpu, checks, out)?,
    }))
}

fn report((used, load, _): &(&'static str, Load, Claim), times: Times) -> LoadReport {
    let [managed, prefetched, zero_copy, copy] = times.map(nanos);
    LoadReport {
        used,
        turns: load.turns,
        uses: load.uses,
        managed_wall_ns: managed,
        prefetched_wall_ns: prefetched,
        zero_copy_wall_ns: zero_copy,
        copy_wall_ns: copy,
    }
}

/// The times of all loads.
struct Measured {
    rows: Vec<Times>,
    /// Whether all results are right.
    right: bool,
    /// How often a load was measured again.
    again: usize,
}

/// Measures all loads, each until its times show what they are to show.
fn measure_all(gpu: &Accelerator) -> Result<Measured> {
    let mut all = Measured {
        rows: Vec::new(),
        right: true,
        again: 0,
    };
    for (_, load, claim) in LOADS {
        let (mut times, mut good) = measure(gpu, load)?;
        for _ in 1..TRIES {
            if !good || claim.holds(&times) {
                break;
            }
            (times, good) = measure(gpu, load)?;
            all.again += 1;
        }
        all.rows.push(times);
        all.right &= good;
    }
    Ok(all)
}

/// Measures a load in all ways. Returns also whether all results are right.
fn measure(gpu: &Accelerator, load: Load) -> Result<(Times, bool)> {
    let mut all = [const { Vec::new() }; System::ALL.len()];
    let mut right = true;
    // In turns, so that other load on the computer affects all alike.
    for _ in 0..RUNS {
        for (times, system) in all.iter_mut().zip(System::ALL) {
            let outcome = moving::measure(gpu, system, load)?;
            right &= outcome.right;
            times.push(outcome.time);
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    Ok((all.map(median), right))
}

/// Names the quickest.
fn winner(times: &Times) -> &'static str {
    let names = ["managed", "prefetched", "zero-copy", "copy"];
    let quickest = names.iter().zip(times).min_by_key(|(_, time)| **time);
    quickest.map_or("", |(name, _)| *name)
}

/// Draws how pages move while both sides take turns, and returns it.
fn draw(gpu: &Accelerator, checks: &mut Checks, out: &mut impl Write) -> Result<Vec<Moves>> {
    let turns = LOADS[2].1.turns;
    let mut runs = Vec::new();
    for (name, advice) in [
        ("no advice", Advice::new()),
        ("to be on the device", Advice::new().prefer(Place::Vram)),
        ("to be on the host", Advice::new().prefer(Place::Host)),
    ] {
        runs.push((name, moving::watch(gpu, turns, advice)?));
    }
    let ends = runs.iter().filter_map(|(_, moments)| moments.last());
    let longest = ends.map(|last| last.time).max().unwrap_or_default();
    writeln!(
        out,
        "\n   both in turn, {turns} times, in {longest:.0?}: > pages move to the device, < home, x \
         both, . neither"
    )?;
    for (name, moments) in &runs {
        let last = moments.last().copied().unwrap_or_default();
        writeln!(
            out,
            "   {name}: {} there and {} home, in {:.0?}",
            size::format(last.there),
            size::format(last.home),
            last.time
        )?;
        writeln!(out, "     {}", moving::timeline(moments, longest, COLUMNS))?;
    }
    let moves: Vec<_> = runs.iter().map(|(name, seen)| moves(name, seen)).collect();
    if let [none, vram, host] = &moves[..] {
        let [none, vram, host] = [none, vram, host].map(|moves| moves.to_device_bytes);
        checks.add(
            out,
            host == 0 && vram > 0,
            "advice decides whether the memory moves",
        )?;
        checks.add(
            out,
            0 < none && none < vram,
            "without advice it stays on the host when both have taken it from each other often",
        )?;
    }
    Ok(moves)
}

/// Keeps the first moment, the last one, and those at which more had moved than before.
fn moves(advice: &'static str, seen: &[Moment]) -> Moves {
    let moment = |moment: &Moment| MomentReport {
        wall_ns: nanos(moment.time),
        to_device_bytes: moment.there,
        home_bytes: moment.home,
    };
    let changed = seen.windows(2).filter_map(|pair| {
        let [before, after] = pair else { return None };
        let same = (before.there, before.home) == (after.there, after.home);
        (!same).then(|| moment(after))
    });
    let mut moments: Vec<_> = seen
        .first()
        .map(moment)
        .into_iter()
        .chain(changed)
        .collect();
    let last = moment(&seen.last().copied().unwrap_or_default());
    if moments.last() != Some(&last) {
        moments.push(last);
    }
    Moves {
        advice,
        wall_ns: last.wall_ns,
        to_device_bytes: last.to_device_bytes,
        home_bytes: last.home_bytes,
        moments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(millis: [u64; 4]) -> Times {
        millis.map(Duration::from_millis)
    }

    fn failures(rows: &[Times; 3]) -> usize {
        let claims = LOADS.iter().zip(rows);
        claims
            .filter(|((_, _, claim), times)| !claim.holds(times))
            .count()
    }

    #[test]
    fn what_must_be_seen_is_checked() {
        let good = [
            row([30, 20, 10, 18]),
            row([40, 30, 80, 28]),
            row([90, 120, 60, 110]),
        ];
        assert_eq!(failures(&good), 0);
        for (load, way) in [(0, 2), (1, 3), (2, 2)] {
            let mut bad = good;
            bad[load][way] = Duration::from_secs(1);
            assert_eq!(failures(&bad), 1, "{load}");
        }
    }

    #[test]
    fn the_quickest_is_named() {
        assert_eq!(winner(&row([4, 3, 2, 5])), "zero-copy");
        assert_eq!(winner(&row([1, 3, 2, 5])), "managed");
    }

    #[test]
    fn moments_without_a_move_are_left_out() {
        let seen = [
            (0, 0, 0),
            (1, 0, 0),
            (2, 8, 0),
            (3, 8, 0),
            (4, 8, 4),
            (5, 8, 4),
        ];
        let seen = seen.map(|(millis, there, home)| Moment {
            time: Duration::from_millis(millis),
            there,
            home,
        });
        let moves = moves("none", &seen);
        let kept: Vec<_> = moves
            .moments
            .iter()
            .map(|m| m.wall_ns / 1_000_000)
            .collect();
        assert_eq!(kept, [0, 2, 4, 5]);
        assert_eq!((moves.to_device_bytes, moves.home_bytes), (8, 4));
        assert_eq!(moves.wall_ns, 5_000_000);
    }
}
