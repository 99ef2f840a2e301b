// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `pinmap-nvme`: looks at controllers that are bound to pinmap, copies blocks, and
//! measures reads.
#![forbid(unsafe_code)]

mod bench;

use std::error::Error;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use pinmap::{Access, Buffer, Device, Registration};
use pinmap_nvme::{Controller, Namespace, Queue, QueueOptions};

use bench::Reads;

const USAGE: &str = "\
usage: pinmap-nvme list
       pinmap-nvme identify PCI
       pinmap-nvme read PCI NAMESPACE BLOCK COUNT >FILE
       pinmap-nvme write PCI NAMESPACE BLOCK <FILE
       pinmap-nvme bench PCI NAMESPACE [OPTION...]
       pinmap-nvme fio-job FILE [OPTION...]
PCI is the address of a controller that `pinmap bind` has given to the driver, such as 0000:01:00.0.
Each command resets the controller. write fills the last block up with zeroes. bench reads from
places in a random order, and prints how long that took. fio-job prints a job that has fio do the
same with io_uring, on the block device FILE of the kernel's driver.
  -s SIZE   bytes of a read (4096)
  -d DEPTH  reads in flight (1)
  -c COUNT  reads (10000)
  -p        poll, and take no interrupt";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match &arguments[..] {
        ["list"] => list(),
        ["identify", pci] => open(pci).and_then(|controller| identify(&controller)),
        ["read", pci, namespace, block, count] => read(pci, namespace, block, count),
        ["write", pci, namespace, block] => write(pci, namespace, block),
        ["bench", pci, namespace, rest @ ..] => {
            Reads::parse(rest).and_then(|reads| reads.run(pci, namespace))
        }
        ["fio-job", file, rest @ ..] => Reads::parse(rest).map(|reads| reads.print_job(file)),
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
            eprintln!("pinmap-nvme: {error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn open(pci: &str) -> Outcome<Controller> {
    Ok(Controller::open(&Device::open_pci(pci.parse()?)?)?)
}

/// Prints a line for each controller.
fn list() -> Outcome {
    for node in Device::list()? {
        let device = Device::open(&node.path)?;
        let info = device.info()?;
        if info.class != 0x01_0802 {
            continue;
        }
        match Controller::open(&device) {
            Ok(controller) => {
                let identity = controller.identity();
                println!("{}  {}  {}", info.pci, identity.model, identity.serial);
            }
            Err(error) => println!("{}  {error}", info.pci),
        }
    }
    Ok(())
}

fn identify(controller: &Controller) -> Outcome {
    let identity = controller.identity();
    let (major, minor, tertiary) = identity.version;
    let optional = identity.optional;
    let commands = [
        (optional.compare, "compare"),
        (optional.deallocate, "dataset management"),
        (optional.write_zeroes, "write zeroes"),
        (optional.verify, "verify"),
    ];
    let commands = commands.iter().filter(|(known, _)| *known);
    let commands: Vec<&str> = commands.map(|&(_, name)| name).collect();
    println!("model              {}", identity.model);
    println!("serial number      {}", identity.serial);
    println!("firmware           {}", identity.firmware);
    println!("NVM Express        {major}.{minor}.{tertiary}");
    println!("bytes of a command {}", identity.max_transfer);
    println!("SGLs               {}", identity.sgl);
    println!("volatile cache     {}", identity.volatile_cache);
    println!("optional commands  {}", commands.join(", "));
    for id in controller.namespaces()? {
        match controller.namespace(id) {
            Ok(namespace) => {
                let (blocks, len) = (namespace.blocks(), namespace.block_len());
                println!("namespace {id}        {blocks} blocks of {len} bytes");
            }
            Err(error) => println!("namespace {id}        {error}"),
        }
    }
    Ok(())
}

/// A namespace, and what copies its blocks: a queue, and memory for one command.
struct Copier {
    namespace: Namespace,
    queue: Queue<Registration>,
    memory: Option<Registration>,
}

impl Copier {
    fn new(pci: &str, namespace: &str) -> Outcome<Self> {
        let controller = open(pci)?;
        let namespace = controller.namespace(namespace.parse()?)?;
        let len = controller
            .identity()
            .max_transfer
            .max(namespace.block_len());
        let memory = Buffer::new(len)?.register(controller.device(), Access::ReadWrite)?;
        Ok(Self {
            namespace,
            queue: controller.queue(QueueOptions::new())?,
            memory: Some(memory),
        })
    }

    /// The memory, which no command has between two calls.
    fn memory(&mut self) -> Outcome<Registration> {
        Ok(self.memory.take().ok_or("the memory is lost")?)
    }
}

fn read(pci: &str, namespace: &str, block: &str, count: &str) -> Outcome {
    let mut copier = Copier::new(pci, namespace)?;
    let (mut block, mut left): (u64, u64) = (block.parse()?, count.parse()?);
    let mut output = io::stdout().lock();
    while left != 0 {
        let memory = copier.memory()?;
        let len = copier.namespace.block_len();
        let blocks = left.min((memory.len() / len) as u64);
        let mut bytes = vec![0; blocks as usize * len];
        let command = copier.namespace.read(block, memory).part(0..bytes.len());
        copier.memory = copier.queue.run(command).map_err(|failed| failed.error)?;
        if let Some(memory) = &copier.memory {
            memory.read_at(0, &mut bytes)?;
        }
        output.write_all(&bytes)?;
        (block, left) = (block + blocks, left - blocks);
    }
    Ok(output.flush()?)
}

fn write(pci: &str, namespace: &str, block: &str) -> Outcome {
    let mut copier = Copier::new(pci, namespace)?;
    let mut block: u64 = block.parse()?;
    loop {
        let memory = copier.memory()?;
        let len = copier.namespace.block_len();
        let mut bytes = Vec::new();
        let most = memory.len() / len * len;
        io::stdin()
            .lock()
            .take(most as u64)
            .read_to_end(&mut bytes)?;
        let ended = bytes.len() < most;
        bytes.resize(bytes.len().next_multiple_of(len), 0);
        if !bytes.is_empty() {
            memory.write_at(0, &bytes)?;
            let command = copier.namespace.write(block, memory).part(0..bytes.len());
            copier.memory = copier.queue.run(command).map_err(|failed| failed.error)?;
            block += (bytes.len() / len) as u64;
        }
        if ended {
            let flushed = copier.queue.run(copier.namespace.flush());
            return Ok(flushed.map(drop).map_err(|failed| failed.error)?);
        }
    }
}
