// SPDX-License-Identifier: MIT OR Apache-2.0
//! An event loop that waits for hundreds of streams with one thread: their completions are files,
//! and epoll says which of them are done.
//!
//! usage: `event_loop [STREAMS]`

use std::error::Error;
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pinmap::stream::{Completion, Pending, StreamOptions};
use pinmap::{kernel, Allocation, Gpu, Stream};

/// Rounds that each stream does.
const ROUNDS: u32 = 4;
/// Elements of its memory.
const LEN: usize = 1000;

/// What the loop knows of a stream.
struct Task {
    stream: Stream,
    /// How often it was done.
    rounds: u32,
    /// What it does now, and how it tells.
    flight: Option<(Pending<Allocation<f32>>, Completion)>,
}

impl Task {
    /// Has the device do one round, and the loop hear of its end.
    fn start(
        &mut self,
        memory: Allocation<f32>,
        epoll: &Epoll,
        number: u64,
    ) -> Result<(), Box<dyn Error>> {
        let pending = self.stream.submit(memory, |work, memory| {
            let data = &mut memory.slice_mut();
            work.launch(kernel::IncrementF32 { data })
        })?;
        let completion = self.stream.completion()?;
        // Closing it, when the round is over, takes it out again.
        epoll.add(&completion, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        self.flight = Some((pending, completion));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args()
        .nth(1)
        .map_or(Ok(200), |text| text.parse::<u64>())?;
    let gpu = Gpu::find()?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut tasks = Vec::new();
    for number in 0..count {
        let stream = gpu.stream(StreamOptions::new().packets(64))?;
        let mut task = Task {
            stream,
            rounds: 0,
            flight: None,
        };
        task.start(gpu.device().alloc(LEN)?, &epoll, number)?;
        tasks.push(task);
    }
    let start = Instant::now();
    let (mut left, mut wakes) = (tasks.len(), 0);
    let mut events = [EpollEvent::empty(); 64];
    while left != 0 {
        let found = epoll.wait(&mut events, EpollTimeout::NONE)?;
        wakes += 1;
        for event in &events[..found] {
            let task = &mut tasks[usize::try_from(event.data())?];
            let Some((pending, completion)) = task.flight.take() else {
                continue;
            };
            epoll.delete(&completion)?;
            // It does not wait: it is done.
            let memory = pending.wait()?;
            task.rounds += 1;
            if task.rounds < ROUNDS {
                task.start(memory, &epoll, event.data())?;
            } else if memory.to_vec() == vec![ROUNDS as f32; LEN] {
                left -= 1;
            } else {
                return Err("the results are wrong".into());
            }
        }
    }
    let took = start.elapsed();
    println!(
        "{count} streams, {ROUNDS} rounds each, one thread: {wakes} times woken in {took:.1?}, all results right"
    );
    Ok(())
}
