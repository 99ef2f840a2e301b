// SPDX-License-Identifier: GPL-2.0
//! Tests of the scheduler's decisions, on a model of a device.

mod model;

use model::{Model, Packet, MICROSECOND, MILLISECOND, SECOND};
use proptest::prelude::*;

/// Other contexts have many queues of long kernels. One copies a little now and then, while both
/// copy engines are idle.
#[test]
fn many_long_kernels_hold_up_no_other_context() {
    for (queues, kernel) in [
        (8, 1_900 * MILLISECOND),
        (33, 1_900 * MILLISECOND),
        (40, 1_900 * MILLISECOND),
        (64, 1_900 * MILLISECOND),
        (200, 1_900 * MILLISECOND),
        (40, 20 * MILLISECOND),
        (64, 20 * MILLISECOND),
    ] {
        let mut model = Model::test_gpu();
        let many = model.context();
        for _ in 0..queues {
            model.queue(many, 1, vec![Packet::Kernel(kernel); 2_000]);
        }
        model.run(300 * MILLISECOND, |_| false);
        let one = model.context();
        // A queue that keeps its slot, and one that loses it each time.
        for pause in [0, 20 * MILLISECOND] {
            let copies = model.one_by_one(one, 1, Packet::Copy(100 * MICROSECOND), pause);
            let before = model.binds;
            model.run(5 * SECOND, |_| false);
            let worst = model.queues[copies].waits.iter().max().copied();
            let (median, binds) = (model.median_wait(copies), model.binds - before);
            println!("{queues} of {kernel}: median {median}, worst {worst:?}, {binds} binds");
            assert!(model.queues[copies].executed > 100);
            assert!(worst < Some(20 * MILLISECOND), "{queues}: {worst:?}");
            model.queues[copies].again = None;
        }
    }
}

/// A context that copies now and then has to be given an address space as well.
#[test]
fn many_contexts_of_long_kernels_hold_up_nobody() {
    let mut model = Model::test_gpu();
    for _ in 0..24 {
        let context = model.context();
        for _ in 0..5 {
            model.queue(context, 1, vec![Packet::Kernel(1_900 * MILLISECOND); 100]);
        }
    }
    model.run(300 * MILLISECOND, |_| false);
    let one = model.context();
    let pause = 20 * MILLISECOND;
    let copies = model.one_by_one(one, 1, Packet::Copy(100 * MICROSECOND), pause);
    model.run(20 * SECOND, |_| false);
    let worst = model.queues[copies].waits.iter().max().copied();
    println!("median {}, worst {worst:?}", model.median_wait(copies));
    assert!(model.queues[copies].executed > 20);
    assert!(model.median_wait(copies) < 100 * MILLISECOND);
    assert!(worst < Some(SECOND / 2), "{worst:?}");
}

/// Urgent queues that wait do not keep out the queues for which they wait.
#[test]
fn any_number_of_queues_may_wait() {
    for waiting in [31, 32, 33, 40, 100, 900] {
        let mut model = Model::test_gpu();
        let context = model.context();
        for _ in 0..waiting {
            model.queue(context, 3, [Packet::Wait(0, 1), Packet::Copy(MICROSECOND)]);
        }
        model.run(100 * MILLISECOND, |_| false);
        let low = model.queue(context, 0, vec![Packet::Kernel(20 * MILLISECOND); 20]);
        model.push(low, [Packet::Signal(0, 1)]);
        assert!(
            model.run(3 * SECOND, |model| model.is_done(low)),
            "{waiting}: {} packets",
            model.queues[low].executed
        );
        println!("{waiting}: the last was signalled after {} ns", model.now);
        let all = |model: &mut Model| (0..waiting).all(|queue| model.is_done(queue));
        assert!(model.run(5 * SECOND, all), "{waiting}");
        println!("{waiting}: all were done after {} ns", model.now);
    }
}

/// Queues for which urgent ones wait do not keep those out: both kinds have as many turns.
#[test]
fn less_urgent_queues_do_not_keep_out_who_waited() {
    let mut model = Model::test_gpu();
    let context = model.context();
    let waits: Vec<_> = (0..10)
        .map(|_| model.queue(context, 3, [Packet::Wait(0, 1), Packet::Copy(MICROSECOND)]))
        .collect();
    for _ in 0..60 {
        model.queue(context, 2, vec![Packet::Kernel(15 * MILLISECOND); 3_000]);
    }
    let signal = model.queue(context, 3, vec![Packet::Kernel(MILLISECOND); 100]);
    model.push(signal, [Packet::Signal(0, 1)]);
    assert!(model.run(5 * SECOND, |model| model.is_done(signal)));
    let all = |model: &mut Model| waits.iter().all(|&queue| model.is_done(queue));
    assert!(model.run(3 * SECOND, all));
}

/// No queue is put in that gains nothing by it.
#[test]
fn equal_queues_do_not_take_slots_from_each_other_for_nothing() {
    for queues in [32, 33, 37, 40, 64] {
        let mut model = Model::test_gpu();
        let context = model.context();
        for _ in 0..queues {
            model.queue(context, 1, vec![Packet::Kernel(1_900 * MILLISECOND); 20]);
        }
        model.run(10 * SECOND, |_| false);
        let executed: u64 = model.queues.iter().map(|queue| queue.executed).sum();
        println!("{queues}: {} binds for {executed} kernels", model.binds);
        assert!(executed >= 20);
        // Each is put in once in the beginning, and again after some have executed something.
        assert!(model.binds <= 2 * queues + 2 * executed, "{}", model.binds);
    }
}

/// No context gets an address space that gains nothing by it, because the engines are taken.
#[test]
fn equal_contexts_do_not_take_address_spaces_from_each_other_for_nothing() {
    let mut model = Model::test_gpu();
    for _ in 0..24 {
        let context = model.context();
        model.queue(context, 1, vec![Packet::Kernel(1_900 * MILLISECOND); 20]);
    }
    model.run(20 * SECOND, |_| false);
    let executed: u64 = model.queues.iter().map(|queue| queue.executed).sum();
    println!("{} binds for {executed} kernels", model.binds);
    assert!(model.binds <= 48 + 2 * executed, "{}", model.binds);
    let least = model.queues.iter().map(|queue| queue.executed).min();
    assert!(least >= Some(1));
}

/// Queues that only wait are looked at now and then, and not all the time.
#[test]
fn queues_that_wait_are_looked_at_now_and_then() {
    let mut model = Model::test_gpu();
    let context = model.context();
    for _ in 0..40 {
        model.queue(context, 1, [Packet::Wait(0, 1)]);
    }
    model.run(SECOND, |_| false);
    let before = model.binds;
    model.run(10 * SECOND, |_| false);
    let rate = (model.binds - before) / 10;
    println!("{rate} binds a second");
    assert!(rate < 700, "{rate}");
    // They notice the fence for which they wait.
    let signal = model.queue(context, 1, [Packet::Signal(0, 1)]);
    assert!(model.run(SECOND / 10, |model| model.is_done(signal)));
    let all = |model: &mut Model| (0..40).all(|queue| model.is_done(queue));
    assert!(model.run(SECOND / 10, all));
}

/// New contexts, more than there is room for, do not keep out one that was there before.
#[test]
fn new_contexts_do_not_outrank_old_ones() {
    let mut model = Model::new(1, 1);
    let (old, other) = (model.context(), model.context());
    model.queue(other, 1, vec![Packet::Kernel(5 * MILLISECOND); 10]);
    let copies = model.one_by_one(old, 1, Packet::Copy(MILLISECOND), MILLISECOND);
    let mut next = 0;
    let served = |model: &Model| model.queues[copies].executed;
    model.run(5 * SECOND, |model| {
        if model.now >= next && served(model) < 5 {
            next = model.now + 5 * MILLISECOND;
            let context = model.context();
            model.queue(context, 3, [Packet::Kernel(10 * MILLISECOND)]);
        }
        served(model) >= 5
    });
    // Each time all contexts before it have a turn: twice as many as the time before.
    assert!(served(&model) >= 5, "{}", served(&model));
}

/// A context with few queues gets as much of the device as one with many, if each has enough to do.
#[test]
fn contexts_share_the_slots() {
    let mut model = Model::test_gpu();
    let (many, few) = (model.context(), model.context());
    let of = |model: &mut Model, context, queues| -> Vec<usize> {
        let packets = || vec![Packet::Kernel(5 * MILLISECOND); 10_000];
        (0..queues)
            .map(|_| model.queue(context, 1, packets()))
            .collect()
    };
    let lots = of(&mut model, many, 100);
    model.run(SECOND, |_| false);
    let little = of(&mut model, few, 4);
    let count = |model: &Model, queues: &[usize]| -> u64 {
        queues
            .iter()
            .map(|&queue| model.queues[queue].executed)
            .sum()
    };
    let before = count(&model, &lots);
    model.run(10 * SECOND, |_| false);
    let (lots, little) = (count(&model, &lots) - before, count(&model, &little));
    println!("{lots} of many, {little} of few");
    assert!(little * 10 >= lots * 8, "{lots} {little}");
}

/// A device with fewer slots than contexts is shared by time.
#[test]
fn contexts_take_turns_where_slots_are_few() {
    let mut model = Model::new(3, 8);
    let queues: Vec<_> = (0..7)
        .map(|_| {
            let context = model.context();
            model.queue(context, 1, vec![Packet::Kernel(3 * MILLISECOND); 10_000])
        })
        .collect();
    model.run(10 * SECOND, |_| false);
    let executed: Vec<_> = queues
        .iter()
        .map(|&queue| model.queues[queue].executed)
        .collect();
    println!("{executed:?}");
    let (least, most) = (executed.iter().min(), executed.iter().max());
    assert!(least.unwrap() * 10 >= most.unwrap() * 8, "{executed:?}");
}

/// An urgent queue does not wait until the time of a less urgent one is over. The latter waits
/// until the urgent one has nothing to do.
#[test]
fn priorities_count_within_a_context() {
    let mut model = Model::new(2, 15);
    let context = model.context();
    for _ in 0..2 {
        model.queue(context, 1, vec![Packet::Kernel(MILLISECOND); 100_000]);
    }
    model.run(5 * MILLISECOND, |_| false);
    let urgent = model.queue(context, 2, [Packet::Kernel(MILLISECOND)]);
    assert!(model.run(4 * MILLISECOND, |model| model.is_done(urgent)));
    let low = model.queue(context, 0, [Packet::Kernel(MILLISECOND)]);
    assert!(!model.run(SECOND, |model| model.is_done(low)));
    // Between contexts priorities do not count.
    let other = model.context();
    let low = model.queue(other, 0, [Packet::Kernel(MILLISECOND)]);
    assert!(model.run(30 * MILLISECOND, |model| model.is_done(low)));
}

/// An idle queue makes room before one that waits for a fence, that one before one that waits for
/// an engine, and that one before one that has an engine.
#[test]
fn who_needs_its_slot_least_makes_room_first() {
    let mut model = Model::new(7, 15);
    let context = model.context();
    let kernels: Vec<_> = (0..5)
        .map(|_| model.queue(context, 1, vec![Packet::Kernel(SECOND); 10]))
        .collect();
    let waits = model.queue(context, 1, [Packet::Wait(0, 1)]);
    let idle = model.queue(context, 1, [Packet::Copy(MICROSECOND)]);
    model.run(100 * MILLISECOND, |_| false);
    let put_in = |model: &mut Model| {
        let queue = model.queue(context, 2, vec![Packet::Copy(SECOND); 10]);
        assert!(model.run(20 * MILLISECOND, |model| model.is_in(queue)));
    };
    assert!(model.is_in(idle) && model.is_in(waits));
    put_in(&mut model);
    assert!(!model.is_in(idle) && model.is_in(waits));
    put_in(&mut model);
    assert!(!model.is_in(waits));
    let count = |model: &Model| kernels.iter().filter(|&&queue| model.is_in(queue)).count();
    assert_eq!(count(&model), 5);
    put_in(&mut model);
    assert_eq!(count(&model), 4);
}

/// A random queue: its context, its priority, its packets. It waits only for queues before it.
type Wish = (usize, u32, Vec<(u8, u64, usize)>);

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let packet = (0_u8..4, 1..30_u64, any::<prop::sample::Index>());
    let packet = packet.prop_map(|(kind, time, whom)| (kind, time, whom.index(1 << 20)));
    let queue = (0_usize..20, 0_u32..4, prop::collection::vec(packet, 1..12));
    prop::collection::vec(queue, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// All work is done, soon after a device without limits on slots would have done it.
    #[test]
    fn everybody_makes_progress(wishes in wishes(), slots in 2_usize..33, spaces in 2_usize..16) {
        let mut model = Model::new(slots, spaces);
        let contexts: Vec<_> = (0..20).map(|_| model.context()).collect();
        let (mut time, mut packets) = (0, 0);
        // Each queue signals its fence after each packet. Queues that wait come first, to be in the
        // way.
        for (number, (context, priority, wish)) in wishes.iter().enumerate().rev() {
            let mut all = Vec::new();
            for (done, &(kind, length, whom)) in (1..).zip(wish) {
                let length = length * MILLISECOND;
                all.push(match kind {
                    0 => Packet::Copy(length),
                    1 => Packet::Kernel(length),
                    _ if number == 0 => Packet::Copy(MICROSECOND),
                    _ => {
                        let whom = whom % number;
                        Packet::Wait(whom, wishes[whom].2.len() as u64)
                    }
                });
                all.push(Packet::Signal(number, done));
                time += length;
                packets += 2;
            }
            model.queue(contexts[*context], *priority, all);
        }
        let limit = time + packets * 30 * MILLISECOND;
        let done = |model: &mut Model| (0..wishes.len()).all(|queue| model.is_done(queue));
        prop_assert!(model.run(limit, done), "{} of {limit} ns", model.now);
        // Each time that a queue is put in, one executes something or is looked at.
        let looked = model.now / MILLISECOND * 2 + 64;
        let binds = model.binds;
        prop_assert!(binds <= 4 * packets + looked, "{binds} binds, {packets} packets");
    }

    /// A queue with little to do never waits for long, however much the others have to do.
    #[test]
    fn nobody_is_overtaken_for_long(
        load in prop::collection::vec((0_usize..12, 0_u32..4, 1_u64..20), 1..150),
        priority in 0_u32..4,
    ) {
        let mut model = Model::test_gpu();
        let contexts: Vec<_> = (0..12).map(|_| model.context()).collect();
        for &(context, priority, time) in &load {
            let packets = vec![Packet::Kernel(time * MILLISECOND); 5_000];
            model.queue(contexts[context], priority, packets);
        }
        model.run(SECOND / 5, |_| false);
        let context = model.context();
        let (copy, pause) = (Packet::Copy(100 * MICROSECOND), 5 * MILLISECOND);
        let copies = model.one_by_one(context, priority, copy, pause);
        model.run(3 * SECOND, |_| false);
        let worst = model.queues[copies].waits.iter().max().copied().unwrap_or(u64::MAX);
        prop_assert!(worst < 60 * MILLISECOND, "{worst}");
    }
}
