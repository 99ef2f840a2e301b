// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random commands of several threads, several in flight at once, against a model of the disk.

use std::collections::HashMap;
use std::ops::Range;

use pinmap::{Access, Buffer, Registration};
use pinmap_nvme::{Command, Controller, Error, Namespace, Queue, QueueOptions};

use crate::harness::Outcome;
use crate::setup::on_disk;

const THREADS: u64 = 4;
/// The variable that says how many commands all threads have together, and how many otherwise.
const COMMANDS: (&str, u64) = ("PINMAP_NVME_COMMANDS", 8000);
/// Blocks of each thread.
const BLOCKS: u64 = 1024;
const BLOCK: usize = 512;
/// Bytes of each piece of memory; a command takes a part.
const LEN: usize = 64 << 10;

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The outcome that a command in flight must have.
struct Expected {
    blocks: Range<u64>,
    /// Where in its memory a read puts what the model has.
    read: Option<usize>,
    /// The status with which a compare ends.
    differs: bool,
    /// Blocks whose contents the controller may choose.
    forgets: bool,
}

/// The part of the disk that one thread has, as it should be.
struct Model {
    namespace: Namespace,
    verifies: bool,
    first: u64,
    content: Vec<u8>,
    random: Random,
    memory: Vec<Registration>,
    in_flight: HashMap<u64, Expected>,
}

impl Model {
    fn bytes(&self, blocks: &Range<u64>) -> Range<usize> {
        let at = |block| (block - self.first) as usize * BLOCK;
        at(blocks.start)..at(blocks.end)
    }

    /// Blocks that no command in flight has.
    fn blocks(&mut self) -> Option<Range<u64>> {
        let len = 1 + self.random.below(48);
        let start = self.first + self.random.below(BLOCKS - len + 1);
        let blocks = start..start + len;
        let taken = |other: &Expected| start < other.blocks.end && other.blocks.start < start + len;
        (!self.in_flight.values().any(taken)).then_some(blocks)
    }

    /// Submits a random command, if its blocks are free. Returns how many were submitted.
    fn submit(
        &mut self,
        queue: &mut Queue<Registration>,
    ) -> Result<u64, Box<dyn std::error::Error>> {
        let Some(blocks) = self.blocks() else {
            return Ok(0);
        };
        let bytes = self.bytes(&blocks);
        let mut expected = Expected {
            blocks: blocks.clone(),
            read: None,
            differs: false,
            forgets: false,
        };
        let namespace = self.namespace.clone();
        let ranges = [blocks.clone()];
        let kind = self.random.below(12);
        let command: Command<'_, Registration> = match kind {
            0 if self.verifies => namespace.verify(blocks),
            0..2 => namespace.flush(),
            2 => {
                self.content[bytes].fill(0);
                namespace.write_zeroes(blocks)
            }
            3 => {
                expected.forgets = true;
                namespace.deallocate(&ranges)
            }
            _ => {
                let memory = self.memory.pop().ok_or("no memory is left")?;
                let at = 4 * self.random.below((LEN - bytes.len()) as u64 / 4 + 1) as usize;
                let part = at..at + bytes.len();
                match kind {
                    4..8 => {
                        expected.read = Some(at);
                        namespace.read(blocks.start, memory).part(part)
                    }
                    8..11 => {
                        let seed = self.random.next();
                        let new = crate::drivers::pattern(seed, bytes.len());
                        memory.write_at(at, &new)?;
                        self.content[bytes].copy_from_slice(&new);
                        namespace.write(blocks.start, memory).part(part)
                    }
                    _ => {
                        let mut same = self.content[bytes].to_vec();
                        expected.differs = self.random.below(2) == 0;
                        if expected.differs {
                            let byte = self.random.below(same.len() as u64) as usize;
                            same[byte] ^= 1;
                        }
                        memory.write_at(at, &same)?;
                        namespace.compare(blocks.start, memory).part(part)
                    }
                }
            }
        };
        let number = queue.push(command)?;
        self.in_flight.insert(number, expected);
        Ok(1)
    }

    /// Waits for a command, and compares what became of it with the model.
    fn wait(&mut self, queue: &mut Queue<Registration>) -> Outcome {
        let done = queue.wait()?;
        let expected = self
            .in_flight
            .remove(&done.number)
            .ok_or("it is done twice")?;
        match done.result {
            Ok(()) => assert!(!expected.differs, "the compare succeeded"),
            Err(Error::Status(status)) if expected.differs => {
                assert_eq!((status.kind(), status.code()), (2, 0x85), "{status}");
            }
            Err(error) => return Err(error.into()),
        }
        if let (Some(at), Some(memory)) = (expected.read, &done.memory) {
            let bytes = self.bytes(&expected.blocks);
            let mut found = vec![0; bytes.len()];
            memory.read_at(at, &mut found)?;
            assert!(found == self.content[bytes], "{:?}", expected.blocks);
        }
        self.memory.extend(done.memory);
        if expected.forgets {
            let bytes = self.bytes(&expected.blocks);
            self.content[bytes].fill(0);
            let number = queue.submit(self.namespace.write_zeroes(expected.blocks.clone()))?;
            let forgets = false;
            self.in_flight.insert(
                number,
                Expected {
                    forgets,
                    ..expected
                },
            );
        }
        Ok(())
    }
}

/// Submits the commands of one thread, and returns what its blocks contain in the end.
fn run(
    controller: &Controller,
    number: u64,
    commands: u64,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let options = QueueOptions::new().depth(16);
    let options = if number % 2 == 0 {
        options
    } else {
        options.polled()
    };
    let mut queue = controller.queue::<Registration>(options)?;
    let device = controller.device();
    let memory = (0..16).map(|_| Ok(Buffer::new(LEN)?.register(device, Access::ReadWrite)?));
    let mut model = Model {
        namespace: controller.namespace(1)?,
        verifies: controller.identity().optional.verify,
        first: number * BLOCKS,
        content: vec![0; BLOCKS as usize * BLOCK],
        random: Random(number),
        memory: memory.collect::<pinmap::Result<_>>()?,
        in_flight: HashMap::new(),
    };
    queue.run(
        model
            .namespace
            .write_zeroes(model.first..model.first + BLOCKS),
    )?;
    let mut submitted = 0;
    while submitted < commands {
        // One place stays free for what follows on a command.
        let depth = model.random.below(15) as usize;
        while queue.in_flight() > depth {
            model.wait(&mut queue)?;
        }
        submitted += model.submit(&mut queue)?;
    }
    while queue.in_flight() != 0 {
        model.wait(&mut queue)?;
    }
    Ok(model.content)
}

pub(crate) fn random_commands_of_several_threads() -> Outcome {
    let controller = crate::setup::controller()?;
    let commands = match std::env::var(COMMANDS.0) {
        Ok(commands) => commands.parse()?,
        Err(_) => COMMANDS.1,
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |number| {
            let controller = &controller;
            scope.spawn(move || {
                run(controller, number, commands / THREADS).map_err(|error| error.to_string())
            })
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for (number, result) in results.into_iter().enumerate() {
        let content = result.map_err(|_| "a thread has panicked")??;
        let offset = number as u64 * BLOCKS * BLOCK as u64;
        assert!(on_disk(1, offset, content.len())? == content, "{number}");
    }
    Ok(())
}
