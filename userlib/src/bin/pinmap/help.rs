// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `--help` says.

/// What help is wanted about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The command as a whole.
    All,
    /// `pinmap info`.
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
    }
}

const ALL: &str = "\
Shows and sets up the devices of the driver pinmap, which maps user memory for PCI devices.

usage: pinmap info [--json] [--need SIZE] [DEVICE]
       pinmap doctor [--need SIZE] [BDF]
       pinmap bind BDF
       pinmap unbind BDF
       pinmap copy-test [--device DEVICE] [--size SIZE] [--address-bits N] [--identity]
       pinmap demo [--device DEVICE]
       pinmap COMMAND --help
       pinmap --help | --version

  info       shows the devices, the IOMMU, and the limits for locked memory
  doctor     says what is missing for pinmap to work here, and how to put it right
  bind       gives a PCI function to the driver (as root)
  unbind     takes it away again (as root)
  copy-test  has QEMU's device edu copy memory, and checks every byte
  demo       has a device with queues work on memory of the program, and measures what that is worth

DEVICE is a node (/dev/pinmap0), its name (pinmap0) or a BDF; BDF is the address of a PCI function
(0000:00:10.0), as `lspci -D` shows it; SIZE is a number of bytes, also with K, M, G or T.

Exit status: 0, it worked; 1, it did not, and a sentence on stderr says why; 2, the command line
makes no sense.
";

const INFO: &str = "\
Shows the devices that the driver is bound to, what they are, the IOMMU, and the limits. Also says
what is missing: the driver, an IOMMU, a device, the permission to open it.

usage: pinmap info [--json] [--need SIZE] [DEVICE]

  DEVICE       only this one: a node (/dev/pinmap0), its name (pinmap0) or a BDF (0000:00:10.0)
  --json       as JSON: sizes and limits are numbers, null for no limit; addresses are strings
  --need SIZE  fail unless this user may register so many bytes more; a device is asked, if there is
               one: what that would take, what is allowed, which limit it is, and how to raise it

Exit status: 0, shown; 1, DEVICE is not there or cannot be opened, or what is needed is not
allowed; 2, the command line makes no sense. That there is no device at all is no failure.
";

const DOCTOR: &str = "\
Looks at all that pinmap needs on this machine, in the order in which to put it right: the kernel, the
IOMMU, the driver, the PCI functions, the device nodes, the limits; and registers a page with each
device. Says of each whether it is well, and if not, why and what to do. Changes nothing.

usage: pinmap doctor [--need SIZE] [BDF]

  BDF          look at this function only, which the driver need not have yet (0000:00:10.0)
  --need SIZE  this user is to be able to register so many bytes more (1M)

Run it as the user who is to use the device; as root it sees more of the machine, but not what that
user may do.

Exit status: 0, all is well; 1, something is missing; 2, the command line makes no sense.
";

const BIND: &str = "\
Gives a PCI function to the driver, as root: takes it from the driver that has it, sets its
driver_override, and checks that the driver took it. If it did not, everything is as before.

usage: pinmap bind BDF

  BDF  the function (0000:00:10.0), as `lspci -D` shows it

Exit status: 0, the driver has it, also if it had it before; 1, it does not; 2, the command line
makes no sense.
";

const UNBIND: &str = "\
Takes a PCI function away from the driver, as root, clears its driver_override, and lets the
system's own driver have it again. Programs that have the device open lose it.

usage: pinmap unbind BDF

  BDF  the function (0000:00:10.0), as `pinmap info` shows it

Exit status: 0, the driver does not have it any more; 1, it does, or did not have it before; 2, the
command line makes no sense.
";

const COPY_TEST: &str = "\
Tests the driver with QEMU's device edu: takes its interrupt, registers memory, has the device fetch
it and store it elsewhere, releases the memory, checks every byte, and that all pages are unpinned
again.

usage: pinmap copy-test [--device DEVICE] [--size SIZE] [--address-bits N] [--identity]

  --device DEVICE   a node (/dev/pinmap0), its name or a BDF; the first edu that there is
  --size SIZE       how many bytes (16K); they go in pieces of at most 4 KiB, 0.2 s each
  --address-bits N  use only device addresses of so many bits: 28 for an edu without `dma_mask=`
  --identity        fail if the device address cannot be that of the memory

Exit status: 0, all is right; 1, it is not; 2, the command line makes no sense.
";

const DEMO: &str = "\
Has a device with queues (the test GPU) add 1 to floats in ordinary memory of the program, and copy
ints between two buffers in host memory; checks the results, and that the copy engines moved nothing.
Then measures the same work on host memory directly and on a copy in the device's memory, for 4 bytes
to 64 MiB, used once and ten times: in device time and in wall time. Half a minute.

usage: pinmap demo [--device DEVICE]

  --device DEVICE  a node (/dev/pinmap0), its name or a BDF; the first one with queues

Exit status: 0, all checks are right; 1, not all, or there is no such device; 2, the command line
makes no sense.
";
