// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that run kernels (`kernels.rs`) on the test GPU, each checked against the host:
//!
//! * `add`: two arrays of the program are added in place;
//! * `order`: two streams work on pieces, and their kernels say in which order;
//! * `search`: a breadth-first search over a graph three times as large as the device's memory;
//! * `join`: a hash join of two tables;
//! * `serve`: a kernel that goes on, and serves requests of the program from a ring in host memory;
//! * `sort`: a bitonic sort, in memory that blocks share where it fits.
//!
//! usage: `kernels [NAME [SIZE]]`: all of them, or one, of this size: thousands of elements or
//! requests; for `search`, MiB of the device's memory that are left to be used
#![forbid(unsafe_code)]

mod kernels;

use std::error::Error;
use std::hint::spin_loop;
use std::time::Duration;

use kernels::{Kernels, ANSWERED, ASKED, PART, STOP, UNSEEN};
use pinmap::accelerator::{Accelerator, Event, Managed, Stream};
use pinmap_kernel::Grid;
use pinmap_samples::room::leave;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Device {
    gpu: Accelerator,
    stream: Stream,
    kernels: Kernels,
    begin: Event,
    end: Event,
}

/// Launches a kernel on the stream, and waits for it.
macro_rules! run {
    ($device:expr, $kernel:ident($($argument:expr),*)) => {{
        let result = $device.stream.scope(|work| $kernel.launch(work, $($argument),*));
        $kernel.finish(result)
    }};
}

impl Device {
    fn find() -> Result<Self> {
        let gpu = pinmap_testgpu::find()?;
        Ok(Self {
            stream: gpu.stream(Default::default())?,
            kernels: Kernels::load(&gpu)?,
            begin: gpu.event()?,
            end: gpu.event()?,
            gpu,
        })
    }

    /// Returns how long work takes by the device's clock.
    fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
        self.stream.record(&self.begin)?;
        work()?;
        self.stream.record(&self.end)?;
        self.end.synchronize()?;
        Ok(self.end.elapsed_since(&self.begin)?)
    }
}

/// A grid of blocks of 256 threads, one thread for each element.
fn each(count: usize) -> Result<Grid> {
    Ok(Grid::new(u32::try_from(count.div_ceil(256))?, 256))
}

/// Numbers that look random, each time the same.
fn numbers(seed: u32) -> impl FnMut() -> u32 {
    let mut state = (u64::from(seed) << 1) | 1;
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) as u32
    }
}

/// Fails unless all are as they should be.
fn check<T: PartialEq + std::fmt::Debug>(found: &[T], wanted: &[T]) -> Result<()> {
    match found
        .iter()
        .zip(wanted)
        .position(|(found, wanted)| found != wanted)
    {
        Some(i) => Err(format!("{i} is {:?}, and should be {:?}", found[i], wanted[i]).into()),
        None if found.len() == wanted.len() => Ok(()),
        None => Err("there are not as many as there should be".into()),
    }
}

fn add(device: &Device, size: usize) -> Result<()> {
    let count = size << 10;
    let a: Vec<f32> = (0..count).map(|i| i as f32).collect();
    let b: Vec<f32> = a.iter().map(|x| 0.5 - x).collect();
    let mut c = vec![0.0; count];
    let mut add = device.kernels.add(each(count)?)?;
    let time = device.time(|| Ok(run!(device, add(&*a, &*b, &mut *c))?))?;
    check(&c, &vec![0.5; count])?;
    println!("add: {count} numbers, {time:.1?}");
    Ok(())
}

fn order(device: &Device, size: usize) -> Result<()> {
    const PIECES: usize = 6;
    let each_piece = (size << 10) / PIECES;
    let streams = [
        device.gpu.stream(Default::default())?,
        device.gpu.stream(Default::default())?,
    ];
    let grid = each(each_piece)?;
    let launchers = (0..PIECES).map(|_| device.kernels.piece(grid));
    let mut launchers: Vec<_> = launchers.collect::<std::result::Result<_, _>>()?;
    let mut data: Vec<_> = (0..PIECES).map(|_| vec![16.0f32; each_piece]).collect();
    let result = pinmap::accelerator::scope(|scope| {
        for (number, (launcher, data)) in launchers.iter_mut().zip(&mut data).enumerate() {
            launcher.launch(&scope.on(&streams[number % 2]), number as u32, &mut **data)?;
        }
        Ok::<_, pinmap::Error>(())
    });
    let mut told = Vec::new();
    for launcher in &mut launchers {
        for message in launcher.messages() {
            let text = String::from_utf8(message.text)?;
            let (time, what) = text.split_once(' ').ok_or("a message without a time")?;
            told.push((time.parse::<u64>()?, what.to_owned()));
        }
    }
    result?;
    told.sort();
    let start = told.first().map_or(0, |(time, _)| *time);
    for (time, what) in &told {
        let time = Duration::from_nanos(time - start);
        print!("order: {time:8.1?} {what}");
    }
    check(&data.concat(), &vec![4.0; PIECES * each_piece])
}

fn search(device: &Device, size: usize) -> Result<()> {
    const EDGES: usize = 16;
    let bytes = size << 20;
    // Together three times as many bytes as the device has: the edges, where they begin, levels.
    let nodes = 3 * bytes / (4 * (EDGES + 2));
    let mut from: Managed<u32> = device.gpu.alloc_managed(nodes + 1)?;
    let mut to = device.gpu.alloc_managed(nodes * EDGES)?;
    let mut levels = device.gpu.alloc_managed(nodes)?;
    let mut random = numbers(1);
    for (node, place) in from.iter_mut().enumerate() {
        *place = u32::try_from(node * EDGES)?;
    }
    to.iter_mut()
        .for_each(|place| *place = random() % nodes as u32);
    levels.fill(UNSEEN);
    levels[0] = 0;
    let mut found = device.gpu.alloc::<u32>(1)?;
    let mut visit = device.kernels.visit(each(nodes)?)?;
    let _taken = leave(&device.gpu, bytes as u64)?;
    let before = to.statistics()?;
    let mut level = 0;
    let time = device.time(|| loop {
        found[0] = 0;
        run!(device, visit(level, &from, &to, &mut levels, &mut found))?;
        level += 1;
        if found[0] == 0 {
            return Ok(());
        }
    })?;
    let after = to.statistics()?;
    println!(
        "search: {nodes} nodes, {} edges, {level} levels; {} MiB on a device with {size} MiB: \
         {time:.1?}, {} faults, {} MiB evicted",
        to.len(),
        3 * size,
        after.device_faults - before.device_faults,
        (after.home_evicted - before.home_evicted) >> 20,
    );
    let mut wanted = vec![UNSEEN; nodes];
    wanted[0] = 0;
    let mut now = vec![0];
    while !now.is_empty() {
        let mut next = Vec::new();
        for node in now {
            for &neighbour in &to[node * EDGES..][..EDGES] {
                let neighbour = neighbour as usize;
                if wanted[neighbour] == UNSEEN {
                    wanted[neighbour] = wanted[node] + 1;
                    next.push(neighbour);
                }
            }
        }
        now = next;
    }
    check(&levels, &wanted)
}

fn join(device: &Device, size: usize) -> Result<()> {
    let rows = size << 10;
    // No key is there twice: the factor is odd.
    let keys: Vec<u32> = (0..rows)
        .map(|row| (row as u32).wrapping_mul(0x6eed_0e9d))
        .collect();
    let mut random = numbers(2);
    let asked: Vec<u32> = (0..4 * rows)
        .map(|_| match random() {
            number if number % 2 == 0 => keys[number as usize % rows],
            number => number,
        })
        .collect();
    let mut table = device
        .gpu
        .alloc_vram::<u64>((2 * rows).next_power_of_two())?;
    let mut found = vec![0; asked.len()];
    let mut build = device.kernels.build(each(rows)?)?;
    let mut probe = device.kernels.probe(each(asked.len())?)?;
    let time = device.time(|| {
        run!(device, build(&*keys, &mut table))?;
        Ok(run!(device, probe(&*asked, &table, &mut *found))?)
    })?;
    let rows_of: std::collections::HashMap<_, _> = keys.iter().copied().zip(1..).collect();
    let wanted = asked
        .iter()
        .map(|key| rows_of.get(key).copied().unwrap_or(0));
    check(&found, &wanted.collect::<Vec<u32>>())?;
    let matches = found.iter().filter(|&&row| row != 0).count();
    println!(
        "join: {rows} rows with {}, {matches} matches, {time:.1?}",
        asked.len()
    );
    Ok(())
}

fn serve(device: &Device, size: usize) -> Result<()> {
    /// Entries of the ring.
    const RING: usize = 16;
    /// A kernel that ran for longer would be stopped: the device lets none run for 2 s.
    const LEASE: Duration = Duration::from_millis(500);
    let count = (size << 10) as u64;
    let mut flags = device.gpu.alloc::<u64>(3)?;
    let mut requests = device.gpu.alloc::<u32>(RING)?;
    let mut answers = device.gpu.alloc::<u32>(RING)?;
    let request = |number: u64| (number * 7 % 300) as u32;
    let (mut asked, mut seen, mut launches, mut right) = (0, 0, 0, 0);
    while seen < count {
        let mut serve = device.kernels.serve(Grid::new(1, 32))?;
        launches += 1;
        let result = device.stream.try_scope(|work| -> Result<()> {
            let (mut flags, mut requests) = (flags.slice_mut(), requests.slice_mut());
            let mut answers = answers.slice_mut();
            let lease = LEASE.as_nanos() as u64;
            serve.launch(work, lease, &mut flags, &mut requests, &mut answers)?;
            let ended = work.stream().completion()?;
            while seen < count && !ended.query()? {
                while asked < count && asked < seen + RING as u64 {
                    requests.set(asked as usize % RING, request(asked))?;
                    asked += 1;
                    flags.set(ASKED, asked)?;
                }
                while seen < flags.get(ANSWERED)? {
                    let answer = answers.get(seen as usize % RING)?;
                    right += u64::from(answer == primes(request(seen)));
                    seen += 1;
                }
                spin_loop();
            }
            Ok(flags.set(STOP, u64::from(seen == count))?)
        });
        serve.finish(Ok(()))?;
        result?;
    }
    println!("serve: {right} of {count} answers right, {launches} launches");
    if right == count {
        Ok(())
    } else {
        Err("answers are wrong".into())
    }
}

fn primes(below: u32) -> u32 {
    (2..below).filter(|n| (2..*n).all(|i| n % i != 0)).count() as u32
}

fn sort(device: &Device, size: usize) -> Result<()> {
    let count = (size << 10).next_power_of_two().max(PART);
    let mut random = numbers(3);
    let values: Vec<u32> = (0..count).map(|_| random()).collect();
    let mut data = device.gpu.alloc_from(&values)?;
    let blocks = u32::try_from(count / PART)?;
    let mut near = device
        .kernels
        .merge_near(Grid::new(blocks, PART as u32 / 2))?;
    let mut far = device.kernels.merge_far(each(count / 2)?)?;
    let time = device.time(|| {
        run!(device, near(2, PART as u32, &mut data))?;
        let mut length = 2 * PART;
        while length <= count {
            let mut apart = length / 2;
            while apart > PART / 2 {
                run!(device, far(apart as u32, length as u32, &mut data))?;
                apart /= 2;
            }
            run!(device, near(length as u32, length as u32, &mut data))?;
            length *= 2;
        }
        Ok(())
    })?;
    let mut wanted = values;
    wanted.sort_unstable();
    check(&data, &wanted)?;
    println!("sort: {count} numbers, {time:.1?}");
    Ok(())
}

type Example = (&'static str, fn(&Device, usize) -> Result<()>, usize);

const EXAMPLES: [Example; 6] = [
    ("add", add, 64),
    ("order", order, 48),
    ("search", search, 16),
    ("join", join, 16),
    ("serve", serve, 1),
    ("sort", sort, 32),
];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next();
    let size = arguments.next().map(|text| text.parse()).transpose()?;
    let is_wanted = |name| wanted.as_deref().is_none_or(|wanted| wanted == name);
    let chosen: Vec<_> = EXAMPLES
        .iter()
        .filter(|(name, ..)| is_wanted(*name))
        .collect();
    if chosen.is_empty() {
        return Err("usage: kernels [add|order|search|join|serve|sort [SIZE]]".into());
    }
    let device = Device::find()?;
    for (name, run, usual) in chosen {
        run(&device, size.unwrap_or(*usual)).map_err(|error| format!("{name}: {error}"))?;
    }
    println!("all results are right");
    Ok(())
}
