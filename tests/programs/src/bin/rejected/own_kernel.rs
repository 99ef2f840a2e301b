// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches a kernel of the program's own, which is here one of the test GPU's by its number.
use pinmap::testgpu::packet;
use pinmap::{Accelerator, DeviceSliceMut, Kernel, Operands, Packet, Result, StreamOptions};

struct Mine<'r, 'a> {
    data: &'r mut DeviceSliceMut<'a, f32>,
}

// SAFETY: The kernel 3 of the test GPU accesses the numbers that it is given, and nothing else.
unsafe impl<'s, 'a: 's> Kernel<'s> for Mine<'_, 'a> {
    type Format = packet::Format;
    const NAME: &'static str = "my kernel";

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        let (addr, count) = (operands.write(self.data)?, self.data.len() as u64);
        Ok(packet::launch(3, [addr, count, 0, 0, 0, 0, 0]))
    }
}

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut a = gpu.alloc_from(&[1.0f32; 100])?;
    stream.scope(|work| work.launch(Mine { data: &mut a.slice_mut() }))?;
    assert!(a.iter().all(|&x| x == 2.0));
    // Operands are checked as those of the crate's kernels.
    let other = pinmap::Device::open(gpu.device().path())?.accelerator()?;
    let mut foreign = other.alloc::<f32>(1)?;
    let error = stream.scope(|work| work.launch(Mine { data: &mut foreign.slice_mut() }));
    let error = error.expect_err("another context").to_string();
    assert!(error.starts_with("cannot submit my kernel: the memory belongs"), "{error}");
    Ok(())
}
