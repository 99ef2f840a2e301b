// SPDX-License-Identifier: MIT OR Apache-2.0
//! The type of what records queues. Nothing is recorded here.

pub(crate) mod recorder {
    pub(crate) struct Recorder;
}
