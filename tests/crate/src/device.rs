// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device itself: its description, its BARs, its interrupts, its reset.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use pinmap::inspect::ReservedKind;
use pinmap::{Access, Buffer, Device, Kind, PciAddress};

use crate::edu::Edu;
use crate::harness::{skip, Outcome};
use crate::instructions;
use crate::setup::{device, device_content, devices, edu, fill_device, pattern, timed_out, PAGE};
use crate::stale::{command, while_unbound};

/// Registers of `edu` that its driver does not need.
const RAISE_INTERRUPT: usize = 0x60;
const ACKNOWLEDGE: usize = 0x64;

const SOON: Duration = Duration::from_secs(10);

pub(crate) fn list_leads_to_devices() -> Outcome {
    let nodes = Device::list()?;
    if nodes.is_empty() {
        return skip("there is no device bound to pinmap");
    }
    for node in nodes {
        let by_path = Device::open(&node.path)?;
        let by_function = Device::open_pci(node.pci)?;
        assert_eq!(
            (by_path.path(), by_function.path()),
            (&*node.path, &*node.path)
        );
        assert_eq!(by_path.info()?.pci, node.pci);
    }
    Ok(())
}

pub(crate) fn info_is_plausible() -> Outcome {
    let device = device()?;
    let info = device.info()?;
    assert_eq!((info.kind, info.id), (Kind::Flat, (0x1234, 0x11e8)));
    assert!(!info.gone && !info.owned && !info.owner && info.coherent);
    assert!((39..=64).contains(&info.address_bits()));
    assert!(info.page_sizes.iter().any(|size| size == PAGE as u64));
    assert_eq!((info.vectors, info.registrations), (1, 0));
    assert!(info.max_registrations > 0);
    let bar = info.bars[0].expect("BAR 0");
    assert_eq!(
        (bar.len, bar.mappable, bar.prefetchable, bar.hole),
        (1 << 20, true, false, None)
    );
    assert_eq!(info.bars[1..], [None; 5]);
    let reserved = device.reserved()?;
    // On a PC, interrupts are writes to these addresses.
    let is_there =
        |range: &RangeInclusive<u64>| !cfg!(target_arch = "x86_64") || range.contains(&0xfee0_0000);
    assert!(reserved
        .iter()
        .any(|reserved| reserved.kind == ReservedKind::Msi && is_there(&reserved.range)));
    Ok(())
}

pub(crate) fn two_devices_at_once() -> Outcome {
    let [first, second] = match <[Device; 2]>::try_from(devices()?) {
        Ok(devices) => devices,
        Err(_) => return skip("there are not two edus"),
    };
    let (mut first, mut second) = (Edu::new(first)?, Edu::new(second)?);
    fill_device(&mut first, &pattern(1, PAGE))?;
    fill_device(&mut second, &pattern(2, PAGE))?;
    // Content goes from one device to the other, through memory of each.
    let target = Buffer::<u8>::new(PAGE)?.register(first.device(), Access::ReadWrite)?;
    first.store(target.device_addr()?, 0, PAGE)?;
    let source = target.release()?.register(second.device(), Access::Read)?;
    second.fetch(source.device_addr()?, 0, PAGE)?;
    assert_eq!(device_content(&mut second, PAGE)?, pattern(1, PAGE));
    Ok(())
}

pub(crate) fn bar_is_bounded() -> Outcome {
    let device = device()?;
    let bar = device.bar(0)?;
    assert_eq!((bar.number(), bar.len()), (0, 1 << 20));
    assert_eq!(bar.read::<u32>(0)? & 0xffff, 0x00ed);
    for offset in [1 << 20, (1 << 20) - 2, usize::MAX - 3, 2] {
        assert_eq!(
            bar.read::<u32>(offset).expect_err("refused").errno(),
            libc::EINVAL,
            "{offset:#x}"
        );
        assert_eq!(
            bar.write(offset, 0u32).expect_err("refused").errno(),
            libc::EINVAL,
            "{offset:#x}"
        );
    }
    bar.read::<u32>((1 << 20) - 4)?;
    bar.flush();
    assert_eq!(
        device.bar(1).expect_err("there is none").errno(),
        libc::ENOENT
    );
    assert_eq!(
        device.bar(6).expect_err("there is none").errno(),
        libc::ENOENT
    );
    // A mapped BAR keeps the device open, and owned.
    let path = device.path().to_owned();
    drop(device);
    assert!(Device::open(path)?.info()?.owned);
    assert_eq!(bar.read::<u32>(0)? & 0xffff, 0x00ed);
    Ok(())
}

/// A function with MSI-X that no driver has, given to pinmap as long as the test runs.
fn with_nvme(test: impl FnOnce(&Device) -> Outcome) -> Outcome {
    const NVME: &str = "0x010802";
    let Some(pci) = functions()?.find(|dir| {
        let class = std::fs::read_to_string(dir.join("class"));
        class.is_ok_and(|class| class.trim() == NVME) && !dir.join("driver").exists()
    }) else {
        return skip("there is no NVMe controller without a driver");
    };
    let pci: PciAddress = pci
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("")
        .parse()?;
    command("bind", &pci.to_string())?;
    let result = Device::open_pci(pci)
        .map_err(Into::into)
        .and_then(|device| test(&device));
    command("unbind", &pci.to_string())?;
    result
}

fn functions() -> std::io::Result<impl Iterator<Item = std::path::PathBuf>> {
    let entries = std::fs::read_dir("/sys/bus/pci/devices")?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())))
}

/// An access to a register costs some comparisons, but no string and no allocation.
pub(crate) fn register_access_costs_little() -> Outcome {
    drop(device()?);
    // The identification; the status, with nothing to switch on.
    const READ: usize = 0x00;
    const WRITTEN: usize = 0x20;
    let bar = || Ok((device()?.bar(0)?, Box::new(AtomicU32::new(7))));
    let plain = instructions::each(bar, |(_, memory), number| {
        // SAFETY: It is there, and nobody else has it.
        unsafe { memory.as_ptr().write_volatile(black_box(number) as u32 & 1) };
    })?;
    let read = instructions::each(bar, |(bar, _), _| {
        assert!(bar.read::<u32>(black_box(READ)).is_ok());
    })?;
    let written = instructions::each(bar, |(bar, _), _| {
        assert!(bar.write(black_box(WRITTEN), 0u32).is_ok());
    })?;
    println!("instructions: {plain} for a volatile access, {read} to read, {written} to write");
    let most = plain + 40;
    assert!(
        read <= most && written <= most,
        "{plain}, {read}, {written}"
    );
    Ok(())
}

pub(crate) fn msix_table_is_out_of_reach() -> Outcome {
    with_nvme(|device| {
        let info = device.info()?;
        assert!(info.vectors > 1);
        let bars = info.bars.iter().enumerate();
        let found = bars
            .filter_map(|(number, bar)| Some((number, (*bar)?.hole?)))
            .next();
        let (number, (hole, hole_len)) = found.expect("a BAR with the table");
        let bar = device.bar(number)?;
        for offset in [hole, hole + hole_len - 4] {
            let error = bar.read::<u32>(offset as usize).expect_err("the table");
            assert!(error.to_string().contains("MSI-X"), "{error}");
        }
        if hole != 0 {
            bar.read::<u32>(hole as usize - 4)?;
        }
        if hole + hole_len < bar.len() {
            bar.read::<u32>((hole + hole_len) as usize)?;
        }
        // Each of several vectors has its own interrupts.
        let all = (0..info.vectors.min(8)).map(|vector| device.interrupt(vector));
        let all: Vec<_> = all.collect::<pinmap::Result<_>>()?;
        assert!(all
            .iter()
            .all(|interrupt| interrupt.try_wait().is_ok_and(|count| count.is_none())));
        drop(all);
        assert_eq!(
            device
                .interrupt(info.vectors)
                .expect_err("there is none")
                .errno(),
            libc::ENOENT
        );
        if info.can_reset {
            device.reset()?;
        }
        Ok(())
    })
}

pub(crate) fn interrupt_waits() -> Outcome {
    let device = device()?;
    let bar = device.bar(0)?;
    let interrupt = device.interrupt(0)?;
    assert_eq!((interrupt.vector(), interrupt.try_wait()?), (0, None));
    let start = Instant::now();
    assert!(timed_out(
        interrupt.wait_timeout(Duration::from_millis(100))
    )?);
    assert!(start.elapsed() >= Duration::from_millis(100));

    bar.write(RAISE_INTERRUPT, 2u32)?;
    assert_eq!(interrupt.wait_timeout(SOON)?, 1);
    assert_eq!(interrupt.try_wait()?, None);

    // The interrupt comes from another thread, while this one waits without a limit.
    std::thread::scope(|scope| -> pinmap::Result<()> {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            bar.write(RAISE_INTERRUPT, 4u32)
        });
        assert_eq!(interrupt.wait()?, 1);
        Ok(())
    })?;

    bar.write(RAISE_INTERRUPT, 8u32)?;
    let mut files = [PollFd::new(interrupt.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut files, PollTimeout::try_from(SOON)?)?, 1);
    assert_eq!(interrupt.try_wait()?, Some(1));
    bar.write(ACKNOWLEDGE, u32::MAX)?;

    // A thread that waits is woken when the device goes.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| interrupt.wait().map_err(|error| error.errno()));
        std::thread::sleep(Duration::from_millis(50));
        while_unbound(&device, || Ok(()))?;
        assert_eq!(waiting.join().expect("no panic"), Err(libc::ENODEV));
        Ok(())
    })
}

pub(crate) fn interrupt_is_taken_once() -> Outcome {
    let device = device()?;
    let bar = device.bar(0)?;
    let first = device.interrupt(0)?;
    assert_eq!(
        device.interrupt(0).expect_err("taken").errno(),
        libc::EEXIST
    );
    bar.write(RAISE_INTERRUPT, 2u32)?;
    assert_eq!(first.wait_timeout(SOON)?, 1);
    drop(first);
    bar.write(ACKNOWLEDGE, u32::MAX)?;
    let second = device.interrupt(0)?;
    bar.write(RAISE_INTERRUPT, 2u32)?;
    assert_eq!(second.wait_timeout(SOON)?, 1);
    bar.write(ACKNOWLEDGE, u32::MAX)?;
    assert_eq!(
        device.interrupt(1).expect_err("there is none").errno(),
        libc::ENOENT
    );
    Ok(())
}

pub(crate) fn reset_works() -> Outcome {
    let device = device()?;
    let can_reset = device.info()?.can_reset;
    match device.reset() {
        Ok(()) => assert!(can_reset && device.info()?.owner),
        Err(error) => {
            assert!(!can_reset, "{error}");
            assert_eq!(error.errno(), libc::EOPNOTSUPP);
            assert!(error.to_string().contains("has no reset"), "{error}");
        }
    }
    Ok(())
}

pub(crate) fn factorial_interrupts() -> Outcome {
    let mut edu = edu()?;
    for (number, factorial) in [(0, 1), (1, 1), (5, 120), (12, 479_001_600)] {
        assert_eq!(edu.factorial(number)?, factorial);
    }
    assert_eq!(edu.version()?, (1, 0));
    // Interrupts of which some find their reason acknowledged already. None is waited for in vain.
    for number in 0..3000 {
        let factorial = (1..=number % 13).product::<u32>();
        assert_eq!(edu.factorial(number % 13)?, factorial, "{number}");
    }
    Ok(())
}
