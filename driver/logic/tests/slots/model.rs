// SPDX-License-Identifier: GPL-2.0
//! A model of a device with slots, address spaces and engines, and of a driver that does nothing
//! but what `slots` decides.

use std::collections::VecDeque;

use pinmap_logic::slots::{
    serve, Activity, Asker, Holder, Last, Order, Pause, Room, Served, Space, QUANTUM,
};

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000 * MICROSECOND;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// Times of the driver that are not part of the logic.
const NOW_AND_THEN: u64 = 100 * MILLISECOND;
const QUICK: u64 = 10 * MILLISECOND;

/// Step of the model's time, and the longest time in which nothing happens.
const STEP: u64 = 50 * MICROSECOND;
const LONGEST: u64 = 5 * MILLISECOND;
/// Cost of putting a queue in.
const BIND: u64 = 200 * MICROSECOND;

const COPY_ENGINES: usize = 2;
const ENGINES: usize = 6;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Packet {
    Copy(u64),
    Kernel(u64),
    /// Writes one of the fences.
    Signal(usize, u64),
    Wait(usize, u64),
}

#[derive(Debug)]
pub(crate) struct Queue {
    context: usize,
    priority: u32,
    packets: VecDeque<Packet>,
    pub(crate) executed: u64,
    /// One more packet, so long after all are done. `waits` has the time that each took, from
    /// the doorbell on.
    pub(crate) again: Option<(Packet, u64)>,
    rings_at: Option<u64>,
    rung_at: u64,
    pub(crate) waits: Vec<u64>,
    // State of the device and the driver.
    pending: bool,
    turn: u64,
    last: Last,
    waited: u32,
    rests_until: u64,
    left_in: u64,
    slot: Option<usize>,
}

#[derive(Debug)]
struct Context {
    served: u64,
    waiters_first: bool,
    turns: u64,
}

#[derive(Debug)]
struct InSlot {
    queue: usize,
    bound_at: u64,
    began: u64,
    engine: Option<(usize, u64)>,
    served: u64,
    idle_since: u64,
    seen: (Activity, u64),
    moved: bool,
    leaving: Option<(Activity, u64)>,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) now: u64,
    slots: Vec<Option<InSlot>>,
    spaces: Vec<Space>,
    pub(crate) queues: Vec<Queue>,
    contexts: Vec<Context>,
    fences: Vec<u64>,
    order: Order,
    turns: u64,
    picks: u64,
    passes: u64,
    bell: bool,
    busy_until: u64,
    next_pass: u64,
    pause: Pause,
    pub(crate) binds: u64,
    pub(crate) looks: u64,
}

impl Model {
    pub(crate) fn new(slots: usize, spaces: usize) -> Self {
        let space = Space {
            context: None,
            given_at: 0,
            used_at: 0,
            moved: false,
            vacating: false,
        };
        Self {
            now: 0,
            slots: (0..slots).map(|_| None).collect(),
            spaces: vec![space; spaces],
            queues: Vec::new(),
            contexts: Vec::new(),
            fences: vec![0; 4096],
            order: Order::default(),
            turns: 0,
            picks: 0,
            passes: 0,
            bell: false,
            busy_until: 0,
            next_pass: 0,
            pause: Pause::default(),
            binds: 0,
            looks: 0,
        }
    }

    /// Makes a model with the numbers of the test GPU.
    pub(crate) fn test_gpu() -> Self {
        Self::new(32, 15)
    }

    pub(crate) fn context(&mut self) -> usize {
        self.contexts.push(Context {
            served: self.order.advance(),
            waiters_first: false,
            turns: 0,
        });
        self.contexts.len() - 1
    }

    pub(crate) fn queue(
        &mut self,
        context: usize,
        priority: u32,
        packets: impl IntoIterator<Item = Packet>,
    ) -> usize {
        self.queues.push(Queue {
            context,
            priority,
            packets: VecDeque::new(),
            executed: 0,
            again: None,
            rings_at: None,
            rung_at: 0,
            waits: Vec::new(),
            pending: false,
            turn: 0,
            last: Last::Worked,
            waited: 0,
            rests_until: 0,
            left_in: 0,
            slot: None,
        });
        let queue = self.queues.len() - 1;
        self.push(queue, packets);
        queue
    }

    pub(crate) fn push(&mut self, queue: usize, packets: impl IntoIterator<Item = Packet>) {
        let now = self.now;
        let entry = &mut self.queues[queue];
        entry.packets.extend(packets);
        entry.rung_at = now;
        if entry.slot.is_none() && !entry.packets.is_empty() {
            entry.pending = true;
            self.bell = true;
        }
    }

    /// Makes a queue that gets `packet` again, some time after it is done.
    pub(crate) fn one_by_one(
        &mut self,
        context: usize,
        priority: u32,
        packet: Packet,
        pause: u64,
    ) -> usize {
        let queue = self.queue(context, priority, [packet]);
        self.queues[queue].again = Some((packet, pause));
        queue
    }

    pub(crate) fn is_done(&self, queue: usize) -> bool {
        self.queues[queue].packets.is_empty()
    }

    pub(crate) fn is_in(&self, queue: usize) -> bool {
        self.queues[queue].slot.is_some()
    }

    pub(crate) fn median_wait(&self, queue: usize) -> u64 {
        let mut waits = self.queues[queue].waits.clone();
        waits.sort();
        waits[waits.len() / 2]
    }

    /// Runs until `done`, for at most `nanoseconds`. Returns whether it was done.
    pub(crate) fn run(
        &mut self,
        nanoseconds: u64,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let end = self.now + nanoseconds;
        while self.now < end {
            if done(self) {
                return true;
            }
            self.step();
        }
        done(self)
    }

    fn step(&mut self) {
        self.now = self.next_event().max(self.now + STEP);
        self.execute();
        for queue in 0..self.queues.len() {
            let entry = &mut self.queues[queue];
            if entry.rings_at.is_some_and(|time| time <= self.now) {
                entry.rings_at = None;
                let packet = entry.again.map(|(packet, _)| packet);
                self.push(queue, packet);
            }
        }
        if self.now >= self.busy_until && (self.bell || self.now >= self.next_pass) {
            self.bell = false;
            self.pass();
        }
    }

    /// Returns when something happens next.
    fn next_event(&self) -> u64 {
        let pass = match self.bell {
            true => self.busy_until,
            false => self.next_pass.max(self.busy_until),
        };
        let slots = self.slots.iter().flatten();
        let ends = slots.filter_map(|slot| slot.engine.map(|(_, end)| end));
        let rings = self.queues.iter().filter_map(|queue| queue.rings_at);
        let next = ends.chain(rings).chain([pass, self.now + LONGEST]);
        next.min().unwrap_or(self.now)
    }

    fn execute(&mut self) {
        let now = self.now;
        for slot in 0..self.slots.len() {
            if let Some(InSlot {
                engine: Some((_, end)),
                queue,
                ..
            }) = self.slots[slot]
            {
                if end <= now {
                    self.complete(slot, queue);
                }
            }
            let leaves = |slot: &InSlot| slot.leaving.is_some() && slot.engine.is_none();
            if self.slots[slot].as_ref().is_some_and(leaves) {
                self.leave(slot);
            }
        }
        for engine in 0..ENGINES {
            self.pick(engine);
        }
    }

    fn complete(&mut self, slot: usize, queue: usize) {
        let now = self.now;
        let entry = &mut self.queues[queue];
        let packet = entry.packets.pop_front();
        entry.executed += 1;
        if let Some(Packet::Signal(fence, value)) = packet {
            self.fences[fence] = self.fences[fence].max(value);
        }
        if entry.packets.is_empty() {
            entry.waits.push(now - entry.rung_at);
            entry.rings_at = entry.again.map(|(_, pause)| now + pause);
        }
        if let Some(slot) = &mut self.slots[slot] {
            slot.engine = None;
            slot.idle_since = now;
        }
    }

    fn leave(&mut self, slot: usize) {
        let Some(was) = self.slots[slot].take() else {
            return;
        };
        let context = self.queues[was.queue].context as u64;
        let entry = &mut self.queues[was.queue];
        entry.slot = None;
        let moved = entry.executed != was.began;
        let told = was.leaving.map_or(Activity::Idle, |(activity, _)| activity);
        entry.last = Last::of(told, moved);
        entry.waited = match entry.last {
            Last::Waited => entry.waited + 1,
            _ => 0,
        };
        if entry.last == Last::Waited {
            entry.rests_until = self.now + QUANTUM.rest(entry.waited);
        }
        if !entry.packets.is_empty() {
            entry.pending = true;
            self.bell = true;
        }
        for space in &mut self.spaces {
            if space.context == Some(context) {
                space.used_at = self.now;
                space.moved |= moved;
            }
        }
    }

    /// Returns what the queue in a slot is doing, as the device sees it.
    fn activity(&mut self, slot: usize) -> Option<Activity> {
        let slot = self.slots[slot].as_ref()?;
        let packets = &self.queues[slot.queue].packets;
        Some(match (packets.front(), slot.engine, slot.leaving) {
            (_, _, Some(_)) => Activity::Leaving,
            (_, Some(_), _) => Activity::Running,
            (None, ..) => Activity::Idle,
            (Some(Packet::Wait(fence, value)), ..) if self.fences[*fence] < *value => {
                Activity::Waiting
            }
            _ => Activity::Ready,
        })
    }

    /// Picks a queue for an engine as the device does: address spaces take turns; within one,
    /// priorities count, and then queues take turns.
    fn pick(&mut self, engine: usize) {
        let taken = |slot: &InSlot| slot.engine.is_some_and(|(taken, _)| taken == engine);
        if self.slots.iter().flatten().any(taken) {
            return;
        }
        let mut best = None;
        for number in 0..self.slots.len() {
            if self.activity(number) != Some(Activity::Ready) {
                continue;
            }
            let Some(slot) = &self.slots[number] else {
                continue;
            };
            let queue = &self.queues[slot.queue];
            let fits = match queue.packets.front() {
                Some(Packet::Copy(_)) => engine < COPY_ENGINES,
                Some(Packet::Kernel(_)) => engine >= COPY_ENGINES,
                _ => true,
            };
            let rank = (
                self.contexts[queue.context].turns,
                u32::MAX - queue.priority,
                slot.served,
            );
            if fits && best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, number));
            }
        }
        let Some((_, number)) = best else { return };
        self.picks += 1;
        if let Some(slot) = &mut self.slots[number] {
            let queue = &self.queues[slot.queue];
            let time = match queue.packets.front() {
                Some(Packet::Copy(time) | Packet::Kernel(time)) => *time,
                _ => 0,
            };
            slot.engine = Some((engine, self.now + time));
            slot.served = self.picks;
            self.contexts[queue.context].turns = self.picks;
        }
    }

    fn pass(&mut self) {
        self.passes += 1;
        self.take_notes(0);
        let before = self.binds;
        let served = serve(self, QUANTUM);
        assert_ne!(served, Served::Dead);
        self.pause.note(served);
        let mut slots = self.slots.iter().flatten();
        let pause = if slots.any(|slot| slot.leaving.is_some()) {
            Pause::SHORTEST
        } else if self
            .queues
            .iter()
            .any(|queue| queue.turn != 0 && queue.slot.is_none())
        {
            self.pause.length()
        } else {
            NOW_AND_THEN
        };
        self.busy_until = self.now + (self.binds - before) * BIND;
        self.next_pass = self.busy_until + pause;
    }

    fn take_notes(&mut self, but: u64) {
        for queue in &mut self.queues {
            if queue.pending && queue.turn == 0 && (but == 0 || queue.left_in != but) {
                self.turns += 1;
                queue.turn = self.turns;
            }
        }
    }
}

impl Room for Model {
    fn now(&self) -> u64 {
        self.now
    }

    fn askers(&self) -> impl Iterator<Item = Asker> {
        let asks = |queue: &&Queue| {
            queue.turn != 0 && queue.slot.is_none() && queue.rests_until <= self.now
        };
        let queues = (0_u32..).zip(&self.queues);
        queues
            .filter(move |(_, queue)| asks(queue))
            .map(|(id, queue)| {
                let context = &self.contexts[queue.context];
                Asker {
                    queue: id,
                    context: queue.context as u64,
                    served: context.served,
                    waiters_first: context.waiters_first,
                    priority: queue.priority,
                    turn: queue.turn,
                    last: queue.last,
                }
            })
    }

    fn slots(&self) -> impl Iterator<Item = Option<Holder>> {
        self.slots.iter().map(|slot| {
            let slot = slot.as_ref()?;
            let queue = &self.queues[slot.queue];
            let (activity, since) = slot.seen;
            Some(Holder {
                context: queue.context as u64,
                priority: queue.priority,
                activity: slot.leaving.map_or(activity, |_| Activity::Leaving),
                since,
                bound_at: slot.bound_at,
                moved: slot.moved,
                is_quick: slot.leaving.is_some_and(|(activity, told)| {
                    activity != Activity::Running && self.now - told < QUICK
                }),
            })
        })
    }

    fn spaces(&self) -> impl Iterator<Item = Space> {
        self.spaces.iter().copied()
    }

    fn look(&mut self) {
        self.looks += 1;
        for number in 0..self.slots.len() {
            let Some(activity) = self.activity(number) else {
                continue;
            };
            if let Some(slot) = &mut self.slots[number] {
                let since = match activity {
                    Activity::Idle | Activity::Waiting => slot.idle_since,
                    _ => slot.bound_at,
                };
                slot.seen = (activity, since);
                slot.moved = self.queues[slot.queue].executed != slot.began;
            }
        }
    }

    fn evict(&mut self, slot: usize) {
        let (now, pass) = (self.now, self.passes);
        let activity = self.activity(slot).expect("somebody is in it");
        let entry = self.slots[slot].as_mut().expect("somebody is in it");
        assert!(entry.leaving.is_none());
        entry.leaving = Some((activity, now));
        self.queues[entry.queue].left_in = pass;
        if activity != Activity::Running {
            self.leave(slot);
        }
    }

    fn vacate(&mut self, space: usize, vacating: bool) {
        self.spaces[space].vacating = vacating;
    }

    fn bind(&mut self, asker: &Asker, slot: usize, space: usize) -> bool {
        let now = self.now;
        assert!(self.slots[slot].is_none(), "the slot is taken");
        if self.spaces[space].context != Some(asker.context) {
            let old = self.spaces[space].context;
            assert!(
                self.slots()
                    .flatten()
                    .all(|holder| Some(holder.context) != old),
                "a space is given away while its queues are in slots"
            );
            self.spaces[space] = Space {
                context: Some(asker.context),
                given_at: now,
                used_at: now,
                moved: false,
                vacating: false,
            };
        }
        let own = |space: &&Space| space.context == Some(asker.context);
        assert_eq!(self.spaces.iter().filter(own).count(), 1);
        assert!(!self.spaces[space].vacating);
        self.binds += 1;
        let context = &mut self.contexts[asker.context as usize];
        context.served = self.order.advance();
        context.waiters_first = asker.last != Last::Waited;
        let queue = &mut self.queues[asker.queue as usize];
        (queue.turn, queue.pending, queue.slot) = (0, false, Some(slot));
        self.slots[slot] = Some(InSlot {
            queue: asker.queue as usize,
            bound_at: now,
            began: queue.executed,
            engine: None,
            served: 0,
            idle_since: now,
            seen: (Activity::Ready, now),
            moved: false,
            leaving: None,
        });
        true
    }

    fn note(&mut self) {
        self.take_notes(self.passes);
    }
}
