// SPDX-License-Identifier: GPL-2.0
//! A bound PCI function: probe, unbind, resets and sleep; and the module, which is a PCI driver.

use super::Device;
use crate::{
    backend::Gpus,
    context::{Context, Processes},
    logic::PAGE_SIZE,
    module_parameters, stats,
    sys::{
        fs::{
            debugfs::{Listing, Root},
            miscdevice::Node,
        },
        iommu::{Attachment, Group, Unfit},
        pci::{self, Enabled, Function},
        task::work::{self, Queues},
    },
};
use kernel::{
    device,
    prelude::*,
    str::CString,
    sync::{
        atomic::{Acquire, Full},
        Arc,
    },
    workqueue::system_freezable,
};

/// Mode of `/dev/pinmapN`: for root, and the group that a udev rule gives it.
const NODE_MODE: u16 = 0o660;

/// The loaded module: a PCI driver.
#[pin_data]
pub(crate) struct Module {
    #[pin]
    driver: pci::Registration<Bound>,
    /// Dropped after all that is in it.
    debug: Root,
    /// Dropped after all that uses them.
    queues: Queues,
}

impl kernel::InPlaceModule for Module {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            queues: Queues::new()?,
            debug: Root::new(),
            driver <- pci::Registration::new(Common::new()?),
        }? Error)
    }
}

/// Parts that all functions of the driver have in common.
pub(crate) struct Common {
    pub(super) processes: Arc<Processes>,
    pub(super) gpus: Arc<Gpus>,
}

impl Common {
    fn new() -> Result<Arc<Self>> {
        let common = Self {
            processes: Processes::new()?,
            gpus: Gpus::new()?,
        };
        Ok(Arc::new(common, GFP_KERNEL)?)
    }
}

/// Everything that exists as long as a function is bound. Dropped in this order: the node goes, so
/// that nobody can open the device; then the function is switched off. Its DMA was blocked and
/// given back to the DMA API before.
#[pin_data]
pub(crate) struct Bound {
    #[pin]
    node: Node<Context>,
    _listing: Listing<Device>,
    device: Arc<Device>,
    _enabled: Enabled,
}

impl pci::Driver for Bound {
    const NAME: &'static CStr = c"pinmap";

    type Shared = Common;

    fn probe(
        function: Function,
        locked: &pci::Locked<'_>,
        common: &Arc<Common>,
    ) -> Result<Pin<KBox<Self>>> {
        let dev: &device::Device = function.as_ref();
        let Some(group) = Group::of(&function) else {
            return Err(refuse(&function, None, Unfit::NoIommu));
        };
        let mut enabled = Some(Enabled::new(&function)?);
        let allow_unsafe = module_parameters::allow_unsafe_interrupts.value() != 0;
        let attachment = Attachment::new(&function, group, allow_unsafe)
            .map_err(|(unfit, group)| refuse(&function, Some(&group), unfit))?;
        let device = Device::new(&function, attachment, common.clone())?;
        let started = device
            .backend
            .start(locked, &device.domain, device.clone(), &common.gpus);
        // The function stays switched on until the device has left.
        let bound = started.and_then(|()| Self::publish(&device, dev, &mut enabled));
        if bound.is_err() {
            device.leave();
            work::disable::<_, 0>(&device);
        }
        bound
    }

    fn unbind(&self, locked: &pci::Locked<'_>) {
        self.device.sleep_no_more();
        self.device.leave();
        // What the device's owner has released is still being taken from others.
        self.device.endings.synchronize();
        self.device.backend.end_p2pdma();
        if self.device.backend.needs_reset() {
            // Nothing that a user began may go on under the next driver. If the reset fails because
            // the function is not there, nothing does.
            let _ = locked.reset();
        }
        // What was imported through the function is gone; nobody imports any more.
        self.device.bound.close();
        work::disable::<_, 1>(&self.device);
        work::disable::<_, 0>(&self.device);
        let attachment = self.device.attachment.lock().take();
        drop(attachment);
    }

    fn before_reset(&self) {
        if self.device.backend.survives_reset() {
            self.device.backend.before_reset();
            self.device.zap_views();
        } else {
            self.device.leave();
        }
    }

    fn after_reset(&self) {
        self.device.backend.after_reset();
    }

    fn cut_off(&self) {
        self.device.leave();
    }

    fn shutdown(&self) {
        self.device.backend.leave(&self.device.common.gpus);
    }

    fn prepare_sleep(&self) -> Result {
        let device = &self.device;
        // It wakes, and a sleep of its own that has just begun ends. The kernel keeps it awake.
        let _awake = device.runtime.wake_now();
        device.check_sleep()?;
        device.backend.prepare_sleep(&|| device.zap_views())
    }

    fn sleep(&self) {
        self.device.backend.sleep();
    }

    fn sleep_on(&self) {
        self.device.sleep_on();
    }

    fn resume(&self) {
        let slept_on = self.device.sleeps_on.xchg(false, Full);
        self.device.backend.resume();
        if slept_on {
            self.device.runtime.open();
        }
    }

    fn go_on(&self) {
        if self.device.sleeps_on.load(Acquire) {
            // Runs when programs do: if the system is not switched off after all.
            let _ = system_freezable().enqueue::<_, 1>(self.device.clone());
        } else {
            self.device.go_on();
        }
    }

    fn doze(&self) -> bool {
        self.device.doze()
    }

    fn wake(&self) {
        self.device.wake();
    }
}

impl Bound {
    /// Makes the node by which `device` can be opened.
    fn publish(
        device: &Arc<Device>,
        parent: &device::Device,
        enabled: &mut Option<Enabled>,
    ) -> Result<Pin<KBox<Self>>> {
        let device = device.clone();
        let place = stats::Bdf::of(&device.identity);
        let place = CString::try_from_fmt(fmt!("{}", place))?;
        KBox::try_pin_init(
            try_pin_init!(Self {
                node <- Node::new("pinmap", NODE_MODE, parent, device.clone()),
                _listing: Listing::new(&place, device.clone()),
                device,
                _enabled: enabled.take().ok_or(EINVAL)?,
            }? Error),
            GFP_KERNEL,
        )
    }
}

/// Logs why a function is refused. Returns the errno.
fn refuse(function: &Function, group: Option<&Group>, unfit: Unfit) -> Error {
    let dev: &device::Device = function.as_ref();
    match unfit {
        Unfit::NoIommu => {
            dev_err!(dev, "refused: no IOMMU translates its DMA\n");
            ENODEV
        }
        Unfit::Shared => {
            dev_err!(dev, "refused: its IOMMU group has other members\n");
            if let Some(group) = group {
                group.log_members(function);
            }
            EPERM
        }
        Unfit::UnsafeInterrupts => {
            dev_err!(
                dev,
                "refused: its interrupts are not isolated (allow_unsafe_interrupts=1 to accept)\n"
            );
            EPERM
        }
        Unfit::Firmware(span) => {
            let (start, last) = (span.start(), span.last());
            dev_err!(
                dev,
                "refused: the platform keeps {:#x}-{:#x} mapped for it\n",
                start,
                last
            );
            EPERM
        }
        Unfit::LargePages(size) => {
            dev_err!(
                dev,
                "refused: the IOMMU's smallest page has {} bytes, the kernel's {}\n",
                size,
                PAGE_SIZE
            );
            EOPNOTSUPP
        }
        Unfit::Failed(error) => {
            dev_err!(
                dev,
                "refused: its DMA could not be taken over ({})\n",
                error.to_errno()
            );
            error
        }
    }
}
