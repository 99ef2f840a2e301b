// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs in which the device works on host memory in place, and nothing is copied to it.

use std::error::Error;

use pinmap::{kernel, Buffer, Gpu, Queue, Registration};

/// How many floats [`increment`] works on.
pub const FLOATS: usize = 1024;
/// How many ints [`copy`] copies.
pub const INTS: usize = 128;

/// Allocates ordinary memory and fills it in the ordinary way: 0, 1, 2 …
///
/// # Errors
///
/// The errors of allocating memory.
pub fn floats() -> Result<Buffer, Box<dyn Error>> {
    let mut memory = Buffer::new(4 * FLOATS)?;
    for (i, bytes) in memory.chunks_exact_mut(4).take(FLOATS).enumerate() {
        bytes.copy_from_slice(&(i as f32).to_ne_bytes());
    }
    Ok(memory)
}

/// The floats in ordinary memory.
pub fn values(memory: &[u8]) -> Vec<f32> {
    let float = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_ne_bytes);
    memory.chunks_exact(4).take(FLOATS).map(float).collect()
}

/// Has the device add 1 to each float, in place: they become 1, 2, 3 …
///
/// # Errors
///
/// The errors of submitting and waiting.
pub fn increment(queue: &mut Queue, memory: &mut Registration) -> Result<(), Box<dyn Error>> {
    queue.scope(|scope| {
        let mut data = memory.slice_mut()?.part(..FLOATS)?;
        scope.launch(kernel::IncrementF32 { data: &mut data })
    })?;
    Ok(())
}

/// Has the device copy ints from one buffer in host memory to another, and returns them. Both
/// buffers have the same address for the program and for the device.
///
/// # Errors
///
/// The errors of allocating memory, submitting and waiting.
pub fn copy(gpu: &Gpu, queue: &mut Queue) -> Result<Vec<i32>, Box<dyn Error>> {
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
