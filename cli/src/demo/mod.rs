// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap demo`: shows a device that works on memory of the program, and measures what that is
//! worth.

mod checks;
mod moving;
mod rows;
mod streams;
mod table;

use std::io::Write;
use std::time::{Duration, Instant};

use pinmap::{Accelerator, AcceleratorInfo, Kind, Link, ManageOptions, QueueOptions, Reach};
use pinmap_samples::{pagemap as frame, zero_copy as programs};

use crate::args::{DemoOptions, Target};
use crate::progress::during;
use crate::size;
use crate::Result;

use checks::Checks;

/// Runs the demo. Fails if a check fails.
pub(crate) fn run(options: &DemoOptions, out: &mut impl Write) -> Result<()> {
    let started = Instant::now();
    let gpu = match &options.device {
        Some(target) => open(target)?,
        None => Accelerator::find()?,
    };
    let info = gpu.info()?;
    describe(&gpu, &info, out)?;
    let mut checks = Checks::default();
    zero_copy(&gpu, &mut checks, out)?;
    streams::run(&gpu, &mut checks, out)?;
    let what = "measuring zero-copy against copies";
    let rows = during(what, || rows::measure(&gpu, started))?;
    table::write(&rows, &info, out)?;
    table::check(&rows, &mut checks, out)?;
    moving::run(&gpu, &mut checks, out)?;
    writeln!(
        out,
        "\nall of it took {:.0} s",
        started.elapsed().as_secs_f64()
    )?;
    checks.verdict()
}

fn open(target: &Target) -> Result<Accelerator> {
    let device = target.open()?;
    match device.kind()? {
        Kind::Flat => Err(format!("{target} has no queues: it is a flat device").into()),
        _ => Ok(device.accelerator()?),
    }
}

fn describe(gpu: &Accelerator, info: &AcceleratorInfo, out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "device: {}, {} copy engines, {} kernels at once, {} of memory of its own",
        gpu.device(),
        info.copy_engines,
        info.compute_slots,
        size::format(info.vram_len)
    )?;
    writeln!(
        out,
        "model:  host memory {}; device memory {}",
        link(info.link),
        link(info.vram)
    )?;
    Ok(())
}

/// Describes a link.
fn link(link: Link) -> String {
    let bandwidth = match link.bandwidth {
        None => "as fast as it goes".to_owned(),
        Some(bytes) => format!("{:.2} GB/s each way", bytes as f64 / 1e9),
    };
    match link.latency {
        Duration::ZERO => bandwidth,
        latency => format!("{bandwidth}, {:.1} µs", latency.as_nanos() as f64 / 1e3),
    }
}

/// Runs the two programs, and checks the results and the counters of the device.
fn zero_copy(gpu: &Accelerator, checks: &mut Checks, out: &mut impl Write) -> Result<()> {
    let mut queue = gpu.queue(QueueOptions::new())?;
    let before = gpu.counters()?;

    writeln!(
        out,
        "\n1. add 1 to {} floats of the program's heap, in place:",
        programs::FLOATS
    )?;
    let managed = gpu.device().info()?.managed;
    // It stays where it is.
    let all = managed.then(|| gpu.manage_all_with(ManageOptions::new().on_host()));
    let all = all.transpose()?;
    let mut floats = programs::floats();
    // Only root can see the page frame. For others it is `None` before and after.
    let page = frame::frame(frame::entry(floats.as_ptr().addr())?);
    let totals = gpu.device().own_totals()?;
    let work = programs::increment(&mut queue, &mut floats)?;
    let served = gpu.device().own_totals()?.faults.served - totals.faults.served;
    let first: Vec<String> = floats.iter().take(10).map(f32::to_string).collect();
    writeln!(out, "   the first ten: {}", first.join(" "))?;
    let good = (1u16..)
        .zip(&floats)
        .all(|(n, &float)| float == f32::from(n));
    checks.add(out, good, "each of them is one more than it was")?;
    let (addr, device_addr) = (work.addr, work.device_addr);
    writeln!(out, "   pointer {addr:#x}, device address {device_addr:#x}")?;
    checks.add(out, addr as u64 == device_addr, "the two are equal")?;
    let same = frame::frame(frame::entry(addr)?) == page;
    let what = "the results are read from the very page that the program filled";
    checks.add(out, same, what)?;
    let how = programs::describe(work.reach);
    if managed {
        writeln!(
            out,
            "   for the device the memory is {how}; faults served: {served}"
        )?;
        let good = work.reach == Reach::Managed && served > 0;
        checks.add(out, good, "no call registered the memory")?;
    } else {
        writeln!(out, "   for the device the memory was {how}")?;
    }
    drop((all, floats));

    writeln!(
        out,
        "\n2. copy {} ints between two mapped buffers:",
        programs::INTS
    )?;
    let ints = programs::copy(gpu, &mut queue)?;
    let first: Vec<String> = ints.iter().take(10).map(i32::to_string).collect();
    writeln!(out, "   the first ten: {}", first.join(" "))?;
    let good = (0..).zip(&ints).all(|(n, &int)| int == n);
    checks.add(out, good, "each of them is there")?;

    let after = gpu.counters()?;
    let copied = after.copied().since(&before.copied());
    let computed = after.computed().since(&before.computed());
    writeln!(
        out,
        "\n   the device's counters: copy engines {} bytes; compute engine {} bytes read from host \
         memory, {} written to it",
        copied.bytes(),
        computed.host_read,
        computed.host_written
    )?;
    checks.add(
        out,
        copied.bytes() == 0,
        "nothing was copied by the copy engines",
    )?;
    // At least: other programs may use the device at the same time.
    let moved = 4 * (u64::from(programs::FLOATS) + programs::INTS as u64);
    let enough = computed.host_read >= moved && computed.host_written >= moved;
    checks.add(out, enough, "the kernels worked on host memory")
}
