// SPDX-License-Identifier: GPL-2.0
//! Who has to make room when there are more contexts or queues with work than the device can hold.
//!
//! Decided from what the device's registers say, never from memory that user space can write.

/// What the holder of a place is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Nothing.
    Idle,
    /// Waits for a fence.
    Waiting,
    /// Works, or could.
    Busy,
    /// Is leaving already, or must not be disturbed.
    Leaving,
}

/// A place and who has it: a slot and its queue, or an address space and its context.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// What it does.
    pub activity: Activity,
    /// Since when it does that, or has been here; the smaller, the longer ago.
    pub since: u64,
    /// For how long it has had the place, in nanoseconds.
    pub held: u64,
    /// Its priority; the highest of its queues'.
    pub priority: u32,
}

/// How long somebody keeps a place that others want, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Quantum {
    /// While it works.
    pub busy: u64,
    /// While it waits for a fence: long enough to look at it.
    pub waiting: u64,
}

/// Which of `holders` makes room for somebody of `priority`; its index.
///
/// Whoever is idle goes first, then who waits for a fence, both least recently used; then, once its
/// time is over, whoever has worked for longest. `None`: nobody yet. A lower priority never displaces a
/// higher one that works; a higher one does not wait until a lower one's time is over.
pub fn choose(
    holders: impl Iterator<Item = Holder>,
    priority: u32,
    quantum: Quantum,
) -> Option<usize> {
    let key = |holder: Holder| match holder.activity {
        Activity::Idle => Some((Activity::Idle, holder.since)),
        Activity::Waiting if holder.held >= quantum.waiting => {
            Some((Activity::Waiting, holder.since))
        }
        Activity::Busy
            if holder.priority < priority
                || (holder.priority == priority && holder.held >= quantum.busy) =>
        {
            Some((Activity::Busy, u64::MAX.wrapping_sub(holder.held)))
        }
        Activity::Waiting | Activity::Busy | Activity::Leaving => None,
    };
    holders
        .enumerate()
        .filter_map(|(index, holder)| key(holder).map(|key| (key, index)))
        .min()
        .map(|(_, index)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUANTUM: Quantum = Quantum {
        busy: 100,
        waiting: 10,
    };

    fn holder(activity: Activity, since: u64, held: u64, priority: u32) -> Holder {
        Holder {
            activity,
            since,
            held,
            priority,
        }
    }

    fn pick(holders: &[Holder], priority: u32) -> Option<usize> {
        choose(holders.iter().copied(), priority, QUANTUM)
    }

    #[test]
    fn idle_before_waiting_before_busy() {
        let all = [
            holder(Activity::Busy, 1, 1000, 1),
            holder(Activity::Waiting, 2, 1000, 1),
            holder(Activity::Idle, 50, 0, 3),
            holder(Activity::Idle, 40, 0, 3),
            holder(Activity::Leaving, 0, 9000, 0),
        ];
        assert_eq!(pick(&all, 1), Some(3));
        assert_eq!(pick(&all[..3], 1), Some(2));
        assert_eq!(pick(&all[..2], 1), Some(1));
        assert_eq!(pick(&all[..1], 1), Some(0));
        assert_eq!(pick(&all[4..], 3), None);
        assert_eq!(pick(&[], 3), None);
    }

    #[test]
    fn time_and_priority() {
        assert_eq!(pick(&[holder(Activity::Busy, 0, 99, 1)], 1), None);
        assert_eq!(pick(&[holder(Activity::Busy, 0, 100, 1)], 1), Some(0));
        assert_eq!(pick(&[holder(Activity::Busy, 0, 0, 1)], 2), Some(0));
        assert_eq!(pick(&[holder(Activity::Busy, 0, 10_000, 2)], 1), None);
        assert_eq!(pick(&[holder(Activity::Waiting, 0, 9, 1)], 3), None);
        let two = [
            holder(Activity::Busy, 0, 200, 1),
            holder(Activity::Busy, 5, 300, 1),
        ];
        assert_eq!(pick(&two, 1), Some(1));
    }

    proptest! {
        /// With equal priorities nobody is starved: whoever gives way has been served at least a quantum.
        #[test]
        fn everybody_gets_a_turn(places in 1usize..6, contexts in 1usize..20) {
            let mut held: Vec<(usize, u64)> = Vec::new();
            let mut queue: std::collections::VecDeque<usize> = (0..contexts).collect();
            let mut served = vec![0u32; contexts];
            for now in (0..(contexts as u64 + 2) * 300).step_by(50) {
                while let Some(&next) = queue.front() {
                    if held.len() < places {
                        held.push((next, now));
                    } else {
                        let busy = held.iter().map(|&(_, from)| holder(Activity::Busy, from, now - from, 0));
                        let Some(index) = choose(busy, 0, QUANTUM) else { break };
                        queue.push_back(held[index].0);
                        held[index] = (next, now);
                    }
                    served[next] += 1;
                    queue.pop_front();
                }
            }
            prop_assert!(served.iter().all(|&times| times > 0));
        }
    }
}
