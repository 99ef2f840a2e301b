// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs in which the device works on the program's own memory, and nothing is copied to it.

use std::error::Error;

use pinmap::{kernel, Buffer, Gpu, Queue, Registration};

/// Floats that `increment` has, and ints that `copy` has.
pub(crate) const FLOATS: usize = 1024;
pub(crate) const INTS: usize = 128;

/// Ordinary memory of the program, filled in the ordinary way: 0, 1, 2 …
pub(crate) fn floats() -> Result<Buffer, Box<dyn Error>> {
    let mut memory = Buffer::new(4 * FLOATS)?;
    for (i, bytes) in memory.chunks_exact_mut(4).take(FLOATS).enumerate() {
        bytes.copy_from_slice(&(i as f32).to_ne_bytes());
    }
    Ok(memory)
}

/// The floats that ordinary memory holds.
pub(crate) fn values(memory: &[u8]) -> Vec<f32> {
    let float = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_ne_bytes);
    memory.chunks_exact(4).take(FLOATS).map(float).collect()
}

/// The device adds 1 to each of the floats, in place: they become 1, 2, 3 …
pub(crate) fn increment(
    queue: &mut Queue,
    memory: &mut Registration,
) -> Result<(), Box<dyn Error>> {
    queue.scope(|scope| {
        let mut data = memory.slice_mut()?.part(..FLOATS)?;
        scope.launch(kernel::IncrementF32 { data: &mut data })
    })?;
    Ok(())
}

/// The device copies ints from one buffer in host memory to another. The program writes the first
/// and reads the second, which both have the same address for the device.
pub(crate) fn copy(gpu: &Gpu, queue: &mut Queue) -> Result<Vec<i32>, Box<dyn Error>> {
    let mut source = gpu.device().alloc::<i32>(INTS)?;
    let mut target = gpu.device().alloc::<i32>(INTS)?;
    let ints: Vec<i32> = (0i32..).take(INTS).collect();
    source.write(0, &ints)?;
    queue.scope(|scope| {
        scope.launch(kernel::Copy {
            from: source.slice(),
            to: &mut target.slice_mut(),
        })
    })?;
    Ok(target.to_vec())
}
