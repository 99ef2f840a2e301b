// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paged devices: what they can do, and what they have done.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::queue::format::PacketFormat;
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

/// The translation of an address by a device's page table. Returned by [`Accelerator::walk`].
///
/// ```no_run
/// # use pinmap::accelerator::{Accelerator, Pinned};
/// # use pinmap::Result;
/// # fn f(gpu: &Accelerator, numbers: &Pinned<f32>) -> Result<()> {
/// // Where does the device find the first element?
/// if let Some(walk) = gpu.walk(numbers.slice().device_addr())? {
///     println!("{:?}, by an entry of {} bytes", walk.target, walk.leaf_len);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Walk {
    /// Where the address leads.
    pub target: Target,
    /// Bytes that the page table entry covers: 4 KiB or 2 MiB.
    pub leaf_len: u64,
    /// Number of tables that were read.
    pub levels: u32,
    /// Whether the device may read at the address.
    pub read: bool,
    /// Whether the device may write at the address.
    pub write: bool,
    /// Whether the device may fetch packets from the address.
    pub fetch: bool,
    /// Whether accesses of the device snoop the CPU's caches.
    pub snoop: bool,
}

/// The target of a device address.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator, addr: u64) -> pinmap::Result<()> {
/// use pinmap::inspect::Target;
///
/// match gpu.walk(addr)?.map(|walk| walk.target) {
///     Some(Target::Host(addr)) => println!("host memory, for the IOMMU at {addr:#x}"),
///     Some(Target::Vram(offset)) => println!("byte {offset:#x} of the device's memory"),
///     None => println!("nothing is mapped there"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Target {
    /// Host memory at this I/O virtual address, which the IOMMU translates.
    Host(u64),
    /// The device's own memory at this offset in bytes.
    Vram(u64),
}

impl Walk {
    fn from_abi(args: &abi::pinmap_gpu_walk) -> Self {
        let is = |flag| args.out_flags & flag != 0;
        Self {
            target: if is(abi::PINMAP_WALK_HOST) {
                Target::Host(args.out_target)
            } else {
                Target::Vram(args.out_target)
            },
            leaf_len: args.out_leaf_length,
            levels: args.out_levels,
            read: is(abi::PINMAP_WALK_READ),
            write: is(abi::PINMAP_WALK_WRITE),
            fetch: is(abi::PINMAP_WALK_FETCH),
            snoop: is(abi::PINMAP_WALK_SNOOP),
        }
    }
}

/// The work of a paged device for all contexts together, since the driver was bound to it. Returned
/// by [`Accelerator::counters`].
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// let before = gpu.counters()?.copied();
/// // ... work ...
/// let copied = gpu.counters()?.copied().since(&before);
/// println!("{} bytes in {:?} of the copy engines' time", copied.bytes(), copied.busy);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Counters {
    /// Translations that were found in the device's TLB.
    pub tlb_hits: u64,
    /// Translations that needed a walk of the page table.
    pub tlb_misses: u64,
    /// How often a queue stopped.
    pub faults: u64,
    /// How often a queue was put into a slot of the device.
    pub binds: u64,
    /// How often a context was given an address space (VMID) of the device.
    pub vmid_binds: u64,
    /// How often the TLB was invalidated.
    pub invalidates: u64,
    /// Counters of each copy engine.
    pub copy_engines: Vec<EngineCounters>,
    /// Counters of each slot of the compute engine.
    pub compute_slots: Vec<EngineCounters>,
}

/// The work that one engine has done.
///
/// Only the bytes of operands are counted, not those of packets, page tables, fences and
/// timestamps.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// for (number, engine) in gpu.counters()?.copy_engines.iter().enumerate() {
///     println!("copy engine {number}: {} packets in {:?}", engine.packets, engine.busy);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct EngineCounters {
    /// Bytes read from host memory.
    pub host_read: u64,
    /// Bytes written to host memory.
    pub host_written: u64,
    /// Bytes read from the device's memory.
    pub vram_read: u64,
    /// Bytes written to the device's memory.
    pub vram_written: u64,
    /// Packets that were completed.
    pub packets: u64,
    /// Time during which the engine held a packet.
    pub busy: Duration,
}

impl EngineCounters {
    fn from_abi(engine: &abi::pinmap_engine_counters) -> Self {
        Self {
            host_read: engine.host_read,
            host_written: engine.host_written,
            vram_read: engine.vram_read,
            vram_written: engine.vram_written,
            packets: engine.packets,
            busy: Duration::from_nanos(engine.busy_ns),
        }
    }

    /// Sum of all bytes, read and written, of the host and of the device.
    pub fn bytes(&self) -> u64 {
        self.host_read + self.host_written + self.vram_read + self.vram_written
    }

    /// The difference to an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            host_read: self.host_read.wrapping_sub(earlier.host_read),
            host_written: self.host_written.wrapping_sub(earlier.host_written),
            vram_read: self.vram_read.wrapping_sub(earlier.vram_read),
            vram_written: self.vram_written.wrapping_sub(earlier.vram_written),
            packets: self.packets.wrapping_sub(earlier.packets),
            busy: self.busy.saturating_sub(earlier.busy),
        }
    }
}

impl Counters {
    fn from_abi(counters: &abi::pinmap_gpu_counters, copy_engines: usize) -> Self {
        let known = counters.out_engines.len();
        let engines = (counters.out_nr_engines as usize).min(known);
        let all = counters.out_engines[..engines].iter();
        let mut copy: Vec<_> = all.map(EngineCounters::from_abi).collect();
        let compute = copy.split_off(copy_engines.min(engines));
        Self {
            tlb_hits: counters.out_tlb_hits,
            tlb_misses: counters.out_tlb_misses,
            faults: counters.out_faults,
            binds: counters.out_binds,
            vmid_binds: counters.out_vmid_binds,
            invalidates: counters.out_invalidates,
            copy_engines: copy,
            compute_slots: compute,
        }
    }

    /// Sum of the counters of all copy engines.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// println!("{} bytes were copied", gpu.counters()?.copied().bytes());
    /// # Ok(()) }
    /// ```
    pub fn copied(&self) -> EngineCounters {
        sum(&self.copy_engines)
    }

    /// Sum of the counters of all slots of the compute engine.
    pub fn computed(&self) -> EngineCounters {
        sum(&self.compute_slots)
    }
}

fn sum(engines: &[EngineCounters]) -> EngineCounters {
    let mut all = EngineCounters::default();
    for engine in engines {
        all.host_read += engine.host_read;
        all.host_written += engine.host_written;
        all.vram_read += engine.vram_read;
        all.vram_written += engine.vram_written;
        all.packets += engine.packets;
        all.busy += engine.busy;
    }
    all
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
            let attempt = format!("find an accelerator with one of the ids {ids:04x?}");
            let cause = "the driver is bound to none";
            Error::refused(Operation::Find, attempt, Errno::ENODEV, cause)
                .with_hint("`pinmap info` shows what there is")
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

    /// Reads the counters of the device, which are for all contexts together.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// let counters = gpu.counters()?;
    /// println!("{} TLB hits, {} misses", counters.tlb_hits, counters.tlb_misses);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn counters(&self) -> Result<Counters> {
        // The copy engines come first; only the info tells how many they are.
        let copy_engines = self.info()?.copy_engines as usize;
        let mut args = abi::pinmap_gpu_counters::default();
        ioctl::gpu_counters(self.device.as_fd(), &mut args).map_err(|errno| {
            let attempt = format!("read the counters of {}", self.device);
            Error::new(Operation::Accelerator, attempt, errno)
        })?;
        Ok(Counters::from_abi(&args, copy_engines))
    }

    /// Walks this context's page table in the device's memory, as the device does after a TLB miss.
    /// Returns `None` if nothing is mapped at the address. This is for inspection and tests: the
    /// translation can change at any moment.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the address has more bits than the tables translate; `ENODEV`: the device is gone.
    pub fn walk(&self, device_addr: u64) -> Result<Option<Walk>> {
        let mut args = abi::pinmap_gpu_walk {
            addr: device_addr,
            ..Default::default()
        };
        match ioctl::gpu_walk(self.device.as_fd(), &mut args) {
            Ok(()) => Ok(Some(Walk::from_abi(&args))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => {
                let attempt = format!("walk to {device_addr:#x} in {}", self.device);
                Err(Error::new(Operation::Accelerator, attempt, errno))
            }
        }
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

    #[test]
    fn engines_are_told_apart() {
        let mut abi = abi::pinmap_gpu_counters {
            out_nr_engines: 6,
            out_faults: 5,
            ..Default::default()
        };
        for (number, engine) in (1..).zip(&mut abi.out_engines) {
            engine.host_read = number;
            engine.packets = 10 * number;
            engine.busy_ns = 100 * number;
        }
        let counters = Counters::from_abi(&abi, 2);
        assert_eq!(
            (counters.copy_engines.len(), counters.compute_slots.len()),
            (2, 4)
        );
        assert_eq!(counters.copied().host_read, 1 + 2);
        assert_eq!(counters.computed().packets, 10 * (3 + 4 + 5 + 6));
        assert_eq!(counters.faults, 5);
        let one = counters.compute_slots[0];
        assert_eq!(one.since(&counters.copy_engines[0]).bytes(), 2);
        // A newer driver may count more engines than the struct has.
        abi.out_nr_engines = 99;
        assert_eq!(Counters::from_abi(&abi, 2).compute_slots.len(), 6);
        assert_eq!(Counters::from_abi(&abi, 99).copy_engines.len(), 8);
    }
}
