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

use pinmap::accelerator::{Accelerator, AcceleratorInfo, Link, Reach, Stream, StreamOptions};
use pinmap::Kind;
use pinmap_samples::pagemap;
use pinmap_samples::zero_copy::{self as programs, Copied, Increment, Memory};

use crate::args::{DemoOptions, Target};
use crate::progress::during;
use crate::report_json::nanos;
use crate::{size, Result};

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
        None => pinmap_testgpu::find()?,
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
        _ => Ok(pinmap_testgpu::accelerator(&device)?),
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
) -> Result<(Vec<InPlace>, MappedCopy, Counters)> {
    let stream = gpu.stream(StreamOptions::new())?;
    let before = gpu.counters()?;

    let in_place = in_place(gpu, &stream, checks, out)?;
    let mapped_copy = mapped_copy(gpu, &stream, checks, out)?;
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
    let floats = in_place.len() as u64 * u64::from(programs::FLOATS);
    let moved = 4 * (floats + programs::INTS as u64);
    let enough = computed.host_read >= moved && computed.host_written >= moved;
    checks.add(out, enough, "the kernels worked on host memory")?;
    Ok((in_place, mapped_copy, counters))
}

/// Runs the first program with memory of each kind that the kernel has.
fn in_place(
    gpu: &Accelerator,
    stream: &Stream,
    checks: &mut Checks,
    out: &mut impl Write,
) -> Result<Vec<InPlace>> {
    writeln!(
        out,
        "\n1. add 1 to {} floats of host memory, in place:",
        programs::FLOATS
    )?;
    let managed = gpu.device().info()?.managed;
    let page = pagemap::page() as u64;
    let mut all = Vec::new();
    for memory in Memory::ALL {
        if memory == Memory::Managed && !managed {
            continue;
        }
        let work = programs::increment(gpu, stream, memory)?;
        let Increment {
            addr,
            device_addr,
            pinned,
            faults,
            ..
        } = work;
        let (name, pages) = (memory.name(), pinned / page);
        writeln!(
            out,
            "   {name:<11} pointer {addr:#x}, device address {device_addr:#x}; pages pinned: \
             {pages}; faults: {faults}"
        )?;
        all.push((memory, work));
    }
    let every = |good: fn(&Increment) -> bool| all.iter().all(|(_, work)| good(work));
    let first: Vec<_> = all
        .iter()
        .flat_map(|(_, work)| &work.floats)
        .take(10)
        .collect();
    writeln!(out, "   the first ten: {}", list(&first))?;
    let good = every(|work| {
        let mut floats = (1u16..).zip(&work.floats);
        floats.all(|(n, &float)| float == f32::from(n))
    });
    checks.add(out, good, "each of them is one more than it was")?;
    let good = every(|work| work.addr as u64 == work.device_addr);
    checks.add(out, good, "pointer and device address are equal")?;
    let good = every(|work| work.same_page);
    let what = "the results are read from the very page that the program filled";
    checks.add(out, good, what)?;
    // The allocation is one page. The heap need not begin a page.
    let good = all.iter().all(|(memory, work)| match memory {
        Memory::Allocated => work.pinned == page,
        Memory::Registered => (page..=2 * page).contains(&work.pinned),
        Memory::Managed => work.pinned == 0 && work.reach == Reach::Managed && work.faults > 0,
    });
    let what = match managed {
        true => "what was allocated or registered is pinned; of managed memory, nothing is",
        false => "what was allocated or registered is pinned",
    };
    checks.add(out, good, what)?;
    Ok(all
        .iter()
        .map(|(memory, work)| InPlace::new(*memory, work))
        .collect())
}

/// Runs the second program.
fn mapped_copy(
    gpu: &Accelerator,
    stream: &Stream,
    checks: &mut Checks,
    out: &mut impl Write,
) -> Result<MappedCopy> {
    let kind = match programs::WRITE_COMBINED {
        true => ", both write-combined",
        false => "",
    };
    let ints = programs::INTS;
    writeln!(
        out,
        "\n2. copy {ints} ints between two mapped buffers{kind}:"
    )?;
    let Copied {
        ints,
        addr,
        device_addr,
    } = programs::copy(gpu, stream)?;
    let report = MappedCopy {
        ints: programs::INTS,
        first: ints.iter().take(10).copied().collect(),
        addr: format!("{addr:#x}"),
        device_addr: format!("{device_addr:#x}"),
    };
    let first = list(&report.first);
    writeln!(
        out,
        "   the first ten at the device's pointer, {device_addr:#x}: {first}"
    )?;
    let good = (0..).zip(&ints).all(|(n, &int)| int == n) && addr as u64 == device_addr;
    checks.add(out, good, "each of them is there")?;
    Ok(report)
}

fn list<T: ToString>(numbers: &[T]) -> String {
    let numbers: Vec<_> = numbers.iter().map(T::to_string).collect();
    numbers.join(" ")
}
