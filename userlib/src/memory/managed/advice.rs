// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advice: what the program knows about how memory will be used.

use std::fmt;
use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::allocation::Place;
use crate::sys::{bindings as abi, ioctl};

use super::{pages_around, words};

/// Advice on how managed memory will be used, for [`Accelerator::advise`].
///
/// ```
/// use pinmap::accelerator::{Advice, Place};
/// let advice = Advice::new().prefer(Place::Host).read_mostly();
/// assert_eq!(advice.to_string(), "prefer the host, read mostly");
/// assert_eq!(Advice::new().to_string(), "none");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Advice {
    preferred: Option<Place>,
    accessed_by: bool,
    read_mostly: bool,
}

impl Advice {
    /// No advice.
    pub const fn new() -> Self {
        Self {
            preferred: None,
            accessed_by: false,
            read_mostly: false,
        }
    }

    /// Makes one of the two memories the preferred location.
    ///
    /// [`Place::Host`]: the memory stays there, and the device reaches it over the bus.
    /// [`Place::Vram`]: it goes to the device whenever the device touches it, however often it came
    /// back.
    #[must_use]
    pub const fn prefer(mut self, place: Place) -> Self {
        self.preferred = Some(place);
        self
    }

    /// Lets the device reach the memory where it is: a touch of the device does not move it. This
    /// has no effect where the device's memory is preferred.
    #[must_use]
    pub const fn accessed_by_device(mut self) -> Self {
        self.accessed_by = true;
        self
    }

    /// Says that both sides read the memory, and seldom write it: a read of the device does not
    /// move it. The kernel has no means to keep one page in two memories, so there is no second
    /// copy.
    #[must_use]
    pub const fn read_mostly(mut self) -> Self {
        self.read_mostly = true;
        self
    }

    /// The preferred location, if there is one.
    pub const fn preferred(&self) -> Option<Place> {
        self.preferred
    }

    /// Whether the device is to reach the memory where it is.
    pub const fn is_accessed_by_device(&self) -> bool {
        self.accessed_by
    }

    /// Whether both sides read the memory, and seldom write it.
    pub const fn is_read_mostly(&self) -> bool {
        self.read_mostly
    }

    fn to_abi(self) -> u32 {
        let preferred = match self.preferred {
            None => 0,
            Some(Place::Host) => abi::PINMAP_ADVICE_PREFER_HOST,
            Some(Place::Vram) => abi::PINMAP_ADVICE_PREFER_DEVICE,
        };
        let flag = |is, flag| if is { flag } else { 0 };
        preferred
            | flag(self.accessed_by, abi::PINMAP_ADVICE_ACCESSED_BY)
            | flag(self.read_mostly, abi::PINMAP_ADVICE_READ_MOSTLY)
    }

    pub(super) fn from_abi(advice: u32) -> Self {
        let is = |flag| advice & flag != 0;
        Self {
            preferred: if is(abi::PINMAP_ADVICE_PREFER_HOST) {
                Some(Place::Host)
            } else {
                is(abi::PINMAP_ADVICE_PREFER_DEVICE).then_some(Place::Vram)
            },
            accessed_by: is(abi::PINMAP_ADVICE_ACCESSED_BY),
            read_mostly: is(abi::PINMAP_ADVICE_READ_MOSTLY),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let preferred = self.preferred.map(|place| match place {
            Place::Host => "prefer the host",
            Place::Vram => "prefer the device",
        });
        let accessed_by = self.accessed_by.then_some("accessed by the device");
        let read_mostly = self.read_mostly.then_some("read mostly");
        let words = [preferred, accessed_by, read_mostly].into_iter().flatten();
        let words: Vec<_> = words.collect();
        f.write_str(match words.is_empty() {
            true => "none",
            false => return f.write_str(&words.join(", ")),
        })
    }
}

impl Accelerator {
    /// Advises how [managed](Self::manage) memory will be used. This replaces what was advised for
    /// the whole pages around `memory` before; [`Advice::new`] takes it back.
    ///
    /// This call moves nothing. The advice counts at the next fault of the device. Memory that the
    /// device has mapped already causes no fault: [`prefetch`](Self::prefetch) moves it, whatever
    /// is advised. The call takes as long for little memory as for much, and waits for no work.
    ///
    /// Advice belongs to the memory. It ends when the memory is unmapped, and when the context is
    /// closed. Memory that was touched keeps its advice when `mremap()` moves it.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Advice, Place};
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = pinmap_testgpu::find()?;
    /// let table = vec![0u32; 1 << 20];
    /// let _managed = gpu.manage_all()?;
    /// // Of this table the device needs little, so that moving it would cost more than it saves.
    /// gpu.advise(&table[..], Advice::new().prefer(Place::Host))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOENT`: some of it is not managed by this context; `EINVAL`: the range is empty, or
    /// outside of the program's addresses; `EOPNOTSUPP`: as for [`manage`](Self::manage); `EPERM`:
    /// another process opened the device; `ENOMEM`: out of memory; `ENODEV`: the device is gone;
    /// `EDEADLK`: this is a host function.
    pub fn advise<T>(&self, memory: *const [T], advice: Advice) -> Result<()> {
        let fail = |errno| {
            let attempt = format!("advise {} for {}", words(memory), self.device());
            Error::new(Operation::Advise, attempt, errno)
        };
        let (addr, len) = pages_around(memory).ok_or_else(|| fail(Errno::EINVAL))?;
        let mut args = abi::pinmap_advise {
            addr: addr as u64,
            length: len as u64,
            advice: advice.to_abi(),
            ..Default::default()
        };
        ioctl::advise(self.device().as_fd(), &mut args)
            .map_err(|errno| fail(errno).with_failure(Failure::from_abi(&args.fail)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_goes_to_the_driver_and_back() {
        let all = [
            (Advice::new(), 0, "none"),
            (Advice::new().prefer(Place::Host), 1, "prefer the host"),
            (Advice::new().prefer(Place::Vram), 2, "prefer the device"),
            (
                Advice::new().accessed_by_device(),
                4,
                "accessed by the device",
            ),
            (
                Advice::new().read_mostly().accessed_by_device(),
                12,
                "accessed by the device, read mostly",
            ),
        ];
        for (advice, number, words) in all {
            assert_eq!(advice.to_abi(), number);
            assert_eq!(Advice::from_abi(number), advice);
            assert_eq!(advice.to_string(), words);
        }
        let last = Advice::new().prefer(Place::Host).prefer(Place::Vram);
        assert_eq!(last.preferred(), Some(Place::Vram));
    }
}
