// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of commands, which scripts/vm has QEMU make, events, and the health log.

use std::time::Duration;

use pinmap::Registration;
use pinmap_nvme::{Command, Error, Namespace};

use crate::drivers::{content, memory, pattern};
use crate::harness::Outcome;
use crate::setup::{controller, monitor, on_disk, queue, returned, FAILING};

/// How long the tests wait for what comes at once.
const SOON: Duration = Duration::from_secs(60);

pub(crate) fn errors_of_the_medium_are_precise() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(FAILING)?;
    let mut queue = queue(&controller)?;
    let before = pattern(31, 512 * 512);
    // All but what cannot be written.
    for blocks in [0..200, 201..512] {
        let bytes = &before[512 * blocks.start..512 * blocks.end];
        let memory = memory(controller.device(), bytes)?;
        let command = namespace
            .write(blocks.start as u64, memory)
            .part(0..bytes.len());
        drop(returned(queue.run(command))?);
    }
    let before = on_disk(FAILING, 0, before.len())?;

    type Make = fn(&Namespace, Registration) -> Command<'_, Registration>;
    let commands: [(Make, (u8, u8)); 9] = [
        (|namespace, memory| namespace.read(98, memory), (2, 0x81)),
        (|namespace, memory| namespace.read(100, memory), (2, 0x81)),
        (|namespace, memory| namespace.compare(97, memory), (2, 0x81)),
        (|namespace, memory| namespace.write(198, memory), (2, 0x80)),
        (|namespace, memory| namespace.write(200, memory), (2, 0x80)),
        (|namespace, _| namespace.write_zeroes(298..302), (2, 0x80)),
        (|namespace, _| namespace.deallocate(RANGES), (0, 0x06)),
        (|namespace, _| namespace.flush(), (2, 0x80)),
        (|namespace, memory| namespace.write(198, memory), (2, 0x80)),
    ];
    for (index, (make, expected)) in commands.into_iter().enumerate() {
        let bytes = pattern(32, 2048);
        let command = make(&namespace, memory(controller.device(), &bytes)?).part(0..2048);
        let words = format!("{index}: {command:?}");
        let Err(failed) = queue.run(command) else {
            return Err(format!("{words} did not fail").into());
        };
        let Error::Status(status) = failed.error else {
            return Err(format!("{words}: {}", failed.error).into());
        };
        assert_eq!(
            (status.kind(), status.code()),
            expected,
            "{words}: {status}"
        );
        // A read may have filled the memory in part.
        if let (Some(memory), 3..) = (&failed.memory, index) {
            assert!(content(memory, 2048)? == bytes, "{words}");
        }
        assert!(on_disk(FAILING, 0, before.len())? == before, "{words}");
    }
    // The blocks beside them, and the other namespaces, are as good as before.
    let beside = memory(controller.device(), &[0; 4096])?;
    let beside = returned(queue.run(namespace.read(101, beside)))?;
    assert!(content(&beside, 4096)? == before[512 * 101..][..4096]);
    queue.run(controller.namespace(1)?.flush())?;
    Ok(())
}

const RANGES: &[std::ops::Range<u64>] = &[400..416, 400..416];

pub(crate) fn events_are_reported() -> Outcome {
    let controller = controller()?;
    let bar = controller.device().bar(0)?;
    assert_eq!(controller.event(Duration::ZERO)?, None);
    // The doorbell of a queue that there is not.
    let ring = || bar.write(0x1000 + 60 * 8, 1u32);
    for round in 0..4 {
        // QEMU forgets the event unless a command waits for it, and that was fetched before this.
        controller.health()?;
        ring()?;
        let event = controller
            .event(SOON)?
            .ok_or("no event of the doorbell came")?;
        assert_eq!(
            (event.kind(), event.code(), event.log()),
            (0, 0, 1),
            "{event}"
        );
        assert_eq!(controller.event(Duration::ZERO)?, None, "it came twice");
        if round % 2 == 1 {
            controller.reset()?;
        }
    }
    assert!(controller.errors()?.is_empty(), "QEMU logs no errors");

    assert_eq!(controller.health()?.warnings, 0);
    monitor("qom-set /machine/peripheral/nvme smart_critical_warning 2")?;
    let event = controller
        .event(SOON)?
        .ok_or("no event of the warning came")?;
    monitor("qom-set /machine/peripheral/nvme smart_critical_warning 0")?;
    assert_eq!(
        (event.kind(), event.code(), event.log()),
        (1, 1, 2),
        "{event}"
    );
    while controller.health()?.warnings != 0 {
        std::thread::yield_now();
    }
    assert_eq!(controller.event(Duration::ZERO)?, None, "it came twice");
    Ok(())
}

pub(crate) fn health_counts_commands() -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let mut queue = queue(&controller)?;
    let before = controller.health()?;
    let mut lent = memory(controller.device(), &[0; 4096])?;
    for round in 0..5 {
        lent = match round {
            0..3 => returned(queue.run(namespace.read(0, lent)))?,
            _ => returned(queue.run(namespace.write(0, lent)))?,
        };
    }
    let after = controller.health()?;
    assert_eq!(
        (after.reads - before.reads, after.writes - before.writes),
        (3, 2)
    );
    assert!((273..373).contains(&after.kelvins), "{after:?}");
    Ok(())
}
