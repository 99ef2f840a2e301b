// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the command line.

use super::*;

fn parsed(line: &str) -> Result<Command, String> {
    let words = ["pinmap"].into_iter().chain(line.split_whitespace());
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    Ok(cli.command)
}

fn refused(line: &str) -> String {
    parsed(line).expect_err(line)
}

fn node() -> PciAddress {
    PciAddress {
        domain: 0,
        bus: 0,
        device: 0x10,
        function: 0,
    }
}

#[test]
fn the_description_is_consistent() {
    description().debug_assert();
}

#[test]
fn help_is_everywhere_and_fits_a_terminal() {
    let all = refused("--help");
    assert!(all.contains("Exit status"), "{all}");
    for command in description().get_subcommands() {
        let name = command.get_name();
        // Those of a program of its own are its own.
        let is_other = command.is_disable_help_flag_set();
        let lines = [format!("help {name}"), format!("{name} --help")];
        for line in lines.into_iter().take(2 - usize::from(is_other)) {
            let text = refused(&line);
            assert!(text.contains(&format!("Usage: pinmap {name}")), "{text}");
            assert!(text.contains("Exit status: 0"), "{text}");
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest.is_some_and(|longest| longest <= 100), "{text}");
        }
        assert!(all.contains(name), "{all}");
    }
}

#[test]
fn info_has_its_options() {
    assert_eq!(parsed("info"), Ok(Command::Info(InfoOptions::default())));
    let all = InfoOptions {
        json: true,
        need: Some(1 << 30),
        device: Some(Target::Pci(node())),
    };
    let line = "info --json 0000:00:10.0 --need=1G";
    assert_eq!(parsed(line), Ok(Command::Info(all)));
    for (text, path) in [("pinmap12", "/dev/pinmap12"), ("./x", "./x")] {
        let options = InfoOptions {
            device: Some(Target::Node(path.into())),
            ..Default::default()
        };
        assert_eq!(parsed(&format!("info {text}")), Ok(Command::Info(options)));
    }
}

#[test]
fn functions_are_bdfs() {
    let function = node();
    assert_eq!(parsed("bind 00:10.0"), Ok(Command::Bind { function }));
    let line = "unbind -- 0000:00:10.0";
    assert_eq!(parsed(line), Ok(Command::Unbind { function }));
    let options = ReplugOptions {
        force: true,
        timeout: 0.5,
        function,
        program: vec!["load".into(), "--force".into()],
    };
    let line = "replug --force --timeout 0.5 00:10.0 -- load --force";
    assert_eq!(parsed(line), Ok(Command::Replug(options)));
    assert!(refused("bind pinmap0").contains("not a PCI address"));
    let arguments = ["perf", "00:10.0", "-p", "--help"];
    let options = OtherOptions {
        arguments: arguments.map(OsString::from).into(),
    };
    let line = format!("xdma {}", arguments.join(" "));
    assert_eq!(parsed(&line), Ok(Command::Xdma(options)));
}

#[test]
fn other_commands_have_their_options() {
    let defaults = CopyOptions {
        json: false,
        device: None,
        size: 16 << 10,
        address_bits: 0,
        identity: false,
    };
    assert_eq!(parsed("copy-test"), Ok(Command::CopyTest(defaults)));
    let options = CopyOptions {
        json: true,
        device: Some(Target::Node("/dev/pinmap1".into())),
        size: 8192,
        address_bits: 28,
        identity: true,
    };
    let line = "copy-test --json --device /dev/pinmap1 --size 8K --address-bits 28 --identity";
    assert_eq!(parsed(line), Ok(Command::CopyTest(options)));
    let (need, function) = (Some(1 << 20), Some(node()));
    let json = true;
    let options = DoctorOptions {
        json,
        need,
        function,
    };
    let line = "doctor --json --need 1M 00:10.0";
    assert_eq!(parsed(line), Ok(Command::Doctor(options)));
    let output = Some("/etc/cdi/pinmap.json".into());
    let line = "cdi -o /etc/cdi/pinmap.json";
    assert_eq!(parsed(line), Ok(Command::Cdi(CdiOptions { output })));
    let device = Some(Target::Pci(node()));
    let svg = Some("plots".into());
    let options = DemoOptions { json, svg, device };
    let line = "demo --json --svg plots --device=00:10.0";
    assert_eq!(parsed(line), Ok(Command::Demo(options)));
    for (line, json) in [
        ("explain 12 0x1000", false),
        ("explain --json 12 4096", true),
    ] {
        let (pid, addr) = (12, 4096);
        let options = ExplainOptions { json, pid, addr };
        assert_eq!(parsed(line), Ok(Command::Explain(options)));
    }
}

#[test]
fn nonsense_is_told() {
    for (line, says) in [
        ("inof", "a similar subcommand exists: 'info'"),
        ("frob", "unrecognized subcommand 'frob'"),
        ("info --jsno", "a similar argument exists: '--json'"),
        ("info --json=x", "unexpected value 'x'"),
        ("info a/b c/d", "unexpected argument 'c/d'"),
        ("info pinmap", "neither a node"),
        ("info --need", "a value is required"),
        ("info --need x", "no number of bytes"),
        ("bind", "<BDF>"),
        ("bind 00:10.0 00:11.0", "unexpected argument"),
        ("replug 00:10.0 load", "unexpected argument 'load'"),
        ("doctor /dev/pinmap0", "not a PCI address"),
        ("copy-test --size 0", "at least 1"),
        ("copy-test --address-bits 11", "12 to 64"),
        ("copy-test --address-bits 65", "12 to 64"),
        ("copy-test x", "unexpected argument 'x'"),
        ("top --interval 0", "0.1 to 3600"),
        ("top --once --count 2", "cannot be used with"),
        ("top --count 0", "0 is not in"),
        ("explain 12", "<ADDR>"),
        ("explain x 1", "not the id of a process"),
        ("explain 0 1", "not the id of a process"),
        ("explain 1 y", "not an address"),
        ("explain 1 2 3", "unexpected argument '3'"),
    ] {
        assert!(refused(line).contains(says), "{line}: {}", refused(line));
    }
}
