// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels in Rust, those of `rust_kernels.rs`, which the build script compiled.
#![allow(unsafe_code)]

use std::error::Error;

use pinmap::accelerator::{Accelerator, FaultCode, Stream};
use pinmap_kernel::{Grid, ProgramError};
use pinmap_samples::room::leave;
use pinmap_testgpu::program::{Message, Trap};

use crate::gpu::gpu_and_stream;
use crate::harness::{skip, Outcome};
use crate::lent::faulting;
use crate::rust_kernels::{Body, Kernels, TILE};
use crate::setup::{is_slow, pattern};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn load_on(gpu: &Accelerator) -> Result<Kernels> {
    match Kernels::load(gpu) {
        Err(ProgramError::Refused(cause)) if cause.contains("were not compiled") => skip(&cause),
        kernels => Ok(kernels?),
    }
}

fn load() -> Result<(Accelerator, Stream, Kernels)> {
    let (gpu, stream) = gpu_and_stream()?;
    let kernels = load_on(&gpu)?;
    Ok((gpu, stream, kernels))
}

/// Runs a launch, with the memory of its operands borrowed.
macro_rules! run {
    ($stream:expr, $kernel:ident($($argument:expr),*)) => {{
        let result = $stream.scope(|work| $kernel.launch(work, $($argument),*));
        $kernel.finish(result)
    }};
}

const BODY: Body = Body {
    place: [1.0, 2.0, 6.0],
    mass: 0.5,
    kind: 1,
    flags: [1, 2],
};

fn text(messages: &[Message]) -> String {
    let all = messages
        .iter()
        .map(|it| String::from_utf8_lossy(&it.text).into_owned());
    all.collect()
}

pub(crate) fn rust_kernel_is_saxpy() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    let count: usize = if is_slow() { 1000 } else { 100_001 };
    let x: Vec<f32> = (0..count).map(|i| i as f32 / 3.0).collect();
    let y: Vec<f32> = (0..count).map(|i| 1e6 - i as f32).collect();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| -1.7 * x + y).collect();
    let mut saxpy = kernels.saxpy(Grid::new(count.div_ceil(256) as u32, 256))?;

    let mut lent = y.clone();
    run!(stream, saxpy(-1.7, &*x, &mut *lent))?;
    assert!(lent == expected, "memory of the program");
    let per_element = saxpy.instructions() as f64 / count as f64;
    assert!((8.0..40.0).contains(&per_element), "{per_element}");

    let (pinned, mut registered) = (gpu.alloc_from(&x)?, gpu.register(y.clone())?);
    run!(stream, saxpy(-1.7, &pinned, &mut registered))?;
    assert!(*registered == expected, "registered memory");

    let mut local = gpu.alloc_vram::<f32>(count)?;
    local.write(0, &y)?;
    run!(stream, saxpy(-1.7, &*x, &mut local))?;
    assert!(local.to_vec() == expected, "memory of the device");

    // Twice in one scope, in the order of the stream, each by a launcher of its own.
    let mut again = kernels.saxpy(Grid::new(count.div_ceil(64) as u32, 64))?;
    let twice: Vec<f32> = x.iter().zip(&expected).map(|(x, y)| 0.5 * x + y).collect();
    let mut lent = y.clone();
    let result = stream.scope(|work| {
        let mut y = work.slice_mut(&mut lent)?;
        saxpy.launch(work, -1.7, &pinned, &mut y)?;
        again.launch(work, 0.5, &pinned, y)
    });
    saxpy.finish(again.finish(result).map_err(|error| match error {
        ProgramError::Pinmap(error) => error,
        error => panic!("{error}"),
    }))?;
    assert!(lent == twice, "two launches");
    Ok(())
}

/// Managed memory goes to the device, but it is more than the device has.
pub(crate) fn rust_kernel_works_on_more_than_the_device_has() -> Outcome {
    let gpu = faulting()?;
    if std::env::var("PINMAP_DMA").is_ok_and(|is| is == "message") {
        return skip("each access is a message: a launch would take longer than it may");
    }
    let stream = gpu.stream(Default::default())?;
    let kernels = load_on(&gpu)?;
    let room = if is_slow() { 2 << 20 } else { 8 << 20 };
    let count = 3 * room / 2 / 4;
    let (mut x, mut y) = (
        gpu.alloc_managed::<f32>(count)?,
        gpu.alloc_managed::<f32>(count)?,
    );
    for i in 0..count {
        (x[i], y[i]) = (i as f32, 0.5 - i as f32);
    }
    let mut saxpy = kernels.saxpy(Grid::new(count.div_ceil(1024) as u32, 1024))?;
    let mut histogram = kernels.histogram(Grid::new(2, 64))?;
    let _taken = leave(&gpu, room as u64)?;
    run!(stream, saxpy(2.0, &x, &mut y))?;
    let evicted = x.statistics()?.home_evicted + y.statistics()?.home_evicted;
    assert!(evicted > 0, "nothing had to go");
    let wrong = (0..count).find(|&i| y[i] != 2.0 * i as f32 + (0.5 - i as f32));
    assert_eq!(wrong, None);
    drop((x, y));

    let mut data = gpu.alloc_managed::<u8>(3 * room / 2)?;
    data.copy_from_slice(&pattern(6, 3 * room / 2));
    let mut counts = gpu.alloc_managed::<u32>(256)?;
    run!(stream, histogram(&data, &mut counts))?;
    assert!(data.statistics()?.home_evicted > 0, "nothing had to go");
    assert_eq!(*counts, *counted(&data));
    Ok(())
}

fn counted(data: &[u8]) -> Vec<u32> {
    let mut counts = vec![0u32; 256];
    data.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    counts
}

pub(crate) fn rust_kernel_is_matrix_product() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    // The last tiles are not whole.
    let n = if is_slow() { 13 } else { 75 };
    let number = |seed: usize| move |i: usize| ((i * seed) % 17) as f32 - 8.0;
    let a: Vec<f32> = (0..n * n).map(number(5)).collect();
    let b: Vec<f32> = (0..n * n).map(number(7)).collect();
    let product = |b: &[f32], i: usize| -> f32 {
        let terms = (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]);
        terms.sum()
    };
    let expected: Vec<f32> = (0..n * n).map(|i| product(&b, i)).collect();
    let (tiles, threads) = (n.div_ceil(TILE) as u32, TILE as u32);
    let mut multiply = kernels.multiply(Grid::new((tiles, tiles), (threads, threads)))?;

    let mut lent = vec![f32::NAN; n * n];
    run!(stream, multiply(n as u32, &*a, &*b, &mut *lent))?;
    assert!(lent == expected, "memory of the program");
    let (left, mut local) = (gpu.register(a.clone())?, gpu.alloc_vram::<f32>(n * n)?);
    run!(stream, multiply(n as u32, &left, &*b, &mut local))?;
    assert!(local.to_vec() == expected, "memory of the device");
    if gpu.device().info()?.managed {
        let mut managed = gpu.alloc_managed::<f32>(n * n)?;
        run!(stream, multiply(n as u32, &left, &local, &mut managed))?;
        let expected: Vec<f32> = (0..n * n).map(|i| product(&expected, i)).collect();
        assert!(*managed == expected, "managed memory");
    }
    Ok(())
}

pub(crate) fn rust_kernel_is_histogram() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    let data = pattern(6, if is_slow() { 2000 } else { 200_003 });
    let mut expected = counted(&data);
    let mut counts = gpu.alloc::<u32>(256)?;
    let mut histogram = kernels.histogram(Grid::new(7, 100))?;
    // Twice, so that the counts are added.
    for _ in 0..2 {
        run!(stream, histogram(&*data, &mut counts))?;
    }
    expected.iter_mut().for_each(|count| *count *= 2);
    assert_eq!(*counts, *expected);
    let mut local = gpu.alloc_vram::<u32>(256)?;
    run!(stream, histogram(&*data, &mut local))?;
    expected.iter_mut().for_each(|count| *count /= 2);
    assert_eq!(local.to_vec(), expected);
    Ok(())
}

pub(crate) fn rust_kernel_prints_and_takes_structs() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    let body = |i: usize| Body {
        place: [i as f64, 2.0, 6.0],
        mass: i as f32 / 4.0,
        kind: 1,
        flags: [1, 2],
    };
    let bodies: Vec<_> = (0..4).map(body).collect();
    let mut bodies = gpu.alloc_from(&bodies)?;
    let mut travel = kernels.travel(Grid::new(2, (1, 2)))?;
    for launch in 1..=2 {
        let result = stream.scope(|work| travel.launch(work, &mut bodies, 3.0, -2, launch == 2));
        let mut messages = travel.messages();
        travel.finish(result)?;
        // Formatting takes more than one turn of a thread.
        messages.sort_by_key(|message| (message.block, message.thread));
        let mut expected = String::new();
        for i in 0..4u8 {
            let x = f64::from(i) + 3.0 * f64::from(launch);
            let length = (x * x + 40.0).sqrt();
            let (mass, dims) = (f32::from(i) / 4.0, "Dim3 { x: 2, y: 1, z: 1 }");
            expected += &format!("{i} of {dims}: {length:.3} {mass}\n");
        }
        // Variables stay as the launch before has left them. A long text is several messages.
        expected += &format!("{} launches, {:>600}\n", 40 + launch, "far");
        assert_eq!(text(&messages), expected);
        assert_eq!(messages.len(), 4 + 3);
        assert_eq!((messages[3].block, messages[3].thread), (1, 1));
    }
    for (i, found) in bodies.iter().enumerate() {
        let expected = Body {
            place: [i as f64 + 6.0, 2.0, 6.0],
            kind: -2i16 as u16,
            flags: [7, 7],
            ..body(i)
        };
        assert_eq!(*found, expected);
    }
    Ok(())
}

pub(crate) fn rust_kernel_takes_all_arguments() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    let mut sum = kernels.sum(Grid::new(1, 1))?;
    let mut to = gpu.alloc::<f64>(1)?;
    let more = [1u128 << 100, (5 << 64) | 17];
    run!(
        stream,
        sum(&mut to, -1, u32::MAX, -2, 1 << 40, -300, &more[..], 200)
    )?;
    let expected = -1.0 + f64::from(u32::MAX) - 2.0 + (1u64 << 40) as f64 - 300.0 + 200.0 + 17.0;
    assert_eq!(to[0], expected);

    let mut poke = kernels.poke(Grid::new(1, 1))?;
    let mut word = gpu.alloc::<u32>(1)?;
    let at = word.slice_mut().device_addr() as *mut u32;
    // SAFETY: The number is there, and nobody uses it.
    let result = stream.scope(|work| unsafe { poke.launch(work, at, 77) });
    poke.finish(result)?;
    assert_eq!(word[0], 77);
    Ok(())
}

fn stopped(result: std::result::Result<(), ProgramError>) -> Trap {
    match result {
        Err(ProgramError::Stopped(_, trap)) => trap,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn rust_kernel_that_panics_names_the_line() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    let (from, mut to) = (gpu.alloc::<u32>(10)?, gpu.alloc::<u32>(12)?);
    let mut read_beyond = kernels.read_beyond(Grid::new(3, 4))?;
    let result = stream.scope(|work| read_beyond.launch(work, &from, &mut to));
    let told = text(&read_beyond.messages());
    let error = read_beyond.finish(result).expect_err("it panics");
    let words = error.to_string();
    let trap = stopped(Err(error));
    let lines = include_str!("rust_kernels.rs").lines();
    let line = lines
        .zip(1..)
        .find(|(text, _)| text.contains("the line that the test looks for"));
    let (_, line) = line.expect("the line");
    let column = "    to.set(i, from.".len() + 1;
    assert_eq!(
        told,
        format!(
            "block 2, thread 2 panicked at src/rust_kernels.rs:{line}:{column}:\n\
             there is no element 10: the slice has 10\n"
        )
    );
    let end = format!(
        "a program aborted (ABORTED) (EIO); kernel read_beyond, block 2, thread 2 panicked at \
         src/rust_kernels.rs:{line}:{column}: there is no element 10: the slice has 10"
    );
    assert!(words.ends_with(&end), "{words}");
    assert_eq!((trap.code, trap.value), (FaultCode::Aborted, line));
    assert_eq!(
        (trap.block, trap.thread, &*trap.kernel),
        (2, 2, "read_beyond")
    );
    Ok(())
}

/// Launches find a kernel by its name and its types; a program of something else has none.
pub(crate) fn rust_kernels_are_those_of_the_source() -> Outcome {
    let (gpu, _, kernels) = load()?;
    let error = kernels.saxpy(Grid::new(1, 1025)).expect_err("no such grid");
    assert!(error.to_string().contains("1 to 1024"), "{error}");
    mod other {
        use pinmap_kernel::*;
        // The file is the one of the module above, whose `saxpy` takes an `f32`.
        program!(unsafe include_bytes!(concat!(env!("OUT_DIR"), "/pinmap-kernels.elf")));

        #[kernel]
        pub(crate) fn saxpy(a: f64, x: DeviceSlice<f32>, y: DeviceSliceMut<f32>) {}
    }
    let error = other::Kernels::load(&gpu)?
        .saxpy(Grid::new(1, 1))
        .expect_err("another one");
    let text = error.to_string();
    let names = [
        "no kernel `saxpy(f64,DeviceSlice<f32>,DeviceSliceMut<f32>)`",
        "saxpy(f32,DeviceSlice<f32>,DeviceSliceMut<f32>)",
    ];
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    Ok(())
}

/// By a `cfg` the same source can be another one for the device; then there is no launch.
pub(crate) fn rust_kernels_have_the_same_types_on_both_sides() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    let grid = Grid::new(1, 1);
    let refused = [
        (
            kernels.other_value(grid).map(drop),
            "another type of parameter 2",
        ),
        (
            kernels.other_elements(grid).map(drop),
            "another type of parameter 1",
        ),
        (
            kernels.other_shared(grid).map(drop),
            "other memory that a block shares (64 bytes)",
        ),
        (
            kernels.other_promise(grid).map(drop),
            "other promises (`unsafe`)",
        ),
    ];
    for (result, expected) in refused {
        let text = result.expect_err(expected).to_string();
        let expected = format!("has {expected} for the device than for the program");
        assert!(text.contains(&expected), "{text}");
    }
    let mut entry = kernels.entry(grid)?;
    let mut to = gpu.alloc::<u32>(3)?;
    run!(stream, entry(&mut to))?;
    assert_eq!(to[0], 3);
    Ok(())
}

/// A stream of another context has neither the program nor its memory.
pub(crate) fn rust_kernels_run_in_the_context_that_loaded_them() -> Outcome {
    let (_gpu, _, kernels) = load()?;
    let (other, stream) = gpu_and_stream()?;
    let mut to = other.alloc::<u32>(3)?;
    let mut entry = kernels.entry(Grid::new(1, 1))?;
    let error = run!(stream, entry(&mut to)).expect_err("another context");
    let text = error.to_string();
    assert!(
        text.contains("the kernel belongs to another context than the queue"),
        "{text}"
    );
    let mut entry = Kernels::load(&other)?.entry(Grid::new(1, 1))?;
    run!(stream, entry(&mut to))?;
    assert_eq!(to[0], 3);
    Ok(())
}

/// A stack has room for what each kernel in Rust takes, whatever the grid says.
pub(crate) fn rust_kernels_have_stacks_of_8_kib_at_least() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    let mut bodies = gpu.alloc_from(&[BODY; 4])?;
    let mut travel = kernels.travel(Grid::new(1, 4).stack_bytes(16))?;
    let result = stream.scope(|work| travel.launch(work, &mut bodies, 3.0, -2, false));
    let told = text(&travel.messages());
    travel.finish(result)?;
    assert_eq!(told.matches("launches, ").count(), 1, "{told}");
    assert!(bodies.iter().all(|body| body.place == [4.0, 2.0, 6.0]));
    Ok(())
}

/// A thread that needs more than its stack is stopped before it writes there.
pub(crate) fn rust_kernel_that_needs_more_than_its_stack_is_stopped() -> Outcome {
    let (gpu, stream, kernels) = load()?;
    let mut to = gpu.alloc_from(&[7u32; 16])?;
    let mut deep = kernels.deep(Grid::new(1, 2))?;
    run!(stream, deep(10, &mut to))?;
    assert_eq!((to[0], to[1]), (55, 7));
    let mut more = kernels.deep(Grid::new(1, 2).stack_bytes(64 << 10))?;
    run!(stream, more(100, &mut to))?;
    assert_eq!(to[0], 5050);
    let trap = stopped(run!(stream, deep(100, &mut to)));
    let function = trap.function.as_deref().unwrap_or_default();
    assert!(function.contains("deeper"), "{trap}");
    assert_eq!((trap.code, trap.thread), (FaultCode::StackOverflow, 1));
    let (gpu, stream) = gpu_and_stream()?;
    let mut wide = load_on(&gpu)?.wide(Grid::new(1, 2))?;
    let mut to = gpu.alloc_from(&[7u32; 16])?;
    let trap = stopped(run!(stream, wide(&mut to)));
    assert_eq!(
        (trap.code, &*trap.kernel),
        (FaultCode::StackOverflow, "wide")
    );
    assert!(trap.to_string().contains("which moved sp to 0x"), "{trap}");
    assert_eq!(*to, [7; 16]);
    Ok(())
}
