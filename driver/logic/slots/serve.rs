// SPDX-License-Identifier: GPL-2.0
//! One pass of the scheduler: puts queues into slots, and tells others to make room.

use super::{Activity, Asker, Holder, Last, Quantum, Rank, Room, Served, Space};

/// Result of one queue's request.
enum Outcome {
    Bound,
    /// The queue has to wait for another one that is leaving.
    Later,
    /// The queue has to wait until another one can be told to leave. So have all without a better
    /// claim.
    Refused,
    /// All queues of the context have to wait.
    ContextRefused,
    Dead,
}

/// Room that is being made, which a waiting queue may count on instead of having more made.
#[derive(Clone, Copy, Default)]
struct Coming {
    quick: usize,
    slow: usize,
}

impl Coming {
    fn of(all: impl Iterator<Item = bool>) -> Self {
        let mut this = Self::default();
        for is_quick in all {
            if is_quick {
                this.quick = this.quick.saturating_add(1);
            } else {
                this.slow = this.slow.saturating_add(1);
            }
        }
        this
    }
}

/// Takes one of the places that are being made. Returns whether there was one.
fn count_on(coming: &mut usize) -> bool {
    let is_there = *coming != 0;
    *coming = coming.saturating_sub(1);
    is_there
}

/// Puts queues into slots as far as there is room, and makes room for others.
///
/// Contexts take turns: the one that was served longest ago goes first. Of a context's queues the
/// most urgent goes first, then the one that has asked for longest. Queues that only waited in
/// their last turn alternate with all the others, so that neither kind keeps the other out.
pub fn serve(room: &mut impl Room, quantum: Quantum) -> Served {
    let mut pass = Pass {
        slots: Coming::of(leaving_slots(room)),
        spaces: Coming::of(vacating_spaces(room)),
        looked: false,
        quantum,
        room,
    };
    let (mut bound, mut all, mut after) = (0, true, None);
    // Queues of the current context that need not be tried.
    let (mut context, mut refused) = (None, 0_u64);
    while let Some(asker) = pass.next(after, context, refused) {
        after = Some(asker.rank());
        if context != Some(asker.context) {
            (context, refused) = (Some(asker.context), 0);
        }
        // There may be more to do than one pass can do.
        if bound >= pass.room.slots().count() {
            all = false;
            break;
        }
        match pass.try_bind(&asker) {
            Outcome::Bound => {
                bound = bound.saturating_add(1);
                context = None;
                // Putting a queue in takes time, and queues that asked in the meantime may be more
                // urgent than the rest.
                pass.room.note();
                continue;
            }
            Outcome::Later => {}
            Outcome::Refused => refused |= asker.claim(),
            Outcome::ContextRefused => refused = u64::MAX,
            Outcome::Dead => return Served::Dead,
        }
        all = false;
    }
    match (all, bound) {
        (true, _) => Served::All,
        (false, 0) => Served::Nobody,
        (false, _) => Served::Some,
    }
}

fn leaving_slots(room: &impl Room) -> impl Iterator<Item = bool> + '_ {
    room.slots()
        .flatten()
        .filter(|holder| holder.activity == Activity::Leaving)
        .map(|holder| holder.is_quick)
}

fn vacating_spaces(room: &impl Room) -> impl Iterator<Item = bool> + '_ {
    room.spaces()
        .filter(|space| space.vacating)
        .map(|space| holders(room, space.context).all(|holder| holder.is_quick))
}

/// Returns the queues of a context that are in slots.
fn holders(room: &impl Room, context: Option<u64>) -> impl Iterator<Item = Holder> + '_ {
    room.slots()
        .flatten()
        .filter(move |holder| Some(holder.context) == context)
}

/// One pass over the queues that ask.
struct Pass<'a, R> {
    room: &'a mut R,
    quantum: Quantum,
    slots: Coming,
    spaces: Coming,
    looked: bool,
}

impl<R: Room> Pass<'_, R> {
    /// Returns the next queue after `after`, but none of `context` whose claim is in `refused`.
    fn next(&self, after: Option<Rank>, context: Option<u64>, refused: u64) -> Option<Asker> {
        self.room
            .askers()
            .filter(|asker| after.is_none_or(|after| asker.rank() > after))
            .filter(|asker| Some(asker.context) != context || refused & asker.claim() == 0)
            .min_by_key(Asker::rank)
    }

    /// Reads what the queues in the slots are doing, once for each pass.
    fn look(&mut self) {
        if !self.looked {
            self.looked = true;
            self.room.look();
        }
    }

    fn in_slots(&self, context: Option<u64>) -> usize {
        holders(self.room, context).count()
    }

    fn free_slot(&self) -> Option<usize> {
        self.room.slots().position(|holder| holder.is_none())
    }

    fn try_bind(&mut self, asker: &Asker) -> Outcome {
        let own = self
            .room
            .spaces()
            .position(|space| space.context == Some(asker.context));
        let space = match own {
            Some(own) => {
                if self.room.spaces().nth(own).is_some_and(|own| own.vacating) {
                    if self.in_slots(Some(asker.context)) != 0 {
                        return Outcome::ContextRefused;
                    }
                    // The queue for which it was being taken from us would have been served before
                    // us, so it is gone.
                    self.room.vacate(own, false);
                }
                own
            }
            None => match self.spare_space() {
                Some(spare) => spare,
                None => return self.take_space(asker),
            },
        };
        match self.take_slot(asker) {
            Ok(slot) => self.bind(asker, slot, space),
            Err(outcome) => outcome,
        }
    }

    fn bind(&mut self, asker: &Asker, slot: usize, space: usize) -> Outcome {
        match self.room.bind(asker, slot, space) {
            true => Outcome::Bound,
            false => Outcome::Dead,
        }
    }

    /// Returns an address space that no context has, or that was vacated.
    fn spare_space(&self) -> Option<usize> {
        self.room.spaces().position(|space| match space.context {
            None => true,
            context => space.vacating && self.in_slots(context) == 0,
        })
    }

    /// Puts a queue in with the address space of another context, whose queues are all taken out.
    fn take_space(&mut self, asker: &Asker) -> Outcome {
        if count_on(&mut self.spaces.quick) {
            return Outcome::ContextRefused;
        }
        self.look();
        let Some((activity, space)) = self.choose_space(asker) else {
            return Outcome::Refused;
        };
        if activity == Activity::Running && count_on(&mut self.spaces.slow) {
            return Outcome::ContextRefused;
        }
        let old = self.room.spaces().nth(space).and_then(|old| old.context);
        if self.in_slots(old) == 0 {
            // An address space is taken only for a queue that can be put in at once.
            return match self.take_slot(asker) {
                Ok(slot) => self.bind(asker, slot, space),
                Err(outcome) => outcome,
            };
        }
        self.room.vacate(space, true);
        for slot in 0..self.room.slots().count() {
            let is_its = self.room.slots().nth(slot).flatten().is_some_and(|holder| {
                Some(holder.context) == old && holder.activity != Activity::Leaving
            });
            if is_its {
                self.room.evict(slot);
            }
        }
        match self.free_slot() {
            Some(slot) if self.in_slots(old) == 0 => self.bind(asker, slot, space),
            _ => Outcome::ContextRefused,
        }
    }

    /// Chooses the address space to take, and returns what its queues are doing. An idle context
    /// goes first, then one that waits for a fence, both least recently used; then, once its time
    /// is over, the one that had it longest. Priorities do not count between contexts.
    fn choose_space(&self, asker: &Asker) -> Option<(Activity, usize)> {
        let now = self.room.now();
        let key = |space: Space| {
            let (mut activity, mut since, mut moved) = (Activity::Idle, space.used_at, space.moved);
            for holder in holders(self.room, space.context) {
                activity = activity.max(match holder.activity {
                    Activity::Leaving if holder.is_quick => Activity::Ready,
                    Activity::Leaving => Activity::Running,
                    activity => activity,
                });
                since = since.max(holder.since);
                moved |= holder.moved;
            }
            let held = now.saturating_sub(space.given_at);
            let key = match activity {
                _ if space.vacating => return None,
                Activity::Idle => since,
                Activity::Waiting if held >= self.quantum.waiting => since,
                Activity::Ready | Activity::Running
                    if held >= self.quantum.busy && (moved || asker.last == Last::Worked) =>
                {
                    space.given_at
                }
                _ => return None,
            };
            Some((activity, key))
        };
        self.room
            .spaces()
            .enumerate()
            .filter_map(|(index, space)| key(space).map(|key| (key, index)))
            .min()
            .map(|((activity, _), index)| (activity, index))
    }

    /// Returns a free slot, and makes one free if a queue has to go.
    fn take_slot(&mut self, asker: &Asker) -> Result<usize, Outcome> {
        if let Some(slot) = self.free_slot() {
            return Ok(slot);
        }
        if count_on(&mut self.slots.quick) {
            return Err(Outcome::Later);
        }
        self.look();
        let (activity, slot) = self.choose_slot(asker).ok_or(Outcome::Refused)?;
        if activity == Activity::Running && count_on(&mut self.slots.slow) {
            return Err(Outcome::Later);
        }
        self.room.evict(slot);
        self.free_slot().ok_or(Outcome::Later)
    }

    /// Chooses the slot whose queue makes room, and returns what that queue is doing.
    ///
    /// An idle queue goes first, least recently used; then one that waits for a fence; then one
    /// that waits for an engine; and last one that has an engine. Among these, queues of the
    /// context with most slots go first; then the least urgent; then those that have executed
    /// something; then the one that has been in for longest.
    fn choose_slot(&self, asker: &Asker) -> Option<(Activity, usize)> {
        let now = self.room.now();
        let own = self.in_slots(Some(asker.context));
        let key = |holder: Holder| {
            let theirs = self.in_slots(Some(holder.context));
            if !self.gives_way(asker, own, &holder, theirs, now) {
                return None;
            }
            let most_first = usize::MAX.wrapping_sub(theirs);
            Some(match holder.activity {
                Activity::Idle => (holder.activity, 0, 0, false, holder.since),
                Activity::Waiting => (holder.activity, most_first, 0, false, holder.since),
                activity => (
                    activity,
                    most_first,
                    holder.priority,
                    !holder.moved,
                    holder.bound_at,
                ),
            })
        };
        self.room
            .slots()
            .enumerate()
            .filter_map(|(index, holder)| Some((key(holder?)?, index)))
            .min()
            .map(|((activity, ..), index)| (activity, index))
    }

    /// Returns whether `holder`, whose context has `theirs` slots, may be told to leave for
    /// `asker`, whose context has `own`.
    ///
    /// Contexts share the slots: one with fewer takes from one with more, until their numbers
    /// differ by at most one. Within a context a lower priority never displaces a higher one that
    /// works, and a higher one does not wait until a lower one's time is over. Between equals the
    /// time must be over. A queue that had a slot in vain does not take one from a queue to which
    /// it was of no use either: nothing would be gained.
    fn gives_way(
        &self,
        asker: &Asker,
        own: usize,
        holder: &Holder,
        theirs: usize,
        now: u64,
    ) -> bool {
        let is_ours = holder.context == asker.context;
        let has_more = theirs > own.saturating_add(1);
        // Without this, contexts without a slot might never get one.
        let in_turn = own == 0;
        let held = now.saturating_sub(holder.bound_at);
        let is_idle_for = now.saturating_sub(holder.since);
        let has_use = holder.moved || asker.last == Last::Worked;
        match holder.activity {
            Activity::Leaving => false,
            // An idle queue may be between two packets of a program that waits for each.
            Activity::Idle => is_ours || has_more || in_turn || is_idle_for >= self.quantum.waiting,
            Activity::Waiting => (is_ours || has_more || in_turn) && held >= self.quantum.waiting,
            Activity::Ready | Activity::Running if is_ours => {
                let is_urgent = asker.last != Last::Waited && asker.priority > holder.priority;
                let is_due = held >= self.quantum.busy && has_use;
                is_urgent || (asker.priority >= holder.priority && is_due)
            }
            Activity::Ready | Activity::Running => {
                held >= self.quantum.busy && (has_more || (in_turn && has_use))
            }
        }
    }
}
