// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs in which the device works on the program's own memory, and nothing is copied to it.

use std::error::Error;

use pinmap::{kernel, Access, Buffer, Gpu, Queue};

/// Floats that `increment` has, and ints that `copy` has.
pub(crate) const FLOATS: usize = 1024;
pub(crate) const INTS: usize = 128;

/// What `increment` did.
#[derive(Debug)]
pub(crate) struct Incremented {
    /// Where the floats were, for the program and for the device.
    pub(crate) addr: usize,
    pub(crate) device_addr: u64,
    /// The floats afterwards, as the program finds them in its own memory.
    pub(crate) memory: Buffer,
}

impl Incremented {
    /// The floats.
    pub(crate) fn floats(&self) -> Vec<f32> {
        let bytes = self.memory[..4 * FLOATS].chunks_exact(4);
        let float = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_ne_bytes);
        bytes.map(float).collect()
    }
}

/// The device adds 1 to floats in ordinary memory of the program, in place: 0, 1, 2 … become
/// 1, 2, 3 …
pub(crate) fn increment(gpu: &Gpu, queue: &mut Queue) -> Result<Incremented, Box<dyn Error>> {
    // Ordinary memory, filled in the ordinary way.
    let mut memory = Buffer::new(4 * FLOATS)?;
    for (i, bytes) in memory.chunks_exact_mut(4).take(FLOATS).enumerate() {
        bytes.copy_from_slice(&(i as f32).to_ne_bytes());
    }
    let addr = memory.addr();

    // Registered, the device has it at the same address.
    let mut memory = memory.register(gpu.device(), Access::ReadWrite)?;
    let device_addr = memory.device_addr()?;
    queue.scope(|scope| {
        let mut data = memory.slice_mut()?.part(..FLOATS)?;
        scope.launch(kernel::IncrementF32 { data: &mut data })
    })?;

    // Released, it is ordinary memory again; it never moved.
    let memory = memory.release()?;
    Ok(Incremented {
        addr,
        device_addr,
        memory,
    })
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
