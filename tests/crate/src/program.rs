// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels in C, which clang compiled when these tests were built.
#![allow(unsafe_code)]

use pinmap::accelerator::{Accelerator, FaultCode, Stream};
use pinmap_testgpu::program::{Arguments, Grid, Launcher, Program, ProgramError, Trap};

use crate::gpu::gpu_and_stream;
use crate::harness::{skip, Outcome};
use crate::setup::{is_slow, pattern};

/// The program in `kernels/kernels.c`; empty where there was no clang.
static KERNELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.elf"));

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn load() -> Result<(Accelerator, Stream, Program)> {
    load_file(KERNELS, "there was no clang when the tests were built")
}

/// Loads a program, unless the file is empty, for this reason.
pub(crate) fn load_file(file: &[u8], missing: &str) -> Result<(Accelerator, Stream, Program)> {
    if file.is_empty() {
        return skip(missing);
    }
    let (gpu, stream) = gpu_and_stream()?;
    if !gpu.device().info()?.programs {
        return skip("the device executes no programs");
    }
    let program = Program::load(&gpu, file)?;
    Ok((gpu, stream, program))
}

pub(crate) fn compiled_kernel_wants_a_device_that_executes() -> Outcome {
    let (gpu, _stream) = gpu_and_stream()?;
    if KERNELS.is_empty() || gpu.device().info()?.programs {
        return skip("the device executes programs (scripts/vm --gpu --no-programs)");
    }
    let before = gpu.info()?;
    let error = Program::load(&gpu, KERNELS).expect_err("it executes none");
    let refused = ProgramError::Refused("the device executes no programs".into());
    assert_eq!(error, refused);
    assert_eq!(gpu.info()?.vram_free, before.vram_free);
    Ok(())
}

pub(crate) fn compiled_kernel_is_saxpy() -> Outcome {
    let (gpu, stream, program) = load()?;
    let count: usize = if is_slow() { 1000 } else { 100_001 };
    let x: Vec<f32> = (0..count).map(|i| i as f32 / 3.0).collect();
    let y: Vec<f32> = (0..count).map(|i| 1e6 - i as f32).collect();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| -1.7 * x + y).collect();
    let mut saxpy = program.kernel("saxpy", Grid::new(count.div_ceil(256) as u32, 256))?;
    let mut check = |place: &str, run: &mut dyn FnMut(&mut Launcher) -> Result<Vec<f32>>| {
        let found = run(&mut saxpy)?;
        assert!(found == expected, "memory of {place}");
        assert!(saxpy.instructions() > 8 * count as u64, "{saxpy:?}");
        Outcome::Ok(())
    };
    // Slices of the program's memory, which are lent.
    check("the program", &mut |saxpy| {
        let mut y = y.clone();
        let result = stream.scope(|work| {
            let (x, mut y) = (work.slice(&x)?, work.slice_mut(&mut y)?);
            let first = Arguments::new().value(count as u64).value(-1.7f32);
            // SAFETY: The kernel has these parameters, and reaches `count` elements.
            unsafe { saxpy.launch(work, first.read(x).write(&mut y)) }
        });
        saxpy.finish(result)?;
        Ok(y)
    })?;
    let mut local = gpu.alloc_vram::<f32>(count)?;
    local.write(0, &y)?;
    let pinned = gpu.alloc_from(&x)?;
    check("the device", &mut |saxpy| {
        let result = stream.scope(|work| {
            let mut y = local.slice_mut();
            let first = Arguments::new().value(count as u64).value(-1.7f32);
            // SAFETY: As above.
            unsafe { saxpy.launch(work, first.read(pinned.slice()).write(&mut y)) }
        });
        saxpy.finish(result)?;
        Ok(local.to_vec())
    })
}

pub(crate) fn compiled_kernel_is_histogram() -> Outcome {
    let (gpu, stream, program) = load()?;
    let data = pattern(6, if is_slow() { 2000 } else { 200_003 });
    let mut expected = vec![0u32; 256];
    data.iter()
        .for_each(|&byte| expected[usize::from(byte)] += 1);
    let mut counts = gpu.alloc::<u32>(256)?;
    let grid = Grid::new(7, 100).shared_bytes(1024);
    let mut histogram = program.kernel("histogram", grid)?;
    // Twice, so that the counts are added.
    for _ in 0..2 {
        let result = stream.scope(|work| {
            let (text, mut counts) = (work.slice(&data)?, counts.slice_mut());
            let count = Arguments::new().value(data.len());
            // SAFETY: The kernel has these parameters, and there are 256 counts.
            unsafe { histogram.launch(work, count.read(text).write(&mut counts)) }
        });
        histogram.finish(result)?;
    }
    expected.iter_mut().for_each(|count| *count *= 2);
    assert_eq!(*counts, *expected);
    Ok(())
}

pub(crate) fn compiled_kernel_prints_in_order() -> Outcome {
    let (gpu, stream, program) = load()?;
    let mut say = program.kernel("say", Grid::new(3, 2))?;
    let word = gpu.alloc_from(b"work\0")?;
    let run = |say: &mut Launcher| {
        stream.scope(|work| {
            let arguments = Arguments::new().read(word.slice()).value(-2.0625f64);
            // SAFETY: The kernel has these parameters, and the word ends.
            unsafe { say.launch(work, arguments) }
        })
    };
    for launch in 1..=2 {
        run(&mut say)?;
        let messages = say.messages();
        let expected = (0..6).map(|i| {
            let (block, thread) = (i / 2, i % 2);
            let name = ["zero", "one", "two"][block];
            let text = format!("{name} {block}.{thread}: work of -3, -2.062 -0042 beef c%\n");
            (block as u64, thread as u64, text)
        });
        let mut expected: Vec<_> = expected.collect();
        // Variables stay as the launch before has left them.
        let last = format!(
            "{} 0 0x1000 100000000000000000000.000000 1.000000\n",
            40 + launch
        );
        expected.push((2, 1, last));
        let found = messages.into_iter().map(|message| {
            let text = String::from_utf8_lossy(&message.text).into_owned();
            (message.block, message.thread, text)
        });
        let found: Vec<_> = found.collect();
        assert_eq!(found, expected);
    }
    // Where there is no room, the first ones are there, and nothing goes wrong.
    let mut short = program.kernel("say", Grid::new(3, 2).print_bytes(256))?;
    run(&mut short)?;
    assert_eq!(short.messages().len(), 2);
    let result = run(&mut short);
    short.finish(result)?;
    assert!(short.messages().is_empty());
    Ok(())
}

pub(crate) fn compiled_kernel_takes_all_arguments() -> Outcome {
    let (gpu, stream, program) = load()?;
    let mut sum = program.kernel("sum", Grid::new(1, 1))?;
    let mut to = gpu.alloc::<f64>(6)?;
    let result = stream.scope(|work| {
        let mut to = to.slice_mut();
        let integers = Arguments::new().write(&mut to).value(-1i8).value(u32::MAX);
        let integers = integers.value(-2i32).value(1u64 << 40).value(-300i16);
        let integers = integers.value(7i32).value(8i32).value(-9i32).value(200u8);
        let all = (0..9).fold(integers, |all, i| all.value(i as f32 + 0.5));
        // SAFETY: The kernel has these parameters, and there are 6 numbers.
        unsafe { sum.launch(work, all.value(0.125f64)) }
    });
    sum.finish(result)?;
    let integers = -1.0 + f64::from(u32::MAX) - 2.0 + (1u64 << 40) as f64 - 300.0 + 15.0;
    assert_eq!(
        *to,
        [integers - 9.0 + 200.0, 40.625, -9.0, 200.0, 8.5, 0.125]
    );
    Ok(())
}

/// Checks an error of a kernel, and has the stream work again.
fn stopped(stream: &Stream, result: std::result::Result<(), ProgramError>) -> Result<Trap> {
    let error = result.expect_err("it stops");
    let ProgramError::Stopped(_, trap) = &error else {
        panic!("{error}");
    };
    let text = error.to_string();
    assert!(text.contains("packet 0 stopped the queue"), "{text}");
    assert!(text.ends_with(&trap.to_string()), "{text}");
    stream.reset()?;
    Ok(trap.clone())
}

pub(crate) fn compiled_kernel_that_stops_says_where() -> Outcome {
    let (gpu, _, program) = load()?;
    let stream = gpu.stream(Default::default())?;
    let grid = Grid::new(4, 8);
    let mut wild = program.kernel("wild", grid)?;
    let result = stream.scope(|work| {
        let arguments = Arguments::new().value(0x10u64).value(2u32).value(3u32);
        // SAFETY: The kernel has these parameters, and nothing is at that address.
        unsafe { wild.launch(work, arguments) }
    });
    let trap = stopped(&stream, wild.finish(result))?;
    assert_eq!((trap.block, trap.thread, trap.value), (2, 3, 0x10));
    let text = trap.to_string();
    let begin = "kernel wild, block 2, thread 3, at wild+0x";
    assert!(text.starts_with(begin), "{text}");

    let mut refuse = program.kernel("refuse", grid)?;
    let stream = gpu.stream(Default::default())?;
    let result = stream.scope(|work| {
        // SAFETY: The kernel has this parameter.
        unsafe { refuse.launch(work, Arguments::new().value(9u32)) }
    });
    let messages = refuse.messages();
    let told = String::from_utf8_lossy(&messages[0].text);
    assert!(told.contains("kernels.c:") && told.contains("`gridThread() != number'"));
    let trap = stopped(&stream, refuse.finish(result))?;
    assert_eq!(
        (trap.code, trap.block, trap.thread),
        (FaultCode::Aborted, 1, 1)
    );
    assert!(told.contains(&format!(":{}: ", trap.value)), "{told}");

    let mut undefined = program.kernel("undefined", grid)?;
    let stream = gpu.stream(Default::default())?;
    let result = stream.scope(|work| {
        // SAFETY: The kernel has no parameters.
        unsafe { undefined.launch(work, Arguments::new()) }
    });
    let trap = stopped(&stream, undefined.finish(result))?;
    assert_eq!(trap.code, FaultCode::IllegalInstruction);
    assert_eq!((trap.block, trap.thread, trap.value), (0, 0, 0xffff_ffff));
    assert_eq!(trap.function.as_deref(), Some("undefined+0x0"));
    Ok(())
}

/// The launch that stopped, of several in a scope, says so, whatever result it is given.
pub(crate) fn compiled_kernel_that_stops_is_named_beside_others() -> Outcome {
    let (gpu, stream, program) = load()?;
    let grid = Grid::new(4, 8);
    let mut well = program.kernel("refuse", grid)?;
    let mut wild = program.kernel("wild", grid)?;
    let mut behind = program.kernel("refuse", grid)?;
    let result = stream.scope(|work| {
        let nobody = || Arguments::new().value(1000u32);
        let place = Arguments::new().value(0x10u64).value(2u32).value(3u32);
        // SAFETY: The kernels have these parameters, and nothing is at that address.
        unsafe {
            well.launch(work, nobody())?;
            wild.launch(work, place)?;
            behind.launch(work, nobody())
        }
    });
    let error = result.expect_err("it stops");
    for other in [&mut well, &mut behind] {
        let same = other.finish::<()>(Err(error.clone())).expect_err("given");
        assert_eq!(same, ProgramError::Pinmap(error.clone()));
        other.finish(Ok(()))?;
    }
    let stop = wild.finish(Ok(())).expect_err("it stopped");
    let ProgramError::Stopped(None, trap) = &stop else {
        panic!("{stop}");
    };
    assert_eq!(
        (trap.code, trap.block, trap.thread),
        (FaultCode::NotPresent, 2, 3)
    );
    let text = stop.to_string();
    assert!(
        text.contains("could not access 0x10, nothing is mapped there"),
        "{text}"
    );
    assert!(
        text.contains("kernel wild, block 2, thread 3, at wild+0x"),
        "{text}"
    );
    // It is told once; the next launch says what becomes of that.
    wild.finish(Ok(()))?;
    stream.reset()?;
    let mut to = gpu.alloc::<i32>(1)?;
    let result = stream.scope(|work| {
        let mut to = to.slice_mut();
        let arguments = Arguments::new().write(&mut to).value(2u32).value(3u32);
        // SAFETY: The kernel has these parameters, and there is a number.
        unsafe { wild.launch(work, arguments) }
    });
    wild.finish(result)?;
    assert_eq!(to[0], 1);
    Ok(())
}

pub(crate) fn compiled_kernel_that_cannot_be() -> Outcome {
    let (gpu, stream, program) = load()?;
    let refused = |result: std::result::Result<Launcher, ProgramError>| match result {
        Err(ProgramError::Refused(cause)) => cause,
        other => panic!("{other:?}"),
    };
    let names: Vec<_> = program.kernels().collect();
    assert_eq!(
        names,
        [
            "saxpy",
            "histogram",
            "say",
            "sum",
            "wild",
            "refuse",
            "undefined"
        ]
    );
    let cause = refused(program.kernel("printf", Grid::new(1, 1)));
    assert!(cause.contains("no kernel `printf`") && cause.contains("saxpy, histogram"));
    let cause = refused(program.kernel("saxpy", Grid::new(1, (33, 32))));
    assert!(cause.contains("1 to 1024"), "{cause}");
    let cause = refused(program.kernel("saxpy", Grid::new(0, 1)));
    assert!(cause.contains("1 to 2^32"), "{cause}");
    let cut = Program::load(&gpu, &KERNELS[..KERNELS.len() / 2]).expect_err("cut off");
    assert!(matches!(cut, ProgramError::Refused(_)), "{cut}");

    // Operands are checked as those of other kernels.
    let mut memory = gpu.alloc::<f32>(100)?;
    let mut saxpy = program.kernel("saxpy", Grid::new(1, 1))?;
    let shared = gpu.alloc::<f32>(1)?;
    let error = stream.scope(|work| {
        let mut y = memory.slice_mut();
        let x = y.as_slice();
        let arguments = Arguments::new().value(1u64).value(1.0f32);
        let arguments = arguments.read(shared.slice()).read(x).write(&mut y);
        // SAFETY: It is refused.
        unsafe { saxpy.launch(work, arguments) }
    });
    let error = error.expect_err("they overlap").to_string();
    assert!(
        error.contains("a program: what is written overlaps"),
        "{error}"
    );
    Ok(())
}
