// SPDX-License-Identifier: MIT OR Apache-2.0
//! A card behind a root port that is pulled while it works, and put back (`pciehp`), by the monitor
//! of QEMU, which `scripts/vm` puts behind a virtio port.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{signal, SigHandler, Signal};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, ForkResult};
use pinmap::Device;

use crate::documents::network_card;
use crate::harness::{skip, Outcome};

/// The network card, and the slot of its root port.
const CARD: &str = "/sys/bus/pci/devices/0000:01:00.0";
const SLOT: &str = "/sys/bus/pci/slots/1";
/// Files that tell the driver which functions to take whenever they come, and which no longer.
const NEW_ID: &str = "/sys/bus/pci/drivers/pinmap/new_id";
const REMOVE_ID: &str = "/sys/bus/pci/drivers/pinmap/remove_id";

/// The monitor of QEMU, which answers each line by one with `return` or `error`, and tells events
/// by other lines.
struct Monitor(BufReader<File>);

impl Monitor {
    /// Opens the monitor, or skips the test.
    fn open() -> Result<Self, Box<dyn std::error::Error>> {
        for port in fs::read_dir("/sys/class/virtio-ports")? {
            let port = port?;
            if fs::read_to_string(port.path().join("name"))?.trim() == "monitor" {
                let node = Path::new("/dev").join(port.file_name());
                let file = File::options().read(true).write(true).open(node)?;
                let mut monitor = Self(BufReader::new(file));
                // An error means that this was done before.
                let _ = monitor.ask(r#"{"execute": "qmp_capabilities"}"#);
                return Ok(monitor);
            }
        }
        skip("there is no monitor")
    }

    fn ask(&mut self, command: &str) -> Outcome {
        writeln!(self.0.get_mut(), "{command}")?;
        self.line_with("\"return\"")
    }

    /// Reads up to a line with these words.
    fn line_with(&mut self, words: &str) -> Outcome {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            if self.0.read_line(&mut line)? == 0 || line.contains("\"error\"") {
                return Err(format!("no {words}: {line}").into());
            }
        }
        Ok(())
    }
}

/// Sends and receives frames until that fails, and says when it has done so once.
fn work(mut begun: UnixStream) {
    while network_card().is_ok() && begun.write_all(&[1]).is_ok() {}
}

/// Pulls the card while another process works with it, puts it back, and works with it.
fn pull_and_put_back(monitor: &mut Monitor) -> Outcome {
    let (mut begun, child_begun) = UnixStream::pair()?;
    // SAFETY: This process has one thread, so that the child can use whatever it likes.
    let child = match unsafe { fork()? } {
        ForkResult::Child => {
            // Built with a sanitizer, the program has a handler that exits with an error.
            // SAFETY: The default action is no function of this program.
            unsafe { signal(Signal::SIGBUS, SigHandler::SigDfl)? };
            let worked = std::panic::catch_unwind(move || work(child_begun));
            // SAFETY: Ends the child without what the parent would do at its end.
            unsafe { libc::_exit(i32::from(worked.is_err())) }
        }
        ForkResult::Parent { child } => child,
    };
    drop(child_begun);
    begun.read_exact(&mut [0])?;
    monitor.ask(r#"{"execute": "device_del", "arguments": {"id": "card"}}"#)?;
    monitor.line_with("DEVICE_DELETED")?;
    assert!(!Path::new(CARD).exists(), "the function is still there");
    let ended = waitpid(child, None)?;
    // A wait fails, or, as documented, an access to a register is a SIGBUS.
    let is_told = match ended {
        WaitStatus::Exited(_, status) => status == 0,
        WaitStatus::Signaled(_, signal, _) => signal == Signal::SIGBUS,
        _ => false,
    };
    assert!(is_told, "{ended:?}");
    assert!(Device::find(0x8086, 0x10c9).is_err());

    let put = r#"{"driver": "igb", "id": "card", "bus": "card-port", "netdev": "hub"}"#;
    monitor.ask(&format!(
        r#"{{"execute": "device_add", "arguments": {put}}}"#
    ))?;
    while Device::find(0x8086, 0x10c9).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    network_card()
}

pub(crate) fn pulled_card_comes_back() -> Outcome {
    if !Path::new(CARD).exists() || !Path::new(SLOT).exists() {
        return skip("there is no card that can be pulled");
    }
    let mut monitor = Monitor::open()?;
    fs::write(NEW_ID, "8086 10c9")?;
    let result = pull_and_put_back(&mut monitor);
    fs::write(REMOVE_ID, "8086 10c9")?;
    if let Ok(device) = Device::find(0x8086, 0x10c9) {
        fs::write(
            format!("{CARD}/driver/unbind"),
            device.info()?.pci.to_string(),
        )?;
    }
    result
}
