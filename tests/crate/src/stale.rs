// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: memory that went away, a device that went away.

use std::error::Error;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{chown, Gid};
use pinmap::inspect::State;
use pinmap::{Access, Buffer, Device, DeviceEvent};

use crate::edu::Edu;
use crate::harness::Outcome;
use crate::setup::{device, edu, fill_device, pattern, timed_out, RawMemory, PAGE};

const SOON: Duration = Duration::from_secs(10);

pub(crate) fn munmap_makes_stale() -> Outcome {
    let mut edu = edu()?;
    let memory = RawMemory::new(4 * PAGE)?;
    let (addr, len) = (memory.addr(), 4 * PAGE);
    // SAFETY: The memory is accessed by raw pointers only.
    let raw = unsafe {
        edu.device()
            .register_raw(memory.start(), len, Access::ReadWrite)?
    };
    let device_addr = raw.device_addr()?;
    edu.fetch(device_addr, 0, PAGE)?;
    assert_eq!(edu.device().try_next_event()?, None);

    // One page is enough for the whole to go; the rest stays ours, and unreachable.
    memory.fill(&pattern(1, len));
    memory.punch(3 * PAGE, PAGE)?;
    fill_device(&mut edu, &pattern(2, PAGE))?;
    edu.store(device_addr, 0, PAGE)?;
    assert_eq!(memory.content(PAGE), pattern(1, len)[..PAGE]);

    let event = edu.device().next_event_timeout(SOON)?;
    let handle = raw.handle();
    assert_eq!(event, DeviceEvent::Stale { handle, addr, len });
    assert_eq!(edu.device().try_next_event()?, None);
    let info = raw.query()?;
    assert_eq!(
        (info.state, info.mappings, info.generation),
        (State::Stale, 0, 2)
    );
    assert_eq!(
        raw.map(Access::Read).expect_err("stale").errno(),
        libc::ESTALE
    );
    raw.release()?;
    assert_eq!(edu.device().info()?.registrations, 0);
    memory.unmap()
}

pub(crate) fn events_signal_eventfd() -> Outcome {
    let device = device()?;
    let eventfd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK)?;
    device.signal_events(Some(eventfd.as_fd()))?;
    let memory = RawMemory::new(PAGE)?;
    // SAFETY: The memory is accessed by raw pointers only.
    let raw = unsafe { device.register_raw(memory.start(), PAGE, Access::Read)? };
    assert_eq!(eventfd.read(), Err(nix::errno::Errno::EAGAIN));
    memory.unmap()?;
    let mut files = [
        PollFd::new(eventfd.as_fd(), PollFlags::POLLIN),
        PollFd::new(device.as_fd(), PollFlags::POLLIN),
    ];
    poll(&mut files, PollTimeout::try_from(SOON)?)?;
    let event = device.next_event()?;
    assert!(matches!(event, DeviceEvent::Stale { .. }), "{event}");
    assert_eq!(eventfd.read(), Ok(1));
    device.signal_events(None)?;
    let null = std::fs::File::open("/dev/null")?;
    let error = device
        .signal_events(Some(null.as_fd()))
        .expect_err("no eventfd");
    assert_eq!(error.errno(), libc::EINVAL);
    raw.release()?;
    Ok(())
}

pub(crate) fn no_events_at_first() -> Outcome {
    let device = device()?;
    assert_eq!(device.try_next_event()?, None);
    let start = Instant::now();
    assert!(timed_out(
        device.next_event_timeout(Duration::from_millis(50))
    )?);
    assert!(start.elapsed() >= Duration::from_millis(50));
    // Memory that is released in time has no event.
    let memory = Buffer::<u8>::new(PAGE)?.register(&device, Access::Read)?;
    drop(memory.release()?);
    assert_eq!(device.try_next_event()?, None);
    Ok(())
}

/// Runs `pinmap unbind` or `bind`.
pub(crate) fn command(verb: &str, device: &str) -> Outcome {
    let output = Command::new("pinmap").args([verb, device]).output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("pinmap {verb}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// Takes a device away and gives it back, with its node's group as it was.
pub(crate) fn while_unbound<T>(
    device: &Device,
    then: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let pci = device.info()?.pci.to_string();
    with_new_node(device, || {
        command("unbind", &pci)?;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(then));
        command("bind", &pci)?;
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs something that makes the node of a device anew, which then gets the old one's group.
pub(crate) fn with_new_node<T>(
    device: &Device,
    then: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let (path, pci) = (device.path().to_owned(), device.info()?.pci);
    let group = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(&path)?);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(then));
    for node in Device::list()?.iter().filter(|node| node.pci == pci) {
        chown(&node.path, None, Some(Gid::from_raw(group)))?;
    }
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub(crate) fn gone_device_ends_everything() -> Outcome {
    let edu: Edu = edu()?;
    let device = edu.device().clone();
    let mut content = Buffer::<u8>::new(PAGE)?;
    content[0] = 7;
    let memory = content.register(&device, Access::ReadWrite)?;
    let other = Buffer::<u8>::new(PAGE)?.register(&device, Access::ReadWrite)?;
    while_unbound(&device, || {
        assert!(device.info()?.gone);
        assert_eq!(device.next_event_timeout(SOON)?, DeviceEvent::Gone);
        assert_eq!(
            device
                .try_next_event()
                .expect_err("the last one was read")
                .errno(),
            libc::ENODEV
        );
        assert_eq!(memory.state().expect_err("gone").errno(), libc::ENODEV);
        assert_eq!(device.bar(0).expect_err("gone").errno(), libc::ENODEV);
        let refused = Buffer::<u8>::new(PAGE)?
            .register(&device, Access::Read)
            .expect_err("gone");
        assert_eq!(refused.error.errno(), libc::ENODEV);
        // The memory is ours again.
        assert_eq!(memory.release()?[0], 7);
        drop(other);
        Ok(())
    })?;
    // A device that came back is another one.
    assert!(device.info()?.gone);
    assert!(!Device::open_pci(device.info()?.pci)?.info()?.gone);
    Ok(())
}
