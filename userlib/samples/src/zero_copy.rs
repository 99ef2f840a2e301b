// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs in which the device works on host memory in place, and nothing is copied to it.

use std::error::Error;

use pinmap::accelerator::{Accelerator, DeviceSliceMut, Reach, Stream, Work};
use pinmap::inspect::Totals;
use pinmap::AllocOptions;
use pinmap_testgpu as testgpu;

use crate::pagemap::{entry, frame};

/// Any error is told in one sentence.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How many floats [`increment`] works on.
pub const FLOATS: u16 = 1024;
/// How many ints [`copy`] copies.
pub const INTS: usize = 128;

/// How the program has the floats of [`increment`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// The driver allocates them, pinned and mapped for the device (CUDA: `cudaHostAlloc`).
    Allocated,
    /// They are on the heap, and registered (CUDA: `cudaHostRegister`).
    Registered,
    /// They are on the heap, and managed: the device faults them in, and nothing is pinned.
    Managed,
}

impl Memory {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Allocated, Self::Registered, Self::Managed];

    /// The name, in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Registered => "registered",
            Self::Managed => "managed",
        }
    }
}

/// The outcome of [`increment`], as the program saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Increment {
    /// The results, read where the program had put the numbers.
    pub floats: Vec<f32>,
    /// Where the program has the floats.
    pub addr: usize,
    /// Where the device has them.
    pub device_addr: u64,
    /// How the device reached them.
    pub reach: Reach,
    /// How many bytes of the program were pinned for that.
    pub pinned: u64,
    /// How many faults of the device were served.
    pub faults: u64,
    /// Whether the results are in the very page that the program filled. Only root can see page
    /// frames; for others this is true.
    pub same_page: bool,
}

/// Has the device add 1 to the floats 0, 1, 2 …, in place.
///
/// # Errors
///
/// The errors of allocating, registering or managing memory, of submitting and of waiting.
pub fn increment(gpu: &Accelerator, stream: &Stream, memory: Memory) -> Result<Increment> {
    let before = gpu.device().own_totals()?;
    let numbers = (0..FLOATS).map(f32::from);
    match memory {
        Memory::Allocated => {
            let mut floats = gpu.alloc_from(&numbers.collect::<Vec<_>>())?;
            let page = frame(entry(floats.addr())?);
            let used = stream.scope(|work| add_one(work, &mut floats.slice_mut()))?;
            finish(gpu, &before, page, &floats, used)
        }
        Memory::Registered => {
            let mut floats = gpu.register(numbers.collect::<Vec<_>>())?;
            let page = frame(entry(floats.as_ptr().addr())?);
            let used = stream.scope(|work| add_one(work, &mut floats.slice_mut()))?;
            finish(gpu, &before, page, &floats, used)
        }
        Memory::Managed => {
            // They stay where they are.
            let _all = gpu.manage_all_on_host()?;
            let mut floats: Vec<_> = numbers.collect();
            let page = frame(entry(floats.as_ptr().addr())?);
            let used = stream.scope(|work| {
                let mut data = work.slice_mut(&mut floats)?;
                add_one(work, &mut data)
            })?;
            finish(gpu, &before, page, &floats, used)
        }
    }
}

/// Submits the kernel, and returns where the device has the floats, and how it reaches them.
fn add_one<'s, 'a: 's>(
    work: &Work<'s>,
    data: &mut DeviceSliceMut<'a, f32>,
) -> pinmap::Result<(u64, Reach)> {
    let used = (data.device_addr(), data.reach());
    work.launch(testgpu::IncrementF32 { data })?;
    Ok(used)
}

/// Looks at the results, while the memory is still as the device had it.
fn finish(
    gpu: &Accelerator,
    before: &Totals,
    page: Option<u64>,
    floats: &[f32],
    (device_addr, reach): (u64, Reach),
) -> Result<Increment> {
    let now = gpu.device().own_totals()?;
    let pinned = |totals: &Totals| totals.pinned.bytes + totals.allocated.bytes;
    let addr = floats.as_ptr().addr();
    Ok(Increment {
        floats: floats.to_vec(),
        addr,
        device_addr,
        reach,
        pinned: pinned(&now).saturating_sub(pinned(before)),
        faults: now.faults.served - before.faults.served,
        same_page: frame(entry(addr)?) == page,
    })
}

/// The outcome of [`copy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The results.
    pub ints: Vec<i32>,
    /// Where the program has them, and has read them.
    pub addr: usize,
    /// Where the device has them.
    pub device_addr: u64,
}

/// Whether there is write-combined memory here.
pub const WRITE_COMBINED: bool = cfg!(target_arch = "x86_64");

/// Has the device copy ints from one mapped buffer to another, both write-combined if possible. The
/// program only writes the first, in order, which is what such memory is for.
///
/// # Errors
///
/// The errors of allocating memory, submitting and waiting.
pub fn copy(gpu: &Accelerator, stream: &Stream) -> Result<Copied> {
    let mut options = AllocOptions::new();
    if WRITE_COMBINED {
        options = options.write_combined();
    }
    let mut source = gpu.alloc_with::<i32>(INTS, options)?;
    let mut target = gpu.alloc_with::<i32>(INTS, options)?;
    for (number, int) in (0..).zip(&mut source) {
        *int = number;
    }
    // Submitting sends what the CPU still has in its write-combining buffers.
    stream.scope(|work| {
        work.launch(testgpu::CopyElements {
            from: source.slice(),
            to: &mut target.slice_mut(),
        })
    })?;
    Ok(Copied {
        ints: target.to_vec(),
        addr: target.addr(),
        device_addr: target.slice().device_addr(),
    })
}
