// SPDX-License-Identifier: MIT OR Apache-2.0
//! Residency: where managed memory is, and which rule put it there.

use std::fmt;
use std::os::fd::AsFd;
use std::str::FromStr;

use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::allocation::Place;
use crate::memory::options::Access;
use crate::sys::{bindings as abi, ioctl};

use super::advice::Advice;
use super::{pages_around, words};

/// How many runs one call asks for.
const RUNS: usize = 512;

/// Where managed memory is. Returned by [`Accelerator::residency`].
///
/// ```no_run
/// # fn f(numbers: &pinmap::accelerator::Managed<f32>) -> pinmap::Result<()> {
/// let residency = numbers.residency()?;
/// println!("{} bytes are on the device", residency.sums.device);
/// for run in &residency.runs {
///     println!("{:#x}: {} bytes, {:?}", run.addr, run.len, run.place);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Residency {
    /// The memory in runs, by rising addresses, without holes and overlaps.
    pub runs: Vec<Run>,
    /// How much of it is where.
    pub sums: ResidencySums,
}

/// How much of managed memory is where, in bytes. Returned by [`Accelerator::residency_sums`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ResidencySums {
    /// Bytes of pages that do not exist yet, are swapped out, or are on another device; and of
    /// addresses where nothing is mapped.
    pub absent: u64,
    /// Bytes in the host's memory.
    pub host: u64,
    /// Bytes in the device's memory.
    pub device: u64,
}

/// Neighbouring pages of managed memory that are alike.
///
/// ```no_run
/// # fn f(numbers: &pinmap::accelerator::Managed<f32>) -> pinmap::Result<()> {
/// use pinmap::accelerator::Place;
/// use pinmap::inspect::Rule;
///
/// // What was evicted, and has not come back?
/// for run in numbers.residency()?.runs {
///     if run.place == Some(Place::Host) && run.rule == Rule::Evicted {
///         println!("{} bytes at {:#x}", run.len, run.addr);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Run {
    /// Address of the first page.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
    /// Where the pages are. `None`: they do not exist yet, are swapped out or on another device, or
    /// nothing is mapped there.
    pub place: Option<Place>,
    /// The accesses that the device can make without a fault. `None`: none.
    pub access: Option<Access>,
    /// Advice of the program.
    pub advice: Advice,
    /// The rule that put the pages where they are.
    pub rule: Rule,
}

/// The rule by which memory is where it is.
///
/// When the device touches memory, these are tried in this order: [`Fixed`](Self::Fixed),
/// [`Atomic`](Self::Atomic), [`Advised`](Self::Advised), [`Crowded`](Self::Crowded),
/// [`Thrashing`](Self::Thrashing), [`NoRoom`](Self::NoRoom), [`Preferred`](Self::Preferred),
/// [`Touched`](Self::Touched). The text of a rule ([`Display`](fmt::Display)) is half a sentence.
///
/// ```
/// use pinmap::inspect::Rule;
///
/// let rule: Rule = "no_room".parse()?;
/// assert_eq!(rule, Rule::NoRoom);
/// assert_eq!(
///     rule.to_string(),
///     "it stays on the host because there was no room in the device's memory"
/// );
/// # Result::<(), pinmap::inspect::ParseRuleError>::Ok(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Rule {
    /// Nothing was decided: neither the device nor a call has asked for it yet.
    None,
    /// The memory cannot move: it is not private anonymous memory, or it is locked, mergeable,
    /// pinned, shared since `fork()`, or in use at that moment.
    Fixed,
    /// The memory stays on the host by advice.
    Advised,
    /// The memory stays on the host because CPU and device, or two devices, have taken it from each
    /// other again and again.
    Thrashing,
    /// The memory stays on the host because there was no room in the device's memory.
    NoRoom,
    /// The device has touched it, and the device's memory is its preferred location.
    Preferred,
    /// The device has touched it, and no other rule applied.
    Touched,
    /// [`Accelerator::prefetch`] has moved it.
    Prefetched,
    /// The CPU or another device has touched it, or somebody has pinned it.
    Home,
    /// The memory had to make room for other memory.
    Evicted,
    /// The memory stays on the host because it had to make room again and again.
    Crowded,
    /// The device has accessed it atomically, which it does only where the CPU cannot come between.
    Atomic,
    /// A rule that this crate does not know, by the driver's number.
    Other(u32),
}

impl Rule {
    /// All rules that have names.
    const ALL: [(Self, u32, &'static str, &'static str); 12] = [
        (
            Self::None,
            abi::PINMAP_RULE_NONE,
            "none",
            "neither the device nor a call has asked for it yet",
        ),
        (
            Self::Fixed,
            abi::PINMAP_RULE_FIXED,
            "fixed",
            "it cannot move: it is no private anonymous memory, locked, mergeable, pinned, shared \
             since fork(), or was in use",
        ),
        (
            Self::Advised,
            abi::PINMAP_RULE_ADVISED,
            "advised",
            "it stays on the host by advice",
        ),
        (
            Self::Thrashing,
            abi::PINMAP_RULE_THRASHING,
            "thrashing",
            "it stays on the host because CPU and device have taken it from each other again and \
             again",
        ),
        (
            Self::NoRoom,
            abi::PINMAP_RULE_NO_ROOM,
            "no_room",
            "it stays on the host because there was no room in the device's memory",
        ),
        (
            Self::Preferred,
            abi::PINMAP_RULE_PREFERRED,
            "preferred",
            "the device has touched it, and the device's memory is its preferred location",
        ),
        (
            Self::Touched,
            abi::PINMAP_RULE_TOUCHED,
            "touched",
            "the device has touched it, and nothing spoke against its moving there",
        ),
        (
            Self::Prefetched,
            abi::PINMAP_RULE_PREFETCHED,
            "prefetched",
            "the program has had it moved there",
        ),
        (
            Self::Home,
            abi::PINMAP_RULE_HOME,
            "home",
            "the CPU has touched it, or somebody has pinned it",
        ),
        (
            Self::Evicted,
            abi::PINMAP_RULE_EVICTED,
            "evicted",
            "it had to make room for other memory",
        ),
        (
            Self::Crowded,
            abi::PINMAP_RULE_CROWDED,
            "crowded",
            "it stays on the host because it had to make room again and again",
        ),
        (
            Self::Atomic,
            abi::PINMAP_RULE_ATOMIC,
            "atomic",
            "the device has accessed it atomically, where the CPU cannot come between",
        ),
    ];

    fn from_abi(number: u32) -> Self {
        let known = Self::ALL.iter().find(|(_, other, ..)| *other == number);
        known.map_or(Self::Other(number), |&(rule, ..)| rule)
    }

    /// The name of the rule, as the driver writes it: `touched`, `no_room` and so on.
    pub fn name(&self) -> &'static str {
        let known = Self::ALL.iter().find(|(rule, ..)| rule == self);
        known.map_or("other", |&(_, _, name, _)| name)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::ALL.iter().find(|(rule, ..)| rule == self) {
            Some((.., words)) => f.write_str(words),
            None => write!(f, "by a rule that is newer than this program ({self:?})"),
        }
    }
}

/// The error of [`Rule::from_str`]: there is no rule of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseRuleError(());

impl fmt::Display for ParseRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no name of a rule")
    }
}

impl std::error::Error for ParseRuleError {}

impl FromStr for Rule {
    type Err = ParseRuleError;

    /// Finds the rule of a [name](Self::name).
    fn from_str(name: &str) -> Result<Self, ParseRuleError> {
        let known = Self::ALL.iter().find(|(_, _, other, _)| *other == name);
        known.map(|&(rule, ..)| rule).ok_or(ParseRuleError(()))
    }
}

impl Run {
    fn from_abi(run: &abi::pinmap_run) -> Self {
        Self {
            addr: run.addr as usize,
            len: run.length as usize,
            place: match run.place {
                abi::PINMAP_PLACE_HOST => Some(Place::Host),
                abi::PINMAP_PLACE_DEVICE => Some(Place::Vram),
                _ => None,
            },
            access: if run.access & abi::PINMAP_RUN_WRITE != 0 {
                Some(Access::ReadWrite)
            } else {
                (run.access & abi::PINMAP_RUN_READ != 0).then_some(Access::Read)
            },
            advice: Advice::from_abi(run.advice),
            rule: Rule::from_abi(run.rule),
        }
    }

    /// Takes in the run behind this one, if it is alike.
    fn extend(&mut self, next: &Self) -> bool {
        let joined = Self {
            addr: self.addr,
            len: self.len,
            ..*next
        };
        let alike = joined == *self && self.addr.checked_add(self.len) == Some(next.addr);
        if alike {
            self.len += next.len;
        }
        alike
    }
}

impl ResidencySums {
    fn add(&mut self, args: &abi::pinmap_residency) {
        self.absent += args.out_absent;
        self.host += args.out_host;
        self.device += args.out_device;
    }
}

impl Accelerator {
    /// Tells where [managed](Self::manage) memory is, page by page, and which rule put it there:
    /// the whole pages around `memory`. The answer may have changed before it is read. Nothing is
    /// faulted in, and nothing waits for the device.
    ///
    /// ```no_run
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = pinmap_testgpu::find()?;
    /// let numbers = vec![1.0f32; 1 << 20];
    /// let _managed = gpu.manage_all()?;
    /// for run in gpu.residency(&numbers[..])?.runs {
    ///     println!("{} bytes at {:#x}: {:?}, since {}", run.len, run.addr, run.place, run.rule);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`prefetch`](Self::prefetch), of which `EIO` does not happen.
    pub fn residency<T>(&self, memory: *const [T]) -> Result<Residency> {
        let mut residency = Residency::default();
        let mut room = [abi::pinmap_run::default(); RUNS];
        self.ask(memory, &mut room, |args, runs| {
            residency.sums.add(args);
            for run in runs.iter().map(Run::from_abi) {
                let last = residency.runs.last_mut();
                if !last.is_some_and(|last| last.extend(&run)) {
                    residency.runs.push(run);
                }
            }
        })?;
        Ok(residency)
    }

    /// Tells how much of [managed](Self::manage) memory is where, as
    /// [`residency`](Self::residency) does without the runs. This takes less time.
    ///
    /// ```no_run
    /// # use pinmap::accelerator::{Accelerator, Managed};
    /// # use pinmap::Result;
    /// # fn f(gpu: &Accelerator, numbers: &Managed<f32>) -> Result<()> {
    /// let sums = gpu.residency_sums(&numbers[..])?;
    /// println!("{} bytes are on the device, {} on the host", sums.device, sums.host);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`residency`](Self::residency).
    pub fn residency_sums<T>(&self, memory: *const [T]) -> Result<ResidencySums> {
        let mut sums = ResidencySums::default();
        self.ask(memory, &mut [], |args, _| sums.add(args))?;
        Ok(sums)
    }

    /// Asks until all is told of. `room` is where the driver writes runs; if it is empty, only the
    /// sums are wanted.
    fn ask<T>(
        &self,
        memory: *const [T],
        room: &mut [abi::pinmap_run],
        mut answer: impl FnMut(&abi::pinmap_residency, &[abi::pinmap_run]),
    ) -> Result<()> {
        let fail = |errno| {
            let attempt = format!("ask {} where {} are", self.device(), words(memory));
            Error::new(Operation::Residency, attempt, errno)
        };
        let (start, len) = pages_around(memory).ok_or_else(|| fail(Errno::EINVAL))?;
        let (mut at, end) = (start as u64, start as u64 + len as u64);
        while at < end {
            let mut args = abi::pinmap_residency {
                addr: at,
                length: end - at,
                ..Default::default()
            };
            ioctl::residency(self.device().as_fd(), &mut args, room)
                .map_err(|errno| fail(errno).with_failure(Failure::from_abi(&args.fail)))?;
            let told = room.get(..args.out_count as usize);
            // A driver that gets no further would be asked for ever.
            let told = told.filter(|_| args.out_end > at);
            answer(&args, told.ok_or_else(|| fail(Errno::EPROTO))?);
            at = args.out_end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_names_and_words() {
        for (rule, number, name, words) in Rule::ALL {
            assert_eq!(Rule::from_abi(number), rule);
            assert_eq!(rule.name(), name);
            assert_eq!(name.parse(), Ok(rule));
            assert_eq!(rule.to_string(), words);
        }
        assert_eq!(Rule::from_abi(99), Rule::Other(99));
        assert!(Rule::Other(99).to_string().contains("99"));
        assert!("other".parse::<Rule>().is_err());
    }

    #[test]
    fn neighbours_that_are_alike_are_one_run() {
        let run = |addr, place| {
            Run::from_abi(&abi::pinmap_run {
                addr,
                length: 0x1000,
                place,
                ..Default::default()
            })
        };
        let mut first = run(0x1000, abi::PINMAP_PLACE_HOST);
        assert!(first.extend(&run(0x2000, abi::PINMAP_PLACE_HOST)));
        assert_eq!((first.addr, first.len), (0x1000, 0x2000));
        assert!(!first.extend(&run(0x4000, abi::PINMAP_PLACE_HOST)));
        assert!(!first.extend(&run(0x3000, abi::PINMAP_PLACE_DEVICE)));
        assert_eq!(first.len, 0x2000);
    }

    #[test]
    fn accesses_are_told() {
        let access = |access| {
            Run::from_abi(&abi::pinmap_run {
                access,
                ..Default::default()
            })
            .access
        };
        assert_eq!(access(0), None);
        assert_eq!(access(abi::PINMAP_RUN_READ), Some(Access::Read));
        let both = abi::PINMAP_RUN_READ | abi::PINMAP_RUN_WRITE;
        assert_eq!(access(both), Some(Access::ReadWrite));
    }
}
