// SPDX-License-Identifier: MIT OR Apache-2.0
//! User interrupts: those that the design behind the core raises.

use std::fmt;
use std::sync::Arc;

use pinmap::Interrupt;

use crate::discovery::Shared;
use crate::error::Result;

/// An interrupt that the design raises. Dropping it disables the interrupt. Made by
/// [`Core::user_interrupt`](crate::Core::user_interrupt).
///
/// A design keeps its request until the cause is cleared, in a register of its own. The interrupt
/// comes once for each request: so clear the cause after it, and then look for what is to be done.
#[must_use = "dropped, the interrupt is disabled"]
pub struct UserInterrupt {
    shared: Arc<Shared>,
    number: u32,
    interrupt: Interrupt,
}

impl UserInterrupt {
    pub(crate) fn new(shared: Arc<Shared>, number: u32) -> Result<Self> {
        let interrupt = shared.user_vector(number)?;
        shared.irq.user_enable().write(1 << number);
        Ok(Self {
            shared,
            number,
            interrupt,
        })
    }

    /// The interrupt, to wait for.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Whether the design requests the interrupt now.
    pub fn is_pending(&self) -> bool {
        self.shared.irq.user_pending().read() & (1 << self.number) != 0
    }
}

impl Drop for UserInterrupt {
    fn drop(&mut self) {
        if !self.shared.is_gone() {
            self.shared.irq.user_disable().write(1 << self.number);
        }
    }
}

impl fmt::Debug for UserInterrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UserInterrupt").field(&self.number).finish()
    }
}
