// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver says about a range that it could not register or map.

use std::fmt;

use crate::sys;

/// Why a range could not be registered or mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing is mapped at the address.
    Hole,
    /// The process itself may not read, or not write, the memory at the address.
    Permission,
    /// A shared mapping of a file that cannot be pinned for writing.
    File,
    /// `memfd_secret()` memory.
    Secret,
    /// Device memory, or a raw PFN mapping.
    Device,
    /// The page at the address cannot be had: behind the end of its file, fenced by a guard,
    /// poisoned, or an error of its pager.
    Fault,
    /// Over `RLIMIT_MEMLOCK`; `needed` and `allowed` are bytes, with what the user has locked
    /// already.
    Memlock,
    /// The kernel is out of memory.
    Memory,
    /// A live registration or a mapping is in the way; it starts at the address.
    Overlap,
    /// The demanded device addresses lie outside of what the IOMMU translates or the address bits
    /// allow; `allowed` is the highest usable address.
    Aperture,
    /// The demanded device addresses touch a reserved range, which starts at the address.
    Reserved,
    /// No free range of device addresses is large enough.
    Full,
    /// Too many registrations or mappings; `needed` and `allowed` are numbers of them.
    Objects,
    /// The memory at the address was unmapped or replaced while it was being registered.
    Stale,
    /// A reason that a newer driver has, by its number.
    Other(u32),
}

/// What exactly could not be registered or mapped. Which of the numbers have a meaning depends on
/// the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Failure {
    /// Why.
    pub reason: Reason,
    /// The first user or device address for which it failed.
    pub addr: u64,
    /// What would have been needed.
    pub needed: u64,
    /// What is allowed.
    pub allowed: u64,
}

impl Failure {
    /// Nothing when the driver had nothing to add.
    pub(crate) fn from_abi(fail: &sys::pinmap_fail) -> Option<Self> {
        let reason = match fail.reason {
            sys::PINMAP_FAIL_NONE => return None,
            sys::PINMAP_FAIL_HOLE => Reason::Hole,
            sys::PINMAP_FAIL_PERMISSION => Reason::Permission,
            sys::PINMAP_FAIL_FILE => Reason::File,
            sys::PINMAP_FAIL_SECRET => Reason::Secret,
            sys::PINMAP_FAIL_DEVICE => Reason::Device,
            sys::PINMAP_FAIL_FAULT => Reason::Fault,
            sys::PINMAP_FAIL_MEMLOCK => Reason::Memlock,
            sys::PINMAP_FAIL_MEMORY => Reason::Memory,
            sys::PINMAP_FAIL_OVERLAP => Reason::Overlap,
            sys::PINMAP_FAIL_APERTURE => Reason::Aperture,
            sys::PINMAP_FAIL_RESERVED => Reason::Reserved,
            sys::PINMAP_FAIL_FULL => Reason::Full,
            sys::PINMAP_FAIL_OBJECTS => Reason::Objects,
            sys::PINMAP_FAIL_STALE => Reason::Stale,
            other => Reason::Other(other),
        };
        let &sys::pinmap_fail {
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
                write!(f, "this process itself has no such access to the memory at {addr:#x}")
            }
            Reason::File => {
                write!(f, "a shared mapping of a file at {addr:#x} cannot be pinned for writing")
            }
            Reason::Secret => write!(f, "the memory at {addr:#x} is memfd_secret() memory"),
            Reason::Device => write!(f, "at {addr:#x} there is device memory"),
            Reason::Fault => {
                write!(f, "the page at {addr:#x} cannot be had: no part of its file, a guard, or an error")
            }
            Reason::Memlock => write!(
                f,
                "that would make {needed} bytes locked by this user, and RLIMIT_MEMLOCK allows {allowed}"
            ),
            Reason::Memory => f.write_str("the kernel is out of memory"),
            Reason::Overlap => {
                write!(f, "it overlaps with the registration or mapping that starts at {addr:#x}")
            }
            Reason::Aperture => {
                write!(f, "the highest address that can be used is {allowed:#x}")
            }
            Reason::Reserved => {
                write!(f, "the device addresses from {addr:#x} on are reserved")
            }
            Reason::Full => f.write_str("no free range of device addresses is large enough"),
            Reason::Objects => {
                write!(f, "that would make {needed} of them, and {allowed} are allowed")
            }
            Reason::Stale => {
                write!(f, "the memory at {addr:#x} was unmapped or replaced meanwhile")
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
        let fail = sys::pinmap_fail {
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
        assert_eq!(text(sys::PINMAP_FAIL_NONE), None);
    }

    #[test]
    fn every_reason_has_its_own_text() {
        let texts: Vec<_> = (1..=15)
            .map(|reason| text(reason).expect("a reason"))
            .collect();
        for (i, one) in texts.iter().enumerate() {
            assert!(!texts[..i].contains(one), "{one}");
        }
        assert!(texts[14].contains("newer driver"));
    }

    #[test]
    fn the_numbers_that_matter_are_named() {
        let memlock = text(sys::PINMAP_FAIL_MEMLOCK).expect("a reason");
        assert!(
            memlock.contains("12345") && memlock.contains("6789"),
            "{memlock}"
        );
        for reason in [
            sys::PINMAP_FAIL_HOLE,
            sys::PINMAP_FAIL_OVERLAP,
            sys::PINMAP_FAIL_RESERVED,
        ] {
            let text = text(reason).expect("a reason");
            assert!(text.contains("0xabc000"), "{text}");
        }
    }
}
