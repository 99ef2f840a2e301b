// SPDX-License-Identifier: MIT OR Apache-2.0
//! The texts of `--help`.

/// A topic of help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The command as a whole.
    All,
    /// The command `pinmap info`.
    Info,
    /// `pinmap bind`.
    Bind,
    /// `pinmap unbind`.
    Unbind,
    /// `pinmap copy-test`.
    CopyTest,
    /// `pinmap demo`.
    Demo,
    /// `pinmap doctor`.
    Doctor,
    /// `pinmap explain`.
    Explain,
}

/// The text about a topic.
pub(crate) fn text(topic: Topic) -> &'static str {
    match topic {
        Topic::All => ALL,
        Topic::Info => INFO,
        Topic::Bind => BIND,
        Topic::Unbind => UNBIND,
        Topic::CopyTest => COPY_TEST,
        Topic::Demo => DEMO,
        Topic::Doctor => DOCTOR,
        Topic::Explain => EXPLAIN,
    }
}

const ALL: &str = "\
Shows and sets up devices of the driver pinmap, which maps user memory for PCI devices.

usage: pinmap info [--json] [--need SIZE] [DEVICE]
       pinmap doctor [--need SIZE] [BDF]
       pinmap bind BDF
       pinmap unbind BDF
       pinmap copy-test [--device DEVICE] [--size SIZE] [--address-bits N] [--identity]
       pinmap demo [--device DEVICE]
       pinmap explain [--json] PID ADDR
       pinmap COMMAND --help
       pinmap --help | --version

Commands:
  info       shows the devices, the IOMMU, and the limits of locked memory
  doctor     finds out what pinmap still needs on this machine, and how to get it
  bind       gives a PCI function to the driver (as root)
  unbind     takes a PCI function away from the driver (as root)
  copy-test  has QEMU's device edu copy memory, and checks every byte
  demo       has a device with queues work on memory of the program, and measures what that is worth
  explain    tells where a page of managed memory is, who has it mapped, and why (as root)

Arguments:
  DEVICE     a node (/dev/pinmap0), its name (pinmap0), or the BDF of its function
  BDF        the address of a PCI function (0000:00:10.0), as `lspci -D` shows it
  SIZE       a number of bytes, optionally followed by K, M, G or T (16K)

To begin: `pinmap doctor`, then `sudo pinmap bind BDF`, then `pinmap doctor` again.

Exit status: 0, success; 1, failure, and a sentence on stderr says why; 2, the command line is
wrong.
";

const INFO: &str = "\
Shows the devices that the driver is bound to, with their properties, the IOMMU, and the limits of
locked memory. Also says what is missing: the driver, an IOMMU, a device, or the permission to open
one.

usage: pinmap info [--json] [--need SIZE] [DEVICE]

Options:
  DEVICE       show only this device: a node (/dev/pinmap0), its name (pinmap0) or a BDF
               (0000:00:10.0)
  --json       print JSON: sizes and limits are numbers, null for no limit; addresses are strings
  --need SIZE  fail unless this user can register SIZE more bytes (1G); asks a device, if there is
               one, what registering would take, which limit forbids it, and how to raise that

Examples:
  pinmap info --need 1G                       can this user register one more gigabyte?
  pinmap info --json | jq '.devices[].node'   lists the device nodes

Exit status: 0, shown; 1, DEVICE does not exist or cannot be opened, or what is needed is not
allowed; 2, the command line is wrong. Having no device at all is no failure.
";

const DOCTOR: &str = "\
Examines everything that pinmap needs on this machine, in the order in which to put it right: the
kernel, the IOMMU, the driver, the PCI functions, the device nodes and the limits; and registers a
page with each device. Says of each whether it is well, and if not, why and what to do. Changes
nothing.

usage: pinmap doctor [--need SIZE] [BDF]

Options:
  BDF          examine only this function (0000:00:10.0), which the driver need not have yet
  --need SIZE  this user is to be able to register SIZE more bytes (1M)

Run it as the user who is to use the device. Root sees more of the machine, but not what that user
may do.

Exit status: 0, all is well; 1, something is missing; 2, the command line is wrong.
";

const BIND: &str = "\
Gives a PCI function to the driver, as root: unbinds it from the driver that has it, sets its
driver_override, and checks that pinmap took it. After a failure everything is as before.

usage: pinmap bind BDF

Options:
  BDF  the function (0000:00:10.0), as `lspci -D` shows it

Exit status: 0, the driver has the function, possibly since before; 1, it does not; 2, the command
line is wrong.
";

const UNBIND: &str = "\
Takes a PCI function away from the driver, as root: clears its driver_override, and lets the
system's own driver have it again. Programs that have the device open lose it.

usage: pinmap unbind BDF

Options:
  BDF  the function (0000:00:10.0), as `pinmap info` shows it

Exit status: 0, the driver does not have the function any more; 1, it still does, or did not have it
before; 2, the command line is wrong.
";

const COPY_TEST: &str = "\
Tests the driver with QEMU's device edu: takes its interrupt, registers memory, has the device fetch
that memory and store it elsewhere, releases the memory, checks every byte, and checks that all
pages are unpinned again.

usage: pinmap copy-test [--device DEVICE] [--size SIZE] [--address-bits N] [--identity]

Options:
  --device DEVICE   use this device: a node (/dev/pinmap0), its name or a BDF; otherwise the first
                    edu
  --size SIZE       copy SIZE bytes (16K), in pieces of at most 4 KiB, which take 0.2 s each
  --address-bits N  use only device addresses of N bits: 28 for an edu without `dma_mask=`
  --identity        fail if the device address cannot be that of the memory

Exit status: 0, all is right; 1, something is not; 2, the command line is wrong.
";

const DEMO: &str = "\
Has a device with queues (the test GPU) add 1 to floats in ordinary memory of the program, and copy
ints between two buffers in host memory; checks the results, and that the copy engines moved
nothing. Shows what streams overlap. Then measures the same work on host memory directly and on a
copy in the device's memory, for 4 bytes to 64 MiB, used once and ten times, in device time and in
wall time. Takes half a minute.

usage: pinmap demo [--device DEVICE]

Options:
  --device DEVICE  use this device: a node (/dev/pinmap0), its name or a BDF; otherwise the first
                   one with queues

Exit status: 0, all checks are right; 1, not all are, or there is no such device; 2, the command
line is wrong.
";

const EXPLAIN: &str = "\
Tells where a page of managed memory is, as root: on the host, on the device, or nowhere yet; what
the device and the CPU can do there without a fault; what the program has advised; and which rule of
the driver put it there. Of each context that manages the page. Moves nothing.

usage: pinmap explain [--json] PID ADDR

Options:
  PID     the process that has opened the device
  ADDR    an address of that process (0x7f1234567890)
  --json  print JSON: a list with an object for each context; addresses are strings

Exit status: 0, told; 1, the page is not managed, or the driver's list cannot be read; 2, the
command line is wrong.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_a_terminal() {
        for text in [ALL, INFO, DOCTOR, BIND, UNBIND, COPY_TEST, DEMO, EXPLAIN] {
            assert!(text.ends_with(".\n"));
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }
}
