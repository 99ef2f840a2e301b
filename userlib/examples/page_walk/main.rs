// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows one pointer through three MMUs. The CPU's leads to a page; the device's leads to an I/O
//! virtual address, and the IOMMU from there to the same page. Shows the translations of memory
//! that nobody registered, of registered memory, of memory that the driver allocated, and of memory
//! of the device.
//!
//! Shows no physical address. Only root can see the entries of the IOMMU, and only those of
//! Intel's, in debugfs.
//!
//! ```sh
//! pinmap bind 0000:00:10.0        # once, as root
//! page_walk
//! ```
#![forbid(unsafe_code)]

mod iommu;

use std::error::Error;
use std::fs;
use std::process::ExitCode;

use pinmap::accelerator::{Accelerator, DeviceSlice, Place, Stream, StreamOptions};
use pinmap::inspect::Target;
use pinmap::{Access, Buffer, Pages};
use pinmap_samples::pagemap as frame;

/// Length of each piece of memory in bytes.
const LEN: usize = 4 << 20;
/// Offset in bytes to which the pointer points.
const OFFSET: usize = (2 << 20) | 0x1238;

/// The device and the tables through which the walk goes.
struct Walk {
    gpu: Accelerator,
    stream: Stream,
    /// The entries of the IOMMU, or why they cannot be seen.
    leaves: Result<Vec<iommu::Leaf>, std::io::Error>,
}

impl Walk {
    /// Follows a pointer into memory, which has a user and a device address.
    fn to(
        &mut self,
        name: &str,
        addr: usize,
        place: Place,
        memory: DeviceSlice<'_, u8>,
    ) -> Result<(), Box<dyn Error>> {
        let byte = memory.part(OFFSET..OFFSET + 8)?;
        let (pointer, device_addr) = (addr + OFFSET, byte.device_addr());
        println!("\n{name}, {OFFSET:#x} bytes in: pointer {pointer:#x}");
        let entry = frame::entry(pointer)?;
        let state = match place {
            Place::Host => cpu(pointer, entry)?,
            Place::Vram => "a page of the device, which the kernel does not describe".to_owned(),
        };
        println!("  the CPU's MMU     {pointer:#x} -> {state}");

        let equal = if device_addr == pointer as u64 {
            "equal"
        } else {
            "not equal"
        };
        let leaf = self.gpu.walk(device_addr)?;
        let leaf = leaf.ok_or("the device's page table does not have it")?;
        let leads = match leaf.target {
            Target::Host(iova) => format!("IOVA {iova:#x}"),
            Target::Vram(offset) => format!("byte {offset:#x} of its memory"),
        };
        println!(
            "  the device's MMU  {device_addr:#x} ({equal}) -> {leads}, by {} tables, in a leaf of \
             {} KiB, for reading{}",
            leaf.levels,
            leaf.leaf_len >> 10,
            and_writing(leaf.write),
        );
        match leaf.target {
            Target::Host(iova) => self.iommu(iova, frame::frame(entry))?,
            Target::Vram(_) => {
                println!("  the IOMMU         is not on the way to the device's own memory")
            }
        }

        // The device itself follows its address.
        let mut seen = self.gpu.alloc_vram::<u8>(8)?;
        self.stream
            .scope(|work| work.copy(byte, seen.slice_mut()))?;
        let same = seen.to_vec() == byte.to_vec();
        println!("  the device reads there what the CPU reads: {}", yes(same));
        if !same {
            return Err("the MMUs lead to different memory".into());
        }
        Ok(())
    }

    /// Shows the entry of the IOMMU for an I/O virtual address, and checks that it leads to the
    /// page with this frame number.
    fn iommu(&self, iova: u64, frame: Option<u64>) -> Result<(), Box<dyn Error>> {
        let leaves = match &self.leaves {
            Ok(leaves) => leaves,
            Err(error) => {
                println!("  the IOMMU         is not in debugfs for this user: {error}");
                return Ok(());
            }
        };
        let found = leaves.iter().find(|leaf| leaf.covers(iova));
        let leaf = found.ok_or("the IOMMU does not have the address")?;
        let page = match frame {
            Some(frame) if leaf.frame_at(iova) == frame => "the same page as the CPU's",
            Some(_) => return Err("the IOMMU leads to another page than the CPU's MMU".into()),
            None => "a page, which one this user may not see",
        };
        println!(
            "  the IOMMU         IOVA {iova:#x} -> {page}, in a leaf of {} KiB, for reading{}",
            leaf.len >> 10,
            and_writing(leaf.writable),
        );
        if let Some(frame) = frame {
            println!("  the page          {}", flags(frame));
        }
        Ok(())
    }
}

fn and_writing(write: bool) -> &'static str {
    if write {
        " and writing"
    } else {
        ""
    }
}

fn yes(yes: bool) -> &'static str {
    if yes {
        "yes"
    } else {
        "no"
    }
}

/// Describes the entry of the CPU's page table, by pagemap and smaps.
fn cpu(addr: usize, entry: u64) -> Result<String, Box<dyn Error>> {
    let bits = [
        (frame::PRESENT, "in memory"),
        (1 << 62, "swapped out"),
        (1 << 61, "of a file or shared"),
        (1 << 56, "mapped only here"),
    ];
    let names: Vec<_> = bits
        .iter()
        .filter(|(bit, _)| entry & bit != 0)
        .map(|&(_, name)| name)
        .collect();
    let state = if names.is_empty() {
        "not in memory".to_owned()
    } else {
        names.join(", ")
    };
    let huge = match huge_kib(addr)? {
        0 => String::new(),
        kib => format!("; {kib} KiB around it in huge pages"),
    };
    Ok(format!("a page: {state}{huge}"))
}

/// How many KiB of the mapping around an address are in huge pages.
fn huge_kib(addr: usize) -> Result<u64, Box<dyn Error>> {
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    let mut inside = false;
    let mut sum = 0;
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let bound = |text| usize::from_str_radix(text, 16);
            let bounds = bound(start)?..bound(end)?;
            inside = bounds.contains(&addr);
        } else if inside && (first.ends_with("HugePages:") || first.ends_with("PmdMapped:")) {
            let kib = line.split_whitespace().nth(1).unwrap_or("0");
            sum += kib.parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// Describes the kernel's flags of a page, if they can be read.
fn flags(frame: u64) -> String {
    const NAMES: [(u32, &str); 8] = [
        (2, "referenced"),
        (3, "up to date"),
        (4, "dirty"),
        (5, "on an LRU list"),
        (11, "mapped"),
        (12, "anonymous"),
        (17, "of hugetlb"),
        (22, "part of a transparent huge page"),
    ];
    let mut bytes = [0; 8];
    let read = fs::File::open("/proc/kpageflags")
        .and_then(|file| std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, frame * 8));
    if let Err(error) = read {
        return format!("its flags cannot be read: {error}");
    }
    let bits = u64::from_ne_bytes(bytes);
    let names = NAMES.iter().filter(|(bit, _)| bits & (1 << bit) != 0);
    let names: Vec<_> = names.map(|&(_, name)| name).collect();
    if names.is_empty() {
        "the driver's own, on no list of the kernel".to_owned()
    } else {
        names.join(", ")
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let gpu = pinmap_testgpu::find()?;
    let info = gpu.device().info()?;
    let page = info.page_sizes.iter().next().unwrap_or_default();
    println!(
        "{}: the IOMMU translates {} bits, in pages from {page} bytes on",
        gpu.device(),
        info.address_bits(),
    );
    let page = frame::page();
    let content: Vec<u8> = (0..LEN).map(|i| (i / 8 * 37 + i / page) as u8).collect();

    let mut buffer = Buffer::<u8>::with_pages(LEN, Pages::Transparent)?;
    buffer.copy_from_slice(&content);
    let registered = buffer.register(gpu.device(), Access::Read)?;
    let mut host = gpu.device().alloc::<u8>(LEN)?;
    host.write(0, &content)?;
    let mut vram = gpu.alloc_vram::<u8>(LEN)?;
    vram.write(0, &content)?;

    let mut walk = Walk {
        stream: gpu.stream(StreamOptions::new())?,
        leaves: iommu::leaves(info.pci),
        gpu,
    };
    if info.managed {
        managed(&mut walk, &content)?;
    }
    let memory = registered.slice()?;
    walk.to("registered memory", registered.addr(), Place::Host, memory)?;
    walk.to(
        "allocated host memory",
        host.addr(),
        host.place(),
        host.slice(),
    )?;
    walk.to(
        "memory of the device",
        vram.addr(),
        vram.place(),
        vram.slice(),
    )
}

/// Follows a pointer to memory that nobody registered. The device has no page of it before it
/// touches the memory.
fn managed(walk: &mut Walk, content: &[u8]) -> Result<(), Box<dyn Error>> {
    let (gpu, addr) = (walk.gpu.clone(), content.as_ptr().addr());
    let stream = gpu.stream(StreamOptions::new())?;
    let mut touched = gpu.alloc_vram::<u8>(LEN)?;
    stream.try_scope(|work| {
        let memory = work.slice(content)?;
        work.copy(memory, touched.slice_mut())?;
        work.stream().synchronize()?;
        walk.leaves = iommu::leaves(gpu.device().info()?.pci);
        walk.to("memory that nobody registered", addr, Place::Host, memory)
    })
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("page_walk: {error}");
            ExitCode::FAILURE
        }
    }
}
