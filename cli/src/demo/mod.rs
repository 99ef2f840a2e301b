// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap demo`: shows a device that works on memory of the program, and measures what that is
//! worth.

mod checks;
mod moving;
mod plots;
mod report;
mod rows;
mod streams;
mod table;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use pinmap::{Accelerator, AcceleratorInfo, Kind, Link, ManageOptions, QueueOptions, Reach};
use pinmap_samples::{pagemap as frame, zero_copy as programs};

use crate::args::{DemoOptions, Target};
use crate::progress::during;
use crate::report_json::nanos;
use crate::size;
use crate::Result;

use checks::Checks;
use report::{Counters, DeviceReport, InPlace, MappedCopy, Report, SizeRow};

/// Runs the demo, and prints or draws what it measured. Fails after that if a check failed.
pub(crate) fn run(options: &DemoOptions, out: &mut impl Write) -> Result<()> {
    if let Some(directory) = &options.svg {
        plots::make(directory)?;
    }
    let report = if options.json {
        let report = measure(options, &mut io::sink())?;
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        report
    } else {
        measure(options, out)?
    };
    if let Some(directory) = &options.svg {
        let names = plots::write(&report, directory)?;
        if !options.json {
            writeln!(out, "drawn: {}", names.join(", "))?;
        }
    }
    checks::verdict(&report.checks)
}

/// Measures and checks, and tells about it.
fn measure(options: &DemoOptions, out: &mut impl Write) -> Result<Report> {
    let started = Instant::now();
    let gpu = match &options.device {
        Some(target) => open(target)?,
        None => Accelerator::find()?,
    };
    let info = gpu.info()?;
    describe(&gpu, &info, out)?;
    let mut checks = Checks::default();
    let (in_place, mapped_copy, counters) = zero_copy(&gpu, &mut checks, out)?;
    let streams = streams::run(&gpu, &mut checks, out)?;
    let what = "measuring zero-copy against copies";
    let rows = during(what, || rows::measure(&gpu, started))?;
    table::write(&rows, &info, out)?;
    table::check(&rows, &mut checks, out)?;
    let managed = moving::run(&gpu, &mut checks, out)?;
    let took = started.elapsed();
    writeln!(out, "\nall of it took {:.0} s", took.as_secs_f64())?;
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        good: checks.all.iter().all(|check| check.good),
        device: DeviceReport::new(gpu.device().to_string(), &info),
        in_place,
        mapped_copy,
        counters,
        streams,
        sizes: rows.iter().map(SizeRow::from).collect(),
        managed,
        checks: checks.all,
        wall_ns: nanos(took),
    })
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
fn zero_copy(
    gpu: &Accelerator,
    checks: &mut Checks,
    out: &mut impl Write,
) -> Result<(InPlace, MappedCopy, Counters)> {
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
    let in_place = InPlace {
        floats: programs::FLOATS,
        first: floats.iter().take(10).copied().collect(),
        addr: format!("{:#x}", work.addr),
        device_addr: format!("{:#x}", work.device_addr),
        reach: match work.reach {
            Reach::Managed => "managed",
            _ => "registered",
        },
        faults_served: served,
    };
    writeln!(out, "   the first ten: {}", list(&in_place.first))?;
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
    let mapped_copy = MappedCopy {
        ints: programs::INTS,
        first: ints.iter().take(10).copied().collect(),
    };
    writeln!(out, "   the first ten: {}", list(&mapped_copy.first))?;
    let good = (0..).zip(&ints).all(|(n, &int)| int == n);
    checks.add(out, good, "each of them is there")?;

    let after = gpu.counters()?;
    let copied = after.copied().since(&before.copied());
    let computed = after.computed().since(&before.computed());
    let counters = Counters {
        copied_bytes: copied.bytes(),
        host_read_bytes: computed.host_read,
        host_written_bytes: computed.host_written,
    };
    writeln!(
        out,
        "\n   the device's counters: copy engines {} bytes; compute engine {} bytes read from host \
         memory, {} written to it",
        counters.copied_bytes, counters.host_read_bytes, counters.host_written_bytes
    )?;
    checks.add(
        out,
        counters.copied_bytes == 0,
        "nothing was copied by the copy engines",
    )?;
    // At least: other programs may use the device at the same time.
    let moved = 4 * (u64::from(programs::FLOATS) + programs::INTS as u64);
    let enough = computed.host_read >= moved && computed.host_written >= moved;
    checks.add(out, enough, "the kernels worked on host memory")?;
    Ok((in_place, mapped_copy, counters))
}

fn list<T: ToString>(numbers: &[T]) -> String {
    let numbers: Vec<_> = numbers.iter().map(T::to_string).collect();
    numbers.join(" ")
}
