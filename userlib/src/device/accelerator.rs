// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paged devices: opening them, and what they can do.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::hint::none_found;
use crate::error::{Error, Operation, Result};
use crate::queue::format::PacketFormat;
use crate::sys::sysfs::Sysfs;
use crate::sys::{bindings as abi, ioctl};

/// A device with an MMU of its own ([`Kind::Paged`](crate::Kind::Paged)). Many contexts use it at
/// once through [streams](Accelerator::stream), each with a device address space of its own.
///
/// Made by [`find_with`](Self::find_with) and [`Device::accelerator_with`]. A clone is the same
/// context.
///
/// ```no_run
/// use pinmap::accelerator::StreamOptions;
/// # fn main() -> pinmap::Result<()> {
/// let gpu = pinmap_testgpu::find()?;
/// println!("{}: {} bytes of its own memory", gpu.device(), gpu.info()?.vram_len);
/// let stream = gpu.stream(StreamOptions::new())?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Accelerator {
    device: Device,
    limits: Limits,
    format: &'static dyn PacketFormat,
}

/// Properties that do not change as long as the device is bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_priority: u32,
    pub(crate) max_transfer: u64,
}

/// The properties of a paged device. Returned by [`Accelerator::info`].
///
/// Bandwidths and latencies are those of the model with which the test GPU delays its accesses.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// let info = gpu.info()?;
/// println!("{} of {} bytes are free", info.vram_free, info.vram_len);
/// println!("{} copy engines, {} kernels at once", info.copy_engines, info.compute_slots);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AcceleratorInfo {
    /// Number of queues, for all contexts together.
    pub queues: u32,
    /// Number of address spaces (VMIDs) that can be in the device at once.
    pub vmids: u32,
    /// Number of queues that can be in the device at once.
    pub slots: u32,
    /// Number of copy engines.
    pub copy_engines: u32,
    /// Number of kernels that can run at once.
    pub compute_slots: u32,
    /// The highest priority of a queue. The lowest is 0.
    pub max_priority: u32,
    /// Length of the device's memory in bytes.
    pub vram_len: u64,
    /// Bytes of the device's memory that are free now.
    pub vram_free: u64,
    /// Bytes that one packet can copy or fill. The crate splits longer transfers.
    pub max_transfer: u64,
    /// How long a packet may run before it stops its queue.
    pub max_run: Duration,
    /// The link between the device and host memory.
    pub link: Link,
    /// The link between the device and its own memory.
    pub vram: Link,
    /// The device's clock, in nanoseconds, by which timestamps are taken.
    pub time: u64,
}

/// The speed with which a device reaches memory.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// match gpu.info()?.link.bandwidth {
///     Some(bytes) => println!("{bytes} bytes a second each way"),
///     None => println!("as fast as it goes"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Link {
    /// Bytes per second in each direction. `None` means no limit.
    pub bandwidth: Option<u64>,
    /// Latency of one access, for which the next one has to wait.
    pub latency: Duration,
}

impl Link {
    fn from_abi(bandwidth: u64, latency_ns: u64) -> Self {
        Self {
            bandwidth: (bandwidth != 0).then_some(bandwidth),
            latency: Duration::from_nanos(latency_ns),
        }
    }
}

impl AcceleratorInfo {
    fn from_abi(info: &abi::pinmap_gpu_info) -> Self {
        Self {
            queues: info.out_nr_queues,
            vmids: info.out_nr_vmids,
            slots: info.out_nr_slots,
            copy_engines: info.out_nr_copy_engines,
            compute_slots: info.out_nr_compute_slots,
            max_priority: info.out_max_priority,
            vram_len: info.out_vram_length,
            vram_free: info.out_vram_free,
            max_transfer: info.out_max_transfer,
            max_run: Duration::from_nanos(info.out_max_run_ns),
            link: Link::from_abi(info.out_link_bandwidth, info.out_link_latency_ns),
            vram: Link::from_abi(info.out_vram_bandwidth, info.out_vram_latency_ns),
            time: info.out_time_ns,
        }
    }
}

impl Device {
    /// Returns the device as an accelerator. `ids` are the PCI ids, vendor and device, of the
    /// devices whose packets have this format.
    ///
    /// ```no_run
    /// use pinmap::Device;
    /// use pinmap_testgpu::packet;
    /// # fn f(device: &Device) -> pinmap::Result<()> {
    /// // SAFETY: Test GPUs have these packets.
    /// let gpu = unsafe { device.accelerator_with(&[packet::ID], &packet::Format)? };
    /// println!("priorities: {:?}", gpu.priorities());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the device is a flat one, or has other ids; `ENODEV`: the device is gone.
    ///
    /// # Safety
    ///
    /// Devices with these ids must understand packets of that format, as [`PacketFormat`] says.
    #[allow(unsafe_code)]
    pub unsafe fn accelerator_with(
        &self,
        ids: &[(u16, u16)],
        format: &'static dyn PacketFormat,
    ) -> Result<Accelerator> {
        let accelerator = Accelerator::new(self, format)?;
        let id = self.info()?.id;
        if !ids.contains(&id) {
            let attempt = format!("use {self} as an accelerator");
            let cause = format!(
                "the packets are not those of a device {:04x}:{:04x}",
                id.0, id.1
            );
            let errno = Errno::EOPNOTSUPP;
            return Err(Error::refused(
                Operation::Accelerator,
                attempt,
                errno,
                cause,
            ));
        }
        Ok(accelerator)
    }
}

fn gpu_info(device: &Device) -> Result<AcceleratorInfo> {
    let mut args = abi::pinmap_gpu_info::default();
    ioctl::gpu_info(device.as_fd(), &mut args).map_err(|errno| {
        let attempt = format!("ask what queues and engines {device} has");
        Error::new(Operation::Accelerator, attempt, errno)
    })?;
    Ok(AcceleratorInfo::from_abi(&args))
}

impl Accelerator {
    fn new(device: &Device, format: &'static dyn PacketFormat) -> Result<Self> {
        let info = gpu_info(device)?;
        Ok(Self {
            device: device.clone(),
            limits: Limits {
                max_priority: info.max_priority,
                max_transfer: info.max_transfer,
            },
            format,
        })
    }

    /// How this device is told what to do.
    pub(crate) fn format(&self) -> &'static dyn PacketFormat {
        self.format
    }

    /// Opens the first accelerator with one of these PCI ids, vendor and device, that works.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Accelerator, PacketFormat};
    /// # fn f(format: &'static dyn PacketFormat) -> pinmap::Result<()> {
    /// const IDS: [(u16, u16); 2] = [(0x1e00, 0x12ab), (0x1e00, 0x12ac)];
    /// // SAFETY: The vendor's manual says that both models have these packets.
    /// let found = unsafe { Accelerator::find_with(&IDS, format)? };
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: there is none; otherwise the error of the first one that did not work.
    ///
    /// # Safety
    ///
    /// As for [`Device::accelerator_with`].
    #[allow(unsafe_code)]
    pub unsafe fn find_with(ids: &[(u16, u16)], format: &'static dyn PacketFormat) -> Result<Self> {
        let mut refused = None;
        for node in Device::list()?
            .into_iter()
            .filter(|node| ids.contains(&node.id))
        {
            // The ids are looked at again: another device may have got the node meanwhile.
            // SAFETY: As the caller promises.
            let open = |device: Device| unsafe { device.accelerator_with(ids, format) };
            match Device::open(&node.path).and_then(open) {
                Ok(accelerator) => return Ok(accelerator),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| {
            let ids = ids
                .iter()
                .map(|(vendor, id)| format!("{vendor:04x}:{id:04x}"));
            let ids = ids.collect::<Vec<_>>().join(" or ");
            let attempt = format!("find an accelerator {ids}");
            let then = "see with `pinmap info` what there is";
            let (cause, hint) = none_found(&Sysfs::system(), "the driver is bound to none", then);
            Error::refused(Operation::Find, attempt, Errno::ENODEV, cause).with_hint(hint)
        }))
    }

    /// The open device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Asks for the properties of the device, how much of its memory is free, and its clock.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// let free = gpu.info()?.vram_free / size_of::<f32>() as u64;
    /// let chunk = gpu.alloc_vram::<f32>(free.min(1 << 20) as usize)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn info(&self) -> Result<AcceleratorInfo> {
        gpu_info(&self.device)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// A paged device whose file answers every ioctl with `ENOTTY`.
    #[cfg(test)]
    pub(crate) fn fake() -> Self {
        Self {
            device: Device::fake(),
            limits: Limits {
                max_priority: 3,
                max_transfer: 1 << 26,
            },
            format: &crate::testgpu::packet::Format,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_queues_is_told() {
        let error = Accelerator::new(&Device::fake(), &crate::testgpu::packet::Format)
            .expect_err("no driver");
        assert_eq!(error.operation(), Operation::Accelerator);
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
        let flat = Error::new(Operation::Accelerator, "ask", Errno::EOPNOTSUPP).to_string();
        assert!(flat.contains("flat device"), "{flat}");
    }

    #[test]
    fn no_limit_is_not_a_number() {
        let info = AcceleratorInfo::from_abi(&abi::pinmap_gpu_info {
            out_link_bandwidth: 1_000_000_000,
            out_link_latency_ns: 1000,
            out_nr_copy_engines: 2,
            ..Default::default()
        });
        assert_eq!(info.link.bandwidth, Some(1_000_000_000));
        assert_eq!(info.link.latency, Duration::from_micros(1));
        assert_eq!(info.vram.bandwidth, None);
    }
}
