// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults: why a queue stopped.

use std::fmt;

use crate::sys::bindings as abi;

/// The fault that stopped a queue.
///
/// The queue executes nothing more. Packet `packet` was the last one that it began. Other queues go
/// on.
///
/// ```no_run
/// # fn f(stream: &pinmap::accelerator::Stream) -> pinmap::Result<()> {
/// if let Err(error) = stream.synchronize() {
///     if let Some(fault) = error.fault() {
///         println!("packet {}: {} ({:x?})", fault.packet, fault.code, fault.device_addr);
///     }
///     stream.reset()?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Fault {
    /// Id of the queue: see [`Stream::id`](crate::accelerator::Stream::id).
    pub queue: u64,
    /// Index of the packet that stopped the queue, counted from 0 since the queue was made.
    pub packet: u64,
    /// The code of the fault.
    pub code: FaultCode,
    /// The access that was refused, if one was.
    pub access: Option<FaultAccess>,
    /// The device address of the access that was refused, if one was.
    pub device_addr: Option<u64>,
    /// The reason why the driver did not let the access through, if it says so.
    pub reason: Option<FaultReason>,
    /// The area of the program's memory around the address, if the address was managed and
    /// something was there.
    pub area: Option<MemoryArea>,
}

/// An area of a program's memory, as a line of `/proc/PID/maps` shows it.
///
/// ```no_run
/// # fn f(error: &pinmap::Error) -> pinmap::Result<()> {
/// if let Some(area) = error.fault().and_then(|fault| fault.area) {
///     println!("{area}"); // such as 7f0000000000-7f0000200000 r--p
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MemoryArea {
    /// User address of the first byte.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
    /// Whether the program may read there.
    pub read: bool,
    /// Whether the program may write there.
    pub write: bool,
    /// Whether the program may execute what is there.
    pub execute: bool,
    /// Whether the area is shared (`MAP_SHARED`).
    pub shared: bool,
}

impl MemoryArea {
    fn from_abi(query: &abi::pinmap_queue_query) -> Option<Self> {
        let is = |flag| query.out_vma_flags & flag != 0;
        (query.out_vma_end != 0).then(|| Self {
            addr: query.out_vma_start as usize,
            len: query.out_vma_end.saturating_sub(query.out_vma_start) as usize,
            read: is(abi::PINMAP_VMA_READ),
            write: is(abi::PINMAP_VMA_WRITE),
            execute: is(abi::PINMAP_VMA_EXEC),
            shared: is(abi::PINMAP_VMA_SHARED),
        })
    }
}

impl fmt::Display for MemoryArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |is, letter| if is { letter } else { '-' };
        write!(
            f,
            "{:x}-{:x} {}{}{}{}",
            self.addr,
            self.addr + self.len,
            letter(self.read, 'r'),
            letter(self.write, 'w'),
            letter(self.execute, 'x'),
            if self.shared { 's' } else { 'p' },
        )
    }
}

/// The reason why an access of a device was not let through.
///
/// ```
/// use pinmap::accelerator::FaultReason;
///
/// assert_eq!(FaultReason::Hole.to_string(), "the program has nothing mapped there");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum FaultReason {
    /// The address is in no mapping of the context, or in one that does not permit the access, and
    /// is not managed.
    Unmapped,
    /// The address is managed, but the program has nothing mapped there.
    Hole,
    /// The program itself may not make that access.
    Permission,
    /// Device memory is mapped there.
    Device,
    /// The memory comes from `memfd_secret()`.
    Secret,
    /// A guard is there, which `madvise()` made.
    Guard,
    /// The address is behind the end of its file, or the file could not be read.
    File,
    /// The hardware has lost the page.
    Poison,
    /// The kernel is out of memory, or the memory cgroup is at its limit.
    Memory,
    /// Userfaultfd is to serve the page, but not for a device (`UFFD_USER_MODE_ONLY`,
    /// `UFFD_FEATURE_SIGBUS`).
    Userfaultfd,
    /// The program's address space has ended.
    Exited,
    /// An atomic access to managed memory that cannot be in the device's memory: it cannot move, or
    /// there is no room.
    Atomic,
    /// A reason that this crate does not know, by the driver's number.
    Other(u32),
}

impl FaultReason {
    pub(crate) fn from_abi(reason: u32) -> Option<Self> {
        Some(match reason {
            abi::PINMAP_FAULT_NONE => return None,
            abi::PINMAP_FAULT_UNMAPPED => Self::Unmapped,
            abi::PINMAP_FAULT_HOLE => Self::Hole,
            abi::PINMAP_FAULT_PERMISSION => Self::Permission,
            abi::PINMAP_FAULT_DEVICE => Self::Device,
            abi::PINMAP_FAULT_SECRET => Self::Secret,
            abi::PINMAP_FAULT_GUARD => Self::Guard,
            abi::PINMAP_FAULT_FILE => Self::File,
            abi::PINMAP_FAULT_POISON => Self::Poison,
            abi::PINMAP_FAULT_MEMORY => Self::Memory,
            abi::PINMAP_FAULT_USERFAULTFD => Self::Userfaultfd,
            abi::PINMAP_FAULT_EXITED => Self::Exited,
            abi::PINMAP_FAULT_ATOMIC => Self::Atomic,
            other => Self::Other(other),
        })
    }
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmapped => "it is neither mapped so nor managed",
            Self::Hole => "the program has nothing mapped there",
            Self::Permission => "the program itself may not do that there",
            Self::Device => "device memory is mapped there",
            Self::Secret => "it is memory of memfd_secret()",
            Self::Guard => "a guard page is there",
            Self::File => "it is behind the end of its file, or the file could not be read",
            Self::Poison => "the hardware has lost that page",
            Self::Memory => "the kernel had no memory for it, or its memory cgroup is at its limit",
            Self::Userfaultfd => "userfaultfd is to fill that page, but not for a device",
            Self::Exited => "the program's memory is gone",
            Self::Atomic => "the memory cannot be on the device, where the CPU cannot come between",
            Self::Other(number) => return write!(f, "reason {number} of a newer driver"),
        })
    }
}

impl Fault {
    /// Decodes the state of a queue. `None` if the queue has not stopped.
    pub(crate) fn from_abi(query: &abi::pinmap_queue_query) -> Option<Self> {
        let refused = match query.out_state {
            abi::PINMAP_QUEUE_READY => return None,
            abi::PINMAP_QUEUE_FAULTED => true,
            // Any other state, even one of a newer driver, means that the queue has stopped.
            _ => false,
        };
        Some(Self {
            queue: query.queue,
            packet: query.out_index,
            code: FaultCode::from(query.out_code),
            access: refused.then(|| FaultAccess::from_abi(query.out_access)),
            device_addr: refused.then_some(query.out_addr),
            reason: FaultReason::from_abi(query.out_reason),
            area: MemoryArea::from_abi(query),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packet, code, .. } = self;
        write!(f, "packet {packet} stopped the queue: ")?;
        let (Some(access), Some(addr)) = (self.access, self.device_addr) else {
            return code.fmt(f);
        };
        write!(f, "{access} {addr:#x}, ")?;
        match self.reason {
            // The device's code says which it is.
            None | Some(FaultReason::Unmapped) => code.fmt(f),
            Some(reason) => {
                reason.fmt(f)?;
                self.area.map_or(Ok(()), |area| write!(f, " ({area})"))
            }
        }
    }
}

/// The kind of access that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum FaultAccess {
    /// Reading an operand.
    Read,
    /// Writing an operand.
    Write,
    /// Fetching a packet, or an instruction of a program.
    Fetch,
    /// An atomic operation on an operand, which reads and writes.
    Atomic,
    /// An access that this crate does not know, by the driver's number.
    Other(u32),
}

impl FaultAccess {
    pub(crate) fn from_abi(access: u32) -> Self {
        match access {
            abi::PINMAP_ACCESS_READ => Self::Read,
            abi::PINMAP_ACCESS_WRITE => Self::Write,
            abi::PINMAP_ACCESS_FETCH => Self::Fetch,
            abi::PINMAP_ACCESS_ATOMIC => Self::Atomic,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for FaultAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "it could not read at",
            Self::Write => "it could not write at",
            Self::Fetch => "no packet or instruction could be fetched from",
            Self::Atomic => "it could make no atomic access at",
            Self::Other(_) => "it could not access",
        })
    }
}

/// Declares the codes, each once: the number, the name, and the meaning.
macro_rules! codes {
    ($($number:literal $variant:ident $name:literal $text:literal;)*) => {
        /// The code of a fault, as the manual of the test GPU defines it.
        ///
        /// ```no_run
        /// use pinmap::accelerator::Stream;
        /// use pinmap::accelerator::FaultCode;
        /// # fn f(stream: &Stream) -> pinmap::Result<()> {
        /// let result = stream.synchronize();
        /// let fault = result.as_ref().err().and_then(|error| error.fault());
        /// if fault.is_some_and(|fault| fault.code == FaultCode::Timeout) {
        ///     println!("a packet ran for too long");
        /// }
        /// result
        /// # }
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
        pub enum FaultCode {
            $(#[doc = concat!("`", $name, "`: ", $text, ".")] $variant,)*
            /// A code that this crate does not know, by its number.
            Other(u32),
        }

        impl From<u32> for FaultCode {
            /// The code with this number.
            fn from(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }

        impl FaultCode {
            /// The name of the code in the device's manual.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(_) => "unknown",
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(_) => "a code that this crate does not know",
                }
            }
        }

        #[cfg(test)]
        const CODES: &[u32] = &[$($number),*];
    };
}

codes! {
    1 NotPresent "NOT_PRESENT" "nothing is mapped there";
    2 Permission "PERMISSION" "what is mapped there does not permit it";
    3 ReservedBit "RESERVED_BIT" "the device's page table is malformed";
    4 RootDisabled "ROOT_DISABLED" "the context has no page table";
    5 AddressRange "VA_RANGE"
        "the address has more than 48 bits, or it goes past the end of the address space";
    6 Bus "BUS" "the IOMMU refused the access, or the device is no bus master";
    7 VramRange "VRAM_RANGE" "it is beyond the end of the device's memory";
    16 BadOpcode "BAD_OPCODE" "there is no such packet";
    17 BadField "BAD_FIELD" "a reserved field is not zero, or a flag is unknown";
    18 BadAlignment "BAD_ALIGNMENT" "an address or a length is not a multiple of what it must be";
    19 BadLength "BAD_LENGTH" "it is longer than allowed";
    20 BadKernel "BAD_KERNEL" "there is no such kernel";
    21 BadClass "BAD_CLASS" "the queue may not use the engine that the packet needs";
    22 BadIndex "BAD_INDEX" "more packets were published than the ring holds";
    24 IllegalInstruction "ILLEGAL_INSTRUCTION"
        "a program came to what is no instruction, or names no CSR";
    25 Misaligned "MISALIGNED"
        "a program made an atomic access at an address that is not a multiple of its size";
    26 Breakpoint "BREAKPOINT" "a program executed EBREAK";
    27 BadCall "BAD_CALL" "a program made a call that there is not, or one that is not valid";
    28 Aborted "ABORTED" "a program aborted";
    29 StateLost "STATE_LOST" "the state of a program could not be saved, or was lost";
    30 StackOverflow "STACK_OVERFLOW" "a thread of a program needed more than its stack";
    32 Timeout "TIMEOUT" "it ran for too long";
    33 Cancelled "CANCELLED" "the driver cancelled it";
    34 EngineLost "ENGINE_LOST" "its engine was stuck and was reset";
}

impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(number) => write!(f, "{} ({number})", self.text()),
            known => write!(f, "{} ({})", known.text(), known.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(state: u32, code: u32) -> abi::pinmap_queue_query {
        abi::pinmap_queue_query {
            queue: 3,
            out_state: state,
            out_code: code,
            out_access: abi::PINMAP_ACCESS_WRITE,
            out_addr: 0x7000,
            out_index: 17,
            ..Default::default()
        }
    }

    #[test]
    fn a_queue_that_runs_has_no_fault() {
        assert_eq!(Fault::from_abi(&query(abi::PINMAP_QUEUE_READY, 0)), None);
    }

    #[test]
    fn a_refused_access_has_an_address() {
        let fault = Fault::from_abi(&query(abi::PINMAP_QUEUE_FAULTED, 2)).expect("a fault");
        assert_eq!((fault.queue, fault.packet), (3, 17));
        assert_eq!(fault.code, FaultCode::Permission);
        assert_eq!(fault.access, Some(FaultAccess::Write));
        assert_eq!(fault.device_addr, Some(0x7000));
        assert_eq!(
            fault.to_string(),
            "packet 17 stopped the queue: it could not write at 0x7000, what is mapped there does \
             not permit it (PERMISSION)"
        );
    }

    #[test]
    fn each_access_has_its_words() {
        for (number, access, words) in [
            (abi::PINMAP_ACCESS_READ, FaultAccess::Read, "read"),
            (abi::PINMAP_ACCESS_WRITE, FaultAccess::Write, "write"),
            (abi::PINMAP_ACCESS_FETCH, FaultAccess::Fetch, "packet"),
            (abi::PINMAP_ACCESS_ATOMIC, FaultAccess::Atomic, "atomic"),
            (77, FaultAccess::Other(77), "access"),
        ] {
            assert_eq!(FaultAccess::from_abi(number), access);
            assert!(access.to_string().contains(words), "{access}");
        }
    }

    #[test]
    fn a_managed_address_has_a_reason_and_an_area() {
        let refused = |reason, end| {
            let query = abi::pinmap_queue_query {
                out_reason: reason,
                out_vma_start: 0x5000,
                out_vma_end: end,
                out_vma_flags: abi::PINMAP_VMA_READ | abi::PINMAP_VMA_SHARED,
                ..query(abi::PINMAP_QUEUE_FAULTED, 1)
            };
            Fault::from_abi(&query).expect("a fault")
        };
        let fault = refused(abi::PINMAP_FAULT_PERMISSION, 0x9000);
        assert_eq!(fault.reason, Some(FaultReason::Permission));
        assert_eq!(
            fault.to_string(),
            "packet 17 stopped the queue: it could not write at 0x7000, the program itself may not \
             do that there (5000-9000 r--s)"
        );
        let fault = refused(abi::PINMAP_FAULT_HOLE, 0);
        assert_eq!(fault.area, None);
        assert!(
            fault.to_string().ends_with("nothing mapped there"),
            "{fault}"
        );
        let fault = refused(abi::PINMAP_FAULT_UNMAPPED, 0);
        assert!(fault.to_string().ends_with("(NOT_PRESENT)"), "{fault}");
        let texts: Vec<_> = (1..=13)
            .map(|reason| FaultReason::from_abi(reason).expect("a reason").to_string())
            .collect();
        for (number, text) in texts.iter().enumerate() {
            assert!(!texts[..number].contains(text), "{text}");
        }
        assert!(texts[12].contains("newer driver"));
    }

    #[test]
    fn an_error_has_none() {
        let fault = Fault::from_abi(&query(abi::PINMAP_QUEUE_ERROR, 32)).expect("a fault");
        assert_eq!((fault.access, fault.device_addr), (None, None));
        assert_eq!(
            fault.to_string(),
            "packet 17 stopped the queue: it ran for too long (TIMEOUT)"
        );
        let unknown = FaultCode::from(99);
        assert_eq!(unknown, FaultCode::Other(99));
        assert!(unknown.to_string().contains("99"));
    }

    #[test]
    fn every_code_of_the_manual_has_its_name() {
        let manual = crate::testgpu::manual();
        let section = manual.split("## 7.").nth(1).expect("section 7");
        for &code in CODES {
            let row = format!("| `{code}` | `{}` |", FaultCode::from(code).name());
            assert!(section.contains(&row), "{row}");
        }
    }
}
