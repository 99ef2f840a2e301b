// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use crate::hardware::{Settings, SLOWEST_PROGRAM};
use crate::link::{Speed, MAX_LATENCY, MIN_BANDWIDTH};
use std::ffi::OsString;
use std::path::PathBuf;
use vfio_user_device::Options;

/// Text that `--help` prints.
pub const USAGE: &str = "\
usage: testgpu --socket PATH [OPTION...]
Serves the test GPU to one QEMU, until that ends:
  -object memory-backend-memfd,id=ram,size=SIZE,share=on -machine q35,memory-backend=ram
  -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"path\":\"PATH\",\"type\":\"unix\"}}'

  --socket PATH            the Unix socket to listen at; it is there as soon as QEMU can connect
  --vram SIZE              VRAM, a power of two from 1M to 64G (256M)
  --message                each access to guest memory goes through QEMU's IOMMU (else: mapped, with
                           the same effect but much faster)
  --link-bandwidth BYTES   per second and direction, for guest memory; 0: no limit (1000000000)
  --link-latency NS        per dependent access to guest memory; 0: none (1000)
  --vram-bandwidth BYTES   likewise for VRAM (0)
  --vram-latency NS        likewise for VRAM (0)
  --integrated             say that VRAM is a part of the host's memory, and no faster
  --no-programs            execute none (else: RISC-V)
  --program-rate NUMBER    instructions of a program per second; 0: no limit (0)
  --prompt                 answer a read of INV_DONE or PAGING_DONE when what was submitted is done,
                           or a second has passed; not with --message
  --verbose                say what QEMU maps and resets
  --help                   this

SIZE and BYTES may end in K, M or G: 2^10, 2^20, 2^30.
";

/// The socket, the properties of the device, and the options of its server.
type Request = (PathBuf, Settings, Options);

/// Reads the arguments. `None` asks for the usage. An error is a sentence for the user.
pub fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Option<Request>, String> {
    let mut settings = Settings::default();
    let mut options = Options::default();
    let mut socket = None;
    while let Some(argument) = arguments.next() {
        let name = argument.to_string_lossy().into_owned();
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--message" => options.message = true,
            "--integrated" => settings.integrated = true,
            "--no-programs" => settings.programs = false,
            "--prompt" => settings.prompt = true,
            "--verbose" => options.verbose = true,
            "--socket" => socket = Some(PathBuf::from(value()?)),
            "--vram" => settings.vram = vram(number(&name, &value()?)?)?,
            "--link-bandwidth" => settings.link.bandwidth = bandwidth(&name, &value()?)?,
            "--vram-bandwidth" => settings.vram_link.bandwidth = bandwidth(&name, &value()?)?,
            "--program-rate" => settings.program_rate = rate(&name, &value()?)?,
            "--link-latency" => settings.link.latency = latency(&name, &value()?)?,
            "--vram-latency" => settings.vram_link.latency = latency(&name, &value()?)?,
            _ => return Err(format!("unknown argument: {name}")),
        }
    }
    if settings.prompt && options.message {
        // QEMU does not answer for its memory while it waits for the device.
        return Err("--prompt does not go with --message".into());
    }
    let socket = socket.ok_or("--socket is missing")?;
    Ok(Some((socket, settings, options)))
}

fn number(name: &str, value: &OsString) -> Result<u64, String> {
    let text = value.to_string_lossy();
    let (digits, shift) = match text.chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (&*text, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or(format!("{name}: '{text}' is no number"))
}

fn vram(size: u64) -> Result<u64, String> {
    if !size.is_power_of_two() || !(1 << 20..=64 << 30).contains(&size) {
        return Err("--vram must be a power of two from 1M to 64G".into());
    }
    Ok(size)
}

fn bandwidth(name: &str, value: &OsString) -> Result<u64, String> {
    match number(name, value)? {
        bandwidth @ 1..MIN_BANDWIDTH => Err(format!(
            "{name}: {bandwidth} is less than {MIN_BANDWIDTH}; 0 is no limit"
        )),
        bandwidth => Ok(bandwidth),
    }
}

fn rate(name: &str, value: &OsString) -> Result<u64, String> {
    match number(name, value)? {
        rate @ 1..SLOWEST_PROGRAM => Err(format!(
            "{name}: {rate} is less than {SLOWEST_PROGRAM}; 0 is no limit"
        )),
        rate => Ok(rate),
    }
}

fn latency(name: &str, value: &OsString) -> Result<u64, String> {
    match number(name, value)? {
        latency if latency > MAX_LATENCY => Err(format!("{name}: more than {MAX_LATENCY}")),
        latency => Ok(latency),
    }
}

/// Formats a speed for printing beside figures that depend on it.
pub fn describe(speed: Speed) -> String {
    let bandwidth = match speed.bandwidth {
        0 => "no limit".to_string(),
        bandwidth => format!("{bandwidth} B/s each direction"),
    };
    format!("{bandwidth}, {} ns", speed.latency)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Result<Option<Request>, String> {
        parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn arguments() {
        let request = run(&[
            "--socket",
            "s",
            "--vram",
            "16M",
            "--message",
            "--link-bandwidth",
            "2G",
        ]);
        let Ok(Some((socket, settings, options))) = request else {
            panic!("{request:?}")
        };
        assert_eq!((socket.to_str(), settings.vram), (Some("s"), 16 << 20));
        assert_eq!(
            settings.link,
            Speed {
                bandwidth: 2 << 30,
                latency: 1000
            }
        );
        assert!(options.message && !options.verbose);
        let Ok(Some((_, settings, _))) = run(&["--socket", "s", "--prompt"]) else {
            panic!("--prompt")
        };
        assert!(settings.prompt);
        assert!(matches!(run(&["--socket", "s", "-h"]), Ok(None)));
        for wrong in [
            &["--socket"][..],
            &[],
            &["--socket", "s", "--vram", "3M"],
            &["--socket", "s", "--vram", "1K"],
            &["--socket", "s", "--link-bandwidth", "5"],
            &["--socket", "s", "--program-rate", "999"],
            &["--socket", "s", "--link-latency", "2000000000"],
            &["--socket", "s", "--link-latency", "xG"],
            &["--socket", "s", "--link-latency", "99999999999999G"],
            &["--socket", "s", "--prompt", "--message"],
            &["nonsense"],
        ] {
            assert!(run(wrong).is_err(), "{wrong:?}");
        }
    }
}
