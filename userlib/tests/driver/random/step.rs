// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of random programs, how they are drawn, and how they are printed.

use std::fmt;

use proptest::prelude::*;

pub(super) const STREAMS: usize = 2;
/// Pieces of memory of one to some pages; two may share a page.
pub(super) const LENGTHS: [usize; 3] = [200, 1500, 5000];

/// Something that a function with work does after its packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum End {
    Well,
    Fail,
    Panic,
}

/// One of the two halves of a piece of memory, and what it is filled with; `None`: with a copy of
/// the other one.
pub(super) type Packet = (bool, Option<u32>);

/// A call, or a few that belong together. Numbers of things that are not there name others.
#[derive(Clone)]
pub(super) enum Step {
    /// The device executes packets.
    Device(usize, usize),
    Submit(usize, usize, Vec<Packet>, End, bool),
    Then(usize, usize, Vec<Packet>, End),
    Wait(usize),
    Timeout(usize),
    TryIntoMemory(usize),
    Poll(usize),
    Drop(usize),
    Forget(usize),
    /// A scope, in which two pieces of memory are lent to a stream each.
    Scope([usize; 2], Vec<(usize, Packet)>, End, bool),
    /// An event has the second stream wait for the first.
    Order(usize, usize),
    Synchronize(usize),
    Reset(usize),
    DropStream(usize),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |end: &End| match end {
            End::Well => "Ok(())",
            End::Fail => "Err(error)",
            End::Panic => "panic!()",
        };
        let packets = |packets: &[Packet]| {
            let text = packets.iter().map(|(second, value)| {
                let half = ["a", "b"][usize::from(*second)];
                match value {
                    Some(value) => format!("work.fill({half}, {value})?; "),
                    None => format!("work.copy(the_other, {half})?; "),
                }
            });
            text.collect::<String>()
        };
        match self {
            Self::Device(queue, count) => write!(f, "// queue {queue} executes {count} packets"),
            Self::Submit(stream, size, work, how, registered) => {
                let memory = if *registered {
                    "gpu.register(memory)?"
                } else {
                    "memory"
                };
                let (length, work) = (LENGTHS[*size], packets(work));
                write!(
                    f,
                    "pending.push(stream[{stream}].submit({memory}, |work, (a, b)| \
                     {{ {work}{} }})); // {length} numbers",
                    end(how)
                )
            }
            Self::Then(index, stream, work, how) => write!(
                f,
                "pending[{index}] = pending[{index}].then(&stream[{stream}], |work, (a, b)| \
                 {{ {}{} }});",
                packets(work),
                end(how)
            ),
            Self::Wait(index) => write!(f, "pending.remove({index}).wait();"),
            Self::Timeout(index) => write!(f, "pending.remove({index}).wait_timeout(ZERO);"),
            Self::TryIntoMemory(index) => write!(f, "pending.remove({index}).try_into_memory();"),
            Self::Poll(index) => write!(f, "poll!(pending[{index}].into_future());"),
            Self::Drop(index) => write!(f, "drop(pending.remove({index}));"),
            Self::Forget(index) => write!(f, "forget(pending.remove({index}));"),
            Self::Scope(on, work, how, both) => {
                let what = if *both { "two pieces" } else { "a piece" };
                write!(f, "scope(|scope| {{ // lends {what} to stream {on:?}: ")?;
                for (piece, packet) in work {
                    write!(f, "[{piece}] {}", packets(&[*packet]))?;
                }
                write!(f, "{} }});", end(how))
            }
            Self::Order(from, to) => {
                write!(
                    f,
                    "stream[{from}].record(&event); stream[{to}].wait_event(&event);"
                )
            }
            Self::Synchronize(stream) => write!(f, "stream[{stream}].synchronize();"),
            Self::Reset(stream) => write!(f, "stream[{stream}].reset();"),
            Self::DropStream(stream) => write!(f, "stream[{stream}] = gpu.stream(options);"),
        }
    }
}

/// A program: whether the device can fault, and the calls.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) faults: bool,
    pub(super) steps: Vec<Step>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n// The device can fault: {}", self.faults)?;
        let mut steps = self.steps.iter();
        steps.try_for_each(|step| writeln!(f, "{step:?}"))
    }
}

pub(super) fn programs() -> impl Strategy<Value = Program> {
    let end = || prop_oneof![8 => Just(End::Well), 1 => Just(End::Fail), 1 => Just(End::Panic)];
    let packet = || (any::<bool>(), proptest::option::weighted(0.7, 1u32..100));
    let packets = || proptest::collection::vec(packet(), 0..5);
    let stream = || 0..STREAMS;
    let slot = || 0usize..4;
    let step = prop_oneof![
        4 => (0..STREAMS, 1usize..6).prop_map(|(queue, count)| Step::Device(queue, count)),
        6 => (stream(), 0..LENGTHS.len(), packets(), end(), any::<bool>())
            .prop_map(|(on, size, work, end, is)| Step::Submit(on, size, work, end, is)),
        3 => (slot(), stream(), packets(), end())
            .prop_map(|(slot, on, work, end)| Step::Then(slot, on, work, end)),
        2 => slot().prop_map(Step::Wait),
        1 => slot().prop_map(Step::Timeout),
        2 => slot().prop_map(Step::TryIntoMemory),
        2 => slot().prop_map(Step::Poll),
        2 => slot().prop_map(Step::Drop),
        1 => slot().prop_map(Step::Forget),
        3 => (
            [stream(), stream()],
            proptest::collection::vec((0usize..2, packet()), 0..6),
            end(),
            any::<bool>(),
        )
            .prop_map(|(on, work, end, both)| Step::Scope(on, work, end, both)),
        2 => (stream(), stream()).prop_map(|(from, to)| Step::Order(from, to)),
        1 => stream().prop_map(Step::Synchronize),
        1 => stream().prop_map(Step::Reset),
        1 => stream().prop_map(Step::DropStream),
    ];
    (any::<bool>(), proptest::collection::vec(step, 1..25))
        .prop_map(|(faults, steps)| Program { faults, steps })
}
