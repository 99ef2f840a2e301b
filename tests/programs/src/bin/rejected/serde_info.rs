// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serializes what the driver tells.
use pinmap::{Accelerator, Device, Result};

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let info = gpu.device().info()?;
    let text = serde_json::to_value(&info).expect("numbers and texts");
    assert_eq!(text["kind"], "paged");
    assert_eq!(text["pci"], info.pci.to_string());
    let error = Device::open("/dev/pinmap999").expect_err("there is none");
    assert_eq!(serde_json::to_value(error.kind()).expect("a text"), "not_found");
    for value in [
        serde_json::to_value(gpu.info()?),
        serde_json::to_value(gpu.counters()?),
        serde_json::to_value(gpu.device().totals()?),
        serde_json::to_value(Device::list()?),
    ] {
        assert!(value.is_ok_and(|value| !value.is_null()));
    }
    Ok(())
}
