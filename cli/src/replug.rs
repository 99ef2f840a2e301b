// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap replug`: removes a card, and finds it again.
//!
//! An FPGA that is programmed anew is another card for the system, with other BARs and perhaps
//! other ids. The kernel must forget the old one before, and look for the new one after that.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pinmap::PciAddress;

use crate::args::ReplugOptions;
use crate::bind::{self, BRIDGE, DRIVER};
use crate::sysfs::{Function, Sysfs};
use crate::words::count;
use crate::Result;

/// A function as it was before.
struct Before {
    pci: PciAddress,
    driver: Option<String>,
    rule: Option<String>,
    ids: Option<(u32, u32)>,
}

/// Removes all functions of a card, runs a program, if one is named, waits until the function is
/// there again, and gives each function the driver that it had.
pub(crate) fn run(sysfs: &Sysfs, options: &ReplugOptions, out: &mut impl Write) -> Result<()> {
    let pci = options.function;
    bind::find(sysfs, pci)?;
    let functions = (0..8).filter_map(|function| sysfs.function(PciAddress { function, ..pci }));
    let functions: Vec<_> = functions.collect();
    for function in &functions {
        may_go(function, options.force)?;
    }
    let mut all = Vec::new();
    for function in &functions {
        all.push(Before {
            pci: function.pci(),
            driver: function.driver(),
            rule: function.driver_override(),
            ids: function.ids(),
        });
        function
            .remove()
            .map_err(|error| bind::denied(function.pci(), "replug", &error))?;
    }
    // The card comes back whatever the program says.
    let programmed = options.program.split_first().map_or(Ok(()), program);
    let found = look_for(sysfs, pci, options.timeout).and_then(|()| {
        all.iter()
            .try_for_each(|before| restore(sysfs, before, out))
    });
    match (programmed, found) {
        (Err(failed), Err(lost)) => Err(format!("{failed}; {lost}").into()),
        (Err(failed), Ok(())) => Err(failed.into()),
        (Ok(()), found) => found,
    }
}

/// Refuses to remove what somebody may rely on.
fn may_go(function: &Function, force: bool) -> Result<()> {
    let pci = function.pci();
    if function.is_bridge() {
        return Err(format!("{pci} is {BRIDGE}, so it stays").into());
    }
    let used = match function.driver().as_deref() {
        _ if force => return Ok(()),
        None => return Ok(()),
        Some(DRIVER) => match function.contexts() {
            0 => return Ok(()),
            contexts => format!(
                "{pci} is in use: it is open {} (`sudo pinmap top --once` shows by whom)",
                count(contexts, "time")
            ),
        },
        Some(other) => format!("{pci} may be in use: {other} has it"),
    };
    Err(format!("{used}; `--force` removes it all the same").into())
}

/// Runs the program.
fn program((name, arguments): (&OsString, &[OsString])) -> Result<(), String> {
    let shown = name.to_string_lossy();
    match Command::new(name).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown} failed ({status})")),
        Err(error) => Err(format!("cannot run {shown}: {error}")),
    }
}

/// Has the kernel look for a function until it is there.
fn look_for(sysfs: &Sysfs, pci: PciAddress, seconds: f64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        sysfs
            .rescan(pci)
            .map_err(|error| format!("cannot look for {pci}: {error}"))?;
        if sysfs.function(pci).is_some() {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(format!(
                "{pci} did not come back within {seconds} s: its link is down, or it is not \
                 programmed; `echo 1 | sudo tee {}` looks again",
                sysfs.rescan_path(pci).display()
            )
            .into());
        }
        sleep(Duration::from_millis(100));
    }
}

/// Gives a function that came back the driver that it had.
fn restore(sysfs: &Sysfs, before: &Before, out: &mut impl Write) -> Result<()> {
    let pci = before.pci;
    let Some(function) = sysfs.function(pci) else {
        return Ok(writeln!(out, "{pci} is gone")?);
    };
    if let (Some(was), Some(is)) = (before.ids, function.ids()) {
        if was != is {
            let shown = |(vendor, device)| format!("{vendor:04x}:{device:04x}");
            writeln!(out, "{pci} was {}, and is {}", shown(was), shown(is))?;
        }
    }
    let had = match before.driver.as_deref() {
        None => return Ok(writeln!(out, "{pci} is back")?),
        Some(DRIVER) => return bind::bind(sysfs, pci, out),
        Some(had) => had,
    };
    let failed = |error: io::Error| format!("{pci} is back, but not with {had}: {error}");
    if function.driver().as_deref() != Some(had) {
        function
            .set_driver_override(before.rule.as_deref())
            .map_err(failed)?;
        if function.driver().is_some() {
            function.unbind().map_err(failed)?;
        }
        function.probe().map_err(failed)?;
    }
    match function.driver() {
        Some(driver) if driver == had => Ok(writeln!(out, "{pci} is back with {had}")?),
        Some(driver) => Err(format!("{pci} is back, but {driver} has it, not {had}").into()),
        None => Err(format!("{pci} is back, but {had} did not take it").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::Fake;

    const FUNCTION: &str = "bus/pci/devices/0000:00:10.0";
    const RESCAN: &str = "class/pci_bus/0000:00/rescan";

    /// A made-up sysfs with one function, which has a device if its driver is pinmap.
    fn fake(driver: Option<&str>) -> Fake {
        let fake = Fake::new(driver, &["pinmap"]);
        fake.write(RESCAN, "");
        if driver == Some("pinmap") {
            fake.write(&format!("{FUNCTION}/misc/pinmap3/contexts"), "0\n");
        }
        fake
    }

    /// Replugs the function of a made-up sysfs: what is printed, or the error.
    fn replug(fake: &Fake, force: bool, program: &str) -> Result<String, String> {
        let options = ReplugOptions {
            force,
            timeout: 0.1,
            function: Fake::PCI,
            program: program.split_whitespace().map(OsString::from).collect(),
        };
        let mut out = Vec::new();
        match run(&fake.sysfs(), &options, &mut out) {
            Ok(()) => Ok(String::from_utf8(out).expect("text")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn is_removed(fake: &Fake) -> bool {
        fake.path(&format!("{FUNCTION}/remove")).exists()
    }

    #[test]
    fn a_function_gets_its_driver_again() {
        for (driver, force, says) in [
            (Some("pinmap"), false, "is /dev/pinmap3 (as before)"),
            (Some("xdma"), true, "is back with xdma"),
            (None, false, "is back"),
        ] {
            let fake = fake(driver);
            let out = replug(&fake, force, "").expect("it is back");
            assert_eq!(out, format!("0000:00:10.0 {says}\n"));
            assert!(is_removed(&fake));
            assert_eq!(fake.read(RESCAN), "1");
        }
    }

    #[test]
    fn what_is_in_use_stays() {
        let used = fake(Some("pinmap"));
        used.write(&format!("{FUNCTION}/misc/pinmap3/contexts"), "2\n");
        let bridge = fake(None);
        bridge.write(&format!("{FUNCTION}/class"), "0x060400\n");
        for (fake, force, says) in [
            (
                &used,
                false,
                "in use: it is open 2 times (`sudo pinmap top --once`",
            ),
            (
                &fake(Some("nvme")),
                false,
                "may be in use: nvme has it; `--force`",
            ),
            (&bridge, true, "a bridge"),
        ] {
            let error = replug(fake, force, "").expect_err("refused");
            assert!(error.contains(says), "{says}: {error}");
            assert!(!is_removed(fake), "{says}");
        }
        replug(&used, true, "").expect("by force");
        assert!(is_removed(&used));
    }

    #[test]
    fn a_sibling_in_use_stays_with_the_card() {
        let fake = fake(Some("pinmap"));
        let sibling = "bus/pci/devices/0000:00:10.1";
        fake.write(&format!("{sibling}/class"), "0x060400\n");
        let error = replug(&fake, false, "").expect_err("refused");
        assert!(error.starts_with("0000:00:10.1 is a bridge"), "{error}");
        fake.write(&format!("{sibling}/class"), "0x120000\n");
        let out = replug(&fake, false, "").expect("both are back");
        assert!(out.ends_with("\n0000:00:10.1 is back\n"), "{out}");
        assert_eq!(fake.read(&format!("{sibling}/remove")), "1");
    }

    #[test]
    fn the_program_runs_in_between() {
        let fake = fake(None);
        fake.write(&format!("{FUNCTION}/device"), "0x0001\n");
        fake.write("new", "0x0002\n");
        let (new, device) = (fake.path("new"), fake.path(&format!("{FUNCTION}/device")));
        let copy = format!("cp {} {}", new.display(), device.display());
        let out = replug(&fake, false, &copy).expect("it is another one");
        let says = "0000:00:10.0 was 1234:0001, and is 1234:0002\n0000:00:10.0 is back\n";
        assert_eq!(out, says);
    }

    #[test]
    fn a_program_that_fails_does_not_keep_the_card() {
        let fake = fake(None);
        for (program, says) in [
            ("false", "false failed (exit status: 1)"),
            ("/nonexistent", "cannot run /nonexistent: No such file"),
        ] {
            let error = replug(&fake, false, program).expect_err("it failed");
            assert!(error.starts_with(says), "{error}");
            assert_eq!(fake.read(RESCAN), "1");
            fake.write(RESCAN, "");
        }
    }

    #[test]
    fn a_function_that_stays_away_is_told() {
        let fake = fake(Some("pinmap"));
        let remove = format!("rm -r {}", fake.path(FUNCTION).display());
        let error = replug(&fake, false, &remove).expect_err("it is gone");
        assert!(error.contains("did not come back within 0.1 s"), "{error}");
        assert!(error.contains("class/pci_bus/0000:00/rescan"), "{error}");
        let error = replug(&fake, false, "").expect_err("it is still gone");
        assert!(error.contains("there is no PCI function"), "{error}");
    }
}
