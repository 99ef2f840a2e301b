// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices: opening one, and what it is.

use std::ffi::{c_char, c_int, CStr};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_dynamic::{Error, Result};

use crate::error::{destroy, enter, make, refer, status};
use crate::options::answer;

/// The device has no MMU of its own: one program at a time uses it.
pub const PINMAP_DEVICE_FLAT: u32 = 0;
/// The device has an MMU of its own: many programs use it at once, by streams.
pub const PINMAP_DEVICE_PAGED: u32 = 1;
/// A kind of device that this library does not know.
pub const PINMAP_DEVICE_OTHER: u32 = 2;

/// The device sees what is in the CPU's caches.
pub const PINMAP_DEVICE_INFO_COHERENT: u32 = 1 << 0;
/// The function can be reset.
pub const PINMAP_DEVICE_INFO_CAN_RESET: u32 = 1 << 1;
/// Some program owns the device.
pub const PINMAP_DEVICE_INFO_OWNED: u32 = 1 << 2;
/// This program owns it.
pub const PINMAP_DEVICE_INFO_OWNER: u32 = 1 << 3;
/// The device is gone.
pub const PINMAP_DEVICE_INFO_GONE: u32 = 1 << 4;
/// The device can have managed memory.
pub const PINMAP_DEVICE_INFO_MANAGED: u32 = 1 << 5;
/// The device's memory is a part of the host's: nothing moves.
pub const PINMAP_DEVICE_INFO_INTEGRATED: u32 = 1 << 6;
/// The device executes programs.
pub const PINMAP_DEVICE_INFO_PROGRAMS: u32 = 1 << 7;

/// How many BARs a function can have.
pub const PINMAP_BARS: usize = 6;

/// An open device. All that is made from it keeps it open.
#[derive(Debug)]
pub struct Device {
    pub(crate) device: pinmap::Device,
    accelerator: OnceLock<pinmap::accelerator::Accelerator>,
}

/// A device of this driver, as pinmap_list() tells it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Node {
    /// The file to open, such as "/dev/pinmap0".
    pub path: [c_char; 64],
    /// The function's address, such as "0000:01:00.0".
    pub pci: [c_char; 16],
    /// The PCI ids.
    pub vendor: u16,
    /// The PCI ids.
    pub device: u16,
}

/// The properties of a device.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct DeviceInfo {
    /// PINMAP_DEVICE_FLAT or another.
    pub kind: u32,
    /// PINMAP_DEVICE_INFO_COHERENT and others.
    pub flags: u32,
    /// The first address that the device can be given.
    pub aperture_first: u64,
    /// The last one.
    pub aperture_last: u64,
    /// The sizes of the pages of the IOMMU, added up.
    pub page_sizes: u64,
    /// How many bytes this user may have locked; UINT64_MAX: any number.
    pub memlock_limit: u64,
    /// How many bytes of these are.
    pub memlock_used: u64,
    /// How many pieces of memory a program may have registered and allocated.
    pub max_registrations: u32,
    /// How many it has.
    pub registrations: u32,
    /// Interrupt vectors of the function.
    pub vectors: u32,
    /// The group of the IOMMU.
    pub iommu_group: u32,
    /// The PCI class: base class, sub-class and interface, a byte each.
    pub pci_class: u32,
    /// The PCI ids.
    pub vendor: u16,
    /// The PCI ids.
    pub device: u16,
    /// The PCI ids.
    pub subsystem_vendor: u16,
    /// The PCI ids.
    pub subsystem_device: u16,
    /// 0
    pub reserved: u32,
    /// The lengths of the BARs in bytes; 0: there is none.
    pub bar_lengths: [u64; PINMAP_BARS],
    /// The function's address, such as "0000:01:00.0".
    pub pci: [c_char; 16],
}

impl Device {
    pub(crate) fn new(device: pinmap::Device) -> Self {
        let accelerator = OnceLock::new();
        Self {
            device,
            accelerator,
        }
    }

    /// The device as one with queues.
    pub(crate) fn accelerator(&self) -> Result<&pinmap::accelerator::Accelerator> {
        if let Some(accelerator) = self.accelerator.get() {
            return Ok(accelerator);
        }
        let accelerator = pinmap_testgpu::accelerator(&self.device)?;
        Ok(self.accelerator.get_or_init(|| accelerator))
    }
}

/// Copies a text to an array of C, which it must fit with the zero byte at its end.
fn text<const N: usize>(text: &str) -> Result<[c_char; N]> {
    let mut array = [0; N];
    if text.len() >= N {
        let text = format!("{text} is longer than {} bytes", N - 1);
        return Err(Error::new(Errno::EOVERFLOW, ErrorKind::InvalidInput, text));
    }
    for (to, from) in array.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    Ok(array)
}

/// A string of C.
///
/// # Safety
///
/// The pointer is NULL, or that of a string.
unsafe fn string<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: As the caller promises.
    let bytes = unsafe { CStr::from_ptr(refer(pointer, what)?) };
    bytes
        .to_str()
        .map_err(|_| Error::invalid(format!("{what} is no UTF-8")))
}

/// Stores the devices of this driver, at most `max` of them, in the order of their numbers. Returns
/// how many there are, which may be more; -1 with an error.
#[no_mangle]
pub unsafe extern "C" fn pinmap_list(nodes: *mut Node, max: usize) -> c_int {
    enter(-1, || {
        if nodes.is_null() && max != 0 {
            return Err(Error::invalid("nodes is NULL"));
        }
        let list = pinmap::Device::list()?;
        for (i, node) in list.iter().take(max).enumerate() {
            let node = Node {
                path: text(&node.path.to_string_lossy())?,
                pci: text(&node.pci.to_string())?,
                vendor: node.id.0,
                device: node.id.1,
            };
            // SAFETY: There is room for `max` nodes.
            unsafe { nodes.add(i).write(node) };
        }
        c_int::try_from(list.len()).map_err(|_| Error::invalid("there are too many devices"))
    })
}

/// Opens a device by the path of its file, such as "/dev/pinmap0". NULL is for the first one.
///
/// Errors: ENOENT, there is no such device; EACCES, the user is not in the group of the file.
#[no_mangle]
pub unsafe extern "C" fn pinmap_open(path: *const c_char) -> *mut Device {
    make(|| {
        if !path.is_null() {
            // SAFETY: A string, by the rules of C.
            let path = unsafe { string(path, "path")? };
            return Ok(Device::new(pinmap::Device::open(path)?));
        }
        let first = pinmap::Device::list()?.into_iter().next();
        let first = first.ok_or_else(|| {
            Error::new(
                Errno::ENOENT,
                ErrorKind::NotFound,
                "no device is bound to pinmap",
            )
            .with_hint("`pinmap doctor` says why, and `pinmap bind` binds a function")
        })?;
        Ok(Device::new(pinmap::Device::open(first.path)?))
    })
}

/// Opens the device of a PCI function, such as "0000:01:00.0".
///
/// Errors: EINVAL, that is no address; otherwise as for pinmap_open().
#[no_mangle]
pub unsafe extern "C" fn pinmap_open_pci(address: *const c_char) -> *mut Device {
    make(|| {
        // SAFETY: A string, by the rules of C.
        let address = unsafe { string(address, "address")? };
        let pci = address.parse::<pinmap::PciAddress>();
        let pci = pci.map_err(|error| Error::invalid(error.to_string()))?;
        Ok(Device::new(pinmap::Device::open_pci(pci)?))
    })
}

/// Opens the first device with these PCI ids.
///
/// Errors: ENODEV, there is none; otherwise as for pinmap_open().
#[no_mangle]
pub extern "C" fn pinmap_find(vendor: u16, device: u16) -> *mut Device {
    make(|| Ok(Device::new(pinmap::Device::find(vendor, device)?)))
}

/// Opens the first device that has streams: an accelerator whose packets this library knows.
///
/// Errors: ENODEV, there is none; otherwise as for pinmap_open().
#[no_mangle]
pub extern "C" fn pinmap_find_accelerator() -> *mut Device {
    make(|| Ok(Device::new(pinmap_testgpu::find()?.device().clone())))
}

/// Closes a device. Memory and streams that were made from it stay. NULL is none.
#[no_mangle]
pub unsafe extern "C" fn pinmap_close(device: *mut Device) {
    // SAFETY: It comes from a function that opens, and is not used again, by the rules of C.
    unsafe { destroy(device) };
}

/// Stores the properties of a device. `size` is sizeof(struct pinmap_device_info).
///
/// Errors: EINVAL, there is no room. A device that is gone has the flag PINMAP_DEVICE_INFO_GONE.
#[no_mangle]
pub unsafe extern "C" fn pinmap_get_info(
    device: *const Device,
    info: *mut DeviceInfo,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let known = device.device.info()?;
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let found = DeviceInfo {
            kind: match known.kind {
                pinmap::Kind::Flat => PINMAP_DEVICE_FLAT,
                pinmap::Kind::Paged => PINMAP_DEVICE_PAGED,
                _ => PINMAP_DEVICE_OTHER,
            },
            flags: flag(known.coherent, PINMAP_DEVICE_INFO_COHERENT)
                | flag(known.can_reset, PINMAP_DEVICE_INFO_CAN_RESET)
                | flag(known.owned, PINMAP_DEVICE_INFO_OWNED)
                | flag(known.owner, PINMAP_DEVICE_INFO_OWNER)
                | flag(known.gone, PINMAP_DEVICE_INFO_GONE)
                | flag(known.managed, PINMAP_DEVICE_INFO_MANAGED)
                | flag(known.integrated, PINMAP_DEVICE_INFO_INTEGRATED)
                | flag(known.programs, PINMAP_DEVICE_INFO_PROGRAMS),
            aperture_first: *known.aperture.start(),
            aperture_last: *known.aperture.end(),
            page_sizes: known.page_sizes.bits(),
            memlock_limit: known.memlock.limit.unwrap_or(u64::MAX),
            memlock_used: known.memlock.used,
            max_registrations: known.max_registrations,
            registrations: known.registrations,
            vectors: known.vectors,
            iommu_group: known.iommu_group,
            pci_class: known.class,
            vendor: known.id.0,
            device: known.id.1,
            subsystem_vendor: known.subsystem.0,
            subsystem_device: known.subsystem.1,
            reserved: 0,
            bar_lengths: std::array::from_fn(|bar| known.bars[bar].map_or(0, |bar| bar.len)),
            pci: text(&known.pci.to_string())?,
        };
        // SAFETY: There is room for `size` bytes, by the rules of C; the answer has no padding.
        unsafe { answer(info, size, &found) }
    })
}

/// Resets the function. On a flat device this makes the program its owner.
///
/// Errors: EOPNOTSUPP, the function has no reset; EAGAIN, somebody else is binding, unbinding or
/// resetting it; EBUSY, another program owns the device; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_reset(device: *const Device) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        Ok(device.device.reset()?)
    })
}

/// Says whether the system is to stay awake while this program has the device: with `on` not 0
/// suspending or hibernating it fails, and the kernel's log names the program. Otherwise the system
/// may sleep. On a flat device this counts for its owner only. An accelerator goes on after a
/// sleep; the owner of a flat device gets PINMAP_EVENT_TYPE_RESUMED.
///
/// Errors: EPERM, the program lacks CAP_BLOCK_SUSPEND; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stay_awake(device: *const Device, on: c_int) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        Ok(device.device.stay_awake(on != 0)?)
    })
}

/// Returns the file descriptor of a device, which stays the device's. poll() finds it readable when
/// there is an event for pinmap_next_event().
#[no_mangle]
pub unsafe extern "C" fn pinmap_fd(device: *const Device) -> c_int {
    enter(-1, || {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        Ok(device.device.as_raw_fd())
    })
}

/// Returns the version of this library, such as "0.1.0".
#[no_mangle]
pub extern "C" fn pinmap_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
