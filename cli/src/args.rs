// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

#[cfg(test)]
mod tests;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ColorChoice, CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use pinmap::PciAddress;

pub(crate) use values::Target;
use values::{address, address_bits, bytes, pci, process, seconds, some_bytes};

/// Shows and sets up devices of the driver pinmap, which maps user memory for PCI devices.
#[derive(Debug, Parser)]
#[command(
    name = "pinmap",
    version,
    max_term_width = 100,
    infer_long_args = true,
    subcommand_required = true,
    after_help = "\
Arguments that several commands have:
  DEVICE  a node (/dev/pinmap0), its name (pinmap0), or the BDF of its function
  BDF     the address of a PCI function (0000:00:10.0), as `lspci -D` shows it
  SIZE    a number of bytes, optionally followed by K, M, G or T (16K)

To begin: `pinmap doctor`, then `sudo pinmap bind BDF`, then `pinmap doctor` again.

Exit status: 0, success; 1, failure, and a sentence on stderr says why; 2, usage error."
)]
pub(crate) struct Cli {
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The task that the command line sets.
#[derive(Debug, Subcommand, PartialEq)]
pub(crate) enum Command {
    /// Show the devices, the IOMMU, and the limits of locked memory
    ///
    /// Shows the devices that the driver is bound to, with their properties, the IOMMU, and the
    /// limits of locked memory. Also says what is missing: the driver, an IOMMU, a device, or the
    /// permission to open one.
    #[command(after_help = "\
Examples:
  pinmap info --need 1G                       can this user register one more gigabyte?
  pinmap info --json | jq '.devices[].node'   lists the device nodes

Exit status: 0, shown; 1, DEVICE does not exist or cannot be opened, or what is needed is not
allowed; 2, usage error. Having no device at all is no failure.")]
    Info(InfoOptions),

    /// Find out what pinmap still needs on this machine, and how to get it
    ///
    /// Examines everything that pinmap needs on this machine, in the order in which to put it
    /// right: the kernel, the IOMMU, the driver, the PCI functions, the device nodes and the
    /// limits; and registers a page with each device. Says of each whether it is well, and if not,
    /// why and what to do. Changes nothing.
    #[command(after_help = "\
Run it as the user who is to use the device. Root sees more of the machine, but not what that user
may do.

Exit status: 0, all is well; 1, something is missing; 2, usage error.")]
    Doctor(DoctorOptions),

    /// Give a PCI function to the driver (as root)
    ///
    /// Gives a PCI function to the driver, as root: unbinds it from the driver that has it, sets
    /// its driver_override, and checks that pinmap took it. After a failure everything is as
    /// before.
    #[command(after_help = "\
Exit status: 0, the driver has the function, possibly since before; 1, it does not; 2, usage
error.")]
    Bind {
        /// The function (0000:00:10.0), as `lspci -D` shows it
        #[arg(value_name = "BDF", value_parser = pci)]
        function: PciAddress,
    },

    /// Take a PCI function away from the driver (as root)
    ///
    /// Takes a PCI function away from the driver, as root: clears its driver_override, and lets
    /// the system's own driver have it again. Programs that have the device open lose it.
    #[command(after_help = "\
Exit status: 0, the driver does not have the function any more; 1, it still does, or did not have it
before; 2, usage error.")]
    Unbind {
        /// The function (0000:00:10.0), as `pinmap info` shows it
        #[arg(value_name = "BDF", value_parser = pci)]
        function: PciAddress,
    },

    /// Remove a card, run a program that changes it, and find the card again (as root)
    ///
    /// Removes all functions of a card from the system, as root, runs PROGRAM, which may program
    /// an FPGA anew, has the kernel look for the card until it is there, and gives each function
    /// the driver that it had. A function that is in use stays where it is.
    #[command(after_help = "\
Example:
  sudo pinmap replug 0000:03:00.0 -- openFPGALoader design.bit

Exit status: 0, the card is back; 1, it is not, was in use, or PROGRAM failed; 2, usage error.")]
    Replug(ReplugOptions),

    /// Look at an NVMe controller, and read and write its blocks
    ///
    /// Runs the program pinmap-nvme with these arguments: `pinmap nvme --help` has its own words.
    #[command(
        disable_help_flag = true,
        after_help = "\
Exit status: 0, it is done; 1, it is not; 2, usage error."
    )]
    Nvme(OtherOptions),

    /// Look at a card with AMD's DMA core, and move bytes to it and from it
    ///
    /// Runs the program pinmap-xdma with these arguments: `pinmap xdma --help` has its own words.
    #[command(
        disable_help_flag = true,
        after_help = "\
Exit status: 0, it is done; 1, it is not; 2, usage error."
    )]
    Xdma(OtherOptions),

    /// Have QEMU's device edu copy memory, and check every byte
    ///
    /// Tests the driver with QEMU's device edu: takes its interrupt, registers memory, has the
    /// device fetch that memory and store it elsewhere, releases the memory, checks every byte, and
    /// checks that all pages are unpinned again.
    #[command(after_help = "Exit status: 0, all is right; 1, something is not; 2, usage error.")]
    CopyTest(CopyOptions),

    /// Have a device with queues work on memory of the program, and measure what that is worth
    ///
    /// Has a device with queues (the test GPU) add 1 to floats in ordinary memory of the program,
    /// and copy ints between two buffers in host memory; checks the results, and that the copy
    /// engines moved nothing. Shows what streams overlap. Then measures the same work on host
    /// memory directly and on a copy in the device's memory, for 4 bytes to 64 MiB, used once and
    /// ten times, in device time and in wall time. Takes half a minute.
    #[command(after_help = "\
Example:
  pinmap demo --json | jq '.sizes[] | [.bytes, .uses, .zero_copy.device_ns, .copy.device_ns]'

Exit status: 0, all checks are right; 1, not all are, or there is no such device; 2, usage error.")]
    Demo(DemoOptions),

    /// Watch devices and the programs that use them: memory, queues, faults
    ///
    /// Shows, again and again, each device with its contexts, memory, queues and faults, and each
    /// program that has a device open, with what it has there. On a terminal, q ends it. Other
    /// users' programs are shown to root only.
    #[command(after_help = "\
Examples:
  pinmap top                                 until q is pressed
  pinmap top --once                          as it is now
  pinmap top --json --count 10 | jq .devices[0].faults_per_second

Exit status: 0, ended; 1, /proc or /sys cannot be read; 2, usage error.")]
    Top(TopOptions),

    /// Run a program, and write what the device did for it, for Perfetto
    ///
    /// Runs a program that uses this crate, and writes a file that https://ui.perfetto.dev opens:
    /// what each queue and stream did, what each engine did, and which wait was for which work, by
    /// the device's clock; as root also the driver's faults, migrations and calls. A packet more
    /// for each piece of work takes the times, so small work takes longer.
    #[command(after_help = "\
Examples:
  sudo pinmap trace ./program
  pinmap trace --output run.json cargo run --release

Exit status: 0, PROGRAM's was 0; otherwise PROGRAM's, or 128 more than the signal that ended it; 1
also if PROGRAM cannot be run or FILE not be written; 2 also for a usage error.")]
    Trace(TraceOptions),

    /// Tell where a page of managed memory is, who has it mapped, and why (as root)
    ///
    /// Tells where a page of managed memory is, as root: on the host, on the device, or nowhere
    /// yet; what the device and the CPU can do there without a fault; what the program has advised;
    /// and which rule of the driver put it there. Of each context that manages the page. Moves
    /// nothing.
    #[command(after_help = "\
Exit status: 0, the page was found; 1, the page is not managed, or the driver's list cannot be read;
2, usage error.")]
    Explain(ExplainOptions),

    /// Write a specification of the devices for containers (CDI)
    ///
    /// Writes a specification of the devices for the container device interface, CDI: podman,
    /// Docker, containerd and CRI-O then know them by the names pinmap/device=BDF and
    /// pinmap/device=all. It names the nodes that there are now, so it is to be written anew when a
    /// function was given to the driver or taken away.
    #[command(after_help = "\
Examples:
  sudo pinmap cdi --output /etc/cdi/pinmap.json
  podman run --rm --device pinmap/device=all --group-add keep-groups IMAGE pinmap info

Exit status: 0, written; 1, there is no device, or FILE cannot be written; 2, usage error.")]
    Cdi(CdiOptions),

    /// Print a script that completes the command line in a shell
    #[command(after_help = "\
Examples:
  pinmap completions bash > /etc/bash_completion.d/pinmap
  pinmap completions zsh > /usr/local/share/zsh/site-functions/_pinmap
  pinmap completions fish > ~/.config/fish/completions/pinmap.fish

Exit status: 0, printed; 2, usage error.")]
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Write the manual pages: pinmap(1), and one for each command
    #[command(after_help = "\
Example:
  sudo pinmap man /usr/local/share/man/man1    then: man pinmap-doctor

Exit status: 0, written; 1, DIRECTORY cannot be written to; 2, usage error.")]
    Man {
        /// The directory, which must exist
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

/// Options of `info`.
#[derive(Debug, Default, Args, PartialEq, Eq)]
pub(crate) struct InfoOptions {
    /// Print JSON: sizes and limits are numbers, null for no limit; addresses are strings
    #[arg(long)]
    pub(crate) json: bool,
    /// Fail unless this user can register SIZE more bytes (1G); asks a device, if there is one,
    /// what registering would take, which limit forbids it, and how to raise that
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) need: Option<u64>,
    /// Show only this device: a node (/dev/pinmap0), its name (pinmap0) or a BDF (0000:00:10.0)
    #[arg(value_name = "DEVICE", value_parser = Target::parse)]
    pub(crate) device: Option<Target>,
}

/// Options of `copy-test`.
#[derive(Debug, Args, PartialEq, Eq)]
pub(crate) struct CopyOptions {
    /// Print JSON: an object; addresses are strings, `pages` is null if the kernel does not count
    #[arg(long)]
    pub(crate) json: bool,
    /// Use this device: a node (/dev/pinmap0), its name or a BDF; otherwise the first edu
    #[arg(long, value_parser = Target::parse)]
    pub(crate) device: Option<Target>,
    /// Copy SIZE bytes, in pieces of at most 4 KiB, which take 0.2 s each
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, default_value = "16K")]
    pub(crate) size: usize,
    /// Use only device addresses of N bits, 12 to 64: 28 for an edu without `dma_mask=`; 0 for all
    #[arg(long, value_name = "N", value_parser = address_bits, default_value = "0")]
    pub(crate) address_bits: u32,
    /// Fail if the device address cannot be that of the memory
    #[arg(long)]
    pub(crate) identity: bool,
}

/// Options of `doctor`.
#[derive(Debug, Default, Args, PartialEq, Eq)]
pub(crate) struct DoctorOptions {
    /// Print JSON: whether pinmap can be used, and a list of findings, each with a level (good,
    /// note, wrong), what it is about, the text, and what to do, or null
    #[arg(long)]
    pub(crate) json: bool,
    /// This user is to be able to register SIZE more bytes (1M)
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) need: Option<u64>,
    /// Examine only this function (0000:00:10.0), which the driver need not have yet
    #[arg(value_name = "BDF", value_parser = pci)]
    pub(crate) function: Option<PciAddress>,
}

/// Options of `replug`.
#[derive(Debug, Args, PartialEq)]
pub(crate) struct ReplugOptions {
    /// Remove the card also if it is open, or another driver has it: whoever uses it loses it
    #[arg(long)]
    pub(crate) force: bool,
    /// Wait at most SECONDS for the card, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub(crate) timeout: f64,
    /// A function of the card (0000:00:10.0), as `lspci -D` shows it
    #[arg(value_name = "BDF", value_parser = pci)]
    pub(crate) function: PciAddress,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) program: Vec<OsString>,
}

/// Arguments of a command that is a program of its own.
#[derive(Debug, Args, PartialEq)]
pub(crate) struct OtherOptions {
    /// The program's arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub(crate) arguments: Vec<OsString>,
}

/// Options of `top`.
#[derive(Debug, Args, PartialEq)]
pub(crate) struct TopOptions {
    /// Print JSON: an object for each sample, a line each; sizes are bytes
    #[arg(long)]
    pub(crate) json: bool,
    /// Show one sample, as --count 1 does
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,
    /// Show N samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Take a sample every SECONDS, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    pub(crate) interval: f64,
}

/// Options of `trace`.
#[derive(Debug, Args, PartialEq, Eq)]
pub(crate) struct TraceOptions {
    /// Write the trace to FILE
    #[arg(short, long, value_name = "FILE", default_value = "pinmap-trace.json")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// Record at most SIZE bytes of activities, 128 each; memory is taken as it is used
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "256M")]
    pub(crate) size: u64,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) program: Vec<OsString>,
}

/// Options of `explain`.
#[derive(Debug, Args, PartialEq, Eq)]
pub(crate) struct ExplainOptions {
    /// Print JSON: a list with an object for each context; addresses are strings
    #[arg(long)]
    pub(crate) json: bool,
    /// The process that has opened the device
    #[arg(value_name = "PID", value_parser = process)]
    pub(crate) pid: u32,
    /// An address of that process (0x7f1234567890)
    #[arg(value_name = "ADDR", value_parser = address)]
    pub(crate) addr: u64,
}

/// Options of `cdi`.
#[derive(Debug, Args, PartialEq, Eq)]
pub(crate) struct CdiOptions {
    /// Write to FILE, whose name ends in .json, and whose directory is made if it is not there
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// Options of `demo`.
#[derive(Debug, Default, Args, PartialEq, Eq)]
pub(crate) struct DemoOptions {
    /// Print JSON: an object with all that is measured and checked; times are nanoseconds
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw what is measured, as SVG files in DIR, which is made if it is not there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) svg: Option<PathBuf>,
    /// Use this device: a node (/dev/pinmap0), its name or a BDF; otherwise the first one with
    /// queues
    #[arg(long, value_parser = Target::parse)]
    pub(crate) device: Option<Target>,
}

/// The command line as clap describes it, for completions and manual pages.
pub(crate) fn description() -> clap::Command {
    Cli::command()
}
