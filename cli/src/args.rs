// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt};
use pinmap::{Device, PciAddress};

use crate::help::Topic;
use crate::size;

/// The task that the command line sets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Print help.
    Help(Topic),
    /// Print the version.
    Version,
    /// Show the devices.
    Info(InfoOptions),
    /// Give a function to the driver.
    Bind(PciAddress),
    /// Take a function away from the driver.
    Unbind(PciAddress),
    /// Test the driver with `edu`.
    CopyTest(CopyOptions),
    /// Measure what zero-copy is worth.
    Demo(DemoOptions),
    /// Find out what is missing.
    Doctor(DoctorOptions),
    /// Tell where a page of managed memory is, and why.
    Explain(ExplainOptions),
}

/// Options of `info`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InfoOptions {
    /// Print JSON.
    pub(crate) json: bool,
    /// Fail unless this many bytes more can be registered.
    pub(crate) need: Option<u64>,
    /// Show only this device.
    pub(crate) device: Option<Target>,
}

/// Options of `copy-test`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CopyOptions {
    /// The device, or `None` for the first `edu`.
    pub(crate) device: Option<Target>,
    /// Number of bytes to copy.
    pub(crate) size: usize,
    /// Address bits of the device, 0 for all.
    pub(crate) address_bits: u32,
    /// Demand that device addresses equal user addresses.
    pub(crate) identity: bool,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            device: None,
            size: 16 << 10,
            address_bits: 0,
            identity: false,
        }
    }
}

/// Options of `doctor`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DoctorOptions {
    /// How many bytes more this user is to be able to register.
    pub(crate) need: Option<u64>,
    /// Look only at this function, whether or not the driver has it.
    pub(crate) function: Option<PciAddress>,
}

/// Options of `explain`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExplainOptions {
    /// Print JSON.
    pub(crate) json: bool,
    /// The process.
    pub(crate) pid: u32,
    /// An address of it.
    pub(crate) addr: u64,
}

/// Options of `demo`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DemoOptions {
    /// The device, or `None` for the first one with queues.
    pub(crate) device: Option<Target>,
}

/// The name of a device on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The path of its node.
    Node(PathBuf),
    /// The address of its function.
    Pci(PciAddress),
}

impl Target {
    fn parse(text: &str) -> Result<Self, Error> {
        if text.contains('/') {
            return Ok(Self::Node(text.into()));
        }
        if let Some(number) = text.strip_prefix("pinmap") {
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
                return Ok(Self::Node(format!("/dev/{text}").into()));
            }
        }
        let pci = text.parse().map_err(|_| {
            Error(format!(
                "`{text}` is neither a node such as /dev/pinmap0 nor a BDF such as 0000:00:10.0"
            ))
        })?;
        Ok(Self::Pci(pci))
    }

    /// Opens the device.
    pub(crate) fn open(&self) -> pinmap::Result<Device> {
        match self {
            Self::Node(path) => Device::open(path),
            Self::Pci(pci) => Device::open_pci(*pci),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(path) => path.display().fmt(f),
            Self::Pci(pci) => pci.fmt(f),
        }
    }
}

/// An error in the command line, as a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<lexopt::Error> for Error {
    fn from(error: lexopt::Error) -> Self {
        use lexopt::Error::{MissingValue, NonUnicodeValue, UnexpectedOption, UnexpectedValue};
        Self(match error {
            MissingValue {
                option: Some(option),
            } => format!("{option} needs a value"),
            UnexpectedValue { value, .. } => format!("`={}` is too much", value.to_string_lossy()),
            UnexpectedOption(option) => format!("there is no option `{option}`"),
            NonUnicodeValue(value) => format!("{value:?} is not valid UTF-8"),
            other => other.to_string(),
        })
    }
}

/// Parses the arguments, which do not include the name of the program.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, Error> {
    let mut parser = Parser::from_args(args.collect::<Vec<_>>());
    match parser.next()? {
        None => Err(Error(
            "which command? info, doctor, bind, unbind, copy-test, demo or explain".into(),
        )),
        Some(Arg::Value(name)) => command(&name.string()?, &mut parser),
        Some(option) => {
            let command = common(option, Topic::All)?;
            nothing_more(&mut parser)?;
            Ok(command)
        }
    }
}

fn command(name: &str, parser: &mut Parser) -> Result<Command, Error> {
    match name {
        "info" => info(parser),
        "doctor" => doctor(parser),
        "bind" => function(parser, Topic::Bind, Command::Bind),
        "unbind" => function(parser, Topic::Unbind, Command::Unbind),
        "copy-test" => copy_test(parser),
        "demo" => demo(parser),
        "explain" => explain(parser),
        other => Err(Error(format!("there is no command `{other}`"))),
    }
}

fn info(parser: &mut Parser) -> Result<Command, Error> {
    let mut options = InfoOptions::default();
    let mut device = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("json") => options.json = true,
            Arg::Long("need") => options.need = Some(bytes(parser, "--need")?),
            Arg::Value(word) => set_once(&mut device, word, "DEVICE")?,
            other => return common(other, Topic::Info),
        }
    }
    options.device = device.map(|word| Target::parse(&word)).transpose()?;
    Ok(Command::Info(options))
}

fn doctor(parser: &mut Parser) -> Result<Command, Error> {
    let mut options = DoctorOptions::default();
    let mut function = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("need") => options.need = Some(bytes(parser, "--need")?),
            Arg::Value(word) => set_once(&mut function, word, "BDF")?,
            other => return common(other, Topic::Doctor),
        }
    }
    options.function = function.map(|word| pci(&word)).transpose()?;
    Ok(Command::Doctor(options))
}

fn function(
    parser: &mut Parser,
    topic: Topic,
    command: fn(PciAddress) -> Command,
) -> Result<Command, Error> {
    let mut function = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Value(word) => set_once(&mut function, word, "BDF")?,
            other => return common(other, topic),
        }
    }
    match function {
        Some(word) => Ok(command(pci(&word)?)),
        None => Err(Error("which function? `lspci -D` shows their BDFs".into())),
    }
}

fn copy_test(parser: &mut Parser) -> Result<Command, Error> {
    let mut options = CopyOptions::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("device") => options.device = Some(target(parser)?),
            Arg::Long("size") => {
                let size = usize::try_from(bytes(parser, "--size")?).ok();
                let wrong = || Error("--size must be at least 1".into());
                options.size = size.filter(|&size| size != 0).ok_or_else(wrong)?;
            }
            Arg::Long("address-bits") => {
                let bits = parser.value()?.string()?.parse().ok();
                let wrong = || Error("--address-bits must be 12 to 64".into());
                options.address_bits = bits
                    .filter(|bits| (12..=64).contains(bits))
                    .ok_or_else(wrong)?;
            }
            Arg::Long("identity") => options.identity = true,
            Arg::Value(word) => return Err(too_much(word)),
            other => return common(other, Topic::CopyTest),
        }
    }
    Ok(Command::CopyTest(options))
}

fn demo(parser: &mut Parser) -> Result<Command, Error> {
    let mut options = DemoOptions::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("device") => options.device = Some(target(parser)?),
            Arg::Value(word) => return Err(too_much(word)),
            other => return common(other, Topic::Demo),
        }
    }
    Ok(Command::Demo(options))
}

fn explain(parser: &mut Parser) -> Result<Command, Error> {
    let (mut pid, mut addr, mut json) = (None, None, false);
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(word) if pid.is_none() => set_once(&mut pid, word, "PID")?,
            Arg::Value(word) => set_once(&mut addr, word, "ADDR")?,
            other => return common(other, Topic::Explain),
        }
    }
    let (Some(pid), Some(addr)) = (pid, addr) else {
        return Err(Error("which process and which address?".into()));
    };
    let number = pid.parse().ok().filter(|&pid| pid != 0);
    let pid = number.ok_or_else(|| Error(format!("`{pid}` is not the id of a process")))?;
    let number = match addr.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => addr.parse().ok(),
    };
    let addr = number.ok_or_else(|| Error(format!("`{addr}` is not an address such as 0x1000")))?;
    Ok(Command::Explain(ExplainOptions { json, pid, addr }))
}

/// The options that every command has.
fn common(option: Arg<'_>, topic: Topic) -> Result<Command, Error> {
    match option {
        Arg::Long("help") | Arg::Short('h') => Ok(Command::Help(topic)),
        Arg::Long("version") | Arg::Short('V') => Ok(Command::Version),
        other => Err(other.unexpected().into()),
    }
}

/// Fails if another argument follows.
fn nothing_more(parser: &mut Parser) -> Result<(), Error> {
    match parser.next()? {
        None => Ok(()),
        Some(Arg::Value(word)) => Err(too_much(word)),
        Some(Arg::Long(option)) => Err(too_much(format!("--{option}").into())),
        Some(Arg::Short(option)) => Err(too_much(format!("-{option}").into())),
    }
}

fn too_much(word: OsString) -> Error {
    Error(format!("`{}` is too much", word.to_string_lossy()))
}

/// Keeps a word that may be given only once.
fn set_once(place: &mut Option<String>, word: OsString, name: &str) -> Result<(), Error> {
    match place.replace(word.string()?) {
        None => Ok(()),
        Some(_) => Err(Error(format!("there can be only one {name}"))),
    }
}

fn pci(text: &str) -> Result<PciAddress, Error> {
    text.parse()
        .map_err(|error| Error(format!("`{text}` is {error}")))
}

/// The value of an option that names a device.
fn target(parser: &mut Parser) -> Result<Target, Error> {
    Target::parse(&parser.value()?.string()?)
}

/// The value of an option that is a number of bytes.
fn bytes(parser: &mut Parser, option: &str) -> Result<u64, Error> {
    let value = parser.value()?.string()?;
    let wrong = || {
        Error(format!(
            "{option} must be a number of bytes, such as 16384, 16K or 1G"
        ))
    };
    size::parse(&value).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, Error> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn refused(line: &str) -> String {
        parsed(line).expect_err(line).to_string()
    }

    fn pci() -> PciAddress {
        PciAddress {
            domain: 0,
            bus: 0,
            device: 0x10,
            function: 0,
        }
    }

    #[test]
    fn help_and_version_are_everywhere() {
        assert_eq!(parsed("--help"), Ok(Command::Help(Topic::All)));
        assert_eq!(parsed("--version"), Ok(Command::Version));
        for (name, topic) in [
            ("info", Topic::Info),
            ("bind", Topic::Bind),
            ("unbind", Topic::Unbind),
            ("copy-test", Topic::CopyTest),
            ("demo", Topic::Demo),
            ("doctor", Topic::Doctor),
            ("explain", Topic::Explain),
        ] {
            assert_eq!(parsed(&format!("{name} --help")), Ok(Command::Help(topic)));
            assert_eq!(parsed(&format!("{name} -V")), Ok(Command::Version));
            assert!(crate::help::text(topic).contains(&format!("usage: pinmap {name}")));
            assert!(crate::help::text(topic).contains("Exit status: 0"));
        }
    }

    #[test]
    fn info_has_its_options() {
        assert_eq!(parsed("info"), Ok(Command::Info(InfoOptions::default())));
        let all = InfoOptions {
            json: true,
            need: Some(1 << 30),
            device: Some(Target::Pci(pci())),
        };
        assert_eq!(
            parsed("info --json 0000:00:10.0 --need=1G"),
            Ok(Command::Info(all))
        );
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
        assert_eq!(parsed("bind 00:10.0"), Ok(Command::Bind(pci())));
        assert_eq!(parsed("unbind -- 0000:00:10.0"), Ok(Command::Unbind(pci())));
        assert!(refused("bind").contains("which function"));
        assert!(refused("bind pinmap0").contains("`pinmap0` is not a PCI address"));
        assert!(refused("bind 00:10.0 00:11.0").contains("only one BDF"));
    }

    #[test]
    fn copy_test_has_its_options() {
        assert_eq!(
            parsed("copy-test"),
            Ok(Command::CopyTest(CopyOptions::default()))
        );
        let options = CopyOptions {
            device: Some(Target::Node("/dev/pinmap1".into())),
            size: 8192,
            address_bits: 28,
            identity: true,
        };
        let line = "copy-test --device /dev/pinmap1 --size 8K --address-bits 28 --identity";
        assert_eq!(parsed(line), Ok(Command::CopyTest(options)));
    }

    #[test]
    fn doctor_has_its_options() {
        let options = DoctorOptions {
            need: Some(1 << 20),
            function: Some(pci()),
        };
        assert_eq!(
            parsed("doctor --need 1M 00:10.0"),
            Ok(Command::Doctor(options))
        );
        assert_eq!(
            parsed("doctor"),
            Ok(Command::Doctor(DoctorOptions::default()))
        );
        assert!(refused("doctor /dev/pinmap0").contains("not a PCI address"));
        assert!(refused("doctor --json").contains("no option"));
    }

    #[test]
    fn demo_has_its_options() {
        assert_eq!(parsed("demo"), Ok(Command::Demo(DemoOptions::default())));
        let options = DemoOptions {
            device: Some(Target::Pci(pci())),
        };
        assert_eq!(parsed("demo --device=00:10.0"), Ok(Command::Demo(options)));
    }

    #[test]
    fn explain_has_its_options() {
        for (line, json) in [
            ("explain 12 0x1000", false),
            ("explain --json 12 4096", true),
        ] {
            let options = ExplainOptions {
                json,
                pid: 12,
                addr: 4096,
            };
            assert_eq!(parsed(line), Ok(Command::Explain(options)));
        }
        assert!(refused("explain 12").contains("which address"));
        assert!(refused("explain x 1").contains("not the id of a process"));
        assert!(refused("explain 0 1").contains("not the id of a process"));
        assert!(refused("explain 1 y").contains("not an address"));
        assert!(refused("explain 1 2 3").contains("only one ADDR"));
    }

    #[test]
    fn nonsense_is_told() {
        for (line, says) in [
            ("", "which command"),
            ("frob", "no command `frob`"),
            ("--help me", "`me` is too much"),
            ("info --json=x", "`=x` is too much"),
            ("info --frob", "no option `--frob`"),
            ("info a/b c/d", "only one DEVICE"),
            ("info pinmap", "neither a node"),
            ("info --need", "--need needs a value"),
            ("info --need x", "--need must be a number of bytes"),
            ("copy-test --size 0", "at least 1"),
            ("copy-test --address-bits 11", "12 to 64"),
            ("copy-test --address-bits 65", "12 to 64"),
            ("copy-test x", "`x` is too much"),
            ("demo x", "`x` is too much"),
        ] {
            assert!(refused(line).contains(says), "{line}: {}", refused(line));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_told() {
        let word: OsString = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
        assert!(parse([word].into_iter())
            .expect_err("no text")
            .to_string()
            .contains("UTF-8"));
    }
}
