// SPDX-License-Identifier: GPL-2.0
//! Open files: open, release, ioctl, mmap, read, poll, fdinfo, attributes.

use crate::{
    claim::Claim,
    context::Context,
    device::Device,
    ioctl, show,
    sys::{
        fs::{
            attributes::Attribute,
            miscdevice::{Files, Operations},
        },
        mm::vma::{Faults, NewArea, Views},
        task::wait::WaitQueue,
    },
    view,
};
use kernel::{
    prelude::*,
    seq_file::SeqFile,
    sync::{Arc, ArcBorrow},
    uaccess::{UserPtr, UserSliceWriter},
};

static OPERATIONS: Operations<Context> = Operations::new();

impl Files for Context {
    type Device = Device;

    const ATTRIBUTES: &'static [&'static [Attribute<Device>]] =
        &[show::ATTRIBUTES, show::ATTRIBUTES_OF_PAGED];

    fn operations() -> &'static Operations<Self> {
        &OPERATIONS
    }

    fn open(device: &Arc<Device>, views: Views) -> Result<Arc<Self>> {
        Device::open(device, views)
    }

    fn release(this: Arc<Self>) {
        this.device().close(&this);
    }

    fn ioctl(this: &Arc<Self>, command: u32, argument: UserPtr) -> Result {
        ioctl::dispatch(this, command, argument)
    }

    fn read(&self, out: &mut UserSliceWriter, may_wait: bool) -> Result<usize> {
        self.events().read(out, may_wait)
    }

    fn waiters(&self) -> &WaitQueue {
        self.events().waiters()
    }

    fn readiness(&self) -> u32 {
        self.events().readiness()
    }

    fn mmap(this: ArcBorrow<'_, Self>, area: NewArea<'_>) -> Result {
        if !area.is_shared() {
            return Err(EINVAL);
        }
        if area.is_executable() {
            return Err(EACCES);
        }
        if area.offset() >= view::START {
            this.check_caller()?;
            return this.mmap_offsets().view(area);
        }
        let write_combine = this
            .device()
            .flat()?
            .check_view(area.offset(), area.length())?;
        this.device().awake(&this)?;
        Claim::for_view(&this)?.keep();
        area.view_device_memory::<Self>(this.into(), write_combine);
        Ok(())
    }

    fn show(&self, out: &SeqFile) {
        show::fdinfo(self, out);
    }
}

impl Faults for Context {
    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        self.device().flat().ok()?.fault(offset, insert)
    }
}
