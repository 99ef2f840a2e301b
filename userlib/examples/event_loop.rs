// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for hundreds of streams with one thread, in an event loop: completions are files, and
//! epoll tells which of them are done.
//!
//! usage: `event_loop [STREAMS]`

use std::error::Error;
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pinmap::accelerator::{Completion, Pending, Stream, StreamOptions};
use pinmap::Allocation;
use pinmap_testgpu as testgpu;

/// How many rounds each stream does.
const ROUNDS: u32 = 4;
/// Number of elements of a stream's memory.
const LEN: usize = 1000;

/// A stream in the loop.
struct Task {
    stream: Stream,
    /// How many rounds are done.
    rounds: u32,
    /// The round that is running, and the file that tells its end.
    flight: Option<(Pending<Allocation<f32>>, Completion)>,
}

impl Task {
    /// Starts a round, and has epoll tell its end.
    fn start(
        &mut self,
        memory: Allocation<f32>,
        epoll: &Epoll,
        number: u64,
    ) -> Result<(), Box<dyn Error>> {
        let pending = self.stream.submit(memory, |work, memory| {
            let data = &mut memory.slice_mut();
            work.launch(testgpu::IncrementF32 { data })
        })?;
        let completion = self.stream.completion()?;
        // Dropping the completion, after the round, removes it from epoll.
        epoll.add(&completion, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        self.flight = Some((pending, completion));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args()
        .nth(1)
        .map_or(Ok(200), |text| text.parse::<u64>())?;
    let gpu = pinmap_testgpu::find()?;
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
            // The round is done, so this does not wait.
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
        "{count} streams, {ROUNDS} rounds each, one thread: {wakes} times woken in {took:.1?}, \
         all results right"
    );
    Ok(())
}
