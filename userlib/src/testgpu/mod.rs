// SPDX-License-Identifier: MIT OR Apache-2.0
//! The formats of the test GPU, the paged device that the driver's tests bring along.
//!
//! Packets and kernels belong to one model of device; everything else in this crate works with any
//! device that the driver supports. The tests below compare the numbers with the device's manual.

pub mod kernel;
pub(crate) mod operand;
pub(crate) mod packet;

#[cfg(test)]
pub(crate) mod tests {
    /// The manual of the device. A published crate does not contain it.
    pub(crate) fn manual() -> Option<String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/testgpu/MANUAL.md");
        std::fs::read_to_string(path).ok()
    }
}
