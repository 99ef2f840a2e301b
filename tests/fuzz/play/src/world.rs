// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's devices, and what an administrator does to them and to memory.

use crate::calls::World;
use crate::sys;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const DRIVER: &str = "/sys/bus/pci/drivers/pinmap";
const PCI: &str = "/sys/bus/pci/devices";
const KNOBS: [usize; 6] = [0xa000, 0xa008, 0xa010, 0xa028, 0xa038, 0xa040];

/// A device of the driver.
#[derive(Debug)]
struct Device {
    address: String,
    paged: bool,
    knobs: Option<*mut u64>,
}

/// The devices.
#[derive(Debug)]
pub(crate) struct Machine {
    devices: Vec<Device>,
    /// The address of the test FPGA, if it was bound for the programs.
    fpga: Option<String>,
}

impl Machine {
    /// Finds the devices that the driver has. The test FPGA is given to it.
    pub(crate) fn new() -> io::Result<Self> {
        for what in ["failslab", "fail_page_alloc", "fail_usercopy"] {
            // Otherwise each failure that a program asks for is told with a stack.
            let _ = fs::write(format!("/sys/kernel/debug/{what}/verbose"), "0");
        }
        let fpga = bind_fpga()?;
        let mut devices = Vec::new();
        for entry in fs::read_dir(DRIVER)? {
            let address = entry?.file_name().to_string_lossy().into_owned();
            if !address.contains(':') {
                continue;
            }
            let path = PathBuf::from(PCI).join(&address);
            let paged = fs::read_to_string(path.join("device"))?.trim() == "0x7e57";
            let knobs = if paged {
                use std::os::fd::AsRawFd;
                let file = sys::open(path.join("resource0"), libc::O_RDWR)?;
                let bar = sys::map(0, 0x10000, libc::MAP_SHARED, file.as_raw_fd())?;
                Some(bar.cast())
            } else {
                None
            };
            devices.push(Device {
                address,
                paged,
                knobs,
            });
        }
        // An edu takes a tenth of a second for a transfer, so the FPGA comes first.
        devices.sort_by_key(|it| (Some(&it.address) != fpga.as_ref(), it.address.clone()));
        Ok(Self { devices, fpga })
    }

    /// Leaves the devices as they were found.
    pub(crate) fn leave(&self) {
        if let Some(fpga) = &self.fpga {
            let _ = fs::write(format!("{DRIVER}/unbind"), fpga);
            let _ = fs::write(format!("{PCI}/{fpga}/driver_override"), "\n");
        }
    }

    /// The number of devices.
    pub(crate) fn count(&self) -> usize {
        self.devices.len()
    }

    /// Which device a program means: 0 and 2 are flat ones, 1 is a paged one.
    fn index(&self, number: usize) -> Option<usize> {
        let which = |paged: bool, nth: usize| {
            let mut fitting = (0..self.count()).filter(|i| self.devices[*i].paged == paged);
            fitting.nth(nth)
        };
        match number {
            0 => which(false, 0),
            1 => which(true, 0),
            2 => which(false, 1),
            _ => None,
        }
    }

    /// The nodes of the devices that programs name.
    pub(crate) fn nodes(&self) -> [Option<String>; 3] {
        [0, 1, 2].map(|number| self.node(self.index(number)?))
    }

    /// The nodes of all devices.
    pub(crate) fn all_nodes(&self) -> Vec<Option<String>> {
        (0..self.count()).map(|index| self.node(index)).collect()
    }

    fn node(&self, index: usize) -> Option<String> {
        let address = &self.devices[index].address;
        let mut entries = fs::read_dir(format!("{PCI}/{address}/misc")).ok()?;
        let name = entries.next()?.ok()?.file_name();
        Some(format!("/dev/{}", name.to_string_lossy()))
    }

    /// Does what an administrator does. Called in a process of its own, because it may wait for the
    /// program's processes.
    pub(crate) fn act(&self, world: World, args: [u64; 2]) {
        let device = self
            .index(args[0] as usize)
            .map(|index| &self.devices[index]);
        // Each may fail: the device is bound or not, and others do the same.
        let _ = match world {
            World::Unbind | World::Bind => {
                let file = if world == World::Bind {
                    "bind"
                } else {
                    "unbind"
                };
                let done = device.map(|it| fs::write(format!("{DRIVER}/{file}"), &it.address));
                self.permit();
                done
            }
            World::Reset => {
                device.map(|device| fs::write(format!("{PCI}/{}/reset", device.address), "1"))
            }
            World::Module => {
                let done = module(args[0] != 0);
                self.permit();
                Some(done)
            }
            World::Knob => {
                self.set_knob(args[0] as usize, args[1]);
                None
            }
            World::Memory => Some(match args[0] {
                0 => fs::write("/proc/sys/vm/compact_memory", "1"),
                1 => fs::write("/proc/sys/vm/drop_caches", "3"),
                2 => fs::write("/sys/kernel/mm/ksm/run", "1"),
                _ => fs::write("/sys/kernel/mm/ksm/run", "2"),
            }),
            World::Swap => Some(swap(args[0] != 0)),
            World::Limit => Some(limit(args[0])),
            World::Kill | World::Signal | World::Use => None,
        };
    }

    /// Lets everybody open the devices, as a udev rule would.
    pub(crate) fn permit(&self) {
        for node in self.all_nodes().iter().flatten() {
            // The device may have gone again.
            let _ = fs::set_permissions(node, fs::Permissions::from_mode(0o666));
        }
    }

    fn set_knob(&self, offset: usize, value: u64) {
        for knobs in self.devices.iter().filter_map(|device| device.knobs) {
            if KNOBS.contains(&offset) {
                // SAFETY: The register is inside of the mapping of the BAR.
                unsafe { knobs.add(offset / 8).write_volatile(value) };
            }
        }
    }

    /// Undoes what [`Self::act`] did.
    pub(crate) fn restore(&self, world: World) -> Result<(), String> {
        match world {
            World::Unbind | World::Bind | World::Reset | World::Module => {
                if world == World::Module {
                    // Where that fails, the devices cannot be bound.
                    let _ = module(true);
                }
                for device in &self.devices {
                    // A reset takes a paged device away for good.
                    if device.paged && world == World::Reset {
                        let _ = fs::write(format!("{DRIVER}/unbind"), &device.address);
                    }
                    let driver = format!("{DRIVER}/{}", device.address);
                    let begun = Instant::now();
                    while fs::symlink_metadata(&driver).is_err() {
                        let _ = fs::write(format!("{DRIVER}/bind"), &device.address);
                        if begun.elapsed() > Duration::from_secs(30) {
                            return Err(format!("{} cannot be bound again", device.address));
                        }
                        thread::sleep(Duration::from_millis(2));
                    }
                }
                self.permit();
            }
            World::Knob => KNOBS.iter().for_each(|offset| self.set_knob(*offset, 0)),
            World::Memory => {
                let _ = fs::write("/sys/kernel/mm/ksm/run", "0");
            }
            World::Swap => {
                let _ = swap(false);
            }
            World::Limit => {
                let _ = limit(0);
            }
            World::Kill | World::Signal | World::Use => {}
        }
        Ok(())
    }
}

/// Loads the driver, which then takes the devices that it had; or unloads it, which fails while a
/// device is open.
fn module(load: bool) -> io::Result<()> {
    if load {
        let parameters = std::env::var("PINMAP_PARAMETERS").unwrap_or_default();
        let mut modprobe = Command::new("modprobe");
        modprobe.arg("pinmap").args(parameters.split_whitespace());
        return modprobe.status().map(|_| ());
    }
    // SAFETY: The name is a string.
    match unsafe {
        libc::syscall(
            libc::SYS_delete_module,
            c"pinmap".as_ptr(),
            libc::O_NONBLOCK,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the driver take the test FPGA, if there is one that nobody has.
fn bind_fpga() -> io::Result<Option<String>> {
    for entry in fs::read_dir(PCI)? {
        let path = entry?.path();
        let ids = ["vendor", "device"].map(|name| fs::read_to_string(path.join(name)));
        let [Ok(vendor), Ok(device)] = ids else {
            continue;
        };
        if (vendor.trim(), device.trim()) != ("0x10ee", "0xbeef") || path.join("driver").exists() {
            continue;
        }
        let address = path.file_name().unwrap_or_default().to_string_lossy();
        fs::write(path.join("driver_override"), "pinmap")?;
        fs::write("/sys/bus/pci/drivers_probe", &*address)?;
        return Ok(Some(address.into_owned()));
    }
    Ok(None)
}

const DISK: &CStr = c"/dev/vda";
const FOLDER: &CStr = c"/tmp/play";
const SWAP: &CStr = c"/tmp/play/swap";
const SWAP_PAGES: u32 = 4096;

/// Switches swap space on the machine's scratch disk on or off.
fn swap(on: bool) -> io::Result<()> {
    let path = SWAP.to_string_lossy();
    if on && fs::metadata(&*path).is_err() {
        // SAFETY: The arguments are strings, or null.
        unsafe {
            let (none, ext4) = (std::ptr::null(), c"ext4".as_ptr());
            libc::mkdir(FOLDER.as_ptr(), 0o700);
            libc::mount(DISK.as_ptr(), FOLDER.as_ptr(), ext4, 0, none);
        }
        // The first page has a header, which mkswap(8) would write.
        let mut file = vec![0; SWAP_PAGES as usize * 4096];
        file[1024..1028].copy_from_slice(&1u32.to_le_bytes());
        file[1028..1032].copy_from_slice(&(SWAP_PAGES - 1).to_le_bytes());
        file[4086..4096].copy_from_slice(b"SWAPSPACE2");
        fs::write(&*path, file)?;
        fs::File::open(&*path)?.sync_all()?;
    }
    // SAFETY: The path is a string.
    let result = unsafe {
        match on {
            true => libc::swapon(SWAP.as_ptr(), 0),
            false => libc::swapoff(SWAP.as_ptr()),
        }
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const CGROUP: &str = "/sys/fs/cgroup/pinmap-play";

/// Puts this process into the programs' cgroup.
pub(crate) fn join_cgroup() -> io::Result<()> {
    let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    let _ = fs::create_dir(CGROUP);
    fs::write(format!("{CGROUP}/cgroup.procs"), "0")
}

fn limit(bytes: u64) -> io::Result<()> {
    let text = match bytes {
        0 => "max".to_owned(),
        _ => bytes.to_string(),
    };
    fs::write(format!("{CGROUP}/memory.max"), text)
}
