// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of devices and memory, for tools and for people who look why: the details of a device and
//! of a registration; for accelerators also where managed memory is, counters, page walks, and
//! traces.

#[cfg(feature = "accelerator")]
pub use crate::device::counters::{Counters, EngineCounters};
pub use crate::device::info::{BarInfo, Memlock, PageSizes, Reserved, ReservedKind};
pub use crate::device::totals::{FaultTotals, Total, Totals};
#[cfg(feature = "accelerator")]
pub use crate::device::walk::{Target, Walk};
pub use crate::memory::cache::CacheStatistics;
#[cfg(feature = "accelerator")]
pub use crate::memory::managed::residency::{ParseRuleError, Residency, ResidencySums, Rule, Run};
#[cfg(feature = "accelerator")]
pub use crate::memory::managed::statistics::{ManagedStatistics, RefusedAccess};
pub use crate::memory::preflight::Preflight;
pub use crate::memory::query::{BufferKind, RegistrationInfo, State};

#[cfg(feature = "accelerator")]
pub mod trace {
    //! Traces: what streams and queues did, by the device's clock.
    //!
    //! The command `pinmap trace PROGRAM` makes a file of traces, names it in the environment
    //! variable [`PATH_VARIABLE`], runs the program, and writes what it finds in the file for
    //! Perfetto. While the variable is set, this crate puts a packet behind each one that does
    //! work, with which the device itself stores in the file when it was done
    //! ([`PacketFormat::stamp`](super::super::accelerator::PacketFormat::stamp)). So the records
    //! survive the program, however it ends. A program that is not traced pays a comparison for
    //! each submission.
    //!
    //! With this module a program reads such a file itself, for a format of its own.
    //!
    //! ```no_run
    //! use pinmap::inspect::trace::{PATH_VARIABLE, Trace};
    //!
    //! let trace = Trace::create(64 << 20)?;
    //! let program = std::process::Command::new("./program")
    //!     .env(PATH_VARIABLE, trace.path())
    //!     .status()?;
    //! for queue in trace.read().queues {
    //!     for activity in &queue.activities {
    //!         println!("{:?}: {:?} to {:?}", activity.kind, activity.begun, activity.ended);
    //!     }
    //! }
    //! # Ok::<(), std::io::Error>(())
    //! ```

    #[doc(no_inline)]
    pub use crate::trace::PATH_VARIABLE;
    pub use crate::trace::{Activity, ActivityKind, Clock, Contents, Context, QueueRecord, Trace};
}
