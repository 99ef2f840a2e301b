// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs in which the device works on host memory in place, and nothing is copied to it.

use std::error::Error;

use pinmap::{testgpu, Accelerator, Queue, Reach};

/// How many floats [`increment`] works on.
pub const FLOATS: u16 = 1024;
/// How many ints [`copy`] copies.
pub const INTS: usize = 128;

/// Makes floats as any program does, on its heap: 0, 1, 2 …
pub fn floats() -> Vec<f32> {
    (0..FLOATS).map(f32::from).collect()
}

/// The work of [`increment`] as the program saw it.
#[derive(Debug, Clone, Copy)]
pub struct Increment {
    /// Where the program has the floats.
    pub addr: usize,
    /// Where the device has them.
    pub device_addr: u64,
    /// How the device reached them.
    pub reach: Reach,
}

/// Has the device add 1 to each float, in place: they become 1, 2, 3 …
///
/// # Errors
///
/// The errors of submitting and waiting.
pub fn increment(queue: &mut Queue, floats: &mut [f32]) -> pinmap::Result<Increment> {
    let addr = floats.as_ptr().addr();
    queue.scope(|scope| {
        let mut data = scope.slice_mut(floats)?;
        scope.launch(testgpu::IncrementF32 { data: &mut data })?;
        Ok(Increment {
            addr,
            device_addr: data.device_addr(),
            reach: data.reach(),
        })
    })
}

/// Describes how the device reached memory.
pub fn describe(reach: Reach) -> String {
    match reach {
        Reach::Managed => "managed, nothing is pinned".to_owned(),
        Reach::Registered { bytes, time } => format!(
            "registered as long as it worked, {bytes} bytes in {} µs",
            time.as_micros()
        ),
        other => format!("{other:?}"),
    }
}

/// Has the device copy ints from one buffer in host memory to another, and returns them. Both
/// buffers have the same address for the program and for the device.
///
/// # Errors
///
/// The errors of allocating memory, submitting and waiting.
pub fn copy(gpu: &Accelerator, queue: &mut Queue) -> Result<Vec<i32>, Box<dyn Error>> {
    let mut source = gpu.device().alloc::<i32>(INTS)?;
    let mut target = gpu.device().alloc::<i32>(INTS)?;
    let ints: Vec<i32> = (0i32..).take(INTS).collect();
    source.write(0, &ints)?;
    queue.scope(|scope| {
        scope.launch(testgpu::CopyElements {
            from: source.slice(),
            to: &mut target.slice_mut(),
        })
    })?;
    Ok(target.to_vec())
}
