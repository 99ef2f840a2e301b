// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of VFIO that the tests need, with plain ioctls: the type 1 IOMMU, BARs, MSI-X by
//! eventfd.

#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

const SET_IOMMU: libc::c_ulong = 0x3b66;
const GROUP_GET_STATUS: libc::c_ulong = 0x3b67;
const GROUP_SET_CONTAINER: libc::c_ulong = 0x3b68;
const GROUP_GET_DEVICE_FD: libc::c_ulong = 0x3b6a;
const DEVICE_GET_REGION_INFO: libc::c_ulong = 0x3b6c;
const DEVICE_GET_IRQ_INFO: libc::c_ulong = 0x3b6d;
const DEVICE_SET_IRQS: libc::c_ulong = 0x3b6e;
const DEVICE_RESET: libc::c_ulong = 0x3b6f;
const IOMMU_MAP_DMA: libc::c_ulong = 0x3b71;
const IOMMU_UNMAP_DMA: libc::c_ulong = 0x3b72;

const TYPE1V2: libc::c_ulong = 3;
const CONFIG_REGION: u32 = 7;
const MSIX_INDEX: u32 = 2;
const IRQ_EVENTFD_TRIGGER: u32 = 4 | 32;
const VECTORS: usize = 6;

/// Makes an ioctl with a structure of 32-bit words, which the kernel may change.
fn call(file: &impl AsRawFd, number: libc::c_ulong, words: &mut [u32]) -> io::Result<i32> {
    let bytes = 4 * words.len() as u32;
    if let Some(size) = words.first_mut() {
        *size = bytes;
        return checked(|| {
            let argument: *mut u32 = words.as_mut_ptr();
            // SAFETY: VFIO's structures begin with their size and are not touched beyond it; that
            // many bytes are there.
            unsafe { libc::ioctl(file.as_raw_fd(), number, argument) }
        });
    }
    // SAFETY: an ioctl without an argument.
    checked(|| unsafe { libc::ioctl(file.as_raw_fd(), number, 0) })
}

fn checked(call: impl FnOnce() -> i32) -> io::Result<i32> {
    match call() {
        result if result < 0 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Mapped memory that a device or another process may change at any time.
#[derive(Debug)]
pub(crate) struct Window {
    base: NonNull<u8>,
    size: usize,
}

impl Window {
    fn map(size: usize, flags: libc::c_int, file: RawFd, offset: i64) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel wants it touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, file, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, size })
    }

    /// Makes anonymous memory.
    pub(crate) fn memory(size: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::map(size, flags, -1, 0)
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn size(&self) -> u64 {
        self.size as u64
    }

    fn place<T>(&self, offset: u64) -> *mut T {
        let offset = offset as usize;
        let end = offset.checked_add(size_of::<T>());
        assert!(
            end.is_some_and(|end| end <= self.size),
            "{offset:#x} is outside"
        );
        // SAFETY: inside the mapping by the check.
        unsafe { self.base.as_ptr().add(offset).cast() }
    }

    /// Reads `T` in one access, at a multiple of its size unless a test wants otherwise.
    pub(crate) fn read<T: Copy>(&self, offset: u64) -> T {
        let place = self.place::<T>(offset);
        assert!(place.is_aligned());
        // SAFETY: mapped and aligned; T is a number, which any bytes are.
        unsafe { place.read_volatile() }
    }

    /// Writes `T` in one access.
    pub(crate) fn write<T: Copy>(&self, offset: u64, value: T) {
        let place = self.place::<T>(offset);
        assert!(place.is_aligned());
        // SAFETY: mapped and aligned, and nobody holds references into it.
        unsafe { place.write_volatile(value) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped by map() with this size; no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// A function that was given to vfio-pci. Dropping the value gives the function back to its driver.
#[derive(Debug)]
pub(crate) struct Taken {
    sysfs: PathBuf,
    driver: String,
}

impl Taken {
    pub(crate) fn new(sysfs: &Path) -> io::Result<Self> {
        let driver = fs::read_link(sysfs.join("driver")).unwrap_or_default();
        let driver = driver.file_name().unwrap_or_default();
        let taken = Self {
            sysfs: sysfs.to_owned(),
            driver: driver.to_string_lossy().into_owned(),
        };
        taken.give("vfio-pci")?;
        Ok(taken)
    }

    /// Gives the function to a driver; to none with "".
    fn give(&self, driver: &str) -> io::Result<()> {
        let name = self.sysfs.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        fs::write(self.sysfs.join("driver_override"), format!("{driver}\n"))?;
        let unbind = self.sysfs.join("driver/unbind");
        if unbind.exists() {
            fs::write(unbind, &name)?;
        }
        if driver.is_empty() {
            return Ok(());
        }
        fs::write("/sys/bus/pci/drivers_probe", &name)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Err(error) = self.give(&self.driver) {
            say(format_args!("not given back to {}: {error}", self.driver));
        }
    }
}

/// A function that is bound to vfio-pci, with an IOMMU address space of its own.
#[derive(Debug)]
pub(crate) struct Function {
    device: File,
    container: File,
    _group: File,
}

impl Function {
    /// Opens a function that is bound to vfio-pci.
    pub(crate) fn open(sysfs: &Path) -> io::Result<Self> {
        let name = sysfs
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let group = fs::read_link(sysfs.join("iommu_group"))?;
        let node = Path::new("/dev/vfio").join(group.file_name().unwrap_or_default());
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let group = open(&node)?;
        let container = open(Path::new("/dev/vfio/vfio"))?;
        let mut status = [0; 2];
        call(&group, GROUP_GET_STATUS, &mut status)?;
        if status[1] & 1 == 0 {
            return Err(io::Error::other("the IOMMU group is not viable"));
        }
        let mut descriptor = container.as_raw_fd();
        let pointer: *mut RawFd = &mut descriptor;
        // SAFETY: takes a pointer to a descriptor.
        checked(|| unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, pointer) })?;
        // SAFETY: takes a number.
        checked(|| unsafe { libc::ioctl(container.as_raw_fd(), SET_IOMMU, TYPE1V2) })?;
        let name = std::ffi::CString::new(name)?;
        // SAFETY: takes a string that ends with a zero.
        let device = checked(|| unsafe {
            libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr())
        })?;
        // SAFETY: a new descriptor, and nobody else's.
        let device = unsafe { File::from_raw_fd(device) };
        Ok(Self {
            device,
            container,
            _group: group,
        })
    }

    fn region(&self, index: u32) -> io::Result<(u64, u64)> {
        let mut info = [0, 0, index, 0, 0, 0, 0, 0];
        call(&self.device, DEVICE_GET_REGION_INFO, &mut info)?;
        let wide = |low: usize| u64::from(info[low]) | (u64::from(info[low + 1]) << 32);
        Ok((wide(4), wide(6)))
    }

    pub(crate) fn bar_size(&self, index: u32) -> io::Result<u64> {
        Ok(self.region(index)?.0)
    }

    pub(crate) fn bar(&self, index: u32) -> io::Result<Window> {
        let (size, offset) = self.region(index)?;
        Window::map(
            size as usize,
            libc::MAP_SHARED,
            self.device.as_raw_fd(),
            offset as i64,
        )
    }

    /// Reads BAR 0 through the kernel, which allows any size and alignment.
    pub(crate) fn read_bar0(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let (_, offset) = self.region(0)?;
        self.device.read_exact_at(to, offset + at)
    }

    pub(crate) fn config(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let (_, offset) = self.region(CONFIG_REGION)?;
        self.device.read_exact_at(to, offset + at)
    }

    /// Turns Bus Master on or off, and turns memory space on.
    pub(crate) fn set_master(&self, on: bool) -> io::Result<()> {
        let (_, offset) = self.region(CONFIG_REGION)?;
        let command: u16 = if on { 6 } else { 2 };
        self.device.write_all_at(&command.to_le_bytes(), offset + 4)
    }

    pub(crate) fn reset(&self) -> io::Result<()> {
        call(&self.device, DEVICE_RESET, &mut []).map(drop)
    }

    pub(crate) fn map(&self, memory: &Window, iova: u64, writable: bool) -> io::Result<()> {
        let flags = if writable { 3 } else { 1 };
        let [vl, vh] = halves(memory.address());
        let [il, ih] = halves(iova);
        let [sl, sh] = halves(memory.size());
        call(
            &self.container,
            IOMMU_MAP_DMA,
            &mut [0, flags, vl, vh, il, ih, sl, sh],
        )
        .map(drop)
    }

    pub(crate) fn unmap(&self, iova: u64, size: u64) -> io::Result<()> {
        let [il, ih] = halves(iova);
        let [sl, sh] = halves(size);
        call(
            &self.container,
            IOMMU_UNMAP_DMA,
            &mut [0, 0, il, ih, sl, sh],
        )
        .map(drop)
    }

    pub(crate) fn vectors(&self) -> io::Result<u32> {
        let mut info = [0, 0, MSIX_INDEX, 0];
        call(&self.device, DEVICE_GET_IRQ_INFO, &mut info)?;
        Ok(info[3])
    }

    /// Makes eventfds for the vectors that the device uses.
    pub(crate) fn enable_vectors(&self) -> io::Result<Vec<Vector>> {
        let mut vectors = Vec::new();
        let mut set = vec![0, IRQ_EVENTFD_TRIGGER, MSIX_INDEX, 0, VECTORS as u32];
        for _ in 0..VECTORS {
            let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
            // SAFETY: takes numbers.
            let eventfd = checked(|| unsafe { libc::eventfd(0, flags) })?;
            set.push(eventfd as u32);
            // SAFETY: a new descriptor, and nobody else's.
            vectors.push(Vector(File::from(unsafe { OwnedFd::from_raw_fd(eventfd) })));
        }
        call(&self.device, DEVICE_SET_IRQS, &mut set)?;
        Ok(vectors)
    }
}

/// An interrupt vector's eventfd.
#[derive(Debug)]
pub(crate) struct Vector(File);

impl Vector {
    /// Returns how often the vector was raised since the last call.
    pub(crate) fn count(&self) -> u64 {
        let mut count = [0; 8];
        match (&self.0).read(&mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// Waits for the vector for at most so many milliseconds.
    pub(crate) fn wait(&self, milliseconds: i32) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: points to one pollfd.
        unsafe { libc::poll(&mut poll, 1, milliseconds) == 1 && self.count() > 0 }
    }
}

/// Returns the functions with this vendor and device id.
pub(crate) fn find(vendor: &str, device: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let path = entry?.path();
        let is = |name: &str, value: &str| {
            fs::read_to_string(path.join(name)).is_ok_and(|text| text.trim() == value)
        };
        if is("vendor", vendor) && is("device", device) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Prints at once, even into a pipe.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    // An error means that nobody reads the output, and that is no failure of the test.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
