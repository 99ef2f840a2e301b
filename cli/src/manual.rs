// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the command tells about itself: completions for shells, and manual pages.

use std::fs;
use std::io::Write;
use std::path::Path;

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
    for command in std::iter::once(&all).chain(commands) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let path = directory.join(format!("{name}.1"));
        let mut page = Vec::new();
        Man::new(command.clone()).render(&mut page)?;
        fs::write(&path, page)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        writeln!(out, "{}", path.display())?;
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
