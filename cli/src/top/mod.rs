// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap top`: shows devices and contexts again and again.

mod sample;
mod screen;

use std::io::{IsTerminal, Write};
use std::thread::sleep;
use std::time::Duration;

use nix::unistd::Uid;

use crate::args::TopOptions;
use crate::{style, Result};

use sample::{Roots, Sample};
use screen::Screen;

/// Shows samples until the user ends it, or as many as the options say.
pub(crate) fn run(options: &TopOptions, out: &mut impl Write) -> Result<()> {
    let roots = Roots::system();
    let interval = Duration::from_secs_f64(options.interval);
    let count = if options.once { Some(1) } else { options.count };
    // On a terminal samples replace each other.
    let live = std::io::stdout().is_terminal() && !options.json && count != Some(1);
    let screen = live.then(Screen::new).transpose()?;
    let mut before: Option<Sample> = None;
    let mut number = 0;
    loop {
        let sample = roots.sample(before.as_ref())?;
        if options.json {
            writeln!(out, "{}", serde_json::to_string(&sample)?)?;
        } else {
            if screen.is_some() {
                screen::clear()?;
            } else if number != 0 {
                writeln!(out)?;
            }
            write(&sample, out)?;
        }
        out.flush()?;
        before = Some(sample);
        number += 1;
        if count.is_some_and(|count| number >= count) {
            return Ok(());
        }
        match &screen {
            Some(screen) if screen.wait_for_end(interval)? => return Ok(()),
            Some(_) => {}
            None => sleep(interval),
        }
    }
}

/// A number of bytes in about five characters.
fn short(bytes: u64) -> String {
    let unit = ["B", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut index = 0;
    while value >= 1024.0 && index + 1 < unit.len() {
        value /= 1024.0;
        index += 1;
    }
    match value {
        value if index == 0 || value >= 99.95 => format!("{value:.0}{}", unit[index]),
        value => format!("{value:.1}{}", unit[index]),
    }
}

fn optional(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), short)
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"))
}

/// Writes a sample as two tables.
fn write(sample: &Sample, out: &mut impl Write) -> Result<()> {
    let (on, off) = (style::HEADING, style::HEADING.render_reset());
    writeln!(
        out,
        "{on}{:<10} {:<6} {:>8} {:>8} {:>8} {:>8} {:>6} {:>15} {:>9} {:>8}{off}",
        "device",
        "kind",
        "contexts",
        "pinned",
        "mapped",
        "managed",
        "queues",
        "VRAM used",
        "faults",
        "faults/s"
    )?;
    for device in &sample.devices {
        let used = device.vram.zip(device.vram_free).map(|(all, free)| {
            let used = all.saturating_sub(free);
            format!("{} of {}", short(used), short(all))
        });
        writeln!(
            out,
            "{:<10} {:<6} {:>8} {:>8} {:>8} {:>8} {:>6} {:>15} {:>9} {:>8}",
            device.device,
            device.kind,
            device.contexts,
            short(device.pinned),
            short(device.mapped),
            optional(device.managed),
            device
                .queues
                .map_or_else(|| "-".to_owned(), |queues| queues.to_string()),
            used.unwrap_or_else(|| "-".to_owned()),
            device
                .faults_served
                .map_or_else(|| "-".to_owned(), |faults| faults.to_string()),
            rate(device.faults_per_second),
        )?;
    }
    if sample.devices.is_empty() {
        writeln!(
            out,
            "no device is bound to the driver; `pinmap doctor` says why"
        )?;
    }
    writeln!(
        out,
        "\n{on}{:>7} {:<16} {:<12} {:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}{off}",
        "PID",
        "command",
        "function",
        "pinned",
        "allocated",
        "VRAM",
        "mapped",
        "managed",
        "faults",
        "faults/s"
    )?;
    for context in &sample.contexts {
        writeln!(
            out,
            "{:>7} {:<16} {:<12} {:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}",
            context.pid,
            context.command,
            context.pci,
            short(context.pinned),
            short(context.allocated),
            short(context.vram),
            short(context.mapped),
            short(context.managed),
            context.faults_served,
            rate(context.faults_per_second),
        )?;
    }
    match sample.hidden_processes {
        0 => Ok(()),
        number => Ok(writeln!(
            out,
            "{}",
            hidden(number, Uid::effective().is_root())
        )?),
    }
}

/// Tells of processes of which no files can be seen, and who would see them.
fn hidden(number: usize, is_root: bool) -> String {
    let processes = match number {
        1 => "1 process is".to_owned(),
        _ => format!("{number} processes are"),
    };
    match is_root {
        false => format!("{processes} another user's; root sees their files, too"),
        // In a container, or under a security module.
        true => format!(
            "{processes} closed to this root, which lacks the capability CAP_SYS_PTRACE; root of \
             the host sees their files, too"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::sample::tests::Fake;
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (4096, "4.0K"),
            (200 << 10, "200K"),
            (3 << 29, "1.5G"),
            (1 << 50, "1024T"),
        ] {
            assert_eq!(short(bytes), text);
        }
    }

    #[test]
    fn who_sees_more_is_told() {
        assert_eq!(
            hidden(1, false),
            "1 process is another user's; root sees their files, too"
        );
        assert!(hidden(2, false).starts_with("2 processes are another"));
        let text = hidden(2, true);
        assert!(
            text.starts_with("2 processes are closed to this root"),
            "{text}"
        );
        assert!(text.contains("CAP_SYS_PTRACE"), "{text}");
    }

    #[test]
    fn a_sample_fits_a_terminal() {
        let fake = Fake::new("terminal");
        let sample = fake.0.sample(None).expect("a sample");
        let mut out = Vec::new();
        write(&sample, &mut out).expect("written");
        let text = anstream::adapter::strip_bytes(&out).into_vec();
        let text = String::from_utf8(text).expect("text");
        assert!(
            text.lines().all(|line| line.chars().count() <= 110),
            "{text}"
        );
        assert!(text.contains("pinmap3") && text.contains("prog"), "{text}");
    }
}
