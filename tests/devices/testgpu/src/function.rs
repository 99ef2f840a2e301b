// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device as a PCI function (section 1 of the manual).

use crate::device::Running;
use crate::regs;
use crate::state::Reset;
use vfio_user_device::{answer, number, Bar, Function, Identity};

const DOORBELLS_SIZE: u64 = regs::QUEUE_COUNT as u64 * regs::PAGE;

impl Function for Running {
    fn identity(&self) -> Identity {
        Identity {
            vendor: 0x1234,
            device: 0x7e57,
            subsystem_vendor: 0x1234,
            subsystem: 1,
            class: 0x12_0000, // a processing accelerator
            revision: 1,
            vectors: regs::VECTOR_COUNT,
        }
    }

    fn bar(&self, number: u32) -> Bar<'_> {
        let hardware = self.device().hardware();
        match number {
            0 => Bar::registers(regs::BAR0_SIZE),
            1 => Bar::registers(DOORBELLS_SIZE),
            2 => Bar {
                size: hardware.vram.size(),
                prefetchable: true,
                file: Some(hardware.vram_file()),
            },
            _ => Bar::default(),
        }
    }

    fn read(&self, bar: u32, offset: u64, to: &mut [u8]) {
        match bar {
            0 => answer(to, self.device().read_register(offset, to.len())),
            1 => self.device().read_doorbell(),
            _ => drop(self.device().hardware().vram.read(offset, to)),
        }
    }

    fn write(&self, bar: u32, offset: u64, from: &[u8]) {
        let (device, bytes) = (self.device(), from.len());
        match bar {
            0 => device.write_register(offset, bytes, number(from)),
            1 => device.write_doorbell(offset, bytes, number(from)),
            _ => drop(device.hardware().vram.write(offset, from)),
        }
    }

    fn reset(&self) {
        self.device().reset(Reset::Function);
    }

    fn set_master(&self, on: bool) {
        self.device().hardware().set_master(on);
    }
}
