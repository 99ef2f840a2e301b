// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random graphs of work over several streams, next to a model that does one thing after another.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pinmap::accelerator::{Accelerator, DeviceSliceMut, Event, Stream, StreamOptions};
use pinmap::{accelerator, Error};
use pinmap_testgpu as testgpu;

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::setup::is_slow;
use crate::streams::stream;

/// How many graphs there are; where everything takes long, a part of them is run.
const GRAPHS: u64 = 400;
const SLOW_GRAPHS: u64 = 100;
const BUFFERS: usize = 6;
/// Number of streams, and of steps, of a small graph.
const FEW: (usize, usize) = (5, 30);
/// Number of streams, and of steps, of a graph with more streams than the device holds at once.
const MANY: (usize, usize) = (48, 120);
/// Elements of a buffer.
const LEN: usize = 64;

/// A generator of numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

/// The work of one step.
#[derive(Debug, Clone, Copy)]
enum Step {
    Copy {
        from: usize,
        to: usize,
    },
    Fill {
        to: usize,
        value: u16,
    },
    Increment {
        data: usize,
    },
    Saxpy {
        x: usize,
        y: usize,
    },
    /// A host function, which notes the step.
    Call,
}

impl Step {
    fn any(random: &mut Random) -> Self {
        let one = random.below(BUFFERS);
        let other = (one + 1 + random.below(BUFFERS - 1)) % BUFFERS;
        match random.below(10) {
            0..3 => Self::Copy {
                from: one,
                to: other,
            },
            3..5 => Self::Fill {
                to: one,
                value: random.below(100) as u16,
            },
            5..7 => Self::Increment { data: one },
            7..9 => Self::Saxpy { x: one, y: other },
            _ => Self::Call,
        }
    }

    /// Buffers that it reads or writes, and the one that it writes.
    fn uses(self) -> (Vec<usize>, Option<usize>) {
        match self {
            Self::Copy { from, to } => (vec![from, to], Some(to)),
            Self::Fill { to, .. } => (vec![to], Some(to)),
            Self::Increment { data } => (vec![data], Some(data)),
            Self::Saxpy { x, y } => (vec![x, y], Some(y)),
            Self::Call => (Vec::new(), None),
        }
    }

    /// Does to the buffers what the step does.
    fn model(self, buffers: &mut [Vec<f32>]) {
        match self {
            Self::Copy { from, to } => buffers[to] = buffers[from].clone(),
            Self::Fill { to, value } => buffers[to].fill(value.into()),
            Self::Increment { data } => buffers[data].iter_mut().for_each(|number| *number += 1.0),
            Self::Saxpy { x, y } => {
                let x = buffers[x].clone();
                let pairs = buffers[y].iter_mut().zip(x);
                // Small numbers, halved: never rounded away to what another order would give.
                pairs.for_each(|(y, x)| *y += 0.5 * x);
            }
            Self::Call => {}
        }
    }
}

/// A step, the stream that does it, and the earlier steps that it needs.
struct Node {
    step: Step,
    stream: usize,
    needs: Vec<usize>,
}

/// A graph in which whatever uses the same buffer, one of them writing, is ordered.
fn graph(random: &mut Random, (streams, steps): (usize, usize)) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for number in 0..steps {
        let step = Step::any(random);
        let (used, written) = step.uses();
        let stream = random.below(streams);
        let mut needs = Vec::new();
        for (earlier, node) in nodes.iter().enumerate() {
            let (others, other_written) = node.step.uses();
            let conflict = others.iter().any(|other| Some(*other) == written)
                || used.iter().any(|buffer| Some(*buffer) == other_written);
            if conflict && node.stream != stream {
                needs.push(earlier);
            }
        }
        if random.below(4) == 0 && number > 0 {
            // One that nothing would miss.
            needs.push(random.below(number));
        }
        nodes.push(Node {
            step,
            stream,
            needs,
        });
    }
    nodes
}

/// Runs the graph on the device; returns what the buffers hold then, and the host functions that
/// ran.
fn run(
    gpu: &Accelerator,
    streams: &[Stream],
    events: &[Event],
    nodes: &[Node],
) -> Result<(Vec<Vec<f32>>, Vec<usize>), Error> {
    let mut memory = Vec::new();
    for number in 0..BUFFERS {
        // Host memory and VRAM.
        let buffer = match number % 2 {
            0 => gpu.device().alloc::<f32>(LEN)?,
            _ => gpu.alloc_vram::<f32>(LEN)?,
        };
        memory.push(buffer);
    }
    let called = Arc::new(Mutex::new(Vec::new()));
    accelerator::scope(|scope| -> Result<(), Error> {
        let work: Vec<_> = streams.iter().map(|stream| scope.on(stream)).collect();
        let mut data: Vec<DeviceSliceMut<'_, f32>> =
            memory.iter_mut().map(|memory| memory.slice_mut()).collect();
        for (
            number,
            Node {
                step,
                stream,
                needs,
            },
        ) in nodes.iter().enumerate()
        {
            needs
                .iter()
                .try_for_each(|&need| streams[*stream].wait_event(&events[need]))?;
            let work = &work[*stream];
            match *step {
                Step::Copy { from, to } => {
                    let from = data[from].as_slice();
                    work.copy(from, &mut data[to])?;
                }
                Step::Fill { to, value } => work.fill(&mut data[to], value.into())?,
                Step::Increment { data: one } => {
                    work.launch(testgpu::IncrementF32 {
                        data: &mut data[one],
                    })?;
                }
                Step::Saxpy { x, y } => {
                    let x = data[x].as_slice();
                    work.launch(testgpu::Saxpy {
                        a: 0.5,
                        x,
                        y: &mut data[y],
                    })?;
                }
                Step::Call => {
                    let called = Arc::clone(&called);
                    streams[*stream].call(move || {
                        if let Ok(mut called) = called.lock() {
                            called.push(number);
                        }
                    })?;
                }
            }
            streams[*stream].record(&events[number])?;
        }
        Ok(())
    })?;
    let called = called
        .lock()
        .map_or_else(|_| Vec::new(), |called| called.clone());
    Ok((
        memory.iter().map(|memory| memory.to_vec()).collect(),
        called,
    ))
}

/// Whether host functions ran once each, and after those that they need.
fn check_calls(nodes: &[Node], called: &[usize]) -> Result<(), String> {
    let wanted = nodes
        .iter()
        .filter(|node| matches!(node.step, Step::Call))
        .count();
    let distinct: HashSet<_> = called.iter().collect();
    if called.len() != wanted || distinct.len() != wanted {
        return Err(format!("{wanted} host functions, ran: {called:?}"));
    }
    // All steps that come before, also by way of others.
    let mut before: Vec<HashSet<usize>> = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let mut all: HashSet<usize> = node.needs.iter().copied().collect();
        all.extend(
            (0..number)
                .rev()
                .find(|&earlier| nodes[earlier].stream == node.stream),
        );
        for earlier in all.clone() {
            all.extend(&before[earlier]);
        }
        before.push(all);
    }
    for (place, number) in called.iter().enumerate() {
        if let Some(early) = called[place..]
            .iter()
            .find(|later| before[*number].contains(later))
        {
            return Err(format!("{number} ran before {early}"));
        }
    }
    Ok(())
}

pub(crate) fn random_graphs_are_as_if_sequential() -> Outcome {
    let gpu = gpu()?;
    let streams: Vec<_> = (0..FEW.0).map(|_| stream(&gpu)).collect::<Result<_, _>>()?;
    let graphs = if is_slow() { SLOW_GRAPHS } else { GRAPHS };
    compare(&gpu, &streams, FEW, graphs)
}

/// More streams than the device holds, most of which wait, the more urgent ones for less urgent
/// ones as well: all of them get on.
pub(crate) fn random_graphs_of_many_streams_of_all_priorities() -> Outcome {
    let gpu = gpu()?;
    let priorities = (0..).take(MANY.0).map(|number| number % 4);
    let streams: Vec<_> = priorities
        .map(|priority| gpu.stream(StreamOptions::new().packets(64).priority(priority)))
        .collect::<Result<_, _>>()?;
    let graphs = if is_slow() { SLOW_GRAPHS } else { GRAPHS };
    compare(&gpu, &streams, MANY, graphs / 20)
}

fn compare(gpu: &Accelerator, streams: &[Stream], size: (usize, usize), graphs: u64) -> Outcome {
    let seed = match std::env::var("PINMAP_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => (u64::from(std::process::id()) << 32) | 1,
    };
    println!("seed {seed} (PINMAP_SEED={seed} runs the same graphs)");
    let start = Instant::now();
    let events: Vec<_> = (0..size.1).map(|_| gpu.event()).collect::<Result<_, _>>()?;
    for number in 0..graphs {
        let own = (seed + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = Random(own);
        let nodes = graph(&mut random, size);
        let mut model = vec![vec![0.0; LEN]; BUFFERS];
        nodes.iter().for_each(|node| node.step.model(&mut model));
        let fail = |text: &str| format!("seed {seed}, graph {number}: {text}");
        let (buffers, called) =
            run(gpu, streams, &events, &nodes).map_err(|error| fail(&error.to_string()))?;
        if buffers != model {
            return Err(fail("the buffers differ").into());
        }
        check_calls(&nodes, &called).map_err(|error| fail(&error))?;
    }
    println!("{graphs} graphs in {:.1?}", start.elapsed());
    Ok(())
}
