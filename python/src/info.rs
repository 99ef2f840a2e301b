// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects with attributes, for the things that the driver tells about devices and memory.

use pyo3::prelude::*;

macro_rules! records {
    ($module:literal: $(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
    )*) => { $(
        $(#[$doc])*
        #[pyclass(module = $module, frozen, get_all)]
        #[derive(Debug, Clone)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)* }

        #[pymethods]
        impl $name {
            fn __repr__(&self) -> String {
                let fields = [$(format!("{}={}", stringify!($field), self.$field.repr())),*];
                format!(concat!("<", $module, ".{} {}>"), stringify!($name), fields.join(" "))
            }
        }

        impl Repr for $name {
            fn repr(&self) -> String {
                self.__repr__()
            }
        }
    )* };
}

/// How Python writes a value.
trait Repr {
    fn repr(&self) -> String;
}

macro_rules! numbers {
    ($($type:ty),*) => { $(
        impl Repr for $type {
            fn repr(&self) -> String {
                self.to_string()
            }
        }
    )* };
}

numbers!(u16, u32, u64, usize);

impl Repr for f64 {
    fn repr(&self) -> String {
        format!("{self:?}")
    }
}

impl Repr for bool {
    fn repr(&self) -> String {
        let word = match self {
            true => "True",
            false => "False",
        };
        word.to_owned()
    }
}

impl Repr for String {
    fn repr(&self) -> String {
        format!("'{self}'")
    }
}

impl<T: Repr> Repr for Option<T> {
    fn repr(&self) -> String {
        self.as_ref().map_or("None".to_owned(), T::repr)
    }
}

impl<T: Repr> Repr for Vec<T> {
    fn repr(&self) -> String {
        let items: Vec<_> = self.iter().map(T::repr).collect();
        format!("[{}]", items.join(", "))
    }
}

impl<A: Repr, B: Repr> Repr for (A, B) {
    fn repr(&self) -> String {
        format!("({}, {})", self.0.repr(), self.1.repr())
    }
}

records! { "pinmap.xdma":
    /// A core that was found in a device.
    CoreInfo {
        /// The BAR with the registers of the core; those of the design are in BAR 0, if these are
        /// not.
        bar: usize,
        /// The channels: those to the card first.
        channels: Vec<ChannelInfo>,
    }

    /// The properties of a channel, as the core's registers tell them.
    ChannelInfo {
        /// The direction: "to_card" or "to_host".
        direction: String,
        /// The number among the channels of this direction.
        number: usize,
        /// Whether the channel is a stream. Otherwise it reaches addresses of the card.
        stream: bool,
        /// Memory and address of a transfer differ by a multiple of this.
        alignment: usize,
        /// The length of a transfer is a multiple of this.
        granularity: usize,
        /// Bits of an address of the card.
        address_bits: u32,
        /// The version of the core, as PG195 numbers them.
        version: u32,
    }

    /// A block of memory that was received from a stream.
    Block {
        /// The first byte of the memory that has content.
        offset: usize,
        /// How many bytes have.
        length: usize,
        /// Whether a packet has ended with these bytes.
        end_of_packet: bool,
    }

    /// A transfer that is done.
    Done {
        /// How many bytes were transferred. From a stream these can be fewer than were asked for.
        length: usize,
        /// Whether the packet of a stream has ended with these bytes.
        end_of_packet: bool,
    }
}

records! { "pinmap":
    /// A device of the driver, as list() tells it.
    DeviceNode {
        /// The file to open, such as "/dev/pinmap0".
        path: String,
        /// The function's address, such as "0000:01:00.0".
        pci: String,
        /// The PCI id of the vendor.
        vendor: u16,
        /// The PCI id of the device.
        device: u16,
    }

    /// The properties of a device.
    Info {
        /// "flat": no MMU of its own, one program at a time; "paged": an MMU and queues.
        kind: String,
        /// The function's address, such as "0000:01:00.0".
        pci: String,
        /// The PCI id of the vendor.
        vendor: u16,
        /// The PCI id of the device.
        device: u16,
        /// The PCI class: base class, sub-class and interface, a byte each.
        pci_class: u32,
        /// The group of the IOMMU.
        iommu_group: u32,
        /// Whether the device sees what is in the CPU's caches.
        coherent: bool,
        /// Whether the function can be reset.
        can_reset: bool,
        /// Whether some program owns the device.
        owned: bool,
        /// Whether this program owns the device.
        owner: bool,
        /// Whether the device is gone.
        gone: bool,
        /// Whether the device can have managed memory.
        managed: bool,
        /// Whether the device's memory is a part of the host's: nothing moves then.
        integrated: bool,
        /// Whether the device executes programs.
        programs: bool,
        /// The first and the last address that the device can be given.
        aperture: (u64, u64),
        /// How many bytes this user may have locked; None: any number.
        memlock_limit: Option<u64>,
        /// How many bytes of these are locked.
        memlock_used: u64,
        /// How many pieces of memory a program may have registered and allocated.
        max_registrations: u32,
        /// How many pieces of memory this program has.
        registrations: u32,
        /// How many interrupt vectors the function has.
        vectors: u32,
        /// The six BARs; None: there is none.
        bars: Vec<Option<BarInfo>>,
    }

    /// The properties of a BAR.
    BarInfo {
        /// The length in bytes.
        length: u64,
        /// Whether it can be mapped.
        mappable: bool,
        /// Whether it is mapped write-combined, as memory is, and not as registers are.
        prefetchable: bool,
    }

    /// The properties of a device with queues.
    AcceleratorInfo {
        /// Engines that copy.
        copy_engines: u32,
        /// Kernels that run at once.
        compute_slots: u32,
        /// The highest priority of a stream.
        max_priority: u32,
        /// Bytes of the device's own memory.
        vram_length: u64,
        /// Bytes of these that are free.
        vram_free: u64,
    }

    /// How many pieces of memory there are of a kind, and their bytes.
    Total {
        /// The number of pieces.
        number: u64,
        /// The bytes of all pieces.
        bytes: u64,
    }

    /// How much memory is in use: of a device by all programs, or by this program.
    Totals {
        /// How many programs have the device open.
        contexts: u32,
        /// Registered memory that is pinned.
        pinned: Total,
        /// Host memory that the driver allocated.
        allocated: Total,
        /// Allocated memory of the device.
        vram: Total,
        /// Memory that another context owns: imported, or portable.
        shared: Total,
        /// Memory that the device can reach.
        mapped: Total,
        /// Stale registrations that are not released yet.
        stale: Total,
        /// Managed ranges.
        managed: Total,
        /// Faults on managed memory that were served.
        faults_served: u64,
        /// Faults that stopped a queue, on any memory.
        faults_failed: u64,
    }

    /// The outcome for memory that was to move, in bytes.
    Prefetched {
        /// Bytes that moved.
        moved: u64,
        /// Bytes that were there already.
        there: u64,
        /// Bytes for which there was no room.
        no_room: u64,
        /// Bytes that stay: somebody has them pinned, shares them since fork(), or uses them now.
        busy: u64,
        /// Bytes that never move: of files, shared or locked memory, addresses where nothing is.
        fixed: u64,
    }

    /// Where managed memory is, in bytes.
    Residency {
        /// In the host's memory.
        host: u64,
        /// In the device's memory.
        device: u64,
        /// Bytes of pages that do not exist yet, are swapped out, or are on another device.
        absent: u64,
        /// The memory in runs, by rising addresses, without holes.
        runs: Vec<Run>,
    }

    /// Neighbouring pages of managed memory that are alike.
    Run {
        /// The address of the first byte.
        addr: usize,
        /// The length in bytes.
        length: usize,
        /// "host", "device", or None.
        place: Option<String>,
        /// The rule that put it there, such as "touched"; see Rule in the crate's documentation.
        rule: String,
    }

    /// How often managed memory was moved, how much, and why.
    Statistics {
        /// Faults of the device that were served.
        device_faults: u64,
        /// Faults of the CPU that brought memory home.
        host_faults: u64,
        /// Bytes that went to the device because it touched them.
        in_touched: u64,
        /// Bytes that went to the device by a prefetch.
        in_prefetched: u64,
        /// Bytes that came home because the CPU touched them.
        home_touched: u64,
        /// Bytes that came home by a prefetch.
        home_prefetched: u64,
        /// Bytes that came home to make room, or because the device was about to go away.
        home_evicted: u64,
        /// How often a block of 2 MiB began to go to and fro.
        thrashing: u64,
        /// Seconds for which the device waited for its faults.
        device_time: f64,
        /// Seconds for which the CPU waited for its faults.
        host_time: f64,
    }

    /// An event of a device. What its kind does not name is 0.
    DeviceEvent {
        /// "stale": registered memory left the address space, and the device cannot reach it any
        /// more (id, addr, length). "fault": a stream has stopped (id of its queue, the device
        /// address that was refused, packet). "thrashing": managed memory goes to and fro (id,
        /// addr, length). "resumed": the system has slept, or was about to, and the flat device
        /// that this program owns may have lost its state. "gone": the device is gone; the last
        /// event. "other": an event that this module does not know, with the driver's number as id.
        kind: String,
        /// The Memory.id or Stream.id that the event is about.
        id: u64,
        /// An address in this program, or of the device.
        addr: u64,
        /// A length in bytes.
        length: u64,
        /// The number of a packet.
        packet: u64,
    }
}

impl From<pinmap::DeviceNode> for DeviceNode {
    fn from(node: pinmap::DeviceNode) -> Self {
        Self {
            path: node.path.to_string_lossy().into_owned(),
            pci: node.pci.to_string(),
            vendor: node.id.0,
            device: node.id.1,
        }
    }
}

impl From<pinmap::Info> for Info {
    fn from(info: pinmap::Info) -> Self {
        let kind = match info.kind {
            pinmap::Kind::Flat => "flat",
            pinmap::Kind::Paged => "paged",
            _ => "other",
        };
        let bar = |bar: &pinmap::inspect::BarInfo| BarInfo {
            length: bar.len,
            mappable: bar.mappable,
            prefetchable: bar.prefetchable,
        };
        Self {
            kind: kind.to_owned(),
            pci: info.pci.to_string(),
            vendor: info.id.0,
            device: info.id.1,
            pci_class: info.class,
            iommu_group: info.iommu_group,
            coherent: info.coherent,
            can_reset: info.can_reset,
            owned: info.owned,
            owner: info.owner,
            gone: info.gone,
            managed: info.managed,
            integrated: info.integrated,
            programs: info.programs,
            aperture: (*info.aperture.start(), *info.aperture.end()),
            memlock_limit: info.memlock.limit,
            memlock_used: info.memlock.used,
            max_registrations: info.max_registrations,
            registrations: info.registrations,
            vectors: info.vectors,
            bars: info.bars.iter().map(|one| one.as_ref().map(bar)).collect(),
        }
    }
}

impl From<pinmap::accelerator::AcceleratorInfo> for AcceleratorInfo {
    fn from(info: pinmap::accelerator::AcceleratorInfo) -> Self {
        Self {
            copy_engines: info.copy_engines,
            compute_slots: info.compute_slots,
            max_priority: info.max_priority,
            vram_length: info.vram_len,
            vram_free: info.vram_free,
        }
    }
}

impl From<pinmap::inspect::Totals> for Totals {
    fn from(totals: pinmap::inspect::Totals) -> Self {
        let total = |total: pinmap::inspect::Total| Total {
            number: total.number,
            bytes: total.bytes,
        };
        Self {
            contexts: totals.contexts,
            pinned: total(totals.pinned),
            allocated: total(totals.allocated),
            vram: total(totals.vram),
            shared: total(totals.shared),
            mapped: total(totals.mapped),
            stale: total(totals.stale),
            managed: total(totals.managed),
            faults_served: totals.faults.served,
            faults_failed: totals.faults.failed,
        }
    }
}

impl From<pinmap::accelerator::Prefetched> for Prefetched {
    fn from(done: pinmap::accelerator::Prefetched) -> Self {
        Self {
            moved: done.moved,
            there: done.there,
            no_room: done.no_room,
            busy: done.busy,
            fixed: done.fixed,
        }
    }
}

impl From<pinmap::inspect::Residency> for Residency {
    fn from(found: pinmap::inspect::Residency) -> Self {
        let run = |run: &pinmap::inspect::Run| Run {
            addr: run.addr,
            length: run.len,
            place: run.place.map(|place| {
                let place = match place {
                    pinmap::accelerator::Place::Host => "host",
                    pinmap::accelerator::Place::Vram => "device",
                };
                place.to_owned()
            }),
            rule: run.rule.name().to_owned(),
        };
        Self {
            host: found.sums.host,
            device: found.sums.device,
            absent: found.sums.absent,
            runs: found.runs.iter().map(run).collect(),
        }
    }
}

impl From<pinmap::inspect::ManagedStatistics> for Statistics {
    fn from(found: pinmap::inspect::ManagedStatistics) -> Self {
        Self {
            device_faults: found.device_faults,
            host_faults: found.host_faults,
            in_touched: found.in_touched,
            in_prefetched: found.in_prefetched,
            home_touched: found.home_touched,
            home_prefetched: found.home_prefetched,
            home_evicted: found.home_evicted,
            thrashing: found.thrashing,
            device_time: found.device_time.as_secs_f64(),
            host_time: found.host_time.as_secs_f64(),
        }
    }
}

impl From<pinmap::DeviceEvent> for DeviceEvent {
    fn from(event: pinmap::DeviceEvent) -> Self {
        use pinmap::DeviceEvent as From;
        let make = |kind: &str, id, addr, length, packet| Self {
            kind: kind.to_owned(),
            id,
            addr,
            length,
            packet,
        };
        match event {
            From::Stale { handle, addr, len } => make("stale", handle, addr as u64, len as u64, 0),
            From::Fault {
                queue,
                device_addr,
                packet,
                ..
            } => make("fault", queue, device_addr, 0, packet),
            From::Thrashing { range, addr, len } => {
                make("thrashing", range, addr as u64, len as u64, 0)
            }
            From::Resumed => make("resumed", 0, 0, 0, 0),
            From::Gone => make("gone", 0, 0, 0, 0),
            From::Other(number) => make("other", number.into(), 0, 0, 0),
            _ => make("other", 0, 0, 0, 0),
        }
    }
}
