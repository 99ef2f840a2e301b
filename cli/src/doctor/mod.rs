// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap doctor`: finds out what is missing on this machine, and how to put it right.
//!
//! Each module examines one layer: kernel, IOMMU, functions, devices. The findings come in the
//! order in which to put things right.

mod device;
mod function;
mod iommu;
mod kernel;
mod signature;
mod system;

use std::io::{self, Write};

use pinmap::PciAddress;
use serde::Serialize;

use crate::args::DoctorOptions;
use crate::{style, Result};

use system::System;

/// The level of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// All is well.
    Good,
    /// pinmap works, but could work better.
    Note,
    /// pinmap does not work.
    Wrong,
}

/// A finding.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    /// The thing that was examined, in a word or two.
    what: &'static str,
    text: String,
    /// Advice on how to put it right.
    fix: Option<String>,
}

impl Finding {
    fn good(what: &'static str, text: impl Into<String>) -> Self {
        Self {
            level: Level::Good,
            what,
            text: text.into(),
            fix: None,
        }
    }

    fn note(what: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            level: Level::Note,
            what,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }

    fn wrong(what: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            level: Level::Wrong,
            what,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let (level, style) = match self.level {
            Level::Good => ("ok", style::GOOD),
            Level::Note => ("note", style::NOTE),
            Level::Wrong => ("WRONG", style::ERROR),
        };
        writeln!(
            out,
            "{style}{level:<7}{style:#}{}: {}",
            self.what, self.text
        )?;
        match &self.fix {
            Some(fix) => writeln!(out, "{:<7}=> {fix}", ""),
            None => Ok(()),
        }
    }
}

/// All findings, as JSON.
#[derive(Serialize)]
struct Report<'a> {
    usable: bool,
    findings: &'a [Finding],
}

/// Writes the findings. Fails after that if anything is wrong.
pub(crate) fn run(options: &DoctorOptions, out: &mut impl Write) -> Result<()> {
    let findings = examine(&System::this(), options);
    let wrong = findings
        .iter()
        .filter(|finding| finding.level == Level::Wrong)
        .count();
    if options.json {
        let report = Report {
            usable: wrong == 0,
            findings: &findings,
        };
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        for finding in &findings {
            finding.write(out)?;
        }
    }
    match wrong {
        0 if options.json => Ok(()),
        0 => Ok(writeln!(out, "\npinmap can be used")?),
        1 => Err("pinmap cannot be used yet: one thing is missing".into()),
        n => Err(format!("pinmap cannot be used yet: {n} things are missing").into()),
    }
}

/// Collects all findings, in the order in which to put things right.
fn examine(system: &System, options: &DoctorOptions) -> Vec<Finding> {
    let mut findings = machine(system, options.function);
    findings.extend(device::examine(options.function, options.need));
    findings
}

/// Collects the findings about what files of the machine tell.
fn machine(system: &System, function: Option<PciAddress>) -> Vec<Finding> {
    let mut findings = kernel::examine(system);
    if !system.sysfs().is_there() {
        findings.push(Finding::wrong(
            "/sys",
            "not mounted here, so neither IOMMU, driver nor devices can be seen, and no program \
             finds a device by itself",
            "in a container mount it, for instance with `-v /sys:/sys:ro`; a program that opens \
             /dev/pinmapN by its path can do without",
        ));
        return findings;
    }
    findings.extend(iommu::examine(system));
    findings.push(kernel::driver(system));
    findings.extend(function::examine(system, function));
    findings
}

#[cfg(test)]
mod tests {
    use super::system::tests::Fake;
    use super::*;

    #[test]
    fn a_finding_says_what_to_do() {
        let mut text = Vec::new();
        Finding::wrong("limit", "too low", "raise it")
            .write(&mut text)
            .expect("written");
        Finding::good("IOMMU", "dmar0")
            .write(&mut text)
            .expect("written");
        assert_eq!(
            anstream::adapter::strip_bytes(&text).into_vec(),
            b"WRONG  limit: too low\n       => raise it\nok     IOMMU: dmar0\n"
        );
    }

    /// Lists the findings that are wrong with a machine.
    fn wrong(system: &System) -> Vec<&'static str> {
        let findings = machine(system, None).into_iter();
        findings
            .filter(|finding| finding.level == Level::Wrong)
            .map(|finding| finding.what)
            .collect()
    }

    #[test]
    fn an_empty_machine_has_all_but_the_limit_wrong() {
        let fake = Fake::new(&[("sys/bus/pci/drivers_probe", "")]);
        assert_eq!(wrong(&fake.system()), ["IOMMU", "driver", "functions"]);
    }

    #[test]
    fn a_container_without_sys_is_blamed_for_nothing_else() {
        // An empty directory, as an image has it.
        let fake = Fake::new(&[]);
        fake.link("x", "sys");
        assert_eq!(wrong(&fake.system()), ["/sys"]);
    }
}
