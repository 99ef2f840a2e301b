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
use pinmap::accelerator::StreamOptions;
use pinmap::inspect::State;
use pinmap::{Access, Device, ErrorKind};

use crate::documents::network_card;
use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::setup::peers;

/// The network card, and the slot of its root port.
const CARD: &str = "/sys/bus/pci/devices/0000:01:00.0";
const SLOT: &str = "/sys/bus/pci/slots/1";
/// A register of the card that can be written with no effect.
const LED_CONTROL: usize = 0xe00;
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
    pull(monitor)?;
    let ended = waitpid(child, None)?;
    // A wait fails, or, as documented, an access to a register is a SIGBUS.
    let is_told = match ended {
        WaitStatus::Exited(_, status) => status == 0,
        WaitStatus::Signaled(_, signal, _) => signal == Signal::SIGBUS,
        _ => false,
    };
    assert!(is_told, "{ended:?}");
    assert!(Device::find(0x8086, 0x10c9).is_err());
    put_back(monitor)?;
    network_card()
}

/// Pulls the card, and returns when it is gone.
fn pull(monitor: &mut Monitor) -> Outcome {
    monitor.ask(r#"{"execute": "device_del", "arguments": {"id": "card"}}"#)?;
    monitor.line_with("DEVICE_DELETED")?;
    assert!(!Path::new(CARD).exists(), "the function is still there");
    Ok(())
}

/// Puts the card back, and returns when the driver has it.
fn put_back(monitor: &mut Monitor) -> Outcome {
    let put = r#"{"driver": "igb", "id": "card", "bus": "card-port", "netdev": "hub"}"#;
    monitor.ask(&format!(
        r#"{{"execute": "device_add", "arguments": {put}}}"#
    ))?;
    while Device::find(0x8086, 0x10c9).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Does something with a card that the driver takes whenever it comes.
fn with_card(work: impl FnOnce(&mut Monitor) -> Outcome) -> Outcome {
    if !Path::new(CARD).exists() || !Path::new(SLOT).exists() {
        return skip("there is no card that can be pulled");
    }
    let mut monitor = Monitor::open()?;
    fs::write(NEW_ID, "8086 10c9")?;
    let result = work(&mut monitor);
    fs::write(REMOVE_ID, "8086 10c9")?;
    if let Ok(device) = Device::find(0x8086, 0x10c9) {
        fs::write(
            format!("{CARD}/driver/unbind"),
            device.info()?.pci.to_string(),
        )?;
    }
    result
}

pub(crate) fn pulled_card_comes_back() -> Outcome {
    with_card(pull_and_put_back)
}

/// An accelerator stores to registers of a card that is pulled meanwhile: it loses them, and the
/// card goes although an accelerator had it.
pub(crate) fn peers_lose_a_pulled_card() -> Outcome {
    if !peers() {
        return skip("the bus does not let devices reach each other");
    }
    let gpu = gpu()?;
    with_card(|monitor| {
        for round in 0..3 {
            let card = Device::find(0x8086, 0x10c9)?;
            let registers = card.bar(0)?.window(0..0x1000)?;
            let peer = registers.register(gpu.device(), Access::ReadWrite)?;
            let stream = gpu.stream(StreamOptions::new())?;
            let (begun, has_begun) = std::sync::mpsc::channel();
            let error = std::thread::scope(|scope| {
                let working = scope.spawn(|| loop {
                    let stored = stream.scope(|work| {
                        (0..50).try_for_each(|_| work.store(&peer, LED_CONTROL, round))
                    });
                    // Nobody listens after the first time.
                    let _ = begun.send(());
                    if let Err(error) = stored {
                        return error;
                    }
                });
                has_begun.recv()?;
                pull(monitor)?;
                Ok::<_, Box<dyn std::error::Error>>(working.join().expect("it returns"))
            })?;
            assert_eq!(error.kind(), ErrorKind::Fault, "{error}");
            assert_eq!(peer.state()?, State::Stale);
            drop((registers, card));
            put_back(monitor)?;
        }
        network_card()
    })
}
