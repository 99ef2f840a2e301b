// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about a device: from sysfs for anybody, from the driver for its users.

use memmap2::MmapOptions;
use pinmap::accelerator::AcceleratorInfo;
use pinmap::inspect::{Preflight, Reserved, Totals};
use pinmap::{Access, Device, Info, Kind, PciAddress, RegisterOptions};
use pinmap_samples::pagemap::page;

use crate::sysfs::Sysfs;
use crate::Result;

/// A device, as far as it is known.
pub(crate) struct Entry {
    pub(crate) node: String,
    pub(crate) pci: PciAddress,
    /// PCI vendor and device id.
    pub(crate) id: Option<(u32, u32)>,
    pub(crate) class: Option<u32>,
    pub(crate) iommu: Option<String>,
    pub(crate) iommu_group: Option<u32>,
    /// The driver's answers, or why it cannot be asked.
    pub(crate) details: Result<Details, pinmap::Error>,
}

/// The facts about a device that only the driver knows.
pub(crate) struct Details {
    pub(crate) info: Info,
    pub(crate) reserved: Vec<Reserved>,
    /// The properties of a paged device.
    pub(crate) gpu: Option<AcceleratorInfo>,
    /// The memory that all contexts have in use.
    pub(crate) totals: Totals,
    /// Whether the needed bytes could be registered, if somebody asks.
    pub(crate) preflight: Option<pinmap::Result<Preflight>>,
}

impl Details {
    /// Asks the driver.
    pub(crate) fn of(device: &Device, need: Option<u64>) -> pinmap::Result<Self> {
        let info = device.info()?;
        let gpu = match info.kind {
            Kind::Paged => Some(pinmap_testgpu::accelerator(device)?.info()?),
            _ => None,
        };
        Ok(Self {
            info,
            reserved: device.reserved()?,
            gpu,
            totals: device.totals()?,
            preflight: need.and_then(|need| preflight(device, need)),
        })
    }
}

/// Asks what registering `need` bytes would take. Returns `None` if there is no address space for
/// them.
fn preflight(device: &Device, need: u64) -> Option<pinmap::Result<Preflight>> {
    // Only the addresses are needed: nobody touches the memory.
    let len = usize::try_from(need).ok()?;
    let map = MmapOptions::new().len(len).no_reserve_swap().map_anon();
    let addr = map.as_ref().ok()?.as_ptr() as usize;
    // Unmapped, because another context may own the device.
    let options = RegisterOptions::new(Access::ReadWrite).unmapped();
    Some(device.preflight(addr, len.checked_next_multiple_of(page())?, options))
}

impl Entry {
    /// Adds what sysfs shows to everybody.
    pub(crate) fn new(
        sysfs: &Sysfs,
        node: String,
        pci: PciAddress,
        details: Result<Details, pinmap::Error>,
    ) -> Self {
        let function = sysfs.function(pci);
        let number = |attribute| function.as_ref()?.number(attribute);
        Self {
            node,
            pci,
            id: number("vendor").zip(number("device")),
            class: number("class"),
            iommu: function.as_ref().and_then(|function| function.iommu()),
            iommu_group: function
                .as_ref()
                .and_then(|function| function.iommu_group()),
            details,
        }
    }
}
