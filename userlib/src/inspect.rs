// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of devices and memory, for tools and for people who look why: the details of a device, of
//! a registration, of managed memory, counters, page walks, and [traces](trace).

pub use crate::device::accelerator::{Counters, EngineCounters, Target, Walk};
pub use crate::device::info::{BarInfo, Memlock, PageSizes, Reserved, ReservedKind};
pub use crate::device::totals::{FaultTotals, Total, Totals};
pub use crate::memory::cache::CacheStatistics;
pub use crate::memory::managed::residency::{ParseRuleError, Residency, ResidencySums, Rule, Run};
pub use crate::memory::managed::statistics::{ManagedStatistics, RefusedAccess};
pub use crate::memory::preflight::Preflight;
pub use crate::memory::query::{BufferKind, RegistrationInfo, State};
pub use crate::trace;
