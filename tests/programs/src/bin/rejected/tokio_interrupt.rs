// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for an interrupt in tokio: as its users do, and as this crate offers it.
use pinmap::tokio::AsyncInterrupt;
use pinmap::Device;

async fn f(device: Device) -> Result<(), Box<dyn std::error::Error>> {
    let bar = device.bar(0)?;
    let raise = |reason: u32| bar.write(0x60, reason);
    let acknowledge = || bar.write(0x64, u32::MAX);
    let irq = device.interrupt(0)?;
    raise(1)?;
    assert_eq!(irq.wait_async().await?, 1);
    acknowledge()?;
    let mut irq = AsyncInterrupt::new(irq)?;
    raise(2)?;
    assert_eq!(irq.wait().await?, 1);
    acknowledge()?;
    // A future that is dropped has taken nothing.
    drop(Box::pin(irq.wait()));
    raise(4)?;
    assert_eq!(irq.wait().await?, 1);
    acknowledge()?;
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(f(Device::find(0x1234, 0x11e8)?))
}
