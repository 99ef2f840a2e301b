// SPDX-License-Identifier: GPL-2.0
//! Words that all handlers share: effects that are not visible yet, and refusals.

use crate::{
    buffer::Buffer,
    claim::Claim,
    context::{Context, Guest, ReservedHandle, SharedBuffers},
    failure::Failure,
    logic::Refusal,
};
use core::mem;
use kernel::{prelude::*, sync::Arc};

/// The effect of a call whose caller has not been answered yet. Dropping it undoes it.
pub(super) enum Pending<'a> {
    /// Nothing to publish and nothing to undo.
    Done,
    /// A registration under a handle that cannot be used yet. Dropped in this order.
    Registration {
        /// The buffer in other contexts, if it is portable.
        guests: Option<KVec<Guest>>,
        reserved: ReservedHandle<&'a Context>,
        /// The claim of the flat device, if the registration is mapped.
        claim: Option<Claim>,
    },
    /// A mapping that user space does not know yet.
    Mapping(FreshMapping, Claim),
    /// An effect of another kind.
    Other(KBox<dyn Publish>),
}

/// An effect that is not visible yet. Dropping it undoes it.
pub(super) trait Publish {
    /// Makes the effect visible: the answer has reached the caller.
    fn publish(&mut self) -> Result;
}

impl Pending<'_> {
    /// Makes the effect visible: the answer has reached the caller.
    pub(super) fn publish(self) -> Result {
        match self {
            Self::Done => {}
            Self::Registration {
                guests,
                reserved,
                claim,
            } => {
                reserved.publish()?;
                if let Some(claim) = claim {
                    claim.keep();
                }
                for guest in guests.into_iter().flatten() {
                    guest.publish();
                }
            }
            Self::Mapping(mut fresh, claim) => {
                fresh.publish();
                claim.keep();
            }
            Self::Other(mut other) => other.publish()?,
        }
        Ok(())
    }
}

/// A mapping that user space does not know yet. Dropping it removes the mapping.
pub(super) struct FreshMapping {
    /// `None` once published.
    buffer: Option<Arc<Buffer>>,
    id: u64,
    /// The mappings in other contexts, of a portable allocation that this call shares.
    guests: KVec<Guest>,
    /// The context whose call shares it.
    sharer: Option<Arc<Context>>,
}

impl FreshMapping {
    /// Wraps the mapping `id` of `buffer`.
    pub(super) fn new(buffer: &Arc<Buffer>, id: u64) -> Self {
        Self {
            buffer: Some(buffer.clone()),
            id,
            guests: KVec::new(),
            sharer: None,
        }
    }

    /// Adds `guests`, with which `sharer` has just shared the buffer.
    pub(super) fn shared(&mut self, sharer: &Arc<Context>, guests: KVec<Guest>) {
        self.guests = guests;
        self.sharer = Some(sharer.clone());
    }

    fn publish(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            buffer.publish_mapping(self.id);
        }
        for guest in mem::replace(&mut self.guests, KVec::new()) {
            guest.publish();
        }
    }
}

impl Drop for FreshMapping {
    fn drop(&mut self) {
        if let Some(buffer) = &self.buffer {
            if let Some(sharer) = &self.sharer {
                SharedBuffers::unshare(sharer, buffer);
            }
            // After a failure somebody else has removed it.
            let _ = buffer.unmap_unpublished(self.id);
        }
    }
}

/// Translates a refusal of `logic/` to an errno.
pub(super) fn errno(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Invalid => EINVAL,
        Refusal::TooBig => E2BIG,
        Refusal::Unsupported => EOPNOTSUPP,
        Refusal::Overflow => EOVERFLOW,
    }
}

/// Refuses any flag, and any reserved field that is not zero.
pub(super) fn check_flags(flags: u32) -> Result {
    if flags == 0 {
        Ok(())
    } else {
        Err(EOPNOTSUPP)
    }
}

/// Wraps the result of a call that leaves nothing to publish.
pub(super) fn done(result: Result) -> Result<Pending<'static>, Failure> {
    result.map(|()| Pending::Done).map_err(Failure::from)
}
