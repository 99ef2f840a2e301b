// SPDX-License-Identifier: GPL-2.0
//! Who is put into the device next, and who has to make room, when there are more contexts or queues
//! with work than it can hold.
//!
//! Decided from what the device's registers say, never from memory that user space can write. The driver
//! is a [`Room`]; so is the model of a device that the tests use, which says what comes of it all.

/// What the queue in a slot is doing. Whoever makes room is looked for in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Nothing.
    Idle,
    /// Waits for a fence.
    Waiting,
    /// Has work, and waits for an engine: out at once when it is told to leave.
    Ready,
    /// An engine holds its packet: out when that ends, which may take long.
    Running,
    /// Is leaving already.
    Leaving,
}

/// How a queue spent the time that it was in a slot last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Last {
    /// It got on, or had nothing to do.
    #[default]
    Worked,
    /// No engine took any of its packets.
    Starved,
    /// It waited for a fence, and for nothing else.
    Waited,
}

impl Last {
    /// Of a queue that was told to leave while it did `activity`; whether it `moved`: executed anything.
    pub fn of(activity: Activity, moved: bool) -> Self {
        match activity {
            _ if moved => Self::Worked,
            Activity::Waiting => Self::Waited,
            Activity::Ready | Activity::Running => Self::Starved,
            Activity::Idle | Activity::Leaving => Self::Worked,
        }
    }
}

/// How long somebody keeps a place that others want, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Quantum {
    /// While it works.
    pub busy: u64,
    /// While it waits for a fence: long enough to look at it.
    pub waiting: u64,
}

impl Quantum {
    /// How long a queue that was put in `times` times in a row, and did nothing but wait for a fence,
    /// stays out before it asks again: each time twice as long, up to 8 times.
    pub fn rest(&self, times: u32) -> u64 {
        self.waiting
            .saturating_mul(1_u64.wrapping_shl(times.min(3)))
    }
}

/// Counts events that have an order: contexts that come, and queues that are put into slots.
#[derive(Debug, Default)]
pub struct Order(u64);

impl Order {
    /// A number larger than all before.
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
    /// Names its context.
    pub context: u64,
    /// When the context was served last, or came, by the [`Order`]; no other context has the same.
    pub served: u64,
    /// Whether it is the turn of the context's queues that only waited.
    pub waiters_first: bool,
    /// The higher, the more urgent: within the context.
    pub priority: u32,
    /// When the queue asked, in the order of asking.
    pub turn: u64,
    /// What became of its last time in a slot.
    pub last: Last,
}

impl Asker {
    /// Its place among those who ask; the smallest is first.
    fn rank(&self) -> Rank {
        let only_waits = self.last == Last::Waited;
        let urgency = match only_waits {
            // By turns, so that each is looked at.
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

    /// The bit of those who have no better claim than it, within its context.
    fn claim(&self) -> u64 {
        let last = match self.last {
            Last::Worked => 0,
            Last::Starved => 1,
            Last::Waited => 2,
        };
        1_u64.wrapping_shl(self.priority.min(20).saturating_mul(3).saturating_add(last))
    }
}

/// When its context was served; whether its kind is not the one whose turn it is there; how urgent it is
/// (the less, the more); its turn.
type Rank = (u64, bool, u32, u64);

/// A queue in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// Names its context.
    pub context: u64,
    /// Its priority.
    pub priority: u32,
    /// What it does.
    pub activity: Activity,
    /// Since when it does that, where it is idle or waits, by our clock.
    pub since: u64,
    /// When it was put in.
    pub bound_at: u64,
    /// Whether it has executed anything since.
    pub moved: bool,
    /// It is leaving, and will be out very soon.
    pub is_quick: bool,
}

/// An address space of the device.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// The context that has it.
    pub context: Option<u64>,
    /// When that got it.
    pub given_at: u64,
    /// When a queue of it was in a slot last.
    pub used_at: u64,
    /// Whether a queue of it, which may be out again, has executed anything since.
    pub moved: bool,
    /// Its queues are being taken out, to give it to another context.
    pub vacating: bool,
}

/// The device and what is in it.
pub trait Room {
    /// The time, in nanoseconds.
    fn now(&self) -> u64;

    /// The queues that ask for a slot.
    fn askers(&self) -> impl Iterator<Item = Asker>;

    /// The slots, and who is in them, as far as it was looked.
    fn slots(&self) -> impl Iterator<Item = Option<Holder>>;

    /// The address spaces.
    fn spaces(&self) -> impl Iterator<Item = Space>;

    /// Looks what those in the slots do.
    fn look(&mut self);

    /// Tells whoever is in a slot to leave, and sees whether it has.
    fn evict(&mut self, slot: usize);

    /// An address space is to be given to somebody else as soon as none of its queues is in a slot; or not.
    fn vacate(&mut self, space: usize, vacating: bool);

    /// Puts a queue into a free slot, its context having an address space, of which nobody else has a queue
    /// in a slot. `false`: the device is dead.
    fn bind(&mut self, asker: &Asker, slot: usize, space: usize) -> bool;

    /// Notes those who have asked meanwhile, but for those who were told to leave meanwhile.
    fn note(&mut self);
}

/// What came of [`serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Nobody asks any more.
    All,
    /// Some were put in, and others ask.
    Some,
    /// There was no room for anybody.
    Nobody,
    /// The device does not work.
    Dead,
}

/// What came of one queue's wish.
enum Outcome {
    Bound,
    /// It has to wait for somebody who is leaving.
    Later,
    /// It has to wait until somebody can be told to leave; so has whoever has no better claim.
    Refused,
    /// So has everybody of its context.
    ContextRefused,
    Dead,
}

/// How much room is on its way that somebody who waits may count on, rather than have more made.
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

/// Whether there was one, which is now counted on.
fn count_on(coming: &mut usize) -> bool {
    let is_there = *coming != 0;
    *coming = coming.saturating_sub(1);
    is_there
}

/// Puts queues into slots, as far as there is room, and has room made for others.
///
/// Contexts take turns, whoever was served longest ago first. Of a context's queues the most urgent comes
/// first, then who has asked for longest; but those that did nothing but wait when they were in a slot last
/// take turns with all the others, one of these and one of those, so that neither kind keeps the other out.
pub fn serve(room: &mut impl Room, quantum: Quantum) -> Served {
    let mut pass = Pass {
        slots: Coming::of(leaving_slots(room)),
        spaces: Coming::of(vacating_spaces(room)),
        looked: false,
        quantum,
        room,
    };
    let (mut bound, mut all, mut after) = (0, true, None);
    // Of the context that is looked at: who need not be tried.
    let (mut context, mut refused) = (None, 0_u64);
    while let Some(asker) = pass.next(after, context, refused) {
        after = Some(asker.rank());
        if context != Some(asker.context) {
            (context, refused) = (Some(asker.context), 0);
        }
        // There may be more to do than can be done in one go.
        if bound >= pass.room.slots().count() {
            all = false;
            break;
        }
        match pass.try_bind(&asker) {
            Outcome::Bound => {
                bound = bound.saturating_add(1);
                context = None;
                // It takes its time, and whoever asked meanwhile may be more urgent than those that are left.
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

/// The queues of a context that are in slots.
fn holders(room: &impl Room, context: Option<u64>) -> impl Iterator<Item = Holder> + '_ {
    room.slots()
        .flatten()
        .filter(move |holder| Some(holder.context) == context)
}

/// One go.
struct Pass<'a, R> {
    room: &'a mut R,
    quantum: Quantum,
    slots: Coming,
    spaces: Coming,
    looked: bool,
}

impl<R: Room> Pass<'_, R> {
    /// Who is next, after `after`; of `context` nobody whose claim is in `refused`.
    fn next(&self, after: Option<Rank>, context: Option<u64>, refused: u64) -> Option<Asker> {
        self.room
            .askers()
            .filter(|asker| after.is_none_or(|after| asker.rank() > after))
            .filter(|asker| Some(asker.context) != context || refused & asker.claim() == 0)
            .min_by_key(Asker::rank)
    }

    /// Looks at what those in the slots do, once for all that somebody has to make way for.
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
                    // Whoever it was taken from us for would have been served before us, and is gone.
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

    /// An address space that nobody has, or that was vacated.
    fn spare_space(&self) -> Option<usize> {
        self.room.spaces().position(|space| match space.context {
            None => true,
            context => space.vacating && self.in_slots(context) == 0,
        })
    }

    /// Puts it in with the address space of another context, which has all its queues taken out.
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
            // Taken only for a queue that can be put in at once.
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

    /// Whose address space is to be taken, and what its queues do: of somebody who is idle, then of who
    /// waits for a fence, both least recently used; then, once its time is over, of whoever had it longest.
    /// Between contexts priorities say nothing.
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

    /// A free slot, made free if somebody has to go.
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

    /// Who makes room, and what it does.
    ///
    /// Whoever is idle goes first, least recently used; then who waits for a fence; then who waits for an
    /// engine; and only then who has one. Of those, queues of the context that has most; then the least
    /// urgent; then those that have got on; then whoever has been in for longest.
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

    /// Whether `holder`, whose context has `theirs` slots, may be told to leave for `asker`, whose context
    /// has `own`.
    ///
    /// Contexts share the slots: who has fewer takes from who has more, until they have as many or one is
    /// between them. Within a context a lower priority never displaces a higher one that works, and a higher
    /// one does not wait until a lower one's time is over. Between equals it takes the whole time, and
    /// whoever had a slot for nothing does not take one from somebody to whom it has been of no use either:
    /// nobody would get on by that.
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
        // Otherwise contexts without a slot might never have one.
        let in_turn = own == 0;
        let held = now.saturating_sub(holder.bound_at);
        let is_idle_for = now.saturating_sub(holder.since);
        let has_use = holder.moved || asker.last == Last::Worked;
        match holder.activity {
            Activity::Leaving => false,
            // Between two packets of who is served one by one.
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
