// SPDX-License-Identifier: GPL-2.0
//! Ids of queues, and the users that have them.

use crate::{
    gpu::member::Member,
    logic::{
        bitmap::{self, Bitmap},
        share,
    },
};
use kernel::{prelude::*, sync::atomic::Relaxed};

pub(in crate::gpu) struct Ids {
    free: Bitmap<KVVec<u64>>,
    /// The user of each id; 0: none.
    users: KVVec<usize>,
}

impl Ids {
    /// Makes `count` ids, all free.
    pub(in crate::gpu) fn new(count: u32) -> Result<Self> {
        let words = usize::try_from(bitmap::words(count.into())).map_err(|_| ENODEV)?;
        let words = KVVec::from_elem(0, words, GFP_KERNEL)?;
        Ok(Self {
            free: Bitmap::new(words, count.into()),
            users: KVVec::from_elem(0, count as usize, GFP_KERNEL)?,
        })
    }

    /// Takes an id for `member`. `ENOSPC`: the rest is for others.
    pub(super) fn take(&mut self, member: &Member) -> Result<u32> {
        let user = member.account().user();
        let context_has = member.queues.load(Relaxed).into();
        let user_has = self.users.iter().filter(|&&other| other == user).count() as u64;
        if self.free.free() <= share::spare_queues(context_has, user_has) {
            return Err(ENOSPC);
        }
        let id = self.free.take(1, 1).ok_or(ENOSPC)?;
        if let Some(entry) = self.users.get_mut(id as usize) {
            *entry = user;
        }
        member.queues.fetch_add(1, Relaxed);
        Ok(id as u32)
    }

    pub(super) fn give(&mut self, id: u32, member: &Member) {
        if let Some(entry) = self.users.get_mut(id as usize) {
            *entry = 0;
        }
        self.free.give(id.into(), 1);
        member.queues.fetch_sub(1, Relaxed);
    }
}
