// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of registrations and mappings.

use nix::errno::Errno;

use crate::sys::bindings as abi;

/// The access that a device has to memory. The IOMMU enforces it.
///
/// ```no_run
/// use pinmap::{Access, Buffer};
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// // The IOMMU stops a write of the device to this memory.
/// let input = Buffer::<u8>::new(4096)?.register(device, Access::Read)?;
/// let output = Buffer::<u8>::new(4096)?.register(device, Access::ReadWrite)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Access {
    /// The device may read the memory.
    Read,
    /// The device may read and write the memory.
    ReadWrite,
}

impl Access {
    pub(crate) fn from_flags(flags: u32) -> Self {
        if flags & abi::PINMAP_REGISTER_WRITE != 0 {
            Self::ReadWrite
        } else {
            Self::Read
        }
    }
}

/// The device address of a registration or a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    /// The user address if possible, otherwise one that the driver chooses.
    Preferred,
    /// Exactly this device address.
    Fixed(u64),
    /// Exactly the user address.
    Identity,
    /// No device address: the memory is only pinned.
    Unmapped,
}

/// Options of a registration, or of one more [mapping](crate::Registration::map) of it: the access
/// of the device, and the device address.
///
/// Functions that take these options also take an [`Access`] alone.
///
/// ```no_run
/// use pinmap::{Access, Buffer, RegisterOptions};
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// // The DMA engine drives 32 address bits, so the address is perhaps not the pointer.
/// let options = RegisterOptions::new(Access::ReadWrite).address_bits(32);
/// let memory = Buffer::<u8>::new(4096)?.register(device, options)?;
/// assert!(memory.device_addr()? < 1 << 32);
/// // A second view of the memory, which the device can only read.
/// let view = memory.map(RegisterOptions::new(Access::Read).at(0x4000_0000))?;
/// assert_eq!(view.device_addr(), 0x4000_0000);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterOptions {
    access: Access,
    placement: Placement,
    address_bits: u32,
    round_outwards: bool,
    interruptible: bool,
    portable: bool,
}

impl RegisterOptions {
    /// Options for this access, at the user address if that is free, and otherwise at a device
    /// address that the driver chooses.
    pub fn new(access: Access) -> Self {
        Self {
            access,
            placement: Placement::Preferred,
            address_bits: 0,
            round_outwards: false,
            interruptible: false,
            portable: false,
        }
    }

    /// Demands this device address, which must be a multiple of the page size, for the page in
    /// which the memory begins.
    ///
    /// ```no_run
    /// use pinmap::{Access, Buffer, RegisterOptions};
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// // Firmware of the device expects its mailbox there.
    /// let options = RegisterOptions::new(Access::ReadWrite).at(0x10_0000);
    /// let mailbox = Buffer::<u8>::new(4096)?.register(device, options)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn at(mut self, device_addr: u64) -> Self {
        self.placement = Placement::Fixed(device_addr);
        self
    }

    /// Demands that the device address equals the user address.
    ///
    /// ```no_run
    /// use pinmap::{Access, Buffer, RegisterOptions};
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// let options = RegisterOptions::new(Access::Read).identity();
    /// let memory = Buffer::<u8>::new(4096)?.register(device, options)?;
    /// assert_eq!(memory.device_addr()?, memory.addr() as u64);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn identity(mut self) -> Self {
        self.placement = Placement::Identity;
        self
    }

    /// Pins the memory without mapping it. [`Registration::map`](crate::Registration::map) can map
    /// it later. This does not make the context the owner of the device.
    ///
    /// ```no_run
    /// use pinmap::{Access, Buffer, RegisterOptions};
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// let options = RegisterOptions::new(Access::ReadWrite).unmapped();
    /// let pinned = Buffer::<u8>::new(1 << 20)?.register(device, options)?; // takes the time
    /// let mapping = pinned.map(Access::Read)?; // is quick
    /// println!("{:#x}", mapping.device_addr());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn unmapped(mut self) -> Self {
        self.placement = Placement::Unmapped;
        self
    }

    /// Sets how many address bits the device has, from 12 to 64. It is given no device address that
    /// has more.
    #[must_use]
    pub fn address_bits(mut self, bits: u32) -> Self {
        self.address_bits = bits;
        self
    }

    /// Registers the whole pages around memory that does not begin or end at a page boundary.
    /// Without this option such memory is refused, because the device reaches whole pages. It
    /// matters only for [`Device::register_raw`](crate::Device::register_raw): a
    /// [`Buffer`](crate::Buffer) is whole pages, and [`Device::register`](crate::Device::register)
    /// always does so.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device, memory: *mut u8) -> pinmap::Result<()> {
    /// use pinmap::{Access, RegisterOptions};
    ///
    /// let options = RegisterOptions::new(Access::Read).round_outwards();
    /// // SAFETY: Nobody writes to the pages of these 100 bytes, or frees them, before the
    /// // registration is dropped.
    /// let registration = unsafe { device.register_raw(memory, 100, options)? };
    /// assert_eq!(registration.device_addr()? % 4096, memory.addr() as u64 % 4096);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn round_outwards(mut self) -> Self {
        self.round_outwards = true;
        self
    }

    /// Maps the memory for every device that the process has open or opens later, with one pin and
    /// one charge. If one of the open devices cannot map it, registering fails; if a later one
    /// cannot, opening that device fails. Releasing the registration removes all mappings.
    ///
    /// Each [device](crate::Device) finds the memory by its user address
    /// ([`Device::query`](crate::Device::query)), which tells the device address, too. The device
    /// addresses are the same if the IOMMUs allow that; those of a part of a file are always the
    /// same, or registering fails.
    ///
    /// ```no_run
    /// use pinmap::{Access, Buffer, Device, RegisterOptions};
    /// # fn f(first: &Device, second: &Device) -> pinmap::Result<()> {
    /// let options = RegisterOptions::new(Access::ReadWrite).portable();
    /// let memory = Buffer::<u8>::new(1 << 20)?.register(first, options)?;
    /// let there = second.query(memory.addr())?.expect("it is portable");
    /// println!("the second device finds it at {:x?}", there.device_addr);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    /// Lets every signal that the process handles cancel registering (`EINTR`), not only fatal
    /// ones. The driver checks for signals every few megabytes.
    #[must_use]
    pub fn interruptible(mut self) -> Self {
        self.interruptible = true;
        self
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn rounds_outwards(&self) -> bool {
        self.round_outwards
    }

    pub(crate) fn to_abi(self, addr: u64, length: u64) -> abi::pinmap_register {
        let mut flags = match self.access {
            Access::Read => 0,
            Access::ReadWrite => abi::PINMAP_REGISTER_WRITE,
        };
        if self.portable {
            flags |= abi::PINMAP_REGISTER_PORTABLE;
        }
        if self.interruptible {
            flags |= abi::PINMAP_REGISTER_INTERRUPTIBLE;
        }
        let mut device_addr = 0;
        match self.placement {
            Placement::Preferred => {}
            Placement::Fixed(addr) => {
                flags |= abi::PINMAP_REGISTER_FIXED;
                device_addr = addr;
            }
            Placement::Identity => flags |= abi::PINMAP_REGISTER_IDENTITY,
            Placement::Unmapped => flags |= abi::PINMAP_REGISTER_NO_MAP,
        }
        let address_bits = self.address_bits;
        abi::pinmap_register {
            flags,
            addr,
            length,
            device_addr,
            address_bits,
            ..Default::default()
        }
    }

    /// The options of memory that lies so many bytes behind the first of several pieces: a device
    /// address that is demanded is that of the first.
    pub(crate) fn behind(mut self, bytes: u64) -> Self {
        if let Placement::Fixed(first) = self.placement {
            // Behind all addresses there is none that the driver would take.
            self.placement = Placement::Fixed(first.saturating_add(bytes));
        }
        self
    }

    /// The options as arguments of the ioctl for several pieces of memory.
    pub(crate) fn to_abi_buffers(self) -> abi::pinmap_register_buffers {
        let args = self.to_abi(0, 0);
        abi::pinmap_register_buffers {
            flags: args.flags,
            address_bits: args.address_bits,
            ..Default::default()
        }
    }

    /// The options as arguments of the ioctl for a part of a file.
    pub(crate) fn to_abi_fd(self, fd: i32, offset: u64, length: u64) -> abi::pinmap_register_fd {
        let args = self.to_abi(offset, length);
        abi::pinmap_register_fd {
            flags: args.flags,
            fd,
            address_bits: args.address_bits,
            offset,
            length,
            device_addr: args.device_addr,
            ..Default::default()
        }
    }

    /// The options as arguments of the ioctl that only asks.
    pub(crate) fn to_abi_preflight(self, addr: u64, length: u64) -> abi::pinmap_preflight {
        let args = self.to_abi(addr, length);
        abi::pinmap_preflight {
            flags: args.flags,
            addr,
            length,
            device_addr: args.device_addr,
            address_bits: args.address_bits,
            ..Default::default()
        }
    }

    /// The options as arguments of the ioctl that maps a registration, of which the first page is
    /// at this user address. Says why if they are not for mappings.
    pub(crate) fn to_abi_map(
        self,
        handle: u64,
        page: usize,
    ) -> Result<abi::pinmap_map, (Errno, &'static str)> {
        let (fixed, device_addr) = match self.placement {
            _ if self.portable => return Err((Errno::EINVAL, "only a registration is portable")),
            _ if self.interruptible || self.round_outwards => {
                return Err((
                    Errno::EINVAL,
                    "only registering is interrupted, or rounds outwards",
                ));
            }
            Placement::Preferred => (0, 0),
            Placement::Fixed(addr) => (abi::PINMAP_MAP_FIXED, addr),
            Placement::Identity if page == 0 => {
                return Err((Errno::EOPNOTSUPP, "the file has no user address"));
            }
            Placement::Identity => (abi::PINMAP_MAP_FIXED, page as u64),
            Placement::Unmapped => return Err((Errno::EINVAL, "only a registration is unmapped")),
        };
        let write = match self.access {
            Access::Read => 0,
            Access::ReadWrite => abi::PINMAP_MAP_WRITE,
        };
        Ok(abi::pinmap_map {
            flags: write | fixed,
            handle,
            device_addr,
            address_bits: self.address_bits,
            ..Default::default()
        })
    }

    /// Whether registering maps the memory.
    pub(crate) fn maps(&self) -> bool {
        self.placement != Placement::Unmapped
    }
}

impl From<Access> for RegisterOptions {
    fn from(access: Access) -> Self {
        Self::new(access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(options: impl Into<RegisterOptions>) -> (u32, u64, u32) {
        let abi = options.into().to_abi(0x1000, 0x2000);
        assert_eq!((abi.addr, abi.length), (0x1000, 0x2000));
        (abi.flags, abi.device_addr, abi.address_bits)
    }

    #[test]
    fn registering_options_become_flags() {
        use abi::*;
        let write = PINMAP_REGISTER_WRITE;
        let options = RegisterOptions::new(Access::ReadWrite);
        assert_eq!(register(Access::Read), (0, 0, 0));
        assert_eq!(register(Access::ReadWrite), (write, 0, 0));
        assert_eq!(
            register(options.at(0x5000)),
            (write | PINMAP_REGISTER_FIXED, 0x5000, 0)
        );
        assert_eq!(
            register(options.identity()),
            (write | PINMAP_REGISTER_IDENTITY, 0, 0)
        );
        assert_eq!(
            register(options.unmapped()),
            (write | PINMAP_REGISTER_NO_MAP, 0, 0)
        );
        assert_eq!(register(options.address_bits(28)), (write, 0, 28));
        assert_eq!(
            register(options.portable()),
            (write | PINMAP_REGISTER_PORTABLE, 0, 0)
        );
        assert_eq!(
            register(options.interruptible()),
            (write | PINMAP_REGISTER_INTERRUPTIBLE, 0, 0)
        );
    }

    #[test]
    fn the_same_options_go_with_files_and_preflights() {
        let options = RegisterOptions::new(Access::ReadWrite)
            .at(0x5000)
            .address_bits(40);
        let fd = options.to_abi_fd(3, 0x1000, 0x2000);
        let flags = abi::PINMAP_REGISTER_WRITE | abi::PINMAP_REGISTER_FIXED;
        assert_eq!((fd.flags, fd.fd, fd.address_bits), (flags, 3, 40));
        assert_eq!(
            (fd.offset, fd.length, fd.device_addr),
            (0x1000, 0x2000, 0x5000)
        );
        let asked = options.to_abi_preflight(0x1000, 0x2000);
        assert_eq!(
            (asked.flags, asked.addr, asked.length),
            (flags, 0x1000, 0x2000)
        );
        assert_eq!((asked.device_addr, asked.address_bits), (0x5000, 40));
    }

    #[test]
    fn several_pieces_follow_one_another() {
        let options = RegisterOptions::new(Access::ReadWrite)
            .at(0x5000)
            .address_bits(40);
        let flags = abi::PINMAP_REGISTER_WRITE | abi::PINMAP_REGISTER_FIXED;
        assert_eq!(register(options.behind(0x3000)), (flags, 0x8000, 40));
        let last = RegisterOptions::new(Access::Read).at(u64::MAX - 0xfff);
        let (_, addr, _) = register(last.behind(0x2000));
        assert_eq!(addr, u64::MAX, "no page begins there");
        let buffers = options.to_abi_buffers();
        assert_eq!((buffers.flags, buffers.address_bits), (flags, 40));
        assert_eq!(register(Access::Read), {
            register(RegisterOptions::new(Access::Read).behind(0x3000))
        });
    }

    #[test]
    fn the_last_placement_counts() {
        let options = RegisterOptions::new(Access::Read).at(0x5000).identity();
        assert_eq!(register(options), (abi::PINMAP_REGISTER_IDENTITY, 0, 0));
        assert!(options.maps() && !options.unmapped().maps());
    }

    #[test]
    fn mapping_options_become_flags() {
        let map = |options: RegisterOptions| options.to_abi_map(9, 0x1000);
        let options = RegisterOptions::new(Access::ReadWrite);
        let abi = map(options.at(0).address_bits(32)).expect("a mapping");
        assert_eq!(abi.flags, abi::PINMAP_MAP_WRITE | abi::PINMAP_MAP_FIXED);
        assert_eq!((abi.handle, abi.device_addr, abi.address_bits), (9, 0, 32));
        let abi = map(options.identity()).expect("a mapping");
        assert_eq!(
            (abi.flags & abi::PINMAP_MAP_FIXED, abi.device_addr),
            (2, 0x1000)
        );
        assert_eq!(map(Access::Read.into()).expect("a mapping").flags, 0);
        for refused in [options.portable(), options.unmapped()] {
            assert_eq!(map(refused).expect_err("not for mappings").0, Errno::EINVAL);
        }
        let file = options.identity().to_abi_map(9, 0);
        assert_eq!(file.expect_err("no address").0, Errno::EOPNOTSUPP);
    }
}
