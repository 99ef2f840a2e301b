// SPDX-License-Identifier: MIT OR Apache-2.0
//! The properties of devices.

use std::ops::RangeInclusive;

use nix::errno::Errno;

use crate::error::failure::{Failure, Reason};
use crate::error::{Error, Operation, Result};
use crate::sys::bindings as abi;
use crate::sys::pci::PciAddress;

/// The kind of a device.
///
/// ```no_run
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// use pinmap::Kind;
///
/// match device.kind()? {
///     Kind::Flat => println!("registers, interrupts and registered memory"),
///     Kind::Paged => println!("queues and streams"),
///     other => println!("newer than this program: {other:?}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Kind {
    /// A device without an MMU of its own: one context owns it at a time.
    Flat,
    /// A device with an MMU of its own: many contexts use it at once, through queues
    /// ([`accelerator`](crate::accelerator)).
    Paged,
    /// A kind that this crate does not know, by the driver's number.
    Other(u32),
}

/// The properties of a device. Returned by [`Device::info`](crate::Device::info).
///
/// ```no_run
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// let info = device.info()?;
/// println!("{} is {:04x}:{:04x}", info.pci, info.id.0, info.id.1);
/// println!("{} address bits, {} interrupt vectors", info.address_bits(), info.vectors);
/// if !info.coherent {
///     println!("caches must be synchronised");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Info {
    /// The kind of the device.
    pub kind: Kind,
    /// Whether DMA snoops the CPU's caches.
    pub coherent: bool,
    /// Whether the function can be reset, by [`Device::reset`](crate::Device::reset).
    pub can_reset: bool,
    /// Whether a context owns the device now.
    pub owned: bool,
    /// Whether this context owns the device now.
    pub owner: bool,
    /// Whether the device is gone. The other fields are as they were before.
    pub gone: bool,
    /// Whether memory can be managed
    /// ([`Accelerator::manage`](crate::accelerator::Accelerator::manage)): the device can fault,
    /// and the kernel lets drivers follow the memory of programs.
    pub managed: bool,
    /// Whether the device's memory is a part of the host's. Nothing moves then, and
    /// [`alloc_vram`](crate::accelerator::Accelerator::alloc_vram) allocates host memory.
    pub integrated: bool,
    /// Whether the device executes programs, from memory that
    /// [`map_code`](crate::Allocation::map_code) maps.
    pub programs: bool,
    /// The device addresses that the IOMMU translates.
    pub aperture: RangeInclusive<u64>,
    /// The page sizes of the IOMMU.
    pub page_sizes: PageSizes,
    /// How much memory this process may lock.
    pub memlock: Memlock,
    /// How many registrations and allocations this context may have at once.
    pub max_registrations: u32,
    /// How many registrations and allocations this context has now.
    pub registrations: u32,
    /// Number of interrupt vectors, for [`Device::interrupt`](crate::Device::interrupt).
    pub vectors: u32,
    /// Address of the PCI function.
    pub pci: PciAddress,
    /// PCI vendor and device id, such as `(0x1234, 0x11e8)`.
    pub id: (u16, u16),
    /// PCI subsystem vendor and subsystem id.
    pub subsystem: (u16, u16),
    /// PCI class code: 24 bits of class, subclass and programming interface.
    pub class: u32,
    /// Number of the IOMMU group.
    pub iommu_group: u32,
    /// The BARs by number, `None` where the function has none.
    pub bars: [Option<BarInfo>; abi::PINMAP_NR_BARS as usize],
}

impl Info {
    /// Number of bits of the highest device address.
    pub fn address_bits(&self) -> u32 {
        u64::BITS - self.aperture.end().leading_zeros()
    }

    pub(crate) fn from_abi(info: &abi::pinmap_info) -> Self {
        let flag = |bit| info.out_flags & bit != 0;
        Self {
            kind: match info.out_kind {
                abi::PINMAP_KIND_FLAT => Kind::Flat,
                abi::PINMAP_KIND_PAGED => Kind::Paged,
                other => Kind::Other(other),
            },
            coherent: flag(abi::PINMAP_INFO_COHERENT),
            can_reset: flag(abi::PINMAP_INFO_RESET),
            owned: flag(abi::PINMAP_INFO_OWNED),
            owner: flag(abi::PINMAP_INFO_OWNER),
            gone: flag(abi::PINMAP_INFO_GONE),
            managed: flag(abi::PINMAP_INFO_MANAGED),
            integrated: flag(abi::PINMAP_INFO_INTEGRATED),
            programs: flag(abi::PINMAP_INFO_PROGRAMS),
            aperture: info.out_aperture_start..=info.out_aperture_last,
            page_sizes: PageSizes(info.out_page_sizes),
            memlock: Memlock {
                limit: (info.out_memlock_limit != u64::MAX).then_some(info.out_memlock_limit),
                used: info.out_memlock_used,
            },
            max_registrations: info.out_max_registrations,
            registrations: info.out_registrations,
            vectors: info.out_nr_vectors,
            pci: PciAddress {
                domain: info.out_pci_domain,
                bus: info.out_pci_bus as u8,
                device: ((info.out_pci_devfn >> 3) & 0x1f) as u8,
                function: (info.out_pci_devfn & 7) as u8,
            },
            id: (info.out_vendor, info.out_device),
            subsystem: (info.out_subsystem_vendor, info.out_subsystem_device),
            class: info.out_class,
            iommu_group: info.out_iommu_group,
            bars: info.out_bars.map(|bar| BarInfo::from_abi(&bar)),
        }
    }
}

/// A set of page sizes.
///
/// ```no_run
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// // Memory in huge pages of one of these sizes is mapped fastest.
/// for bytes in device.info()?.page_sizes.iter() {
///     println!("{bytes}");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageSizes(u64);

impl PageSizes {
    /// The sizes as a bitmap: bit n stands for pages of `1 << n` bytes.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The sizes in bytes, the smallest first.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        (0..u64::BITS)
            .map(|bit| 1 << bit)
            .filter(move |size| self.0 & size != 0)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for PageSizes {
    /// As a list of sizes in bytes.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// How much memory a process may lock.
///
/// ```
/// use pinmap::inspect::Memlock;
/// use pinmap::ErrorKind;
///
/// let memlock = Memlock { limit: Some(8 << 20), used: 3 << 20 };
/// assert_eq!(memlock.available(), Some(5 << 20));
/// memlock.check(1 << 20)?;
/// let error = memlock.check(64 << 20).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// println!("{error}"); // with the limit, and how to raise it
/// # pinmap::Result::<()>::Ok(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Memlock {
    /// Bytes that may be locked (`RLIMIT_MEMLOCK`). `None` means no limit, which the capability
    /// `CAP_IPC_LOCK` implies.
    pub limit: Option<u64>,
    /// Bytes that are charged to this user already, by all drivers that charge users.
    pub used: u64,
}

impl Memlock {
    /// Bytes that can still be registered. `None` means no limit.
    pub fn available(self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.used))
    }

    /// Checks whether `bytes` more bytes can be registered.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the error with which registering them would fail. Its hint says how to raise the
    /// limit.
    pub fn check(self, bytes: u64) -> Result<()> {
        let needed = self.used.saturating_add(bytes);
        let Some(allowed) = self.limit.filter(|&limit| needed > limit) else {
            return Ok(());
        };
        let failure = Failure {
            reason: Reason::Memlock,
            addr: 0,
            needed,
            allowed,
        };
        let error = Error::new(
            Operation::Register,
            format!("register {bytes} bytes"),
            Errno::ENOMEM,
        );
        Err(error.with_failure(Some(failure)))
    }
}

/// The properties of a BAR: a range of the function's registers or memory, named after the base
/// address register that holds its address.
///
/// ```no_run
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// for (number, bar) in device.info()?.bars.iter().enumerate() {
///     if let Some(bar) = bar.filter(|bar| bar.mappable) {
///         println!("BAR {number}: {} bytes, without {:?}", bar.len, bar.hole);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BarInfo {
    /// Length in bytes.
    pub len: u64,
    /// Whether [`Device::bar`](crate::Device::bar) can map the BAR. I/O ports cannot be mapped, nor
    /// can BARs smaller than a page.
    pub mappable: bool,
    /// Whether the BAR is prefetchable: it is mapped write-combined, otherwise uncached.
    pub prefetchable: bool,
    /// Whether the BAR has a 64-bit address, and takes up two registers.
    pub is_64bit: bool,
    /// The pages that cannot be mapped because the MSI-X table lies there, if there are any: offset
    /// and length in bytes.
    pub hole: Option<(u64, u64)>,
    /// The offset to pass to `mmap()` for the first byte.
    pub(crate) offset: u64,
}

impl BarInfo {
    fn from_abi(bar: &abi::pinmap_bar) -> Option<Self> {
        let flag = |bit| bar.flags & bit != 0;
        (bar.length != 0).then(|| Self {
            len: bar.length,
            mappable: flag(abi::PINMAP_BAR_MMAP),
            prefetchable: flag(abi::PINMAP_BAR_PREFETCHABLE),
            is_64bit: flag(abi::PINMAP_BAR_64BIT),
            hole: (bar.hole_length != 0).then_some((bar.hole_offset, bar.hole_length)),
            offset: bar.offset,
        })
    }
}

/// The reason why a range of device addresses is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ReservedKind {
    /// Writes to the range are interrupts.
    Msi,
    /// The platform or the firmware uses the range.
    Platform,
    /// A kind that this crate does not know, by the driver's number.
    Other(u32),
}

/// A range of device addresses that no mapping can use. Returned by
/// [`Device::reserved`](crate::Device::reserved).
///
/// ```no_run
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// for reserved in device.reserved()? {
///     println!("{:#x?} cannot be used: {:?}", reserved.range, reserved.kind);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Reserved {
    /// The reason.
    pub kind: ReservedKind,
    /// The device addresses.
    pub range: RangeInclusive<u64>,
}

impl Reserved {
    pub(crate) fn from_abi(reserved: &abi::pinmap_reserved) -> Self {
        Self {
            kind: match reserved.out_kind {
                abi::PINMAP_RESERVED_MSI => ReservedKind::Msi,
                abi::PINMAP_RESERVED_OTHER => ReservedKind::Platform,
                other => ReservedKind::Other(other),
            },
            range: reserved.out_start..=reserved.out_last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_fields_become_typed() {
        let mut abi = abi::pinmap_info {
            out_kind: abi::PINMAP_KIND_FLAT,
            out_flags: abi::PINMAP_INFO_RESET | abi::PINMAP_INFO_OWNER,
            out_aperture_last: (1 << 48) - 1,
            out_page_sizes: (1 << 12) | (1 << 21) | (1 << 30),
            out_memlock_limit: 8192,
            out_memlock_used: 4096,
            out_vendor: 0x1234,
            out_device: 0x11e8,
            out_pci_bus: 2,
            out_pci_devfn: (0x10 << 3) | 5,
            ..Default::default()
        };
        abi.out_bars[0] = abi::pinmap_bar {
            length: 0x4000,
            hole_offset: 0x1000,
            hole_length: 0x2000,
            flags: abi::PINMAP_BAR_MMAP,
            ..Default::default()
        };
        let info = Info::from_abi(&abi);
        assert_eq!(info.kind, Kind::Flat);
        assert!(info.can_reset && info.owner && !info.coherent && !info.owned && !info.gone);
        assert_eq!(info.address_bits(), 48);
        assert_eq!(
            info.page_sizes.iter().collect::<Vec<_>>(),
            [4096, 2 << 20, 1 << 30]
        );
        assert_eq!(info.memlock.available(), Some(4096));
        assert_eq!(info.pci.to_string(), "0000:02:10.5");
        assert_eq!(info.id, (0x1234, 0x11e8));
        let bar = info.bars[0].expect("a BAR");
        assert!(bar.mappable && !bar.prefetchable);
        assert_eq!((bar.len, bar.hole), (0x4000, Some((0x1000, 0x2000))));
        assert_eq!(info.bars[1], None);
    }

    #[test]
    fn no_limit_is_not_a_number() {
        let abi = abi::pinmap_info {
            out_memlock_limit: u64::MAX,
            out_memlock_used: 5,
            ..Default::default()
        };
        assert_eq!(Info::from_abi(&abi).memlock.available(), None);
        let over = Memlock {
            limit: Some(4),
            used: 5,
        };
        assert_eq!(over.available(), Some(0));
    }

    #[test]
    fn a_full_aperture_has_64_bits() {
        let abi = abi::pinmap_info {
            out_aperture_last: u64::MAX,
            ..Default::default()
        };
        assert_eq!(Info::from_abi(&abi).address_bits(), 64);
    }

    #[test]
    fn every_reserved_kind_is_told() {
        for (number, kind) in [
            (1, ReservedKind::Msi),
            (2, ReservedKind::Platform),
            (9, ReservedKind::Other(9)),
        ] {
            let abi = abi::pinmap_reserved {
                out_kind: number,
                out_start: 16,
                out_last: 31,
                ..Default::default()
            };
            assert_eq!(
                Reserved::from_abi(&abi),
                Reserved {
                    kind,
                    range: 16..=31
                }
            );
        }
    }
}
