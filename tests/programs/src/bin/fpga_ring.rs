// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver for the test FPGA, 10ee:beef: registers in BAR 0, one interrupt vector, and a ring of
//! 256 descriptors, whose status the device writes. Its manual is tests/devices/testfpga/FPGA.md.
use pinmap::{registers, Access, Buffer, Descriptor, Device, Interrupt, RegisterOptions, Ring};
use std::{mem::offset_of, time::Duration};

registers! {
    struct Registers: 0x28 {
        0x04 => status: ReadOnly<u32>,
        0x10 => ring_base: WriteOnly<u64>,
        0x18 => ring_len: WriteOnly<u32>,
        0x1c => tail: WriteOnly<u32>,
        0x20 => acknowledge: WriteOnly<u32>,
        0x24 => control: WriteOnly<u32>,
    }
}

pinmap::element! {
    #[derive(Debug, Default)]
    struct Copy { source: u64, target: u64, len: u32, flags: u32, status: u32, pad: u32 }
}

impl Descriptor for Copy {
    type Status = u32;
    const STATUS: usize = offset_of!(Copy, status);
    fn is_done(status: u32) -> bool {
        status != 0
    }
}

struct Fpga {
    registers: Registers,
    interrupt: Interrupt,
    ring: Ring<Copy>,
}

impl Fpga {
    fn new(device: &Device, options: RegisterOptions) -> pinmap::Result<Self> {
        let registers: Registers = device.bar(0)?.registers(0)?;
        let ring = device.ring(256, options)?;
        registers.ring_base().write(ring.device_addr()?);
        registers.ring_len().write(ring.len() as u32);
        registers.control().write(1);
        // There is nothing to interrupt for yet.
        Ok(Self { registers, interrupt: device.interrupt(0)?, ring })
    }

    fn copy(&mut self, source: u64, target: u64, len: u32) -> pinmap::Result<u32> {
        self.ring.push(Copy { source, target, len, flags: 1, ..Copy::default() })?;
        self.registers.tail().write(self.ring.tail() as u32);
        loop {
            if let Some(done) = self.ring.pop()? {
                return Ok(done.status);
            }
            self.interrupt.wait_timeout(Duration::from_secs(1))?;
            self.registers.acknowledge().write(1);
            // The write arrives before this read is answered. So a descriptor that is not done yet
            // will interrupt.
            self.registers.status().read();
        }
    }
}

fn main() -> pinmap::Result<()> {
    let device = Device::find(0x10ee, 0xbeef)?;
    // The device drives 40 bits of addresses.
    let options = RegisterOptions::new(Access::ReadWrite).address_bits(40);
    let mut fpga = Fpga::new(&device, options)?;
    let numbers: Vec<u32> = (0..1 << 20).collect();
    let input = Buffer::from_slice(&numbers)?.register(&device, options)?;
    let output = Buffer::<u32>::new(1 << 20)?.register(&device, options)?;
    let (from, to) = (input.device_addr()?, output.device_addr()?);
    for at in (0..4 << 20).step_by(1024) {
        assert_eq!(fpga.copy(from + at, to + at, 1024)?, 1);
    }
    // The engine has stopped before the ring goes; the write only asks for that.
    fpga.registers.control().write(0);
    while fpga.registers.status().read() == 1 {}
    assert_eq!(output.release()?[..], input.release()?[..]);
    Ok(())
}
