// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams work at the same time: the device's own clock says so.

use std::error::Error as AnyError;
use std::time::{Duration, Instant};

use pinmap::accelerator::{Accelerator, Event, Stream, StreamOptions};
use pinmap::{accelerator, Error};
use pinmap_samples::overlap as measure;
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::knobs::{Knobs, COMPUTE_SLOTS};
use crate::raw::Raw;
use crate::setup::{buffer, is_slow};
use crate::streams::{spin, stream, until};

/// The beginning and the end of some work, by the device's clock.
struct Span(Event, Event);

impl Span {
    /// Records the span of what a closure submits.
    fn of(
        gpu: &Accelerator,
        stream: &Stream,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let span = Self(gpu.event()?, gpu.event()?);
        stream.record(&span.0)?;
        work()?;
        stream.record(&span.1)?;
        Ok(span)
    }
}

/// Whether all of them were under way at one time.
fn intersect(spans: &[Span]) -> Result<bool, Error> {
    let mut begin = Duration::ZERO;
    let mut end = Duration::MAX;
    for Span(from, to) in spans {
        begin = begin.max(from.time()?);
        end = end.min(to.time()?);
    }
    Ok(begin < end)
}

/// How often a claim is tried that holds only while others leave the processor to this test.
const ATTEMPTS: u32 = 40;

/// A kernel, a copy in and a copy out run at once.
pub(crate) fn copies_overlap_with_a_kernel() -> Outcome {
    let gpu = gpu()?;
    let info = gpu.info()?;
    let Some(bandwidth) = info.link.bandwidth else {
        return skip("the link has no limit: a copy takes no time");
    };
    // A fifth of a second.
    let len = usize::try_from(bandwidth / 5)?.min(info.max_transfer as usize);
    let time = Duration::from_millis(200);
    let device = gpu.device();
    let (host, mut back) = (device.alloc::<u8>(len)?, device.alloc::<u8>(len)?);
    let (mut one, two) = (gpu.alloc_vram::<u8>(len)?, gpu.alloc_vram::<u8>(len)?);
    let (up, down, run) = (stream(&gpu)?, stream(&gpu)?, stream(&gpu)?);
    // With messages the time is not the link's; and where others have the processor, not always.
    let alone = Duration::from_secs_f64(len as f64 / bandwidth as f64);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let spans = accelerator::scope(|scope| -> Result<_, Error> {
            let (up_work, down_work, run_work) = (scope.on(&up), scope.on(&down), scope.on(&run));
            let (mut one, mut back) = (one.slice_mut(), back.slice_mut());
            Ok([
                Span::of(&gpu, &run, || run_work.launch(testgpu::Spin { time }))?,
                Span::of(&gpu, &up, || up_work.copy(host.slice(), &mut one))?,
                Span::of(&gpu, &down, || down_work.copy(two.slice(), &mut back))?,
            ])
        })?;
        // Both directions have the link for themselves: neither copy took much longer than alone.
        let took = spans[1..]
            .iter()
            .map(|Span(from, to)| to.elapsed_since(from));
        let took = took.collect::<Result<Vec<_>, _>>()?;
        let quick = is_slow() || took.iter().all(|&took| took < alone * 17 / 10);
        let overlap = intersect(&spans)?;
        if quick && overlap {
            break;
        }
        assert!(
            attempts < ATTEMPTS,
            "{took:?} for what takes {alone:?}; all at once: {overlap}"
        );
    }
    Ok(())
}

/// As many kernels run at once as there are slots.
pub(crate) fn kernels_overlap() -> Outcome {
    let gpu = gpu()?;
    let info = gpu.info()?;
    let time = Duration::from_millis(200);
    let streams: Vec<_> = (0..info.compute_slots)
        .map(|_| stream(&gpu))
        .collect::<Result<_, _>>()?;
    assert!(info.compute_slots >= 4);
    for attempt in 1.. {
        let mut spans = Vec::new();
        for stream in &streams {
            spans.push(Span::of(&gpu, stream, || spin(stream, time))?);
        }
        gpu.device().synchronize()?;
        // Kernels begin when an engine reads the packet, so the end of the last one counts.
        let (mut first, mut last) = (Duration::MAX, Duration::ZERO);
        for Span(from, to) in &spans {
            first = first.min(from.time()?);
            last = last.max(to.time()?);
        }
        let (took, overlap) = (last.saturating_sub(first), intersect(&spans)?);
        if overlap && took < time * if is_slow() { 3 } else { 2 } {
            break;
        }
        assert!(
            attempt < ATTEMPTS,
            "{took:?} for all of them; all at once: {overlap}"
        );
    }
    Ok(())
}

pub(crate) fn copies_of_one_direction_leave_the_other_free() -> Outcome {
    let gpu = gpu()?;
    let info = gpu.info()?;
    let Some(bandwidth) = info.link.bandwidth else {
        return skip("the link has no limit: a copy takes no time");
    };
    let len = usize::try_from(bandwidth / 4)?.min(info.max_transfer as usize);
    let device = gpu.device();
    let host = device.alloc::<u8>(len)?;
    let mut back = device.alloc::<u8>(4096)?;
    let (mut one, mut two) = (gpu.alloc_vram::<u8>(len)?, gpu.alloc_vram::<u8>(len)?);
    let source = gpu.alloc_vram::<u8>(4096)?;
    let streams = [stream(&gpu)?, stream(&gpu)?, stream(&gpu)?];
    for _ in 0..ATTEMPTS {
        let (in_done, out_done) = ([gpu.event()?, gpu.event()?], gpu.event()?);
        accelerator::scope(|scope| -> Result<_, Error> {
            let work = streams.each_ref().map(|stream| scope.on(stream));
            work[0].copy(host.slice(), one.slice_mut())?;
            streams[0].record(&in_done[0])?;
            work[1].copy(host.slice(), two.slice_mut())?;
            streams[1].record(&in_done[1])?;
            // Both copies are under way, or would be.
            std::thread::sleep(Duration::from_millis(50));
            work[2].copy(source.slice(), back.slice_mut())?;
            streams[2].record(&out_done)
        })?;
        let out = out_done.time()?;
        if out < in_done[0].time()? && out < in_done[1].time()? {
            return Ok(());
        }
    }
    Err("a copy out waits for copies in".into())
}

pub(crate) fn pipeline_of_streams_takes_half() -> Outcome {
    const TRIES: u32 = 8;
    let gpu = gpu()?;
    if gpu.info()?.link.bandwidth.is_none() {
        return skip("the link has no limit: a copy takes no time");
    }
    if is_slow() {
        return skip("it is not the link that takes the time here");
    }
    // What else has the processors only adds to a time, so the shortest of several counts. Where
    // even one stream mostly takes longer than the link does, the times say nothing.
    let alone = 3 * measure::CHUNK * measure::CHUNKS as u32;
    let (mut best, mut quiet) = ([Duration::MAX; 3], 0);
    for _ in 0..TRIES {
        let result = measure::pipeline(&gpu, measure::CHUNKS)?;
        let runs = [&result.serial, &result.two, &result.three];
        for (best, run) in best.iter_mut().zip(runs) {
            *best = run.total.min(*best);
        }
        println!("shortest: serial, two and three streams: {best:.1?}");
        let takes_half =
            |[serial, two, three]: [Duration; 3]| two * 2 <= serial && three * 20 <= serial * 9;
        if takes_half(best) || takes_half(runs.map(|run| run.total)) {
            return Ok(());
        }
        quiet += u32::from(result.one.total <= alone * 12 / 10);
    }
    if quiet < TRIES / 2 {
        return skip("the machine is too busy to measure");
    }
    Err(format!("serial, two and three streams take {best:.1?}").into())
}

/// Measures the time from the submission of an empty packet until it is done, by the device's
/// clock.
fn wait(gpu: &Accelerator, stream: &Stream) -> Result<(u64, Event), Error> {
    let asked = gpu.info()?.time;
    spin(stream, Duration::ZERO)?;
    let end = gpu.event()?;
    stream.record(&end)?;
    Ok((asked, end))
}

fn median(waits: &[(u64, Event)]) -> Result<Duration, Error> {
    let mut all = Vec::new();
    for (asked, end) in waits {
        all.push(end.time()?.saturating_sub(Duration::from_nanos(*asked)));
    }
    all.sort();
    Ok(all[all.len() / 2])
}

pub(crate) fn urgent_streams_go_first() -> Outcome {
    let gpu = gpu()?;
    let range = gpu.priorities();
    assert!(*range.end() > 0, "{range:?}");
    let make = |priority| gpu.stream(StreamOptions::new().priority(priority));
    let (lowest, highest) = (make(0)?, make(u32::MAX)?);
    assert_eq!((lowest.priority(), highest.priority()), (0, *range.end()));
    // Packets are so long that what else this computer does is little beside them, most of the
    // time.
    let mut alone = Vec::new();
    for _ in 0..9 {
        alone.push(wait(&gpu, &highest)?);
        highest.synchronize()?;
    }
    let alone = median(&alone)?;
    let packet = (10 * alone).max(Duration::from_millis(30));
    // More low streams than kernels run at once, all in the device; and more than it holds.
    let slots = gpu.info()?.compute_slots as usize;
    for load in [7 * slots, 14 * slots] {
        let mut attempts = 0;
        loop {
            let (low, high) = under_load(&gpu, load, packet, [&lowest, &highest])?;
            println!(
                "{load} streams: median wait of low priority {low:?}, of high {high:?}, alone \
                 {alone:?}"
            );
            if high * 10 <= low {
                break;
            }
            attempts += 1;
            assert!(attempts < 10, "{high:?} {low:?}");
        }
    }
    Ok(())
}

/// Measures how long one more packet waits in each of two streams while others have more to do than
/// they will.
fn under_load(
    gpu: &Accelerator,
    others: usize,
    packet: Duration,
    [lowest, highest]: [&Stream; 2],
) -> Result<(Duration, Duration), Box<dyn AnyError>> {
    let load: Vec<_> = (0..others).map(|_| stream(gpu)).collect::<Result<_, _>>()?;
    for (stream, length) in load.iter().zip((7..=13).cycle()) {
        // Kernels of different lengths: otherwise all that run end together.
        let time = packet * length / 10;
        let pending = stream.submit((), |work, ()| {
            (0..100).try_for_each(|_| work.launch(testgpu::Spin { time }))
        })?;
        drop(pending);
    }
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        low.push(wait(gpu, lowest)?);
        high.push(wait(gpu, highest)?);
        highest.synchronize()?;
        lowest.synchronize()?;
    }
    for stream in &load {
        assert!(!stream.query()?, "the load has ended too soon");
    }
    load.iter().try_for_each(Stream::reset)?;
    Ok((median(&low)?, median(&high)?))
}

/// Does everything that must not wait for other streams; returns the longest time that a call took.
fn unrelated(gpu: &Accelerator) -> Result<Duration, Box<dyn AnyError>> {
    let mut longest = Duration::ZERO;
    let mut timed = |what: &dyn Fn() -> Result<(), Box<dyn AnyError>>| {
        let before = Instant::now();
        let result = what();
        longest = longest.max(before.elapsed());
        result
    };
    timed(&|| {
        let registration =
            buffer(&[1; 100_000])?.register(gpu.device(), pinmap::Access::ReadWrite)?;
        drop(registration.release()?);
        Ok(())
    })?;
    timed(&|| {
        drop(gpu.device().alloc::<u8>(1 << 20)?);
        Ok(())
    })?;
    timed(&|| {
        drop(gpu.alloc_vram::<u8>(1 << 20)?);
        Ok(())
    })?;
    timed(&|| {
        let (stream, event) = (stream(gpu)?, gpu.event()?);
        stream.record(&event)?;
        stream.synchronize()?;
        assert!(event.query()?);
        stream.call(|| ())?;
        stream.synchronize()?;
        stream.reset()?;
        drop((stream, event));
        Ok(())
    })?;
    Ok(longest)
}

pub(crate) fn stuck_stream_holds_up_nobody() -> Outcome {
    let gpu = gpu()?;
    let knobs = Knobs::of(&gpu)?;
    // Work is on an engine that does not move, for less long than the driver puts up with: on a
    // busy machine that may be too short for what is done meanwhile.
    let stuck = stream(&gpu)?;
    let (mut longest, mut rounds) = (Duration::ZERO, 0);
    for attempt in 1.. {
        knobs.stuck(COMPUTE_SLOTS);
        spin(&stuck, Duration::ZERO)?;
        until("an engine has the packet", || {
            knobs.busy() & COMPUTE_SLOTS != 0
        })?;
        // Engines that are free again do not get stuck.
        knobs.stuck(knobs.busy() & COMPUTE_SLOTS);
        longest = longest.max(unrelated(&gpu)?);
        let still = matches!(stuck.query(), Ok(false));
        knobs.stuck(0);
        match still {
            true => stuck.synchronize()?,
            false => stuck.reset()?,
        }
        rounds += u32::from(still);
        if rounds == 3 {
            break;
        }
        assert!(attempt < ATTEMPTS, "it was let go");
    }
    // A stream that waits on the device for a number that only this program writes.
    let word = gpu.device().alloc::<u64>(1)?;
    let addr = word.device_addr();
    let pending = stuck.submit(word, |work, _| work.raw(&[packet::fence_wait(addr, 1)]))?;
    longest = longest.max(unrelated(&gpu)?);
    let other = stream(&gpu)?;
    assert!(!pending.query()?, "nobody has written it");
    let write = [packet::fence_write(addr, 1)];
    drop(other.submit((), |work, ()| work.raw(&write))?);
    pending.wait()?;
    println!("the longest of what must not wait took {longest:?}");
    Ok(())
}
