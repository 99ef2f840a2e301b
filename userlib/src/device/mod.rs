// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices: opening them, and what they are and do without memory of the program.
//!
//! A [`Device`] is an open file of the driver, a *context*: it has a device address space,
//! registrations and events of its own. Everything made from it keeps it open. This module knows
//! neither queues nor streams.

#[cfg(feature = "accelerator")]
pub(crate) mod accelerator;
pub(crate) mod bar;
#[cfg(feature = "accelerator")]
pub(crate) mod counters;
pub(crate) mod event;
pub(crate) mod extension;
pub(crate) mod info;
pub(crate) mod interrupt;
pub(crate) mod totals;
#[cfg(feature = "accelerator")]
pub(crate) mod walk;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use nix::errno::Errno;
use nix::libc::O_NONBLOCK;

use crate::error::hint;
use crate::error::{Error, Operation, Result};
use crate::sys::bindings as abi;
use crate::sys::ioctl;
use crate::sys::pci::PciAddress;
use crate::sys::sysfs::{DeviceNode, Sysfs};

use extension::Extension;
use info::{Info, Kind, Reserved};

/// An open device: a context of the driver, with a device address space, registrations and events
/// of its own.
///
/// A clone is the same context. Everything made from a device keeps it open: it is closed when the
/// last clone, [`Registration`](crate::Registration), [`Bar`](crate::Bar) and
/// [`Interrupt`](crate::Interrupt) is dropped.
///
/// A device without an MMU of its own ([`Kind::Flat`](crate::Kind::Flat)) has one owner: the first
/// context that maps memory or a BAR, takes an interrupt or resets the function owns the device
/// until that context is closed. In other contexts these calls fail with `EBUSY`.
///
/// The file ([`AsFd`]) can be polled: it is readable when there is an event, and reports a hang-up
/// when the device is gone. It is in non-blocking mode.
///
/// ```no_run
/// use pinmap::Device;
/// # fn main() -> pinmap::Result<()> {
/// let device = Device::open("/dev/pinmap0")?;
/// println!("{device}: {:?}", device.kind()?);
/// let same = device.clone();
/// drop(device); // closes nothing: `same` is the same context
/// let registers = same.bar(0)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Device(Arc<Context>);

struct Context {
    file: File,
    path: PathBuf,
    /// Vectors for which there is an `Interrupt`. A second one would replace its eventfd.
    vectors: Mutex<BTreeSet<u32>>,
    /// State that the streams of the context share.
    extension: Extension,
    id: ContextId,
    /// Memory that the queues of the context have lent to the device.
    lending: Extension,
    /// Memory of the program was lent or managed: see [`Device::note_lending`].
    lends: AtomicBool,
    /// DMA snoops the CPU's caches, once that was asked.
    coherent: OnceLock<bool>,
}

/// The identity of a context among all that this process opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextId(u64);

impl Context {
    fn new(file: File, path: PathBuf) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            file,
            path,
            vectors: Mutex::default(),
            extension: Extension::default(),
            id: ContextId(NEXT.fetch_add(1, Ordering::Relaxed)),
            lending: Extension::default(),
            lends: AtomicBool::new(false),
            coherent: OnceLock::new(),
        }
    }
}

impl Device {
    /// Opens a device by its node, such as `/dev/pinmap0`.
    ///
    /// ```no_run
    /// # fn main() -> pinmap::Result<()> {
    /// match pinmap::Device::open("/dev/pinmap0") {
    ///     Ok(device) => println!("{}", device.info()?.pci),
    ///     Err(error) => println!("{error}"), // which says what to do, if that is known
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOENT`: there is no such node; `EACCES`: this user may not open it; `ENOTTY`: the node
    /// does not belong to the driver; `ENODEV`, `ENXIO`: the device behind the node is gone.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let attempt = || format!("open {}", path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(O_NONBLOCK)
            .open(path)
            .map_err(|error| Error::from_io(Operation::Open, attempt(), &error))?;
        let device = Self(Arc::new(Context::new(file, path.into())));
        // A path can be that of any file; only the driver answers this.
        device
            .get_info()
            .map_err(|errno| Error::new(Operation::Open, attempt(), errno))?;
        #[cfg(feature = "accelerator")]
        crate::trace::recorder::opened(&device);
        Ok(device)
    }

    /// Opens the device of a PCI function, to which the driver must be bound.
    ///
    /// ```no_run
    /// # fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = pinmap::Device::open_pci("0000:00:10.0".parse()?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open); `ENOENT`: there is no such function; `ENODEV`: the driver is
    /// not bound to it.
    pub fn open_pci(pci: PciAddress) -> Result<Self> {
        let attempt = || format!("open the device of {pci}");
        match Sysfs::system().node_of(pci) {
            Ok(Some(path)) => Self::open(path),
            Ok(None) => Err(Error::new(Operation::Open, attempt(), Errno::ENODEV)
                .with_hint(hint::unbound(&Sysfs::system(), pci))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let cause = "there is no such PCI function";
                Err(
                    Error::refused(Operation::Open, attempt(), Errno::ENOENT, cause)
                        .with_hint("`lspci -D` shows those that there are"),
                )
            }
            Err(error) => Err(Error::from_io(Operation::Open, attempt(), &error)),
        }
    }

    /// Opens the first device with these PCI ids that this user may open.
    ///
    /// ```no_run
    /// let edu = pinmap::Device::find(0x1234, 0x11e8)?;
    /// # Ok::<(), pinmap::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: the driver is bound to none; otherwise the error of opening the first one that
    /// could not be opened.
    pub fn find(vendor: u16, device: u16) -> Result<Self> {
        let mut refused = None;
        for node in Self::list()?
            .into_iter()
            .filter(|node| node.id == (vendor, device))
        {
            match Self::open(&node.path) {
                Ok(device) => return Ok(device),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| {
            let attempt = format!("find a device {vendor:04x}:{device:04x}");
            let bind = format!("`lspci -Dd {vendor:04x}:{device:04x}` and `pinmap bind BDF`");
            let bound = "the driver is bound to no such function";
            let (cause, hint) = hint::none_found(&Sysfs::system(), bound, &bind);
            Error::refused(Operation::Find, attempt, Errno::ENODEV, cause).with_hint(hint)
        }))
    }

    /// Lists the devices that the driver is bound to, whether or not this user may open them. If
    /// there is none, the list is empty.
    ///
    /// ```no_run
    /// # fn main() -> pinmap::Result<()> {
    /// for node in pinmap::Device::list()? {
    ///     let (vendor, device) = node.id;
    ///     println!("{}: {vendor:04x}:{device:04x} at {}", node.path.display(), node.pci);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of reading sysfs.
    pub fn list() -> Result<Vec<DeviceNode>> {
        let found = Sysfs::system().devices();
        found.map_err(|error| Error::from_io(Operation::Find, "list the devices", &error))
    }

    /// The path by which the device was opened.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Asks for the properties of the device, its limits, and whether it is owned now. Needs no
    /// ownership, and works even when the device is gone.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// let info = device.info()?;
    /// println!("{}, {} interrupt vectors", info.pci, info.vectors);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EDEADLK`: this is a host function. There is no other.
    pub fn info(&self) -> Result<Info> {
        let info = self.get_info();
        let info = info
            .map_err(|errno| Error::new(Operation::Info, format!("ask what {self} is"), errno))?;
        Ok(Info::from_abi(&info))
    }

    /// Asks for the kind of the device.
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info).
    pub fn kind(&self) -> Result<Kind> {
        Ok(self.info()?.kind)
    }

    /// Where the streams of the context find what they share.
    pub(crate) fn extension(&self) -> &Extension {
        &self.0.extension
    }

    /// Where the queues of the context find what they have lent to the device.
    pub(crate) fn lending(&self) -> &Extension {
        &self.0.lending
    }

    /// Notes that queues of this context may reach memory to which there will be references. From
    /// now on, a queue that cannot be stopped ends the process.
    pub(crate) fn note_lending(&self) {
        self.0.lends.store(true, Ordering::SeqCst);
    }

    /// Whether queues of this context may reach memory to which there will be references.
    pub(crate) fn has_lent(&self) -> bool {
        self.0.lends.load(Ordering::SeqCst)
    }

    /// Whether DMA snoops the CPU's caches, so that nothing needs to be synchronised.
    pub(crate) fn is_coherent(&self) -> bool {
        if let Some(&coherent) = self.0.coherent.get() {
            return coherent;
        }
        match self.get_info() {
            Ok(info) => *self
                .0
                .coherent
                .get_or_init(|| Info::from_abi(&info).coherent),
            // In a host function nobody can be asked: what synchronises then fails, and says why.
            Err(Errno::EDEADLK) => false,
            // A device that cannot be asked is gone, and needs nothing.
            Err(_) => true,
        }
    }

    pub(crate) fn id(&self) -> ContextId {
        self.0.id
    }

    /// Whether both are the same context: clones of one another.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn get_info(&self) -> Result<abi::pinmap_info, Errno> {
        let mut args = abi::pinmap_info::default();
        ioctl::get_info(self.as_fd(), &mut args)?;
        Ok(args)
    }

    /// Lists the ranges of device addresses that no mapping can use, in ascending order.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// for range in device.reserved()? {
    ///     println!("{range:x?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn reserved(&self) -> Result<Vec<Reserved>> {
        let mut found = Vec::new();
        for index in 0.. {
            let mut args = abi::pinmap_reserved {
                index,
                ..Default::default()
            };
            match ioctl::get_reserved(self.as_fd(), &mut args) {
                Ok(()) => found.push(Reserved::from_abi(&args)),
                Err(Errno::ENOENT) => break,
                Err(errno) => {
                    let attempt = format!("ask for the reserved addresses of {self}");
                    return Err(Error::new(Operation::Info, attempt, errno));
                }
            }
        }
        Ok(found)
    }

    /// Resets the PCI function. Mappings and interrupts stay as they are. Makes this context the
    /// owner of the device.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// if device.info()?.can_reset {
    ///     device.reset()?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the function has no reset; `EAGAIN`: somebody else is binding, unbinding or
    /// resetting the function; `EBUSY`: another context owns the device; `ENODEV`: the device is
    /// gone.
    pub fn reset(&self) -> Result<()> {
        ioctl::reset(self.as_fd(), &mut abi::pinmap_reset::default())
            .map_err(|errno| Error::new(Operation::Reset, format!("reset {self}"), errno))
    }

    /// Says whether the system is to stay awake while this context has the device: suspending or
    /// hibernating it then fails, and the kernel's log names this program. Otherwise the system may
    /// sleep. An accelerator does not sleep by itself then either, as it does where the
    /// administrator allows it and nobody uses it. On a flat device this counts for its owner only.
    ///
    /// In a sleep, memory stays registered and mapped. An accelerator keeps what it has, and goes
    /// on with its work. A flat device loses the state of its registers, and its owner gets
    /// [`DeviceEvent::Resumed`](crate::DeviceEvent::Resumed).
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// device.stay_awake(true)?;
    /// // … what must not be interrupted …
    /// device.stay_awake(false)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EPERM`: the program lacks the capability `CAP_BLOCK_SUSPEND`; `ENODEV`: the device is gone.
    pub fn stay_awake(&self, on: bool) -> Result<()> {
        let mut args = abi::pinmap_stay_awake {
            flags: if on { abi::PINMAP_STAY_AWAKE_ON } else { 0 },
            ..Default::default()
        };
        ioctl::stay_awake(self.as_fd(), &mut args).map_err(|errno| {
            let what = if on {
                "keep the system awake"
            } else {
                "let the system sleep"
            };
            Error::new(Operation::StayAwake, format!("{what} for {self}"), errno)
        })
    }

    /// Attaches an eventfd to a source of the driver, or detaches the one that is attached.
    fn set_eventfd(
        &self,
        source: u32,
        index: u32,
        eventfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let fd = eventfd.map_or(-1, |fd| fd.as_raw_fd());
        let mut args = abi::pinmap_set_eventfd {
            source,
            index,
            fd,
            ..Default::default()
        };
        ioctl::set_eventfd(self.as_fd(), &mut args)
    }

    fn vectors(&self) -> &Mutex<BTreeSet<u32>> {
        &self.0.vectors
    }

    pub(crate) fn file(&self) -> &File {
        &self.0.file
    }

    /// A file that answers every ioctl with `ENOTTY`.
    #[cfg(test)]
    pub(crate) fn fake() -> Self {
        let path = PathBuf::from("/dev/null");
        let file = File::open(&path).expect("there is always /dev/null");
        Self(Arc::new(Context::new(file, path)))
    }

    /// A [fake](Self::fake) device that does not snoop the CPU's caches.
    #[cfg(test)]
    pub(crate) fn fake_without_snooping() -> Self {
        let device = Self::fake();
        device.0.coherent.set(false).expect("nobody has asked");
        device
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.file.as_raw_fd()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.path.display().fmt(f)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("path", &self.0.path)
            .field("file", &self.0.file)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_is_told_with_what_to_do() {
        let error = Device::open("/dev/pinmap-none").expect_err("no such node");
        assert_eq!(error.errno(), Errno::ENOENT as i32);
        assert!(
            error.hint().expect("a hint").contains("pinmap bind"),
            "{error}"
        );
    }

    #[test]
    fn another_file_is_not_a_device() {
        let error = Device::open("/dev/null").expect_err("no device");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
        assert!(
            error
                .to_string()
                .contains("/dev/null: it is not a pinmap device"),
            "{error}"
        );
    }

    /// Coherence that could not be asked for, in a host function, is asked for later.
    #[test]
    fn a_host_function_does_not_decide_about_coherence() {
        let device = Device::fake();
        assert!(!crate::sys::inside::run(|| device.is_coherent()));
        assert!(device.0.coherent.get().is_none());
        // This one cannot be asked at all.
        assert!(device.is_coherent());
    }

    #[test]
    fn a_missing_function_is_told() {
        let pci = PciAddress {
            domain: 0xffff_ffff,
            bus: 0,
            device: 0,
            function: 0,
        };
        let error = Device::open_pci(pci).expect_err("no such function");
        assert_eq!(error.errno(), Errno::ENOENT as i32);
        assert!(
            error.to_string().contains("no such PCI function"),
            "{error}"
        );
    }

    #[test]
    fn an_interrupt_that_cannot_be_had_is_not_taken() {
        let device = Device::fake();
        for _ in 0..2 {
            let error = device.interrupt(0).expect_err("no interrupts");
            assert_eq!(error.errno(), Errno::ENOTTY as i32);
        }
    }

    #[test]
    fn devices_can_be_shared_and_sent() {
        fn check<T: Send + Sync + Clone>() {}
        check::<Device>();
    }
}
