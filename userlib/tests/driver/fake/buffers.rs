// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the made-up driver that are about several buffers.

use nix::errno::Errno;

use super::State;
use crate::sys;

impl State {
    /// Registers several buffers, all or none.
    pub(super) fn register_buffers(
        &mut self,
        args: &mut sys::pinmap_register_buffers,
        buffers: &mut [sys::pinmap_registration],
    ) -> Result<(), Errno> {
        args.out_failed = args.count;
        let before = (self.registered.clone(), self.registrations);
        for (index, one) in (0..).zip(buffers) {
            let made = self.register(args.flags, one.addr, one.length, &mut args.fail);
            one.out_handle = made.inspect_err(|_| {
                args.out_failed = index;
                (self.registered, self.registrations) = before.clone();
            })?;
            if args.flags & sys::PINMAP_REGISTER_FIXED == 0 {
                one.device_addr = one.addr;
            }
        }
        Ok(())
    }

    /// Releases several buffers. The handles are checked first.
    pub(super) fn release_buffers(
        &mut self,
        args: &mut sys::pinmap_release_buffers,
        handles: &[u64],
    ) -> Result<(), Errno> {
        for (index, &handle) in (0..).zip(handles) {
            args.out_failed = index;
            self.find(handle)?;
        }
        args.out_failed = args.count;
        // Each of them, also after an error.
        let released = handles.iter().map(|&handle| self.release(handle));
        released.fold(Ok(()), Result::and)
    }
}

/// Checks how many buffers a call is about.
pub(super) fn count(count: u32) -> Result<usize, Errno> {
    match (1..=sys::PINMAP_MAX_BUFFERS).contains(&count) {
        true => Ok(count as usize),
        false => Err(Errno::EINVAL),
    }
}
