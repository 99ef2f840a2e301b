// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of the examples.

use pinmap_kernel::*;

program!();

/// Adds two arrays, element by element.
#[kernel]
pub fn add(a: DeviceSlice<f32>, b: DeviceSlice<f32>, c: DeviceSliceMut<f32>) {
    let i = grid_thread();
    if i < c.len() {
        c.set(i, a.get(i) + b.get(i));
    }
}

/// Works on a piece of an array, and says when it begins and when it ends, by the device's clock.
#[kernel]
pub fn piece(number: u32, data: DeviceSliceMut<f32>) {
    let i = grid_thread();
    if i == 0 {
        println!("{} piece {number} begins", globaltimer());
    }
    if i < data.len() {
        data.set(i, data.get(i).sqrt());
    }
    if i + 1 == grid_threads() {
        println!("{} piece {number} ends", globaltimer());
    }
}

/// The level of a node that nobody has visited.
pub(crate) const UNSEEN: u32 = u32::MAX;

/// Visits the neighbours of the nodes of a level. Those of node n are `to[from[n]..from[n + 1]]`.
#[kernel]
pub fn visit(
    level: u32,
    from: DeviceSlice<u32>,
    to: DeviceSlice<u32>,
    levels: DeviceSliceMut<u32>,
    found: DeviceSliceMut<u32>,
) {
    let node = grid_thread();
    if node >= levels.len() || levels.get(node) != level {
        return;
    }
    for edge in from.get(node)..from.get(node + 1) {
        let neighbour = to.get(edge as usize) as usize;
        // Another thread may do the same: it stores the same.
        if levels.get(neighbour) == UNSEEN {
            levels.set(neighbour, level + 1);
            found.set(0, 1);
        }
    }
}

/// Where the search for a key begins, in a table whose length is a power of two.
#[device]
fn place(key: u32, table: usize) -> usize {
    key.wrapping_mul(0x9e37_79b1) as usize & (table - 1)
}

/// Enters keys into a table with room for more, which is zero at first: the key, and 1 more than
/// the number of the row.
#[kernel]
pub fn build(keys: DeviceSlice<u32>, table: DeviceSliceMut<u64>) {
    let row = grid_thread();
    if row >= keys.len() {
        return;
    }
    let key = keys.get(row);
    let entry = u64::from(key) << 32 | (row as u64 + 1);
    let mut at = place(key, table.len());
    let take = |at| {
        let entry_at = table.atomic(at);
        entry_at.compare_exchange(0, entry, Ordering::Relaxed, Ordering::Relaxed)
    };
    while take(at).is_err() {
        at = (at + 1) & (table.len() - 1);
    }
}

/// Finds for each key 1 more than the number of the row that has it in the table, or 0.
#[kernel]
pub fn probe(keys: DeviceSlice<u32>, table: DeviceSlice<u64>, rows: DeviceSliceMut<u32>) {
    let i = grid_thread();
    if i >= keys.len() {
        return;
    }
    let key = keys.get(i);
    let mut at = place(key, table.len());
    loop {
        let entry = table.get(at);
        if entry == 0 || (entry >> 32) as u32 == key {
            return rows.set(i, entry as u32);
        }
        at = (at + 1) & (table.len() - 1);
    }
}

/// Indices of numbers that the program and the device share.
pub(crate) const ASKED: usize = 0;
pub(crate) const ANSWERED: usize = 1;
pub(crate) const STOP: usize = 2;

#[device]
const LOOK: u32 = 0;
#[device]
const ANSWER: u32 = 1;
#[device]
const END: u32 = 2;

/// Answers requests in a ring until it is told to stop, or so many nanoseconds are over: how many
/// primes there are below a number.
#[kernel]
pub fn serve(
    nanoseconds: u64,
    flags: DeviceSliceMut<u64>,
    requests: DeviceSliceMut<u32>,
    answers: DeviceSliceMut<u32>,
    state: Shared<u32, 2>,
) {
    let (thread, threads) = (thread_idx().x, block_dim().x as usize);
    let end = globaltimer() + nanoseconds;
    let mut next = flags.get(ANSWERED);
    loop {
        // One thread looks, so that all see the same.
        if thread == 0 {
            let asked = flags.atomic(ASKED).load(Ordering::Acquire);
            state.set(
                0,
                if asked != next {
                    ANSWER
                } else if flags.get(STOP) != 0 || globaltimer() >= end {
                    END
                } else {
                    LOOK
                },
            );
            state.set(1, 0);
        }
        sync_threads();
        let then = state.get(0);
        if then == END {
            return;
        }
        let slot = next as usize % requests.len();
        if then == ANSWER {
            let below = requests.get(slot);
            let mine = (2 + thread..below).step_by(threads);
            let primes = mine.filter(|&n| (2..n).take_while(|i| i * i <= n).all(|i| n % i != 0));
            state
                .atomic(1)
                .fetch_add(primes.count() as u32, Ordering::Relaxed);
        }
        sync_threads();
        if then == ANSWER {
            next += 1;
            if thread == 0 {
                answers.set(slot, state.get(1));
                flags.atomic(ANSWERED).store(next, Ordering::Release);
            }
        }
    }
}

/// Numbers of a part that a block of half as many threads sorts in memory of its own.
pub(crate) const PART: usize = 512;

/// Orders two numbers of `data`, of which each thread has a pair that is `apart`: upwards in every
/// other run of `run` numbers.
#[device]
fn order(data: &DeviceSliceMut<u32>, pair: usize, offset: usize, apart: usize, run: usize) {
    let low = pair / apart * apart * 2 + pair % apart;
    let (a, b) = (data.get(low), data.get(low + apart));
    let upwards = (offset + low) & run == 0;
    if (a > b) == upwards {
        data.set(low, b);
        data.set(low + apart, a);
    }
}

/// Merges two runs of half of `run` numbers each, one upwards and one downwards: the step for pairs
/// that are `apart`.
#[kernel]
pub fn merge_far(apart: u32, run: u32, data: DeviceSliceMut<u32>) {
    if grid_thread() < data.len() / 2 {
        order(&data, grid_thread(), 0, apart as usize, run as usize);
    }
}

/// Merges runs from `first` to `last` numbers, twice as many each time: the steps for pairs in one
/// part.
#[kernel]
pub fn merge_near(first: u32, last: u32, data: DeviceSliceMut<u32>, part: Shared<u32, PART>) {
    let (offset, thread) = (block_idx().x as usize * PART, thread_idx().x as usize);
    for i in [thread, thread + PART / 2] {
        part.set(i, data.get(offset + i));
    }
    let mut run = first as usize;
    while run <= last as usize {
        let mut apart = (run / 2).min(PART / 2);
        while apart > 0 {
            sync_threads();
            order(&part, thread, offset, apart, run);
            apart /= 2;
        }
        run *= 2;
    }
    sync_threads();
    for i in [thread, thread + PART / 2] {
        data.set(offset + i, part.get(i));
    }
}
