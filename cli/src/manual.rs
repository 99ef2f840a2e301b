// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completions for shells and manual pages, made of the command's own descriptions.

use std::fs;
use std::io::Write;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::description;
use crate::Result;

/// Prints the completions for a shell.
pub(crate) fn completions(shell: Shell, out: &mut impl Write) -> Result<()> {
    // It panics if it cannot write, and a reader may be gone.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut description(), "pinmap", &mut script);
    Ok(out.write_all(&script)?)
}

/// Writes the manual pages into a directory, and prints their names.
pub(crate) fn write(directory: &Path, out: &mut impl Write) -> Result<()> {
    let mut all = description();
    all.build();
    let commands = all
        .get_subcommands()
        .filter(|command| command.get_name() != "help");
    let commands: Vec<_> = std::iter::once(&all).chain(commands).collect();
    let names: Vec<_> = commands.iter().map(|command| name(command)).collect();
    for (command, name) in commands.into_iter().zip(&names) {
        let path = directory.join(format!("{name}.1"));
        let page = page(command, &names)?;
        fs::write(&path, page)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

/// The name of a command's page.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// The page of a command, one of those with these names.
fn page(command: &Command, names: &[&str]) -> Result<Vec<u8>> {
    let help = command.get_after_help().map(ToString::to_string);
    let version = concat!("pinmap ", env!("CARGO_PKG_VERSION"));
    let mut page = Vec::new();
    Man::new(command.clone().after_help(None::<&str>))
        .title(name(command))
        .source(version)
        .manual("pinmap")
        .render(&mut page)?;
    for part in help.unwrap_or_default().split("\n\n") {
        let (title, text) = match part.split_once(':') {
            Some(("Example" | "Examples", text)) => ("EXAMPLES", text),
            Some(("Exit status", text)) => ("EXIT STATUS", text),
            _ => ("NOTES", part),
        };
        section(&mut page, title, text)?;
    }
    let files = "/dev/pinmap0, /dev/pinmap1, ...: the devices, for the members of the group pinmap";
    section(&mut page, "FILES", files)?;
    let others = names.iter().filter(|&&other| other != name(command));
    let others: Vec<_> = others.map(|other| format!("{other}(1)")).collect();
    section(&mut page, "SEE ALSO", &others.join(", "))?;
    Ok(page)
}

/// Writes a section: a paragraph, or lines that are indented, as they are.
fn section(page: &mut Vec<u8>, title: &str, text: &str) -> Result<()> {
    let lines = text.trim_matches('\n');
    let is_as_it_is = lines.lines().any(|line| line.starts_with("  "));
    writeln!(page, ".SH \"{title}\"")?;
    if is_as_it_is {
        writeln!(page, ".nf")?;
    }
    for line in lines.lines() {
        let line = line.trim().replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with one of these would be a request.
        let guard = match line.starts_with(['.', '\'']) {
            true => "\\&",
            false => "",
        };
        writeln!(page, "{guard}{line}")?;
    }
    if is_as_it_is {
        writeln!(page, ".fi")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let name = format!("pinmap-man-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        let mut out = Vec::new();
        write(&directory, &mut out).expect("pages");
        let read = |name| fs::read_to_string(directory.join(name)).expect(name);
        let (all, doctor) = (read("pinmap.1"), read("pinmap-doctor.1"));
        assert!(all.contains(".TH pinmap 1"), "{all}");
        assert!(all.contains("copy\\-test"), "{all}");
        assert!(doctor.contains("Changes nothing"), "{doctor}");
        assert!(
            doctor.contains(".SH \"EXIT STATUS\"\n0, all is well"),
            "{doctor}"
        );
        assert!(doctor.contains("pinmap\\-bind(1)"), "{doctor}");
        let info = read("pinmap-info.1");
        assert!(
            info.contains(".SH \"EXAMPLES\"\n.nf\npinmap info"),
            "{info}"
        );
        assert!(info.contains("pinmap 0."), "{info}");
        for page in [&all, &doctor, &info] {
            assert!(page.contains(".SH \"FILES\"\n/dev/pinmap0"), "{page}");
            assert!(!page.contains("EXTRA"), "{page}");
        }
        let out = String::from_utf8(out).expect("text");
        assert_eq!(
            out.lines().count(),
            fs::read_dir(&directory).expect("pages").count()
        );
        assert!(write(Path::new("/nonexistent"), &mut Vec::new())
            .expect_err("no directory")
            .to_string()
            .starts_with("cannot write /nonexistent/pinmap.1: "));
        fs::remove_dir_all(&directory).expect("ours");
    }

    #[test]
    fn shells_complete_commands() {
        for shell in [
            Shell::Bash,
            Shell::Zsh,
            Shell::Fish,
            Shell::Elvish,
            Shell::PowerShell,
        ] {
            let mut script = Vec::new();
            completions(shell, &mut script).expect("a script");
            let script = String::from_utf8(script).expect("text");
            assert!(
                script.contains("copy-test") && script.contains("address-bits"),
                "{shell}"
            );
        }
    }
}
