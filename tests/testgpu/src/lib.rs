// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test GPU, whose manual is `MANUAL.md`.

pub mod regs;
