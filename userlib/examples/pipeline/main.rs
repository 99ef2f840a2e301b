// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checksums a file that need not fit into the device's memory. Chunks are read into pinned memory,
//! from which the device takes them: the CPU copies nothing. Two streams copy and checksum them in
//! turn; while the device works on a chunk, the next one is read.
//!
//! usage: `pipeline [FILE]`. Without a file: made-up bytes, more than the device has memory.

use std::error::Error;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write};

use nix::sys::memfd::{memfd_create, MFdFlags};
use pinmap::accelerator::{Accelerator, Pending, Pinned, Stream, StreamOptions};
use pinmap::Allocation;
use pinmap_testgpu as testgpu;

/// Length of a chunk in bytes.
const CHUNK: usize = 4 << 20;

/// Memory for a chunk: of the host, into which it is read, and of the device.
struct Lane {
    host: Pinned<u8>,
    local: Allocation<u8>,
    crc: Pinned<u32>,
    /// Bytes that are in use.
    len: usize,
}

/// A stream and its memory, which is idle or in flight.
struct Worker {
    stream: Stream,
    state: State,
}

enum State {
    Idle(Lane),
    Busy(Pending<Lane>),
    /// Between two states.
    Moving,
}

impl Worker {
    fn new(gpu: &Accelerator) -> pinmap::Result<Self> {
        let lane = Lane {
            host: gpu.alloc(CHUNK)?,
            local: gpu.alloc_vram(CHUNK)?,
            crc: gpu.alloc(1)?,
            len: 0,
        };
        let stream = gpu.stream(StreamOptions::new())?;
        Ok(Self {
            stream,
            state: State::Idle(lane),
        })
    }

    /// Waits for the memory. Returns it with the checksum and the length of the chunk, if there was
    /// one.
    fn take(&mut self) -> pinmap::Result<(Lane, Option<(u32, usize)>)> {
        match std::mem::replace(&mut self.state, State::Moving) {
            State::Busy(pending) => {
                let lane = pending.wait()?;
                let found = (lane.crc[0], lane.len);
                Ok((lane, Some(found)))
            }
            State::Idle(lane) => Ok((lane, None)),
            State::Moving => unreachable!("an error ends the program"),
        }
    }

    /// Hands the memory over to the stream.
    fn start(&mut self, lane: Lane) -> pinmap::Result<()> {
        let pending = self.stream.submit(lane, |work, lane| {
            let Lane {
                host,
                local,
                crc,
                len,
            } = lane;
            let mut local = local.slice_mut().part(..*len)?;
            work.copy(host.slice().part(..*len)?, &mut local)?;
            work.launch(testgpu::Crc32c {
                data: local.as_slice(),
                crc: &mut crc.slice_mut(),
            })
        })?;
        self.state = State::Busy(pending);
        Ok(())
    }
}

/// Fills a buffer from a file, as far as the file goes.
fn read(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..])? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// Makes a file in memory with made-up bytes.
fn made_up(len: u64) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"pipeline", MFdFlags::MFD_CLOEXEC)?);
    let (mut buffer, mut seed, mut left) = (vec![0; CHUNK], 1u64, len);
    while left != 0 {
        for word in buffer.chunks_exact_mut(8) {
            seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed >> 29);
            word.copy_from_slice(&seed.to_le_bytes());
        }
        let count = left.min(CHUNK as u64);
        file.write_all(&buffer[..count as usize])?;
        left -= count;
    }
    file.rewind()?;
    Ok(file)
}

/// CRC-32C by the CPU, with a table of bytes.
struct Crc {
    table: [u32; 256],
    /// The effect of appending a chunk of zeros, as a matrix of bits.
    chunk: [u32; 32],
}

impl Crc {
    const POLYNOMIAL: u32 = 0x82f6_3b78;

    fn new() -> Self {
        let mut table = [0; 256];
        for (byte, entry) in (0u32..).zip(&mut table) {
            *entry = (0..8).fold(byte, |crc, _| {
                (crc >> 1) ^ (Self::POLYNOMIAL & (crc & 1).wrapping_neg())
            });
        }
        let mut this = Self {
            table,
            chunk: [0; 32],
        };
        this.chunk = this.zeros(CHUNK);
        this
    }

    /// The checksum after appending bytes to data with this checksum.
    fn add(&self, crc: u32, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!crc, |crc, &byte| {
            (crc >> 8) ^ self.table[((crc ^ u32::from(byte)) & 0xff) as usize]
        })
    }

    /// The effect of appending `bytes` zeros on each bit, computed by squaring.
    fn zeros(&self, bytes: usize) -> [u32; 32] {
        let one: [u32; 32] = std::array::from_fn(|bit| {
            let crc = 1u32 << bit;
            (crc >> 8) ^ self.table[(crc & 0xff) as usize]
        });
        let mut power = one;
        let mut result: [u32; 32] = std::array::from_fn(|bit| 1 << bit);
        let mut left = bytes;
        while left != 0 {
            if left & 1 != 0 {
                result = result.map(|column| apply(&power, column));
            }
            power = power.map(|column| apply(&power, column));
            left >>= 1;
        }
        result
    }

    /// The checksum of two pieces together, of which the second has `len` bytes.
    fn join(&self, first: u32, second: u32, len: usize) -> u32 {
        match len {
            CHUNK => apply(&self.chunk, first) ^ second,
            len => apply(&self.zeros(len), first) ^ second,
        }
    }
}

/// Multiplies a matrix of bits by a vector of bits.
fn apply(matrix: &[u32; 32], vector: u32) -> u32 {
    let columns = (0..32).filter(|bit| (vector >> bit) & 1 != 0);
    columns.fold(0, |sum, bit| sum ^ matrix[bit])
}

fn main() -> Result<(), Box<dyn Error>> {
    let gpu = pinmap_testgpu::find()?;
    let vram = gpu.info()?.vram_len;
    let mut file = match std::env::args_os().nth(1) {
        Some(path) => File::open(path)?,
        None => made_up(vram + vram / 8 + 12_345)?,
    };
    let total = file.metadata()?.len();
    println!(
        "{} MiB, with {} MiB of device memory",
        total >> 20,
        vram >> 20
    );
    let crc = Crc::new();
    let (mut device, mut cpu, mut done) = (0, 0, 0);
    let mut workers = [Worker::new(&gpu)?, Worker::new(&gpu)?];
    let mut bar = Bar::new(total);
    // After the end of the file, one more turn for each worker takes what is still in flight.
    let mut last = workers.len();
    for turn in 0.. {
        let worker = &mut workers[turn % 2];
        let (mut lane, found) = worker.take()?;
        if let Some((piece, len)) = found {
            device = crc.join(device, piece, len);
            done += len as u64;
            bar.show(done)?;
        }
        let len = read(&mut file, &mut lane.host)?;
        if len == 0 {
            worker.state = State::Idle(lane);
            last -= 1;
            if last == 0 {
                break;
            }
            continue;
        }
        lane.len = len;
        // While the other stream works, the CPU computes the same, to compare.
        cpu = crc.add(cpu, &lane.host[..len]);
        worker.start(lane)?;
    }
    bar.end()?;
    println!("CRC-32C: device {device:08x}, CPU {cpu:08x}");
    if device != cpu || done != total {
        return Err("the two differ".into());
    }
    println!("the two are equal");
    Ok(())
}

/// A progress bar, which on a terminal is updated.
struct Bar {
    total: u64,
    drawn: usize,
    live: bool,
}

impl Bar {
    const WIDTH: usize = 50;

    fn new(total: u64) -> Self {
        Self {
            total: total.max(1),
            drawn: 0,
            live: io::stdout().is_terminal(),
        }
    }

    fn show(&mut self, done: u64) -> io::Result<()> {
        self.drawn = (done * Self::WIDTH as u64 / self.total) as usize;
        if self.live {
            print!("\r{}", self.line());
            io::stdout().flush()?;
        }
        Ok(())
    }

    fn line(&self) -> String {
        format!(
            "[{:<width$}] {:3} %",
            "#".repeat(self.drawn),
            self.drawn * 100 / Self::WIDTH,
            width = Self::WIDTH
        )
    }

    fn end(&self) -> io::Result<()> {
        let back = if self.live { "\r" } else { "" };
        println!("{back}{}", self.line());
        Ok(())
    }
}
