// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures: the details of the driver about memory that it could not register or map.

use std::fmt;

use crate::sys::bindings as abi;

/// The reason why memory could not be registered, mapped or allocated.
///
/// ```
/// use pinmap::{Failure, Reason};
///
/// // `Failure` is what `Error::failure` returns.
/// let failure = Failure { reason: Reason::Overlap, addr: 0x7000, needed: 0, allowed: 0 };
/// let text = failure.to_string();
/// assert_eq!(text, "it overlaps with the registration or mapping that starts at 0x7000");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Reason {
    /// Nothing is mapped at the address.
    Hole,
    /// The process itself lacks the demanded access to the memory at the address.
    Permission,
    /// The memory is a shared mapping of a file that cannot be pinned for writing.
    File,
    /// The memory comes from `memfd_secret()`.
    Secret,
    /// The memory is device memory, or a raw PFN mapping.
    Device,
    /// The page at the address is not available: it lies behind the end of its file, is a guard
    /// page, is poisoned, or its pager failed.
    Fault,
    /// `RLIMIT_MEMLOCK` would be exceeded. `needed` and `allowed` are bytes, including what the
    /// user has locked already.
    Memlock,
    /// The kernel is out of memory.
    Memory,
    /// A live registration or a mapping is in the way, which starts at the address.
    Overlap,
    /// The demanded device addresses are not all translated by the IOMMU or allowed by the address
    /// bits. `allowed` is the highest usable address.
    Aperture,
    /// The demanded device addresses touch a reserved range, which starts at the address.
    Reserved,
    /// No free range of device addresses, or of the device's memory, is large enough.
    Full,
    /// There would be too many registrations or mappings. `needed` and `allowed` count them.
    Objects,
    /// The memory at the address was unmapped or replaced while it was being registered.
    Stale,
    /// A [window](crate::accelerator::Window) is in the way, which starts at the address.
    Window,
    /// A reason that this crate does not know, by the driver's number.
    Other(u32),
}

/// The driver's details about memory that could not be registered, mapped or allocated.
///
/// Which of the numbers have a meaning depends on the [`Reason`].
///
/// ```no_run
/// use pinmap::{Access, Buffer, Reason};
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// let buffer = Buffer::<u8>::new(1 << 30)?;
/// if let Err(failed) = buffer.register(device, Access::Read) {
///     match failed.error.failure() {
///         Some(why) if why.reason == Reason::Memlock => println!("{} allowed", why.allowed),
///         _ => println!("{}", failed.error),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Failure {
    /// The reason.
    pub reason: Reason,
    /// The first user or device address for which it failed.
    pub addr: u64,
    /// How much would have been needed, in the unit that the reason says.
    pub needed: u64,
    /// How much is allowed, in the unit that the reason says.
    pub allowed: u64,
}

impl Failure {
    /// Decodes the details. `None` if the driver gave none.
    pub(crate) fn from_abi(fail: &abi::pinmap_fail) -> Option<Self> {
        let reason = match fail.reason {
            abi::PINMAP_FAIL_NONE => return None,
            abi::PINMAP_FAIL_HOLE => Reason::Hole,
            abi::PINMAP_FAIL_PERMISSION => Reason::Permission,
            abi::PINMAP_FAIL_FILE => Reason::File,
            abi::PINMAP_FAIL_SECRET => Reason::Secret,
            abi::PINMAP_FAIL_DEVICE => Reason::Device,
            abi::PINMAP_FAIL_FAULT => Reason::Fault,
            abi::PINMAP_FAIL_MEMLOCK => Reason::Memlock,
            abi::PINMAP_FAIL_MEMORY => Reason::Memory,
            abi::PINMAP_FAIL_OVERLAP => Reason::Overlap,
            abi::PINMAP_FAIL_APERTURE => Reason::Aperture,
            abi::PINMAP_FAIL_RESERVED => Reason::Reserved,
            abi::PINMAP_FAIL_FULL => Reason::Full,
            abi::PINMAP_FAIL_OBJECTS => Reason::Objects,
            abi::PINMAP_FAIL_STALE => Reason::Stale,
            abi::PINMAP_FAIL_WINDOW => Reason::Window,
            other => Reason::Other(other),
        };
        let &abi::pinmap_fail {
            addr,
            needed,
            allowed,
            ..
        } = fail;
        Some(Self {
            reason,
            addr,
            needed,
            allowed,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            addr,
            needed,
            allowed,
            ..
        } = *self;
        match self.reason {
            Reason::Hole => write!(f, "nothing is mapped at {addr:#x}"),
            Reason::Permission => {
                write!(
                    f,
                    "this process itself has no such access to the memory at {addr:#x}"
                )
            }
            Reason::File => {
                write!(
                    f,
                    "a shared mapping of a file at {addr:#x} cannot be pinned for writing"
                )
            }
            Reason::Secret => write!(f, "the memory at {addr:#x} is memfd_secret() memory"),
            Reason::Device => write!(f, "at {addr:#x} there is device memory"),
            Reason::Fault => {
                write!(
                    f,
                    "the page at {addr:#x} cannot be had: no part of its file, a guard, or an error"
                )
            }
            Reason::Memlock => write!(
                f,
                "that would make {needed} bytes locked by this user, and RLIMIT_MEMLOCK allows \
                 {allowed}"
            ),
            Reason::Memory => f.write_str("the kernel is out of memory"),
            Reason::Overlap => {
                write!(
                    f,
                    "it overlaps with the registration or mapping that starts at {addr:#x}"
                )
            }
            Reason::Aperture => {
                write!(f, "the highest address that can be used is {allowed:#x}")
            }
            Reason::Reserved => {
                write!(f, "the device addresses from {addr:#x} on are reserved")
            }
            Reason::Full => f.write_str("no free range of device addresses is large enough"),
            Reason::Objects => {
                write!(
                    f,
                    "that would make {needed} of them, and {allowed} are allowed"
                )
            }
            Reason::Stale => {
                write!(
                    f,
                    "the memory at {addr:#x} was unmapped or replaced meanwhile"
                )
            }
            Reason::Window => {
                write!(f, "it overlaps with the window that starts at {addr:#x}")
            }
            Reason::Other(number) => {
                write!(f, "reason {number} of a newer driver, at {addr:#x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reason: u32) -> Option<String> {
        let fail = abi::pinmap_fail {
            reason,
            addr: 0xabc000,
            needed: 12345,
            allowed: 6789,
            ..Default::default()
        };
        Failure::from_abi(&fail).map(|failure| failure.to_string())
    }

    #[test]
    fn no_reason_is_no_failure() {
        assert_eq!(text(abi::PINMAP_FAIL_NONE), None);
    }

    #[test]
    fn every_reason_has_its_own_text() {
        let texts: Vec<_> = (1..=16)
            .map(|reason| text(reason).expect("a reason"))
            .collect();
        for (i, one) in texts.iter().enumerate() {
            assert!(!texts[..i].contains(one), "{one}");
        }
        assert!(texts[15].contains("newer driver"));
    }

    #[test]
    fn the_numbers_that_matter_are_named() {
        let memlock = text(abi::PINMAP_FAIL_MEMLOCK).expect("a reason");
        assert!(
            memlock.contains("12345") && memlock.contains("6789"),
            "{memlock}"
        );
        for reason in [
            abi::PINMAP_FAIL_HOLE,
            abi::PINMAP_FAIL_OVERLAP,
            abi::PINMAP_FAIL_RESERVED,
        ] {
            let text = text(reason).expect("a reason");
            assert!(text.contains("0xabc000"), "{text}");
        }
    }
}
