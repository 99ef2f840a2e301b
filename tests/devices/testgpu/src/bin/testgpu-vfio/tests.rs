// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests. Each begins with a device that was reset.

use crate::gpu::{Gpu, HOST, VRAM};
use crate::vfio::{say, Window};
use testgpu::regs;

type Test = fn(&Gpu) -> Result<(), String>;

/// A test: its name, whether it makes the IOMMU report a fault, and its function.
pub(crate) const ALL: &[(&str, bool, Test)] = &[
    ("the function is what the manual says", false, function),
    (
        "registers can be read and written, in the sizes that are allowed",
        false,
        registers,
    ),
    (
        "a function-level reset clears registers and VRAM",
        false,
        function_reset,
    ),
    (
        "an INTERRUPT packet reaches the eventfd of its MSI-X vector",
        false,
        interrupts,
    ),
    ("copies between host memory and VRAM", false, copies),
    ("a kernel works in place in host memory", false, kernel),
    ("page tables in host memory", false, host_tables),
    (
        "the TLB serves stale entries until they are invalidated",
        false,
        stale_tlb,
    ),
    (
        "an IOVA that is not mapped faults, and RETRY succeeds when it is",
        true,
        unmapped,
    ),
    (
        "an IOVA that was unmapped faults, though the TLB still has it",
        true,
        unmapped_again,
    ),
    (
        "an IOVA that is mapped read-only cannot be written",
        true,
        read_only,
    ),
    ("without Bus Master there is no DMA", true, no_master),
    (
        "a write after the acknowledgement is stopped by the IOMMU alone",
        true,
        after_unmap,
    ),
    ("mappings are counted", false, mappings),
    ("speed", false, speed),
];

const IOVA: u64 = 0x1000_0000;
const VA: u64 = 0x7f12_3450_0000;
const VRAM_VA: u64 = 0x7f22_0000_0000;
const FREE_VRAM: u64 = 0x100_0000;
const MIB: u64 = 1 << 20;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    Err(format!("{what}: {got:x?}, expected {expected:x?}"))
}

fn io<T>(what: &str, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Host memory that the IOMMU maps at an IOVA while the value lives.
struct Mapped<'a> {
    gpu: &'a Gpu,
    memory: &'a Window,
    iova: u64,
}

impl<'a> Mapped<'a> {
    fn new(gpu: &'a Gpu, memory: &'a Window, iova: u64, writable: bool) -> Result<Self, String> {
        io(
            "VFIO_IOMMU_MAP_DMA",
            gpu.function.map(memory, iova, writable),
        )?;
        Ok(Self { gpu, memory, iova })
    }
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.gpu.function.unmap(self.iova, self.memory.size()) {
            say(format_args!("VFIO_IOMMU_UNMAP_DMA: {error}"));
        }
    }
}

fn memory(bytes: u64) -> Result<Window, String> {
    io("memory", Window::memory(bytes as usize))
}

fn function(gpu: &Gpu) -> Result<(), String> {
    let word = |at| -> Result<u32, String> {
        let mut bytes = [0; 4];
        io("configuration space", gpu.function.config(at, &mut bytes))?;
        Ok(u32::from_le_bytes(bytes))
    };
    equal("ids", word(0)?, 0x7e57_1234)?;
    equal("class and revision", word(8)?, 0x1200_0001)?;
    equal("subsystem", word(0x2c)?, 0x0001_1234)?;
    equal("PCI Express capability", word(0x40)? & 0xff, 0x10)?;
    equal("function-level reset", (word(0x44)? >> 28) & 1, 1)?;
    equal(
        "MSI-X capability",
        word(0x80)? & 0x7ff_00ff,
        (15 << 16) | 0x11,
    )?;
    equal("vectors", io("vectors", gpu.function.vectors())?, 16)?;
    let vram = gpu.r(regs::VRAM_SIZE);
    for (bar, size) in [(0, 64 << 10), (1, 4 << 20), (2, vram), (4, 16 << 10)] {
        let got = io("BAR", gpu.function.bar_size(bar))?;
        equal(&format!("BAR {bar}"), got, size)?;
    }
    equal(
        "MAGIC",
        gpu.r(regs::MAGIC),
        u64::from_le_bytes(*b"TESTGPU1"),
    )?;
    equal("VERSION", gpu.r(regs::VERSION) >> 16, 1)?;
    let mode = match gpu.r(regs::FEATURES) & regs::FEATURE_MESSAGE {
        0 => "mapped",
        _ => "message",
    };
    say(format_args!("DMA mode: {mode}; VRAM: {} MiB", vram / MIB));
    Ok(())
}

fn registers(gpu: &Gpu) -> Result<(), String> {
    gpu.w(regs::SCRATCH, 0x0123_4567_89ab_cdef);
    equal("SCRATCH", gpu.r(regs::SCRATCH), 0x0123_4567_89ab_cdef)?;
    let bad = gpu.r(regs::BAD_ACCESSES);
    let mut byte = [0];
    io("a byte", gpu.function.read_bar0(regs::SCRATCH, &mut byte))?;
    equal("a byte of a register", byte[0], 0xff)?;
    equal("BAD_ACCESSES", gpu.r(regs::BAD_ACCESSES), bad + 1)?;
    let mut half = [0; 4];
    io("half", gpu.function.read_bar0(regs::SCRATCH + 4, &mut half))?;
    equal("the high half", u32::from_le_bytes(half), 0x0123_4567)
}

fn function_reset(gpu: &Gpu) -> Result<(), String> {
    gpu.w(regs::SCRATCH, 5);
    gpu.vram.write(FREE_VRAM, 77_u64);
    io("VFIO_DEVICE_RESET", gpu.function.reset())?;
    gpu.wait("RESET", || gpu.r(regs::RESET) == 0)?;
    equal("SCRATCH", gpu.r(regs::SCRATCH), 0)?;
    equal("ROOT", gpu.r(regs::ROOT + 8), 0)?;
    equal("VRAM", gpu.vram.read(FREE_VRAM), 0_u64)?;
    equal("BUS_MASTER", gpu.r(regs::BUS_MASTER), 1)
}

fn interrupts(gpu: &Gpu) -> Result<(), String> {
    gpu.submit(&[&[regs::INTERRUPT]]);
    if !gpu.vectors[1].wait(10_000) {
        return Err("no interrupt".into());
    }
    equal("COMPLETION", gpu.r(regs::COMPLETION), 1 << 7)?;
    equal("INT_STATUS", gpu.r(regs::INT_STATUS), regs::INT_COMPLETION)?;
    // a doorbell of a queue that is not bound: the first vector
    gpu.set_slot(regs::SLOT_COMMAND, regs::COMMAND_UNBIND);
    if !gpu.vectors[3].wait(10_000) {
        return Err("no interrupt of UNBIND".into());
    }
    gpu.submit(&[&[regs::NOP]]);
    if !gpu.vectors[0].wait(10_000) {
        return Err("no interrupt of PENDING".into());
    }
    equal("PENDING", gpu.r(regs::PENDING), 1 << 7)
}

fn pattern(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn copies(gpu: &Gpu) -> Result<(), String> {
    let memory = memory(2 * MIB)?;
    let _mapped = Mapped::new(gpu, &memory, IOVA, true)?;
    gpu.map_range(VA, IOVA | HOST, 2 * MIB);
    gpu.map_range(VRAM_VA, FREE_VRAM | VRAM, MIB);
    for at in (0..MIB).step_by(8) {
        memory.write(at, pattern(at));
    }
    let bytes = MIB - 24;
    gpu.run(&[
        &[regs::COPY, VA + 8, VRAM_VA + 16, bytes],
        &[regs::COPY, VRAM_VA + 16, VA + MIB + 24, bytes],
        &[regs::FENCE_WRITE, VA, 99],
    ])?;
    for at in (0..bytes).step_by(8) {
        equal("VRAM", gpu.vram.read(FREE_VRAM + 16 + at), pattern(at + 8))?;
        equal("host memory", memory.read(MIB + 24 + at), pattern(at + 8))?;
    }
    equal("fence", memory.read(0), 99_u64)?;
    let read = (0..2)
        .map(|engine| gpu.r(regs::ENGINE + engine * regs::ENGINE_STRIDE + regs::ENGINE_HOST_READ));
    if read.sum::<u64>() < bytes {
        return Err("the copy engines' counters do not count".into());
    }
    Ok(())
}

fn kernel(gpu: &Gpu) -> Result<(), String> {
    let memory = memory(regs::PAGE)?;
    let _mapped = Mapped::new(gpu, &memory, IOVA, true)?;
    gpu.map(VA, IOVA | HOST);
    for i in 0..1024 {
        memory.write(4 * i, i as f32);
    }
    gpu.run(&[&[regs::LAUNCH | (regs::KERNEL_INCREMENT_F32 << 32), VA, 1024]])?;
    for i in 0..1024 {
        equal("element", memory.read(4 * i), i as f32 + 1.0)?;
    }
    Ok(())
}

fn host_tables(gpu: &Gpu) -> Result<(), String> {
    let memory = memory(8 * regs::PAGE)?;
    let _mapped = Mapped::new(gpu, &memory, IOVA, true)?;
    // four tables, then the page that they lead to, which has the ring and the fence
    for (number, shift) in [39_u32, 30, 21, 12].into_iter().enumerate() {
        let table = number as u64 * regs::PAGE;
        let next = IOVA + table + regs::PAGE;
        let bits = match shift {
            12 => HOST | regs::PTE_EXECUTE | regs::PTE_LEAF,
            _ => regs::PTE_HOST | regs::PTE_SNOOP,
        };
        memory.write(
            table + ((VA >> shift) & 511) * 8,
            next | bits | regs::PTE_VALID,
        );
    }
    let page = 4 * regs::PAGE;
    for (word, value) in (0..).zip([regs::FENCE_WRITE, VA + 0x800, 1234]) {
        memory.write(page + 8 * word, value);
    }
    gpu.set_slot(regs::SLOT_COMMAND, regs::COMMAND_UNBIND);
    gpu.wait("FREE", || gpu.state() == regs::STATE_FREE)?;
    gpu.w(regs::ROOT + 16, IOVA | regs::ROOT_HOST | regs::ROOT_ENABLE);
    gpu.set_slot(regs::SLOT_CONFIG, 7 | (2 << 16) | (3 << 24));
    gpu.set_slot(regs::SLOT_RING, VA);
    gpu.set_slot(regs::SLOT_READ_INDEX, 0);
    gpu.w(regs::DOORBELL_VALUE + 8 * 7, 1);
    gpu.set_slot(regs::SLOT_COMMAND, regs::COMMAND_BIND);
    gpu.finish()?;
    equal("fence", memory.read(page + 0x800), 1234_u64)
}

fn stale_tlb(gpu: &Gpu) -> Result<(), String> {
    let memory = memory(2 * regs::PAGE)?;
    let _mapped = Mapped::new(gpu, &memory, IOVA, true)?;
    let fence = |value| gpu.run(&[&[regs::FENCE_WRITE, VA, value]]);
    gpu.map(VA, IOVA | HOST);
    fence(1)?;
    gpu.map(VA, (IOVA + regs::PAGE) | HOST);
    fence(2)?;
    equal(
        "through the stale entry",
        (memory.read(0), memory.read(regs::PAGE)),
        (2_u64, 0_u64),
    )?;
    gpu.invalidate()?;
    fence(3)?;
    equal(
        "through the new one",
        (memory.read(0), memory.read(regs::PAGE)),
        (2_u64, 3_u64),
    )?;
    gpu.map(VA, 0);
    fence(4)?;
    gpu.invalidate()?;
    let stop = gpu.stop(&[&[regs::FENCE_WRITE, VA, 5]])?;
    equal("after INVALIDATE", stop, (regs::NOT_PRESENT, VA))?;
    equal("memory", memory.read(regs::PAGE), 4_u64)
}

fn unmapped(gpu: &Gpu) -> Result<(), String> {
    gpu.map(VA, IOVA | HOST);
    let stop = gpu.stop(&[&[regs::FENCE_WAIT, VA, 0], &[regs::FENCE_WRITE, VA + 8, 6]])?;
    equal("reading", stop, (regs::BUS, VA))?;
    let info = gpu.r(regs::FAULT_ENTRY + regs::FAULT_INFO);
    equal("level and code", (info >> 12) & 0xfff, (regs::BUS << 4) | 4)?;
    if !gpu.vectors[2].wait(10_000) {
        return Err("no interrupt".into());
    }
    let memory = memory(regs::PAGE)?;
    let _mapped = Mapped::new(gpu, &memory, IOVA, true)?;
    gpu.retry()?;
    equal("memory", memory.read(8), 6_u64)
}

fn unmapped_again(gpu: &Gpu) -> Result<(), String> {
    let memory = memory(regs::PAGE)?;
    gpu.map(VA, IOVA | HOST);
    {
        let _mapped = Mapped::new(gpu, &memory, IOVA, true)?;
        gpu.run(&[&[regs::FENCE_WRITE, VA, 1]])?;
    }
    let stop = gpu.stop(&[&[regs::FENCE_WRITE, VA, 2]])?;
    equal("writing", stop, (regs::BUS, VA))?;
    equal("memory", memory.read(0), 1_u64)
}

fn read_only(gpu: &Gpu) -> Result<(), String> {
    let memory = memory(regs::PAGE)?;
    memory.write(0, 1_u64);
    let _mapped = Mapped::new(gpu, &memory, IOVA, false)?;
    gpu.map(VA, IOVA | HOST);
    let stop = gpu.stop(&[&[regs::FENCE_WAIT, VA, 1], &[regs::FENCE_WRITE, VA, 2]])?;
    equal("writing", stop, (regs::BUS, VA))?;
    equal("packet", gpu.slot(regs::SLOT_READ_INDEX), 1)?;
    equal("memory", memory.read(0), 1_u64)
}

fn no_master(gpu: &Gpu) -> Result<(), String> {
    let memory = memory(regs::PAGE)?;
    let _mapped = Mapped::new(gpu, &memory, IOVA, true)?;
    gpu.map(VA, IOVA | HOST);
    gpu.run(&[&[regs::FENCE_WRITE, VA, 1]])?;
    io("Bus Master", gpu.function.set_master(false))?;
    let stop = gpu.stop(&[&[regs::FENCE_WRITE, VA, 2]]);
    let register = gpu.r(regs::BUS_MASTER);
    let before = memory.read::<u64>(0);
    io("Bus Master", gpu.function.set_master(true))?;
    equal("writing", stop?, (regs::BUS, VA))?;
    equal("BUS_MASTER", register, 0)?;
    equal("memory", before, 1)?;
    gpu.retry()?;
    equal("memory", memory.read(0), 2_u64)
}

fn after_unmap(gpu: &Gpu) -> Result<(), String> {
    // A long delay: on a busy machine the memory may still be mapped after half a second.
    for delay in [500_000_000, 4_000_000_000] {
        if after_unmap_delayed(gpu, delay).is_ok() {
            return Ok(());
        }
    }
    after_unmap_delayed(gpu, 20_000_000_000)
}

fn after_unmap_delayed(gpu: &Gpu, delay: u64) -> Result<(), String> {
    let memory = memory(regs::PAGE)?;
    gpu.map(VA, IOVA | HOST);
    for (unmap, result, word) in [(false, 1, regs::AFTER_UNMAP_MARKER), (true, 2, 0)] {
        memory.write(0, 0_u64);
        let mapped = Mapped::new(gpu, &memory, IOVA, true)?;
        gpu.run(&[&[regs::FENCE_WRITE, VA + 8, 1]])?;
        gpu.w(
            regs::KNOB_AFTER_UNMAP,
            if unmap { delay } else { 1_000_000 },
        );
        gpu.invalidate()?;
        let kept = match unmap {
            true => {
                drop(mapped);
                None
            }
            false => Some(mapped),
        };
        gpu.wait("the write", || gpu.r(regs::KNOB_AFTER_RESULT) != 0)?;
        equal("result", gpu.r(regs::KNOB_AFTER_RESULT), result)?;
        equal("address", gpu.r(regs::KNOB_AFTER_ADDRESS), IOVA)?;
        equal("memory", memory.read(0), word)?;
        drop(kept);
    }
    Ok(())
}

fn mappings(gpu: &Gpu) -> Result<(), String> {
    let memory = memory(16 * regs::PAGE)?;
    let before = gpu.r(regs::DMA_MAPPED);
    let mapped = Mapped::new(gpu, &memory, IOVA, true)?;
    let during = gpu.r(regs::DMA_MAPPED);
    drop(mapped);
    if !(before + 1..=before + 16).contains(&during) {
        return Err(format!(
            "{before} ranges before, {during} with 16 pages more"
        ));
    }
    equal("ranges after", gpu.r(regs::DMA_MAPPED), before)
}

/// Measures the engines' time for a copy between two buffers of 8 MiB, without the bus model.
fn speed(gpu: &Gpu) -> Result<(), String> {
    let size = 8 * MIB;
    let memory = memory(2 * size)?;
    let _mapped = Mapped::new(gpu, &memory, IOVA, true)?;
    gpu.map_range(VA, IOVA | HOST, 2 * size);
    gpu.map_range(VRAM_VA, FREE_VRAM | VRAM, size);
    let busy = || -> u64 {
        let register =
            |engine| gpu.r(regs::ENGINE + engine * regs::ENGINE_STRIDE + regs::ENGINE_BUSY_NS);
        (0..2).map(register).sum()
    };
    for (name, from, to) in [
        ("host to host", VA, VA + size),
        ("host to VRAM", VA, VRAM_VA),
        ("VRAM to host", VRAM_VA, VA),
    ] {
        let messages = gpu.r(regs::MESSAGE_ACCESSES);
        let mut best = u64::MAX;
        for _ in 0..5 {
            let before = busy();
            gpu.run(&[&[regs::COPY, from, to, size]])?;
            best = best.min(busy() - before);
        }
        let messages = (gpu.r(regs::MESSAGE_ACCESSES) - messages) / 5;
        say(format_args!(
            "{name}, 4 KiB pages, link without limit: {} MB/s ({messages} messages)",
            size * 1000 / best.max(1)
        ));
    }
    Ok(())
}
