// SPDX-License-Identifier: GPL-2.0
//! Decides which queue is put into the device next, and which one has to make room, when more
//! contexts or queues have work than the device can hold.
//!
//! All decisions depend on the device's registers, never on memory that user space can write. Both
//! the driver and the model of a device in the tests implement [`Room`].

/// What the queue in a slot is doing. The queue that makes room is looked for in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Has nothing to do.
    Idle,
    /// Waits for a fence.
    Waiting,
    /// Has work and waits for an engine. It leaves at once when it is told to.
    Ready,
    /// An engine holds its packet. It leaves when the packet ends, which may take long.
    Running,
    /// Is leaving already.
    Leaving,
}

/// How a queue spent its last time in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Last {
    /// The queue executed something, or had nothing to do.
    #[default]
    Worked,
    /// No engine took any of the queue's packets.
    Starved,
    /// The queue only waited for a fence.
    Waited,
}

impl Last {
    /// Returns how a queue spent its time that was told to leave in state `activity`; `moved` says
    /// whether it executed anything.
    pub fn of(activity: Activity, moved: bool) -> Self {
        match activity {
            _ if moved => Self::Worked,
            Activity::Waiting => Self::Waited,
            Activity::Ready | Activity::Running => Self::Starved,
            Activity::Idle | Activity::Leaving => Self::Worked,
        }
    }
}

/// How long a queue or context keeps a place that others want, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Quantum {
    /// Time for a queue that works.
    pub busy: u64,
    /// Time for a queue that waits for a fence: long enough to look at the fence.
    pub waiting: u64,
}

impl Quantum {
    /// Returns how long a queue stays out that only waited for a fence in its last `times` turns:
    /// each time twice as long, up to 8 times.
    pub fn rest(&self, times: u32) -> u64 {
        self.waiting
            .saturating_mul(1_u64.wrapping_shl(times.min(3)))
    }
}

/// Counts events that have an order: contexts that come, and queues that are put into slots.
#[derive(Debug, Default)]
pub struct Order(u64);

impl Order {
    /// Returns a number larger than all before.
    pub fn advance(&mut self) -> u64 {
        self.0 = self.0.saturating_add(1);
        self.0
    }
}

/// A queue that asks for a slot.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The queue.
    pub queue: u32,
    /// Id of the queue's context.
    pub context: u64,
    /// When the context was served last, or was opened, by [`Order`]. No other context has the same
    /// number.
    pub served: u64,
    /// Whether it is the turn of the context's queues that only waited.
    pub waiters_first: bool,
    /// Priority within the context; a higher number is more urgent.
    pub priority: u32,
    /// When the queue asked, in the order of asking.
    pub turn: u64,
    /// How the queue spent its last time in a slot.
    pub last: Last,
}

impl Asker {
    /// Returns the queue's rank among those that ask; the smallest is first.
    fn rank(&self) -> Rank {
        let only_waits = self.last == Last::Waited;
        let urgency = match only_waits {
            // Waiting queues go by turns, so that each is looked at.
            true => 0,
            false => u32::MAX.wrapping_sub(self.priority),
        };
        (
            self.served,
            only_waits != self.waiters_first,
            urgency,
            self.turn,
        )
    }

    /// Returns the bit of those queues of the context that have no better claim than this one.
    fn claim(&self) -> u64 {
        let last = match self.last {
            Last::Worked => 0,
            Last::Starved => 1,
            Last::Waited => 2,
        };
        1_u64.wrapping_shl(self.priority.min(20).saturating_mul(3).saturating_add(last))
    }
}

/// Rank of a queue that asks: when its context was served; whether it is not the turn of its kind
/// there; its urgency, the smaller the more urgent; its turn.
type Rank = (u64, bool, u32, u64);

/// A queue in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// Id of the queue's context.
    pub context: u64,
    /// Priority of the queue.
    pub priority: u32,
    /// What the queue is doing.
    pub activity: Activity,
    /// Since when the queue has been idle or waiting, by the driver's clock.
    pub since: u64,
    /// When the queue was put in.
    pub bound_at: u64,
    /// Whether the queue has executed anything since it was put in.
    pub moved: bool,
    /// Whether the queue is leaving and will be out very soon.
    pub is_quick: bool,
}

/// An address space of the device.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Context that has the address space.
    pub context: Option<u64>,
    /// When the context got it.
    pub given_at: u64,
    /// When a queue of the context was in a slot last.
    pub used_at: u64,
    /// Whether a queue of the context, which may be out again, has executed anything since.
    pub moved: bool,
    /// Whether its queues are being taken out, to give it to another context.
    pub vacating: bool,
}

/// The device and what is in it.
pub trait Room {
    /// Returns the time in nanoseconds.
    fn now(&self) -> u64;

    /// Returns the queues that ask for a slot.
    fn askers(&self) -> impl Iterator<Item = Asker>;

    /// Returns the slots and the queues in them, as they were seen last.
    fn slots(&self) -> impl Iterator<Item = Option<Holder>>;

    /// Returns the address spaces.
    fn spaces(&self) -> impl Iterator<Item = Space>;

    /// Reads what the queues in the slots are doing.
    fn look(&mut self);

    /// Tells the queue in a slot to leave, and checks whether it has left.
    fn evict(&mut self, slot: usize);

    /// Sets whether an address space is to be given to another context as soon as none of its
    /// queues is in a slot.
    fn vacate(&mut self, space: usize, vacating: bool);

    /// Puts a queue into a free slot and gives its context the address space, of which no other
    /// context has a queue in a slot. Returns `false` if the device is dead.
    fn bind(&mut self, asker: &Asker, slot: usize, space: usize) -> bool;

    /// Adds the queues that have asked in the meantime, except for those that were told to leave in
    /// the meantime.
    fn note(&mut self);
}

/// Result of [`serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// No queue asks any more.
    All,
    /// Some queues were put in, and others still ask.
    Some,
    /// There was no room for any queue.
    Nobody,
    /// The device does not work.
    Dead,
}

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
