// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operands of packets, which are checked before anything is submitted.

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::element::Element;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};

/// How many operands a packet can have.
const MOST: usize = 7;

/// The operands of one packet, which are checked as they are added: they must belong to the context
/// of the queue, must not be too long, and what is written must not overlap with another operand.
///
/// Passed to [`Kernel::encode`](crate::accelerator::Kernel::encode). There are at most 7.
///
/// ```
/// use pinmap::accelerator::{DeviceSlice, DeviceSliceMut, Kernel, Operands, Packet};
/// use pinmap::Result;
/// # use pinmap_testgpu::packet::Format as VendorFormat;
///
/// /// Adds numbers to others: operation 0x43 of the device.
/// struct Add<'r, 'a> {
///     from: DeviceSlice<'a, i32>,
///     to: &'r mut DeviceSliceMut<'a, i32>,
/// }
///
/// // SAFETY: The device reads `count` numbers at `from` and at `to`, and writes those at `to`.
/// unsafe impl<'s, 'a: 's> Kernel<'s> for Add<'_, 'a> {
///     type Format = VendorFormat;
///     const NAME: &'static str = "the kernel add";
///
///     fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
///         // With the count of one operand alone, the device would reach beyond a shorter one.
///         operands.require_len("`to`", self.to.len(), self.from.len())?;
///         let (from, to) = (operands.read(&self.from)?, operands.write(self.to)?);
///         Ok(Packet::from_words([0x43, from, to, self.to.len() as u64, 0, 0, 0, 0]))
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Operands<'q> {
    /// The context of the queue.
    device: &'q Device,
    /// The name of the operation in errors.
    what: &'static str,
    /// How many bytes an operand may have.
    longest: u64,
    ranges: [Range; MOST],
    count: usize,
}

/// The device addresses of an operand, and whether they are written.
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    start: u64,
    bytes: u64,
    written: bool,
}

impl Range {
    /// Whether both ranges have a byte in common.
    fn overlaps(&self, other: &Self) -> bool {
        // The memory is mapped in this process, so no end overflows.
        let (end, other_end) = (self.start + self.bytes, other.start + other.bytes);
        self.start < other_end && other.start < end && self.bytes != 0 && other.bytes != 0
    }
}

impl<'q> Operands<'q> {
    pub(crate) fn new(device: &'q Device, what: &'static str, longest: u64) -> Self {
        Self {
            device,
            what,
            longest,
            ranges: [Range::default(); MOST],
            count: 0,
        }
    }

    /// Adds an operand that is read, and returns its device address.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory belongs to another context, is longer than the kernel takes, or
    /// overlaps with an operand that is written; or there are too many operands.
    pub fn read<T: Element>(&mut self, slice: &DeviceSlice<'_, T>) -> Result<u64> {
        self.add(slice, false)
    }

    /// Adds an operand that is written, and perhaps also read, and returns its device address.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read); `EINVAL`: it overlaps with any other operand.
    pub fn write<T: Element>(&mut self, slice: &DeviceSliceMut<'_, T>) -> Result<u64> {
        self.add(&slice.as_slice(), true)
    }

    fn add<T: Element>(&mut self, slice: &DeviceSlice<'_, T>, written: bool) -> Result<u64> {
        self.require_context("the memory", slice)?;
        let range = Range {
            start: slice.device_addr(),
            bytes: slice.bytes(),
            written,
        };
        if range.bytes > self.longest {
            let (bytes, longest) = (range.bytes, self.longest);
            return Err(self.refuse(format!(
                "an operand of {bytes} bytes is longer than {longest}"
            )));
        }
        let mut others = self.ranges[..self.count].iter();
        if others.any(|other| (written || other.written) && other.overlaps(&range)) {
            return Err(self.refuse("what is written overlaps with another operand"));
        }
        let Some(free) = self.ranges.get_mut(self.count) else {
            return Err(self.refuse(format!("there are more than {MOST} operands")));
        };
        *free = range;
        self.count += 1;
        Ok(range.start)
    }

    /// Refuses memory of the kernel itself that belongs to another context than the queue.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it does; the error says it of `name`.
    pub fn require_context<T: Element>(
        &self,
        name: &str,
        slice: &DeviceSlice<'_, T>,
    ) -> Result<()> {
        if slice.is_of(self.device) {
            return Ok(());
        }
        Err(self.refuse(format!("{name} belongs to another context than the queue")))
    }

    /// Refuses an operand that does not have the wanted number of elements.
    ///
    /// # Errors
    ///
    /// `EINVAL`: `len` is not `wanted`; the error names the operand.
    pub fn require_len(&self, name: &str, len: usize, wanted: usize) -> Result<()> {
        if len == wanted {
            return Ok(());
        }
        Err(self.refuse(format!("{name} has {len} elements, and must have {wanted}")))
    }

    /// Returns the error (`EINVAL`) of an operation with these operands, for this cause.
    pub fn refuse(&self, cause: impl Into<String>) -> Error {
        let attempt = format!("submit {}", self.what);
        Error::refused(Operation::Submit, attempt, Errno::EINVAL, cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::slice::tests::Fake;

    fn text(result: Result<u64>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn memory_of_another_context_is_refused() {
        let (ours, theirs) = (Fake::new(0x1000), Fake::new(0x9000));
        let mut operands = Operands::new(&ours.device, "a copy", 1 << 30);
        let error = text(operands.read(&theirs.slice::<u8>()));
        assert_eq!(
            error,
            "cannot submit a copy: the memory belongs to another context than the queue (EINVAL)"
        );
        assert_eq!(operands.read(&ours.slice::<u8>()).expect("ours"), 0x1000);
    }

    #[test]
    fn only_what_is_read_may_overlap() {
        let fake = Fake::new(0x1000);
        let slice = fake.slice::<u32>();
        let written = |range| DeviceSliceMut::new(slice.part(range).expect("a part"));
        let mut operands = Operands::new(&fake.device, "a kernel", 1 << 30);
        operands.read(&slice).expect("one");
        operands.read(&slice).expect("the same again");
        assert!(text(operands.write(&written(5..6))).contains("overlaps"));
        let mut operands = Operands::new(&fake.device, "a kernel", 1 << 30);
        operands.write(&written(0..10)).expect("one");
        operands.write(&written(10..20)).expect("beside it");
        operands.write(&written(5..5)).expect("nothing");
    }

    #[test]
    fn operands_have_a_longest() {
        let fake = Fake::new(0x1000);
        let mut operands = Operands::new(&fake.device, "a kernel", 0x1fff);
        assert!(text(operands.read(&fake.slice::<u64>())).contains("longer than 8191"));
        let part = fake.slice::<u64>().part(..1023).expect("a part");
        operands.read(&part).expect("short enough");
    }

    #[test]
    fn numbers_of_elements_are_checked() {
        let fake = Fake::new(0x1000);
        let operands = Operands::new(&fake.device, "a sum", 1 << 30);
        operands.require_len("the sum", 1, 1).expect("one");
        let error = operands
            .require_len("the sum", 2, 1)
            .expect_err("two")
            .to_string();
        assert!(
            error.contains("the sum has 2 elements, and must have 1"),
            "{error}"
        );
    }
}
