// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels in OpenCL C, which clang compiled when these tests were built.
#![allow(unsafe_code)]

use pinmap::accelerator::{self, Accelerator, FaultCode, Stream};
use pinmap_testgpu::program::{Arguments, Grid, Program, ProgramError};

use crate::harness::Outcome;
use crate::program::load_file;
use crate::setup::is_slow;

/// The program in `kernels/kernels.cl`; empty where there was no clang, or no library.
static KERNELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/opencl/kernels.elf"));

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn load() -> Result<(Accelerator, Stream, Program)> {
    let missing = "there was no clang, or no musl for riscv64, when the tests were built";
    load_file(KERNELS, missing)
}

/// Launches once, with the memory that is written and the arguments, and waits.
macro_rules! launch {
    ($stream:expr, $kernel:expr, [$($to:ident),*], $arguments:expr) => {{
        let result = $stream.scope(|work| {
            $(let mut $to = $to.slice_mut();)*
            // SAFETY: The kernel has these parameters, and reaches as many elements.
            unsafe { $kernel.launch(work, $arguments) }
        });
        $kernel.finish(result)?
    }};
}

fn is_near(found: f64, expected: f64, difference: f64) -> bool {
    (found - expected).abs() <= difference * expected.abs().max(1e-3)
}

pub(crate) fn opencl_local_parameter() -> Outcome {
    let (gpu, stream, program) = load()?;
    let (blocks, threads) = (5, 64);
    let x: Vec<f32> = (0..blocks * threads)
        .map(|i| (i % 77) as f32 / 16.0)
        .collect();
    let x = gpu.alloc_from(&x)?;
    let mut sums = gpu.alloc::<f32>(blocks)?;
    let grid = Grid::new(blocks as u32, threads as u32).shared_bytes(4 * threads);
    let mut kernel = program.kernel("sums", grid)?;
    launch!(stream, kernel, [sums], {
        let arguments = Arguments::new().read(x.slice());
        let arguments = arguments.write(&mut sums);
        arguments.shared(4 * threads)
    });
    for (block, sum) in x.chunks(threads).zip(&sums[..]) {
        let expected: f64 = block.iter().map(|&x| f64::from(x).exp()).sum();
        assert!(is_near(f64::from(*sum), expected, 1e-5), "{sum} {expected}");
    }
    // What the grid has is checked.
    let error = stream.scope(|work| {
        let arguments = Arguments::new()
            .read(x.slice())
            .shared(16)
            .shared(4 * threads);
        // SAFETY: It is refused.
        unsafe { kernel.launch(work, arguments) }
    });
    let error = error.expect_err("too much").to_string();
    assert!(
        error.contains("more shared memory than the grid"),
        "{error}"
    );
    Ok(())
}

pub(crate) fn opencl_local_variables() -> Outcome {
    let (gpu, stream, program) = load()?;
    let size = if is_slow() { 16 } else { 64 };
    let a: Vec<f64> = (0..size * size).map(|i| (i % 13) as f64 - 6.0).collect();
    let b: Vec<f64> = (0..size * size).map(|i| (i % 7) as f64 / 8.0).collect();
    let (left, right) = (gpu.alloc_from(&a)?, gpu.alloc_from(&b)?);
    let mut c = gpu.alloc::<f64>(size * size)?;
    let blocks = size as u32 / 8;
    let mut kernel = program.kernel("matmul", Grid::new((blocks, blocks), (8, 8)))?;
    launch!(stream, kernel, [c], {
        let arguments = Arguments::new().read(left.slice()).read(right.slice());
        arguments.write(&mut c).value(size as i32)
    });
    for (i, found) in c.iter().enumerate() {
        let (row, column) = (i / size, i % size);
        let products = (0..size).map(|k| a[row * size + k] * b[k * size + column]);
        assert_eq!(*found, products.sum::<f64>(), "{row}, {column}");
    }
    Ok(())
}

pub(crate) fn opencl_local_variables_are_of_a_launch() -> Outcome {
    let (gpu, one, program) = load()?;
    let other = gpu.stream(Default::default())?;
    let (blocks, threads, turns) = (3, 8, if is_slow() { 50 } else { 3000 });
    let mut kernels = [(), ()].map(|()| program.kernel("flags", Grid::new(blocks, threads)));
    let [Ok(first), Ok(second)] = &mut kernels else {
        panic!("{kernels:?}");
    };
    let words = [
        gpu.alloc_from(&[100, 200, 300])?,
        gpu.alloc_from(&[-7, -8, -9000])?,
    ];
    let mut found = [gpu.alloc::<i32>(3)?, gpu.alloc::<i32>(3)?];
    let [found_first, found_second] = &mut found;
    // Both run at the same time, in two slots of the engine.
    let result = accelerator::scope(|scope| {
        let (mut found_first, mut found_second) =
            (found_first.slice_mut(), found_second.slice_mut());
        let arguments = Arguments::new().read(words[0].slice());
        let arguments = arguments.write(&mut found_first).value(turns);
        // SAFETY: The kernel has these parameters, and there are three of each.
        unsafe { first.launch(&scope.on(&one), arguments) }?;
        let arguments = Arguments::new().read(words[1].slice());
        let arguments = arguments.write(&mut found_second).value(turns);
        // SAFETY: As above.
        unsafe { second.launch(&scope.on(&other), arguments) }
    });
    result?;
    assert_eq!((&found[0][..], &found[1][..]), (&[0; 3][..], &[0; 3][..]));
    Ok(())
}

pub(crate) fn opencl_atomics() -> Outcome {
    let (gpu, stream, program) = load()?;
    let mut n = gpu.alloc_from(&[0, 0, 0, 0, 100, -100, 0, 0])?;
    let mut u = gpu.alloc_from(&[u32::MAX, 0, 0, 9, 0, 0])?;
    let (mut big, mut modern) = (gpu.alloc_from(&[1i64])?, gpu.alloc_from(&[1, 5])?);
    let mut kernel = program.kernel("atomics", Grid::new(4, 8))?;
    launch!(stream, kernel, [n, u, big, modern], {
        let arguments = Arguments::new().write(&mut n);
        let arguments = arguments.write(&mut u);
        let arguments = arguments.write(&mut big);
        arguments.write(&mut modern)
    });
    assert_eq!(n[..], [496, -496, 32, -32, -31, 31, 1, 96]);
    assert_eq!(u[..], [0, u32::MAX, u32::MAX, 0, 0x8000_001f, 7]);
    assert_eq!((big[0], &modern[..]), (1 + (32 << 33), &[65, 31][..]));
    Ok(())
}

pub(crate) fn opencl_vectors() -> Outcome {
    let (gpu, stream, program) = load()?;
    let v = [0.25f32, 2.5, -3.5, 4.0];
    let x = gpu.alloc_from(&[&[0.0; 4][..], &v].concat())?;
    let parameters = gpu.alloc_from(&[10u32, 20, 30, 40, 0.75f32.to_bits(), 0, 0, 0])?;
    let (mut y, mut n) = (gpu.alloc::<f32>(18)?, gpu.alloc::<i32>(24)?);
    let mut kernel = program.kernel("vectors", Grid::new(1, 1))?;
    launch!(stream, kernel, [y, n], {
        let arguments = Arguments::new().read(x.slice()).write(&mut y);
        let arguments = arguments.write(&mut n);
        // The vectors by value: float4 and uchar2.
        let arguments = [1.0f32, 2.0, 3.0, 4.0]
            .into_iter()
            .fold(arguments, Arguments::value);
        arguments.value(7u8).value(200u8).read(parameters.slice())
    });
    let expected = [
        1.125,
        4.5,
        -4.0,
        20.0, // v * w + by
        2.5,
        -0.25,
        0.0,                      // cross
        0.125 + 2.5 - 7.0 + 16.0, // dot
        (0.0625f32 + 6.25 + 12.25).sqrt(),
        0.5,
        2.0, // fract
        0.0,
        -0.6875,
        2.875, // mix
        0.25,
        1.0, // clamp
        0.75,
        0.15625 - 1.0, // smoothstep, step, sign
    ];
    assert_eq!(y[..], expected);
    let expected = [
        0,
        2,
        -3,
        4, // towards zero
        0,
        2,
        -4,
        4, // to even
        25,
        250,
        0,
        255, // saturated
        -1,
        0,
        -1,
        0, // less
        9,
        20,
        9,
        40, // selected
        7 + 256 * 200,
        1,
        0x3e80_0000,
        127,
    ];
    assert_eq!(n[..], expected);
    Ok(())
}

pub(crate) fn opencl_integers() -> Outcome {
    let (gpu, stream, program) = load()?;
    let (mut n, mut big) = (gpu.alloc::<i32>(13)?, gpu.alloc::<i64>(3)?);
    let mut kernel = program.kernel("integers", Grid::new(1, 1))?;
    launch!(stream, kernel, [n, big], {
        let arguments = Arguments::new().write(&mut n);
        arguments.write(&mut big)
    });
    let expected = [
        1,
        i32::MAX,
        2_000_000_000,
        2_000_000_001,
        0x18,
        6,
        15,
        -1,
        1_000_005,
        -65534,
        3,
        128,
        0x0f34,
    ];
    assert_eq!(n[..], expected);
    assert_eq!(big[..], [-1, 2, i64::MIN]);
    Ok(())
}

pub(crate) fn opencl_functions() -> Outcome {
    let (gpu, stream, program) = load()?;
    let x: Vec<f64> = (1..=64).map(|i| f64::from(i * i) / 128.0).collect();
    let count = x.len();
    let input = gpu.alloc_from(&x)?;
    let (mut y, mut z) = (gpu.alloc::<f64>(17 * count)?, gpu.alloc::<f32>(17 * count)?);
    let mut kernel = program.kernel("functions", Grid::new(4, 16))?;
    launch!(stream, kernel, [y, z], {
        let arguments = Arguments::new().read(input.slice());
        arguments.write(&mut y).write(&mut z)
    });
    let frexp = |x: f64| x.log2().floor() + 1.0;
    type Function = fn(f64) -> f64;
    let functions: [(Function, Function); 17] = [
        (f64::sqrt, f64::sqrt),
        (f64::exp, f64::exp),
        (f64::ln, f64::ln),
        (f64::sin, f64::sin),
        (f64::cos, f64::cos),
        (f64::tan, f64::tan),
        (f64::atan, f64::atan),
        (f64::cbrt, f64::cbrt),
        (f64::floor, f64::floor),
        (f64::round_ties_even, f64::round_ties_even),
        (f64::tanh, f64::tanh),
        (f64::log2, f64::log2),
        (|x| 1.0 / x.sqrt(), |x| 1.0 / x.sqrt()),
        (|x| x.powf(1.5), |x| x.powf(1.5)),
        (|x| x.hypot(3.0), f64::exp),
        (f64::sin, f64::cos),
        (|x| x / (x.log2().floor() + 1.0).exp2(), frexp),
    ];
    for (number, (double, float)) in functions.into_iter().enumerate() {
        for (i, &x) in x.iter().enumerate() {
            let (y, z) = (y[number * count + i], f64::from(z[number * count + i]));
            let (double, float) = (double(x), float(x));
            assert!(
                is_near(y, double, 1e-12),
                "{number} of {x}: {y}, not {double}"
            );
            assert!(is_near(z, float, 3e-5), "{number} of {x}: {z}, not {float}");
        }
    }
    Ok(())
}

pub(crate) fn opencl_threads_and_copies() -> Outcome {
    let (gpu, stream, program) = load()?;
    let from: Vec<i32> = (0..36).map(|i| 1000 * i).collect();
    let input = gpu.alloc_from(&from)?;
    let mut to = gpu.alloc::<i32>(36 * 8)?;
    // 3 × 2 blocks of 3 × 2 threads.
    let grid = Grid::new((3, 2), (3, 2)).shared_bytes(32);
    let mut kernel = program.kernel("ids", grid)?;
    launch!(stream, kernel, [to], {
        let arguments = Arguments::new().read(input.slice());
        arguments.write(&mut to).shared(24)
    });
    for (thread, found) in to.chunks(8).enumerate() {
        let (x, y) = (thread % 9, thread / 9);
        let (block, own) = (x / 3 + 3 * (y / 2), x % 3 + 3 * (y % 2));
        let tile = from[6 * block + own];
        let ids = [x as i32, y as i32, 9, 4, 1, 1, 2, thread as i32];
        assert_eq!(found, ids.map(|id| id + tile), "{x}, {y}");
    }
    Ok(())
}

pub(crate) fn opencl_prints_and_stops() -> Outcome {
    let (gpu, stream, program) = load()?;
    let names: Vec<_> = program.kernels().collect();
    assert!(names.contains(&"say") && !names.contains(&"store") && !names.contains(&"exp"));
    let numbers = gpu.alloc_from(&[3i32, -1, 0, 7])?;
    let mut say = program.kernel("say", Grid::new(2, 2))?;
    let result = stream.scope(|work| {
        // SAFETY: The kernel has this parameter, and there are 4 numbers.
        unsafe { say.launch(work, Arguments::new().read(numbers.slice())) }
    });
    result?;
    let messages = say.messages().into_iter();
    let text: Vec<u8> = messages.flat_map(|message| message.text).collect();
    let expected = "0.0: word 0.25 12884901888 x\n0.1: word 0.25 -4294967296 x\n\
                    1.0: word 0.25 0 x\n1.1: word 0.25 30064771072 x\n";
    assert_eq!(String::from_utf8_lossy(&text), expected);

    let mut wild = program.kernel("wild", Grid::new(2, 4))?;
    let result = stream.scope(|work| {
        // SAFETY: The kernel has this parameter, and nothing is at that address.
        unsafe { wild.launch(work, Arguments::new().value(0x20u64)) }
    });
    let Err(ProgramError::Stopped(_, trap)) = wild.finish(result) else {
        panic!("it stops");
    };
    assert_eq!((trap.block, trap.thread, trap.value), (1, 1, 0x20));
    assert_eq!(trap.code, FaultCode::NotPresent);
    assert!(trap
        .function
        .is_some_and(|name| name.starts_with("wild+0x")));
    Ok(stream.reset()?)
}
