// SPDX-License-Identifier: GPL-2.0
//! Decides which queue is put into a slot of the device next, and which one has to make room, when
//! more contexts or queues have work than the device can hold.
//!
//! The device runs queues in *slots*, each in one of a few *address spaces*. A queue with work
//! *asks* for a slot, and its context for an address space. If none is free, the queue that needs
//! its place least is told to leave: first an idle one, then one that waits for a fence, then one
//! that waits for an engine, and last one that an engine works for. Contexts share the slots
//! evenly; within a context priorities count. [`Quantum`] says how long a queue or context keeps
//! its place.
//!
//! A queue that only waited in its last turn asks again after a rest, which gets longer each time;
//! and a queue that could do nothing does not displace another one that got nothing done either. So
//! queues that depend on each other make progress, and queues that gain nothing do not take places
//! from each other.
//!
//! All decisions depend on the device's registers, never on memory that user space can write. Both
//! the driver and the model of a device in the tests implement [`Room`].

mod serve;

pub use serve::serve;

/// The activity of the queue in a slot. A queue that is to make room is looked for in this order.
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

const MILLISECOND: u64 = 1_000_000;

/// How long a queue or context keeps a slot or address space that others want.
pub const QUANTUM: Quantum = Quantum {
    busy: 10 * MILLISECOND,
    waiting: 2 * MILLISECOND,
};

/// Time until the next pass if no interrupt comes first and a queue waits for room: the first time.
const SOON: u64 = 3 * MILLISECOND;
/// The longest time until the next pass if a queue still waits for room.
const LATER: u64 = 12 * MILLISECOND;

/// How long to wait until the next pass, unless an interrupt comes first: longer each time that no
/// queue could be put in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pause(u64);

impl Pause {
    /// The shortest pause, in nanoseconds.
    pub const SHORTEST: u64 = SOON;

    /// Takes the result of a pass into account.
    pub fn note(&mut self, served: Served) {
        self.0 = match served {
            Served::Nobody => self.0.saturating_mul(2).clamp(SOON, LATER),
            Served::All | Served::Some | Served::Dead => SOON,
        };
    }

    /// The pause in nanoseconds.
    pub const fn length(self) -> u64 {
        self.0
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
    /// The queue's present activity.
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
