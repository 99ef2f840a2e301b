// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `pinmap-xdma`: looks at a card with AMD's DMA core that is bound to pinmap, and
//! moves bytes to it and from it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Instant;

use pinmap::{Access, Buffer, Device, Registration};
use pinmap_xdma::{Channel, ChannelOptions, Core, Direction, Transfer};

const USAGE: &str = "\
usage: pinmap-xdma info PCI
       pinmap-xdma to-device PCI [OPTION...]
       pinmap-xdma from-device PCI [OPTION...]
       pinmap-xdma reg PCI BAR OFFSET [b|h|w [VALUE]]
       pinmap-xdma perf PCI [OPTION...]
PCI is the address of a card that `pinmap bind` has given to the driver, such as 0000:01:00.0.
  -n CHANNEL  the number of the channel (0)
  -a ADDRESS  the card's address, if the channel is no stream (0)
  -s SIZE     bytes of a transfer (what the file has; else 32); from a stream, at most
  -c COUNT    how often (1; perf: 100)
  -f FILE     to the card: what is sent (standard input); from the card: where it goes (output)
  -p          poll, and take no interrupt
Numbers can be hexadecimal, with 0x. reg writes VALUE, or reads, 8, 16 or 32 bits.";

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match &arguments[..] {
        ["info", pci] => info(pci),
        ["to-device", pci, rest @ ..] => options(rest).and_then(|o| to_device(pci, &o)),
        ["from-device", pci, rest @ ..] => options(rest).and_then(|o| from_device(pci, &o)),
        ["perf", pci, rest @ ..] => options(rest).and_then(|o| perf(pci, &o)),
        ["reg", pci, bar, offset] => reg(pci, bar, offset, "w", None),
        ["reg", pci, bar, offset, kind] => reg(pci, bar, offset, kind, None),
        ["reg", pci, bar, offset, kind, value] => reg(pci, bar, offset, kind, Some(value)),
        ["--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pinmap-xdma: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Options of the commands that move bytes.
#[derive(Default)]
struct Options {
    channel: usize,
    address: u64,
    size: Option<usize>,
    count: Option<u64>,
    file: Option<String>,
    polled: bool,
}

fn number(text: &str) -> Outcome<u64> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Ok(number.map_err(|_| format!("no number: {text}"))?)
}

fn options(arguments: &[&str]) -> Outcome<Options> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(&name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name {
            "-n" => options.channel = number(value()?)? as usize,
            "-a" => options.address = number(value()?)?,
            "-s" => options.size = Some(usize::try_from(number(value()?)?)?),
            "-c" => options.count = Some(number(value()?)?),
            "-f" => options.file = Some(value()?.to_string()),
            "-p" => options.polled = true,
            _ => return Err(format!("unknown option: {name} (see --help)").into()),
        }
    }
    Ok(options)
}

fn open(pci: &str) -> Outcome<Core> {
    Ok(Core::open(&Device::open_pci(pci.parse()?)?)?)
}

/// Prints what the core's registers tell.
fn info(pci: &str) -> Outcome {
    let core = open(pci)?;
    println!("registers  BAR {}", core.bar());
    println!("vectors    {}", core.device().info()?.vectors);
    for channel in core.channels() {
        let kind = match channel.stream {
            true => "stream".into(),
            false => format!("memory-mapped, {} bits of addresses", channel.address_bits),
        };
        let (unit, version) = (channel.alignment, channel.version);
        println!("{channel}      {kind}, aligned to {unit}, version {version}");
    }
    Ok(())
}

/// A channel, and what its transfers are like.
struct Mover {
    core: Core,
    channel: Channel<Registration>,
    address: Option<u64>,
    size: usize,
}

impl Mover {
    fn new(core: Core, direction: Direction, options: &Options, size: usize) -> Outcome<Self> {
        let with = match options.polled {
            true => ChannelOptions::new().polled(),
            false => ChannelOptions::new(),
        };
        let channel: Channel<Registration> = core.channel(direction, options.channel, with)?;
        let address = (!channel.info().stream).then_some(options.address);
        Ok(Self {
            core,
            channel,
            address,
            size,
        })
    }

    fn register(&self, buffer: Buffer<u8>) -> Outcome<Registration> {
        Ok(buffer.register(self.core.device(), Access::ReadWrite)?)
    }

    fn transfer(&self, memory: Registration) -> Transfer<Registration> {
        let transfer = Transfer::new(memory).part(0..self.size);
        match self.address {
            Some(address) => transfer.at(address),
            None => transfer,
        }
    }

    /// Does a transfer. Returns the memory, with how many bytes it has.
    fn run(&mut self, memory: Registration) -> Outcome<(Registration, usize)> {
        let transfer = self.transfer(memory);
        let done = self.channel.run(transfer).map_err(|failed| failed.error)?;
        Ok((done.memory, done.len))
    }
}

fn to_device(pci: &str, options: &Options) -> Outcome {
    let mut input: Box<dyn Read> = match &options.file {
        Some(file) => Box::new(File::open(file)?),
        None => Box::new(io::stdin().lock()),
    };
    let mut content = Vec::new();
    match options.size {
        Some(size) => input.take(size as u64).read_to_end(&mut content)?,
        None => input.read_to_end(&mut content)?,
    };
    if options.size.is_some_and(|size| size != content.len()) {
        return Err(format!("there are {} bytes only", content.len()).into());
    }
    let mut mover = Mover::new(open(pci)?, Direction::H2c, options, content.len())?;
    let mut memory = mover.register(Buffer::from_slice(&content)?)?;
    for _ in 0..options.count.unwrap_or(1) {
        (memory, _) = mover.run(memory)?;
    }
    Ok(())
}

fn from_device(pci: &str, options: &Options) -> Outcome {
    let size = options.size.unwrap_or(32);
    let mut mover = Mover::new(open(pci)?, Direction::C2h, options, size)?;
    let mut output: Box<dyn Write> = match &options.file {
        Some(file) => Box::new(File::create(file)?),
        None => Box::new(io::stdout().lock()),
    };
    let mut memory = mover.register(Buffer::new(size)?)?;
    for _ in 0..options.count.unwrap_or(1) {
        let len;
        (memory, len) = mover.run(memory)?;
        let mut content = vec![0; len];
        memory.read_at(0, &mut content)?;
        output.write_all(&content)?;
    }
    Ok(output.flush()?)
}

fn reg(pci: &str, bar: &str, offset: &str, kind: &str, value: Option<&str>) -> Outcome {
    let bar = Device::open_pci(pci.parse()?)?.bar(number(bar)? as usize)?;
    let offset = number(offset)? as usize;
    let value = value.map(number).transpose()?;
    let read = match (kind, value) {
        ("b", Some(value)) => return Ok(bar.write(offset, u8::try_from(value)?)?),
        ("h", Some(value)) => return Ok(bar.write(offset, u16::try_from(value)?)?),
        ("w", Some(value)) => return Ok(bar.write(offset, u32::try_from(value)?)?),
        ("b", None) => u32::from(bar.read::<u8>(offset)?),
        ("h", None) => u32::from(bar.read::<u16>(offset)?),
        ("w", None) => bar.read(offset)?,
        _ => return Err(format!("the width is b, h or w, not {kind}").into()),
    };
    println!("{read:#x}");
    Ok(())
}

/// Prints a line for each direction, or one for a stream that the card sends back.
fn perf(pci: &str, options: &Options) -> Outcome {
    let (size, count) = (options.size.unwrap_or(4096), options.count.unwrap_or(100));
    let core = open(pci)?;
    let mut to = Mover::new(core.clone(), Direction::H2c, options, size)?;
    let mut from = Mover::new(core, Direction::C2h, options, size)?;
    let print = |name: &str, begin: Instant, cycles: u64| {
        let seconds = begin.elapsed().as_secs_f64();
        let rate = (size as u64 * count) as f64 / seconds / 1e6;
        let each = seconds / count as f64 * 1e6;
        let cycles = cycles / count.max(1);
        println!("{name}  {rate:.1} MB/s  {each:.1} us and {cycles} cycles for {size} bytes");
    };
    let new = |mover: &Mover| mover.register(Buffer::new(size)?);
    let (mut sent, mut received) = (new(&to)?, new(&from)?);
    if to.address.is_none() {
        let (mut cycles, begin) = (0, Instant::now());
        for _ in 0..count {
            from.channel.start_monitor();
            let transfer = from.transfer(received);
            let started = from.channel.start(transfer);
            started.map_err(|failed| failed.error)?;
            (sent, _) = to.run(sent)?;
            received = from.channel.wait().map_err(|failed| failed.error)?.memory;
            cycles += from.channel.monitor().cycles;
        }
        print("loop", begin, cycles);
        return Ok(());
    }
    for (mover, mut memory) in [(&mut to, sent), (&mut from, received)] {
        let (mut cycles, begin) = (0, Instant::now());
        for _ in 0..count {
            mover.channel.start_monitor();
            (memory, _) = mover.run(memory)?;
            cycles += mover.channel.monitor().cycles;
        }
        print(&mover.channel.info().direction.to_string(), begin, cycles);
    }
    Ok(())
}
