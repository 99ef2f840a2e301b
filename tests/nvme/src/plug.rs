// SPDX-License-Identifier: MIT OR Apache-2.0
//! A second controller, which QEMU's monitor plugs in and pulls.

use std::error::Error as StdError;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pinmap::{Device, Registration};
use pinmap_nvme::{Controller, Error, Queue, QueueOptions};

use crate::drivers::memory;
use crate::faults::works;
use crate::harness::Outcome;
use crate::kernel::{bind, FUNCTIONS};
use crate::setup::{device, error, monitor, queue};

/// Waits until something is there.
pub(crate) fn wait_for<T>(
    what: &str,
    there: impl Fn() -> Option<T>,
) -> Result<T, Box<dyn StdError>> {
    for _ in 0..600 {
        if let Some(found) = there() {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(format!("{what}: it did not happen").into())
}

/// Plugs the second controller in, and gives it to pinmap. Returns its address.
fn plug() -> Result<String, Box<dyn StdError>> {
    let first = device()?.info()?.pci.to_string();
    let function = wait_for("a controller is plugged in", || {
        let functions = fs::read_dir(FUNCTIONS).ok()?.flatten();
        let names = functions.map(|function| function.file_name().to_string_lossy().into_owned());
        let is_it = |name: &String| {
            let path = Path::new(FUNCTIONS).join(name);
            let class = fs::read_to_string(path.join("class"));
            let is_nvme = class.is_ok_and(|class| class.trim() == "0x010802");
            *name != first && is_nvme && !path.join("sriov_totalvfs").exists()
        };
        let found = names.into_iter().find(is_it);
        if found.is_none() {
            // Refused while the one before is being pulled, or if it is there already.
            let added = "nvme,id=spare,serial=spare,bus=empty-port,drive=spare,cmb_size_mb=1";
            monitor(&format!("device_add {added}")).ok()?;
        }
        found
    })?;
    // The kernel may still be about to give it to its own driver.
    wait_for("it is bound", || bind(&function, "pinmap").ok())?;
    Ok(function)
}

fn wait_until_pulled(function: &str) -> Outcome {
    let path = Path::new(FUNCTIONS).join(function);
    wait_for("the controller is pulled", || {
        (!path.exists()).then_some(())
    })
}

pub(crate) fn pulled_controller_is_gone_and_comes_back() -> Outcome {
    for _ in 0..2 {
        let function = plug()?;
        let controller = Controller::open(&Device::open_pci(function.parse()?)?)?;
        let namespace = controller.namespace(1)?;
        let mut queue: Queue<Registration> = queue(&controller)?;
        works(&controller, &mut queue, 16)?;
        let lent = memory(controller.device(), &[5; 512])?;
        monitor("device_del spare")?;
        let gone = controller.event(Duration::from_secs(60));
        assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
        // Without this the queue does not know, and its doorbell is gone.
        queue.check()?;
        let gone = error(queue.submit(namespace.read(0, lent)), true)?;
        assert!(matches!(gone, Error::Gone), "{gone}");
        assert!(matches!(controller.reset(), Err(Error::Gone)));
        drop((queue, namespace, controller));
        wait_until_pulled(&function)?;
    }
    Ok(())
}

pub(crate) fn commands_are_in_the_controllers_memory() -> Outcome {
    let function = plug()?;
    let device = Device::open_pci(function.parse()?)?;
    let controller = Controller::open(&device)?;
    let memory = device.bar(2)?;
    let options = QueueOptions::new().in_controller();
    for round in 0..2 {
        memory.write_slice(0, &[0u64; 512])?;
        let mut queue = controller.queue(options.depth(3))?;
        // It takes three laps, and goes on after a reset.
        (0..6).try_for_each(|block| works(&controller, &mut queue, 8 * block))?;
        controller.reset()?;
        works(&controller, &mut queue, 64 + 8 * round)?;
        // The first entries are those after the reset: of a write and a read of this namespace.
        for (entry, opcode) in [1, 2].into_iter().enumerate() {
            let word = |number: usize| memory.read::<u32>(64 * entry + 4 * number);
            let found = (word(0)? & 0xff, word(1)?, u64::from(word(10)?), word(12)?);
            assert_eq!(found, (opcode, 1, 64 + 8 * round, 7));
        }
    }
    // Each of the queues has its own part, and all parts are in the memory.
    let mut queues = Vec::new();
    while let Ok(queue) = controller.queue::<Registration>(options.depth(63).polled()) {
        queues.push(queue);
    }
    assert!(queues.len() >= 4);
    for (block, queue) in (0..).zip(&mut queues) {
        works(&controller, queue, 8 * block)?;
    }
    drop(queues);
    let error = controller.queue::<Registration>(options.depth(2000));
    let words = error.expect_err("a part is smaller").to_string();
    assert!(
        words.contains("commands in flight of each queue"),
        "{words}"
    );
    drop((controller, memory, device));
    monitor("device_del spare")?;
    wait_until_pulled(&function)?;

    let error = crate::setup::controller()?.queue::<Registration>(options);
    assert!(matches!(error, Err(Error::Unsupported(_))), "{error:?}");
    Ok(())
}

/// The address of the controller with which a program works until it is gone.
const VICTIM: &str = "PINMAP_NVME_PULLED";

/// Reads as much as the controller can, until that is gone.
fn read_until_gone(function: &str) -> Outcome {
    let controller = Controller::open(&Device::open_pci(function.parse()?)?)?;
    let namespace = controller.namespace(1)?;
    let len = controller.identity().max_transfer;
    let mut queue: Queue<Registration> = controller.queue(QueueOptions::new().depth(16))?;
    let memory = |_| memory(controller.device(), &vec![0; len]);
    let mut free = (0..16).map(memory).collect::<Result<Vec<_>, _>>()?;
    for number in 0.. {
        if number == 100 {
            println!("100 commands");
        }
        let (lent, ended) = match free.pop() {
            Some(lent) => match queue.submit(namespace.read(0, lent)) {
                Ok(_) => continue,
                Err(failed) => (failed.memory, Err(failed.error)),
            },
            None => {
                let done = queue.wait()?;
                (done.memory, done.result)
            }
        };
        free.extend(lent);
        match ended {
            Ok(()) => {}
            Err(Error::Gone) => break,
            Err(error) => return Err(error.into()),
        }
    }
    while queue.in_flight() != 0 {
        free.extend(queue.wait()?.memory);
    }
    assert_eq!(free.len(), 16, "memory is lost");
    for memory in free {
        memory.release()?;
    }
    println!("gone");
    Ok(())
}

pub(crate) fn controller_is_pulled_while_it_works() -> Outcome {
    if let Ok(function) = std::env::var(VICTIM) {
        return read_until_gone(&function);
    }
    for _ in 0..3 {
        let function = plug()?;
        let mut victim = Command::new(std::env::current_exe()?)
            .args(["--run", "controller_is_pulled_while_it_works"])
            .env(VICTIM, &function)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = victim.stdout.take().ok_or("no output")?;
        let mut lines = BufReader::new(output).lines();
        assert_eq!(lines.next().transpose()?.as_deref(), Some("100 commands"));
        monitor("device_del spare")?;
        let said: Vec<_> = lines.collect::<Result<_, _>>()?;
        let status = victim.wait()?;
        // Access to the registers ends it, or it sees that the controller is gone.
        let is_ended = status.signal() == Some(7);
        assert!(
            is_ended || status.success() && said == ["gone"],
            "{status} {said:?}"
        );
        wait_until_pulled(&function)?;
    }
    Ok(())
}
