// SPDX-License-Identifier: MIT OR Apache-2.0
//! An accelerator's memory, read and written by the controller past the host's memory, and a
//! controller that the accelerator drives (`scripts/vm --device all --peers`).

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pinmap::accelerator::{Accelerator, Stream, StreamOptions};
use pinmap::inspect::State;
use pinmap::{Access, Allocation, Device, Registration};
use pinmap_nvme::{Controller, Queue, QueueOptions, StreamQueue};
use pinmap_testgpu::IncrementF32;

use crate::drivers::pattern;
use crate::harness::{skip, Outcome};
use crate::kernel::{bind, FUNCTIONS};
use crate::plug::wait_for;
use crate::setup::returned;

/// The controller, which no driver has: `spare` in `scripts/vm`.
const SPARE: &str = "0000:00:13.0";
/// A block of it that cannot be read, as `scripts/vm` says.
const FAILING: u64 = 100_000;
/// Longer than one page of PRP entries would be without a list.
const LEN: usize = 64 << 10;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Shared = Arc<Registration<()>>;

/// A function that the driver has until this is dropped.
struct Bound;

impl Drop for Bound {
    fn drop(&mut self) {
        let function = Path::new(FUNCTIONS).join(SPARE);
        let _ = fs::write(function.join("driver/unbind"), SPARE);
        let _ = fs::write(function.join("driver_override"), "\n");
    }
}

/// The two of them. Fields are dropped in their order: the controller is closed before the driver
/// loses it.
struct Pair {
    gpu: Accelerator,
    controller: Controller,
    _bound: Bound,
}

fn pair() -> Result<Pair> {
    if std::env::var("PINMAP_PEERS").unwrap_or_default().is_empty() {
        return skip("the bus of this machine does not let devices reach each other");
    }
    if !Path::new(FUNCTIONS).join(SPARE).exists() {
        return skip("there is no spare controller");
    }
    let gpu = pinmap_testgpu::find()?;
    bind(SPARE, "pinmap")?;
    let bound = Bound;
    let device = Device::open_pci(SPARE.parse()?)?;
    Ok(Pair {
        gpu,
        controller: Controller::open(&device)?,
        _bound: bound,
    })
}

/// The bytes of the disk from a block on, as the host has them.
fn on_disk(block: u64, len: usize) -> Result<Vec<u8>> {
    let mut content = vec![0; len];
    File::open("/run/vm/spare-disk")?.read_exact_at(&mut content, block * 512)?;
    Ok(content)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    bytes.chunks_exact(4).map(float).collect()
}

pub(crate) fn peers_read_into_vram_and_write_from_it() -> Outcome {
    let pair = pair()?;
    let Pair {
        gpu, controller, ..
    } = &pair;
    let namespace = controller.namespace(1)?;
    let mut vram = gpu.alloc_vram::<u8>(LEN)?;
    let locked = controller.device().info()?.memlock.used;
    let mut memory = vram.register(controller.device(), Access::ReadWrite)?;
    assert_eq!(controller.device().info()?.memlock.used, locked);
    for (seed, options) in [QueueOptions::new(), QueueOptions::new().prp()]
        .into_iter()
        .enumerate()
    {
        let mut queue: Queue<Registration<()>> = controller.queue(options)?;
        let content = pattern(seed as u64, LEN);
        vram.write(0, &content)?;
        memory = returned(queue.run(namespace.write(200, memory)))?;
        assert!(on_disk(200, LEN)? == content, "what was written from VRAM");
        vram.write(0, &[0; LEN])?;
        let counters = gpu.counters()?;
        memory = returned(queue.run(namespace.read(200, memory)))?;
        assert!(vram.to_vec() == content, "what was read into VRAM");
        // A part in the midst.
        memory = returned(queue.run(namespace.read(201, memory).part(8192..12288)))?;
        let mut part = vec![0; 4096];
        vram.read(8192, &mut part)?;
        assert!(part == content[512..4608], "a part");
        assert_eq!(
            gpu.counters()?,
            counters,
            "the accelerator has done something"
        );
    }
    Ok(())
}

/// All VRAM that is left, in pieces.
fn rest_of_vram(gpu: &Accelerator) -> Vec<Allocation<u8>> {
    let mut pieces = Vec::new();
    let mut len = 1 << 30;
    while len >= 4096 {
        match gpu.alloc_vram(len) {
            Ok(piece) => pieces.push(piece),
            Err(_) => len /= 2,
        }
    }
    pieces
}

/// A controller reaches nothing of memory that is freed.
pub(crate) fn peers_lose_vram_that_is_freed() -> Outcome {
    let pair = pair()?;
    let Pair {
        gpu, controller, ..
    } = &pair;
    let namespace = controller.namespace(1)?;
    let mut vram = gpu.alloc_vram::<u8>(LEN)?;
    vram.write(0, &pattern(9, LEN))?;
    let mut queue: Queue<Registration<()>> = controller.queue(QueueOptions::new())?;
    let memory = vram.register(controller.device(), Access::ReadWrite)?;
    let memory = returned(queue.run(namespace.write(0, memory)))?;
    // With nothing else free, the next one gets the same frames, soon.
    let _rest = rest_of_vram(gpu);
    drop(vram);
    assert_eq!(memory.state()?, State::Stale);
    let next = wait_for("free VRAM", || gpu.alloc_vram::<u8>(LEN).ok())?;
    // Whether the command fails is the controller's affair.
    let _ = queue.run(namespace.read(0, memory));
    assert!(next.to_vec() == [0; LEN], "it was written to");
    // The controller works on.
    let memory = next.register(controller.device(), Access::ReadWrite)?;
    let _memory = returned(queue.run(namespace.read(0, memory)))?;
    assert!(next.to_vec() == pattern(9, LEN));
    Ok(())
}

const NUMBERS: usize = 1024;
const BLOCKS: u64 = (4 * NUMBERS / 512) as u64;
/// The first block with numbers.
const FIRST: u64 = 1024;

fn stream(gpu: &Accelerator) -> pinmap::Result<Stream> {
    gpu.stream(StreamOptions::new())
}

/// Reads, works on and writes back `count` pieces of the disk, by one submission.
fn increment(
    stream: &Stream,
    queue: &StreamQueue<Shared>,
    namespace: &pinmap_nvme::Namespace,
    numbers: &mut Allocation<f32>,
    (memory, count): (&Shared, u64),
) -> pinmap_nvme::Result<()> {
    stream.try_scope(|work| {
        let mut numbers = numbers.slice_mut();
        let mut refused = Ok(());
        let mut submit = || -> pinmap_nvme::Result<()> {
            for piece in 0..count {
                let block = FIRST + piece * BLOCKS;
                queue.submit(work, namespace.read(block, Arc::clone(memory)))?;
                work.launch(IncrementF32 { data: &mut numbers })?;
                queue.submit(work, namespace.write(block, Arc::clone(memory)))?;
            }
            Ok(())
        };
        work.batch(|| {
            refused = submit();
            Ok(())
        })?;
        refused
    })
}

/// Disk, kernel, disk, many times, while the CPU waits for the end of all of it.
pub(crate) fn peers_work_without_the_cpu() -> Outcome {
    const COUNT: u64 = 8;
    let pair = pair()?;
    let Pair {
        gpu, controller, ..
    } = &pair;
    let namespace = controller.namespace(1)?;
    let mut numbers = gpu.alloc_vram::<f32>(NUMBERS)?;
    let memory = numbers.register(controller.device(), Access::ReadWrite)?;
    let memory: Shared = Arc::new(memory);
    let stream = stream(gpu)?;
    // The queues begin anew in the midst of a round, with the other phase.
    let options = QueueOptions::new().depth(2 * COUNT as u16 + 2);
    let mut queue = controller.stream_queue(gpu, options)?;
    let len = COUNT as usize * 4 * NUMBERS;
    let before = floats(&on_disk(FIRST, len)?);
    for round in 1..=3 {
        let counters = gpu.counters()?;
        let begun = std::time::Instant::now();
        increment(&stream, &queue, &namespace, &mut numbers, (&memory, COUNT))?;
        println!("# {COUNT} pieces of 4 KiB: {:?}", begun.elapsed());
        let done = queue.finish()?;
        assert_eq!(done.len() as u64, 2 * COUNT);
        for (index, done) in done.into_iter().enumerate() {
            assert_eq!(done.number, (round - 1) * 2 * COUNT + index as u64);
            done.result?;
        }
        let now = floats(&on_disk(FIRST, len)?);
        let wanted = before.iter().map(|number| number + round as f32);
        assert!(now.iter().copied().eq(wanted), "round {round}");
        // Only doorbells left the device: two stores of 4 bytes for each command.
        let used = gpu.counters()?.copied().since(&counters.copied());
        assert_eq!((used.host_read, used.host_written), (0, 16 * COUNT));
    }
    // Another queue has its doorbells in the same page.
    let mut other: StreamQueue<Shared> = controller.stream_queue(gpu, options)?;
    increment(&stream, &other, &namespace, &mut numbers, (&memory, 1))?;
    assert_eq!(other.finish()?.len(), 2);
    Ok(())
}

/// Two threads submit to one queue, in the same stream: the controller executes each command once.
pub(crate) fn peers_take_commands_of_two_threads() -> Outcome {
    const EACH: u64 = 40;
    let pair = pair()?;
    let namespace = pair.controller.namespace(1)?;
    let vram = pair.gpu.alloc_vram::<u8>(4096)?;
    let memory: Shared = Arc::new(vram.register(pair.controller.device(), Access::ReadWrite)?);
    let stream = stream(&pair.gpu)?;
    let options = QueueOptions::new().depth(2 * EACH as u16);
    let mut queue: StreamQueue<Shared> = pair.controller.stream_queue(&pair.gpu, options)?;
    for _ in 0..4 {
        let before = pair.controller.health()?.reads;
        stream.try_scope(|work| {
            let submit = || {
                (0..EACH).try_for_each(|block| {
                    let read = namespace.read(FIRST + block, Arc::clone(&memory));
                    queue.submit(work, read).map(drop)
                })
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(submit);
                submit().and(other.join().expect("it returns"))
            })
            .map_err(|failed| failed.error)
        })?;
        let done = queue.finish()?;
        assert_eq!(done.len() as u64, 2 * EACH);
        done.into_iter()
            .try_for_each(|done| done.result.map(drop))?;
        assert_eq!(pair.controller.health()?.reads, before + 2 * EACH);
    }
    Ok(())
}

pub(crate) fn peers_tell_which_command_failed() -> Outcome {
    let pair = pair()?;
    let Pair {
        gpu, controller, ..
    } = &pair;
    let namespace = controller.namespace(1)?;
    let numbers = gpu.alloc_vram::<f32>(NUMBERS)?;
    let memory: Shared = Arc::new(numbers.register(controller.device(), Access::ReadWrite)?);
    let stream = stream(gpu)?;
    let mut queue = controller.stream_queue(gpu, QueueOptions::new().depth(3))?;
    stream.try_scope(|work| {
        for block in [0, FAILING, 8] {
            queue.submit(work, namespace.read(block, Arc::clone(&memory)))?;
        }
        let full = queue.submit(work, namespace.read(0, Arc::clone(&memory)));
        let full = full.expect_err("there is no room");
        assert!(matches!(full.error, pinmap_nvme::Error::Full), "{full:?}");
        let beyond = namespace.read(namespace.blocks(), Arc::clone(&memory));
        let beyond = queue.submit(work, beyond).expect_err("beyond the end");
        assert!(
            matches!(beyond.error, pinmap_nvme::Error::Invalid(_)),
            "{beyond:?}"
        );
        assert!(beyond.memory.is_some());
        Ok::<_, pinmap_nvme::Error>(())
    })?;
    let results: Vec<_> = queue
        .finish()?
        .into_iter()
        .map(|done| done.result)
        .collect();
    let [Ok(()), Err(pinmap_nvme::Error::Status(status)), Ok(())] = &results[..] else {
        return Err(format!("{results:?}").into());
    };
    // An error of the medium: it cannot be read.
    assert_eq!((status.kind(), status.code()), (2, 0x81), "{status}");
    assert_eq!(queue.finish()?.len(), 0);
    Ok(())
}

pub(crate) fn peers_go_on_after_a_reset() -> Outcome {
    let pair = pair()?;
    let Pair {
        gpu, controller, ..
    } = &pair;
    let namespace = controller.namespace(1)?;
    let mut numbers = gpu.alloc_vram::<f32>(NUMBERS)?;
    let memory: Shared = Arc::new(numbers.register(controller.device(), Access::ReadWrite)?);
    let mut queue = controller.stream_queue(gpu, QueueOptions::new())?;
    let first = stream(gpu)?;
    increment(&first, &queue, &namespace, &mut numbers, (&memory, 2))?;
    assert_eq!(queue.finish()?.len(), 4);
    controller.reset()?;
    let refused = increment(&first, &queue, &namespace, &mut numbers, (&memory, 1));
    assert!(
        matches!(refused, Err(pinmap_nvme::Error::Reset)),
        "{refused:?}"
    );
    assert_eq!(queue.finish()?.len(), 0);
    increment(&first, &queue, &namespace, &mut numbers, (&memory, 3))?;
    assert!(queue.finish()?.into_iter().all(|done| done.result.is_ok()));
    // A stream that is given up: its command was never told to the controller.
    let mut gate = gpu.alloc::<u64>(1)?;
    let given_up = first.try_scope(|work| {
        work.wait_value(&gate.slice_mut(), 0, 1)?;
        queue.submit(work, namespace.read(0, Arc::clone(&memory)))?;
        Err::<(), _>(pinmap_nvme::Error::Confused)
    });
    assert!(given_up.is_err());
    let done = queue.finish()?;
    assert!(
        matches!(done[0].result, Err(pinmap_nvme::Error::Reset)),
        "{done:?}"
    );
    assert!(done[0].memory.is_some());
    first.reset()?;
    increment(&first, &queue, &namespace, &mut numbers, (&memory, 2))?;
    assert!(queue.finish()?.into_iter().all(|done| done.result.is_ok()));
    Ok(())
}

/// The program of the documents: `disk_kernel` of `tests/programs`.
pub(crate) fn peers_program_disk_kernel() -> Outcome {
    const BYTES: usize = 64 << 10;
    let Pair {
        controller, _bound, ..
    } = pair()?;
    // It takes the controller for itself.
    drop(controller);
    let before = floats(&on_disk(0, BYTES)?);
    let status = Command::new("program-disk_kernel")
        .args([SPARE, "4"])
        .status()?;
    assert!(status.success());
    let now = floats(&on_disk(0, BYTES)?);
    // Other tests have left anything there.
    let is_next = |(old, new): (&f32, &f32)| *new == old + 1.0 || (new.is_nan() && old.is_nan());
    assert!(before.iter().zip(&now).all(is_next));
    Ok(())
}
