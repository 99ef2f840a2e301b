// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use pinmap::{Device, PciAddress};

use crate::help::Topic;
use crate::words::Words;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Say how it is used.
    Help(Topic),
    /// Say which version it is.
    Version,
    /// Show the devices.
    Info(InfoOptions),
    /// Give a function to the driver.
    Bind(PciAddress),
    /// Take it away.
    Unbind(PciAddress),
    /// Test the driver with `edu`.
    CopyTest(CopyOptions),
    /// Show what zero-copy is worth.
    Demo(DemoOptions),
    /// Say what is missing.
    Doctor(DoctorOptions),
}

/// What `info` is to show.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InfoOptions {
    /// As JSON.
    pub(crate) json: bool,
    /// Bytes that must be allowed.
    pub(crate) need: Option<u64>,
    /// Only this device.
    pub(crate) device: Option<Target>,
}

/// What `copy-test` is to copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CopyOptions {
    /// With this device; otherwise the first `edu`.
    pub(crate) device: Option<Target>,
    /// Bytes.
    pub(crate) size: usize,
    /// Address bits of the device, 0 for all.
    pub(crate) address_bits: u32,
    /// The device address must be that of the memory.
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

/// What `doctor` is to look at.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DoctorOptions {
    /// Bytes that must be allowed.
    pub(crate) need: Option<u64>,
    /// Only this function, whether or not the driver has it.
    pub(crate) function: Option<PciAddress>,
}

/// What `demo` is to use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DemoOptions {
    /// This device; otherwise the first that has queues.
    pub(crate) device: Option<Target>,
}

/// How a device was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// By its node.
    Node(PathBuf),
    /// By its function.
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

/// What is wrong with the command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads the arguments, without the program's own name.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, Error> {
    let text = |arg: OsString| {
        arg.into_string()
            .map_err(|arg| Error(format!("{arg:?} is not valid UTF-8")))
    };
    let args = args.map(text).collect::<Result<Vec<_>, _>>()?;
    let mut args = args.into_iter();
    let Some(command) = args.next() else {
        return Err(Error(
            "which command? info, doctor, bind, unbind, copy-test or demo".into(),
        ));
    };
    let mut words = Words::new(args);
    match command.as_str() {
        "--help" | "-h" => words.none(Command::Help(Topic::All)),
        "--version" | "-V" => words.none(Command::Version),
        "info" => info(&mut words),
        "doctor" => doctor(&mut words),
        "bind" => function(&mut words, Topic::Bind, Command::Bind),
        "unbind" => function(&mut words, Topic::Unbind, Command::Unbind),
        "copy-test" => copy_test(&mut words),
        "demo" => demo(&mut words),
        other => Err(Error(format!("there is no command `{other}`"))),
    }
}

fn info(words: &mut Words) -> Result<Command, Error> {
    let mut options = InfoOptions::default();
    while let Some(option) = words.option()? {
        match option.as_str() {
            "--json" => options.json = true,
            "--need" => options.need = Some(words.bytes(&option)?),
            _ => return common(&option, Topic::Info),
        }
    }
    if let Some(device) = words.at_most_one("DEVICE")? {
        options.device = Some(Target::parse(&device)?);
    }
    Ok(Command::Info(options))
}

fn doctor(words: &mut Words) -> Result<Command, Error> {
    let mut options = DoctorOptions::default();
    while let Some(option) = words.option()? {
        match option.as_str() {
            "--need" => options.need = Some(words.bytes(&option)?),
            _ => return common(&option, Topic::Doctor),
        }
    }
    if let Some(text) = words.at_most_one("BDF")? {
        let pci = text.parse();
        options.function = Some(pci.map_err(|error| Error(format!("`{text}` is {error}")))?);
    }
    Ok(Command::Doctor(options))
}

fn function(
    words: &mut Words,
    topic: Topic,
    command: fn(PciAddress) -> Command,
) -> Result<Command, Error> {
    if let Some(option) = words.option()? {
        return common(&option, topic);
    }
    let Some(text) = words.at_most_one("BDF")? else {
        return Err(Error("which function? `lspci -D` shows their BDFs".into()));
    };
    let pci = text
        .parse()
        .map_err(|error| Error(format!("`{text}` is {error}")))?;
    Ok(command(pci))
}

fn copy_test(words: &mut Words) -> Result<Command, Error> {
    let mut options = CopyOptions::default();
    while let Some(option) = words.option()? {
        match option.as_str() {
            "--device" => options.device = Some(Target::parse(&words.value(&option)?)?),
            "--size" => {
                let size = words.bytes(&option)?;
                let good = usize::try_from(size).ok().filter(|&size| size != 0);
                options.size = good.ok_or_else(|| Error("--size must be at least 1".into()))?;
            }
            "--address-bits" => {
                let value = words.value(&option)?;
                let bits = value.parse().ok().filter(|bits| (12..=64).contains(bits));
                let wrong = || Error("--address-bits must be 12 to 64".into());
                options.address_bits = bits.ok_or_else(wrong)?;
            }
            "--identity" => options.identity = true,
            _ => return common(&option, Topic::CopyTest),
        }
    }
    words.none(Command::CopyTest(options))
}

fn demo(words: &mut Words) -> Result<Command, Error> {
    let mut options = DemoOptions::default();
    while let Some(option) = words.option()? {
        match option.as_str() {
            "--device" => options.device = Some(Target::parse(&words.value(&option)?)?),
            _ => return common(&option, Topic::Demo),
        }
    }
    words.none(Command::Demo(options))
}

/// The options that every command has.
fn common(option: &str, topic: Topic) -> Result<Command, Error> {
    match option {
        "--help" | "-h" => Ok(Command::Help(topic)),
        "--version" | "-V" => Ok(Command::Version),
        _ => Err(Error(format!("there is no option `{option}`"))),
    }
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
