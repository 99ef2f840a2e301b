// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs of safe calls, with a [device](crate::machine) that is as late as it may be.
//!
//! A program lends memory, hands it over, registers it, and forgets, panics and resets where it
//! likes. Whatever it does, the device accesses no memory that the program has, or that is freed;
//! and what comes back is what the work should have made of it. A program that fails is made
//! smaller and printed. `PINMAP_TEST_SEED=N` runs other ones, and `PROPTEST_CASES=N` so many.

mod step;

use std::future::{Future, IntoFuture};
use std::mem::forget;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pinmap::accelerator::{
    self, Accelerator, DeviceSliceMut, Event, MemoryMut, Pending, Registered, Stream,
    StreamOptions, Work,
};
use pinmap::{Access, Error, ErrorWith, Memory, Wait};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::fake::Fake;
use step::{programs, End, Packet, Program, Step, LENGTHS, STREAMS};

/// Memory of which the device is told.
struct Piece {
    fake: Arc<Fake>,
    numbers: Box<[u32]>,
}

impl Piece {
    fn new(fake: &Arc<Fake>, length: usize) -> Self {
        let numbers = vec![0; length].into();
        let fake = Arc::clone(fake);
        Self { fake, numbers }
    }

    fn range(&self) -> Range<u64> {
        let range = self.numbers.as_ptr_range();
        range.start.expose_provenance() as u64..range.end.addr() as u64
    }

    /// Tells the device whether it may access the memory.
    fn lend(&self, lent: bool) {
        self.fake
            .machine(|machine, reach| machine.lend(self.range(), lent, reach));
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.fake
            .machine(|machine, reach| machine.free(self.range(), reach));
    }
}

// SAFETY: The numbers are on the heap, and never move.
unsafe impl Memory for Piece {
    type Element = u32;
    type Error = ErrorWith<Self>;
    const ACCESS: Access = Access::ReadWrite;

    fn elements(&self) -> &[u32] {
        &self.numbers
    }

    fn refuse(self, error: Error) -> ErrorWith<Self> {
        ErrorWith { error, value: self }
    }
}

// SAFETY: As above.
unsafe impl MemoryMut for Piece {
    fn elements_mut(&mut self) -> &mut [u32] {
        &mut self.numbers
    }
}

/// Contents that the halves of a piece will have, or `None` if they are not known.
#[derive(Clone, Copy, Default)]
struct Wanted(Option<[u32; 2]>);

impl Wanted {
    fn expect(&mut self, packets: &[Packet]) {
        let Some(halves) = &mut self.0 else { return };
        for &(second, value) in packets {
            let other = halves[usize::from(!second)];
            halves[usize::from(second)] = value.unwrap_or(other);
        }
    }

    fn check(self, numbers: &[u32]) -> Result<(), String> {
        let Some(wanted) = self.0 else { return Ok(()) };
        for (half, wanted) in numbers.chunks(numbers.len() / 2).zip(wanted) {
            if let Some(number) = half.iter().find(|&&number| number != wanted) {
                return Err(format!("memory has {number}, and not {wanted}"));
            }
        }
        Ok(())
    }
}

/// Submits packets on a piece of memory.
fn submit<'w>(
    work: &Work<'w>,
    mut memory: DeviceSliceMut<'w, u32>,
    packets: &[Packet],
) -> pinmap::Result<()> {
    let half = memory.len() / 2;
    let (mut a, mut b) = memory.split_at(half)?;
    for &(second, value) in packets {
        let (from, to) = match second {
            true => (&mut a, &mut b),
            false => (&mut b, &mut a),
        };
        match value {
            Some(value) => work.fill(&mut *to, value)?,
            None => work.copy(&*from, &mut *to)?,
        }
    }
    Ok(())
}

impl End {
    fn end(self) -> pinmap::Result<()> {
        match self {
            Self::Well => Ok(()),
            // Any error of the crate.
            Self::Fail => pinmap::Device::open("/dev/null/pinmap").map(drop),
            Self::Panic => resume_unwind(Box::new("on purpose")),
        }
    }
}

enum Pended {
    Lent(Pending<Piece>),
    Registered(Pending<Registered<Piece>>),
    Future(Wait<'static, Piece, ErrorWith<Pending<Piece>>>),
}

/// Memory that can be handed over.
trait Handed: Sized + Send + 'static {
    fn into_piece(self) -> Result<Piece, String>;
    fn keep(pending: Pending<Self>) -> Pended;
}

impl Handed for Piece {
    fn into_piece(self) -> Result<Piece, String> {
        Ok(self)
    }

    fn keep(pending: Pending<Self>) -> Pended {
        Pended::Lent(pending)
    }
}

impl Handed for Registered<Piece> {
    fn into_piece(self) -> Result<Piece, String> {
        self.release().map_err(|failed| failed.error.to_string())
    }

    fn keep(pending: Pending<Self>) -> Pended {
        Pended::Registered(pending)
    }
}

/// Memory that was handed over.
struct Slot {
    pended: Pended,
    wanted: Wanted,
}

/// A program that runs.
struct Run {
    fake: Arc<Fake>,
    gpu: Accelerator,
    streams: Vec<Stream>,
    slots: Vec<Slot>,
    /// Whether a stream was reset or dropped: then calls may fail, and packets not be executed.
    disturbed: bool,
    forgotten: usize,
}

type Outcome = Result<(), String>;

impl Run {
    fn new(faults: bool) -> Self {
        let fake = Arc::new(Fake::new());
        fake.machine(|_, _| ());
        if faults {
            fake.let_fault();
        }
        let gpu = fake.accelerator();
        let mut run = Self {
            fake,
            gpu,
            streams: Vec::new(),
            slots: Vec::new(),
            disturbed: false,
            forgotten: 0,
        };
        run.streams = (0..STREAMS).map(|_| run.stream()).collect();
        run
    }

    fn stream(&self) -> Stream {
        let options = StreamOptions::new().packets(64);
        self.gpu.stream(options).expect("a stream")
    }

    /// A call has failed, which it may only after a stream was reset.
    fn failed(&self, error: &Error) -> Outcome {
        match self.disturbed {
            true => Ok(()),
            false => Err(format!("a call has failed: {error}")),
        }
    }

    fn disturb(&mut self) {
        self.disturbed = true;
        for slot in &mut self.slots {
            slot.wanted = Wanted(None);
        }
    }

    fn take(&mut self, index: usize) -> Option<Slot> {
        let count = self.slots.len();
        (count != 0).then(|| self.slots.remove(index % count))
    }

    /// Memory has come back.
    fn back<M: Handed>(&self, memory: M, wanted: Wanted) -> Outcome {
        let piece = memory.into_piece()?;
        piece.lend(false);
        wanted.check(&piece.numbers)
    }

    /// Hands memory over.
    fn submit(&mut self, on: usize, length: usize, packets: &[Packet], end: End, is: bool) {
        let piece = Piece::new(&self.fake, length);
        piece.lend(false);
        let (stream, mut ran) = (&self.streams[on], false);
        let mut wanted = Wanted(Some([0; 2]));
        // The error says nothing that `ran` does not.
        let pended = catch_unwind(AssertUnwindSafe(|| match is {
            true => {
                let piece = self.gpu.register(piece).map_err(drop).ok()?;
                self.fake
                    .machine(|machine, reach| machine.lend(range_of(&piece), true, reach));
                let pending = stream.submit(piece, |work, memory| {
                    submit(work, memory.slice_mut(), packets)?;
                    ran = true;
                    end.end()
                });
                Some(Pended::Registered(
                    pending.unwrap_or_else(|failed| failed.value),
                ))
            }
            false => {
                piece.lend(true);
                let pending = stream.submit(piece, |work, memory| {
                    submit(work, work.slice_mut(&mut memory.numbers)?, packets)?;
                    ran = true;
                    end.end()
                });
                Some(Pended::Lent(pending.unwrap_or_else(|failed| failed.value)))
            }
        }));
        match ran {
            true => wanted.expect(packets),
            false => wanted = Wanted(None),
        }
        if let Ok(Some(pended)) = pended {
            self.slots.push(Slot { pended, wanted });
        }
    }

    fn then(&mut self, index: usize, on: usize, packets: &[Packet], end: End) {
        let Some(Slot { pended, mut wanted }) = self.take(index) else {
            return;
        };
        let Pended::Registered(pending) = pended else {
            return self.slots.push(Slot { pended, wanted });
        };
        let mut ran = false;
        let stream = &self.streams[on];
        let pending = catch_unwind(AssertUnwindSafe(|| {
            let pending = pending.then(stream, |work, memory| {
                submit(work, memory, packets)?;
                ran = true;
                end.end()
            });
            pending.unwrap_or_else(|failed| failed.value)
        }));
        match ran {
            true => wanted.expect(packets),
            false => wanted = Wanted(None),
        }
        if let Ok(pending) = pending {
            let pended = Pended::Registered(pending);
            self.slots.push(Slot { pended, wanted });
        }
    }

    fn keep<M: Handed>(&mut self, pending: Pending<M>, wanted: Wanted) {
        let pended = M::keep(pending);
        self.slots.push(Slot { pended, wanted });
    }

    /// Tries to get memory back, as a step says.
    fn get<M: Handed>(&mut self, pending: Pending<M>, wanted: Wanted, step: &Step) -> Outcome {
        match step {
            Step::Wait(_) => match pending.wait() {
                Ok(memory) => self.back(memory, wanted),
                Err(failed) => {
                    self.failed(&failed.error)?;
                    let Ok(memory) = failed.value.try_into_memory() else {
                        return Err("a wait has failed, and the memory does not come".to_owned());
                    };
                    self.back(memory, Wanted(None))
                }
            },
            Step::Timeout(_) => match pending.wait_timeout(Duration::ZERO) {
                Ok(memory) => self.back(memory, wanted),
                Err(failed) => {
                    self.keep(failed.value, wanted);
                    Ok(())
                }
            },
            _ => match pending.try_into_memory() {
                Ok(memory) => self.back(memory, wanted),
                Err(pending) => {
                    self.keep(pending, wanted);
                    Ok(())
                }
            },
        }
    }

    fn get_any(&mut self, index: usize, step: &Step) -> Outcome {
        let Some(Slot { pended, wanted }) = self.take(index) else {
            return Ok(());
        };
        match (pended, step) {
            (Pended::Lent(pending), Step::Poll(_)) => self.poll(pending.into_future(), wanted),
            (Pended::Future(future), _) => self.poll(future, wanted),
            (Pended::Lent(pending), _) => self.get(pending, wanted, step),
            (Pended::Registered(pending), _) => self.get(pending, wanted, step),
        }
    }

    /// Polls a future once.
    fn poll(
        &mut self,
        mut future: Wait<'static, Piece, ErrorWith<Pending<Piece>>>,
        wanted: Wanted,
    ) -> Outcome {
        match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(piece)) => self.back(piece, wanted),
            Poll::Ready(Err(failed)) => self.failed(&failed.error),
            Poll::Pending => {
                let pended = Pended::Future(future);
                self.slots.push(Slot { pended, wanted });
                Ok(())
            }
        }
    }

    fn scope(&mut self, on: [usize; 2], work: &[(usize, Packet)], end: End, both: bool) -> Outcome {
        let lengths = [LENGTHS[1], if both { LENGTHS[0] } else { 2 }];
        let mut pieces = lengths.map(|length| Piece::new(&self.fake, length));
        let mut wanted = [Wanted(Some([0; 2])); 2];
        pieces.iter().for_each(|piece| piece.lend(true));
        let streams = on.map(|on| &self.streams[on]);
        let [first, second] = &mut pieces;
        let result = catch_unwind(AssertUnwindSafe(|| {
            accelerator::scope(|scope| {
                let on = streams.map(|stream| scope.on(stream));
                let mut memory = [
                    on[0].slice_mut(&mut first.numbers)?,
                    on[1].slice_mut(&mut second.numbers)?,
                ];
                for &(piece, packet) in work {
                    submit(&on[piece], memory[piece].part(..)?, &[packet])?;
                    wanted[piece].expect(&[packet]);
                }
                end.end()
            })
        }));
        for (piece, wanted) in pieces.iter().zip(wanted) {
            let wanted = if self.disturbed { Wanted(None) } else { wanted };
            piece.lend(false);
            wanted.check(&piece.numbers)?;
        }
        match result {
            Ok(Err(error)) if end == End::Well => self.failed(&error),
            _ => Ok(()),
        }
    }

    fn order(&self, from: usize, to: usize) -> pinmap::Result<()> {
        let event: Event = self.gpu.event()?;
        self.streams[from].record(&event)?;
        self.streams[to].wait_event(&event)
    }

    fn step(&mut self, step: &Step) -> Outcome {
        match *step {
            Step::Device(queue, count) => {
                let fake = &self.fake;
                fake.machine(|machine, reach| machine.execute(queue, count, reach));
            }
            Step::Submit(on, size, ref work, end, is) => {
                self.submit(on, LENGTHS[size], work, end, is);
            }
            Step::Then(index, on, ref work, end) => self.then(index, on, work, end),
            Step::Wait(index)
            | Step::Timeout(index)
            | Step::TryIntoMemory(index)
            | Step::Poll(index) => self.get_any(index, step)?,
            Step::Drop(index) => drop(self.take(index)),
            Step::Forget(index) => {
                self.forgotten += usize::from(self.take(index).map(forget).is_some());
            }
            Step::Scope(on, ref work, end, both) => self.scope(on, work, end, both)?,
            Step::Order(from, to) => match self.order(from, to) {
                Ok(()) => {}
                Err(error) => self.failed(&error)?,
            },
            Step::Synchronize(stream) => match self.streams[stream].synchronize() {
                Ok(()) => {}
                Err(error) => self.failed(&error)?,
            },
            Step::Reset(stream) => {
                self.disturb();
                let reset = self.streams[stream].reset();
                reset.map_err(|error| format!("no reset: {error}"))?;
            }
            Step::DropStream(stream) => {
                self.disturb();
                self.streams[stream] = self.stream();
            }
        }
        self.wrong()
    }

    fn wrong(&self) -> Outcome {
        let wrong = self.fake.machine(|machine, _| machine.wrong());
        wrong.into_iter().next().map_or(Ok(()), Err)
    }

    /// Lets go of everything. What was not forgotten is freed once the device is done.
    fn end(mut self, streams_first: bool) -> Outcome {
        if streams_first {
            self.streams.clear();
        }
        self.slots.clear();
        self.streams.clear();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            self.fake.machine(|machine, reach| machine.finish(reach));
            self.wrong()?;
            let pieces = self.fake.machine(|machine, _| machine.pieces());
            let registered = self.fake.registrations().0;
            if pieces == self.forgotten && (registered == 0 || pieces != 0) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let forgotten = self.forgotten;
                return Err(format!(
                    "{pieces} pieces and {registered} registrations are left; {forgotten} pieces \
                     were forgotten"
                ));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn range_of(numbers: &[u32]) -> Range<u64> {
    let range = numbers.as_ptr_range();
    range.start.addr() as u64..range.end.addr() as u64
}

fn run(program: &Program) -> Outcome {
    let mut run = Run::new(program.faults);
    let mut steps = program.steps.iter();
    steps.try_for_each(|step| {
        run.step(step)
            .map_err(|wrong| format!("{wrong}, after {step:?}"))
    })?;
    run.end(program.steps.len() % 2 == 0)
}

#[test]
fn programs_share_no_memory_with_the_device() {
    let seed = std::env::var("PINMAP_TEST_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&programs(), |program| {
        run(&program).map_err(TestCaseError::fail)
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
