// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forgets that an interrupt may not come: that is an error, so `?` does not go on as if it had.
use pinmap::{Device, Result};
use std::time::Duration;

pub(crate) fn main() -> Result<()> {
    // QEMU's edu interrupts when it is told to.
    let interrupt = Device::find(0x1234, 0x11e8)?.interrupt(0)?;
    let error = interrupt.wait_timeout(Duration::from_millis(1)).expect_err("nothing told it to");
    assert_eq!(error.errno(), libc::ETIMEDOUT);
    Ok(())
}
