// SPDX-License-Identifier: MIT OR Apache-2.0
//! Works on both halves of an existing `Vec` by two streams at the same time, and has one stream
//! checksum what the other one has copied from a file that is open for reading only.
use pinmap::accelerator;
use pinmap::accelerator::StreamOptions;
use pinmap_testgpu::{Crc32c, IncrementF32};
use std::env;
use std::error::Error;
use std::fs::File;

fn main() -> Result<(), Box<dyn Error>> {
    let gpu = pinmap_testgpu::find()?;
    let streams = [gpu.stream(StreamOptions::new())?, gpu.stream(StreamOptions::new())?];
    let (copied, incremented) = (gpu.event()?, gpu.event()?);
    let mut numbers: Vec<f32> = (0..1 << 18).map(|i| i as f32).collect();
    let (left, right) = numbers.split_at_mut(1 << 17);
    let mut halves = [gpu.register(left)?, gpu.register(right)?];
    let mut local = [gpu.alloc_vram::<f32>(1 << 17)?, gpu.alloc_vram::<f32>(1 << 17)?];
    accelerator::scope(|scope| {
        for ((half, local), stream) in halves.iter_mut().zip(&mut local).zip(&streams) {
            let (work, mut half, mut local) =
                (scope.on(stream), half.slice_mut(), local.slice_mut());
            work.copy(&half, &mut local)?;
            work.record(&copied)?;
            work.launch(IncrementF32 { data: &mut local })?;
            work.record(&incremented)?;
            work.copy(&local, &mut half)?;
        }
        Ok(())
    })?;
    drop(halves);
    assert!((0..).zip(&numbers).all(|(i, &number)| number == i as f32 + 1.0));
    println!("the kernel took {:?}", incremented.elapsed_since(&copied)?);

    let file = File::open(env::args().nth(1).ok_or("usage: two_streams FILE")?)?;
    // SAFETY: Nobody changes the file meanwhile.
    let file = gpu.register(unsafe { memmap2::Mmap::map(&file)? })?;
    let (mut local, mut crc) = (gpu.alloc_vram::<u8>(file.len())?, gpu.alloc::<u32>(1)?);
    accelerator::scope(|scope| {
        let (up, down, mut local) =
            (scope.on(&streams[0]), scope.on(&streams[1]), local.slice_mut());
        up.copy(&file, &mut local)?;
        up.record(&copied)?;
        down.wait_event(&copied)?;
        down.launch(Crc32c { data: local.as_slice(), crc: &mut crc.slice_mut() })
    })?;
    println!("CRC-32C {:08x}", crc[0]);
    Ok(())
}
