// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes floats and signed numbers to registers.
use pinmap::{Access, Buffer, Device, Result};

pub(crate) fn main() -> Result<()> {
    // QEMU's edu: the register at 4 answers with the inverse.
    let device = Device::find(0x1234, 0x11e8)?;
    let bar = device.bar(0)?;
    bar.write(0x04, -3i32)?;
    assert_eq!(bar.read::<i32>(0x04)?, 2);
    bar.write(0x04, 1.0f32)?;
    assert_eq!(bar.read::<u32>(0x04)?, !1.0f32.to_bits());
    bar.write(0x04, 1)?;
    assert_eq!(bar.read::<i32>(0x04)?, !1);
    // Registered memory takes the same.
    let memory = Buffer::<u8>::new(4096)?.register(&device, Access::Read)?;
    memory.store(8, -0.5f64)?;
    assert_eq!(memory.load::<f64>(8)?, -0.5);
    Ok(())
}
