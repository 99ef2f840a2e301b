// SPDX-License-Identifier: MIT OR Apache-2.0
//! Uses the features of the crate for other crates: elements by `bytemuck`, `half` and `zerocopy`,
//! and `serde`.
use half::f16;
use pinmap::accelerator::{Accelerator, StreamOptions};
use pinmap::{Device, Result};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Descriptor {
    source: u64,
    target: u64,
    len: u32,
    flags: u32,
}

#[derive(
    Clone, Copy, Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
)]
#[repr(C)]
struct Record {
    key: u32,
    value: f32,
}

pinmap::element!(bytemuck: Descriptor);
pinmap::element!(zerocopy: Record);

fn elements(gpu: &Accelerator) -> Result<()> {
    let ring = gpu.device().alloc::<Descriptor>(256)?;
    assert_eq!(ring.get(255)?.flags, 0);
    let from = gpu.alloc_from(&[Record { key: 1, value: 2.5 }; 9])?;
    let mut to = gpu.alloc::<Record>(9)?;
    let mut halves = gpu.alloc::<f16>(256)?;
    gpu.stream(StreamOptions::new())?.scope(|work| {
        work.copy(&from, &mut to)?;
        work.fill(&mut halves, f16::from_f32(0.5))
    })?;
    assert_eq!(to[..], from[..]);
    assert!(halves.iter().all(|&x| x == f16::from_f32(0.5)));
    Ok(())
}

fn serialized(gpu: &Accelerator) -> Result<()> {
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

fn main() -> Result<()> {
    let gpu = pinmap_testgpu::find()?;
    elements(&gpu)?;
    serialized(&gpu)
}
