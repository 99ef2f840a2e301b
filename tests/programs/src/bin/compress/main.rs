// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compresses a file: io_uring reads it into pinned memory, where the device counts the bytes and
//! checksums them. Several chunks are read and worked on at the same time.

mod huffman;

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{bail, ensure, Context, Result};
use huffman::Code;
use io_uring::{opcode, types, IoUring};
use pinmap::accelerator::{Accelerator, Pending, Pinned, Stream, StreamOptions};
use pinmap_testgpu::{Crc32c, HistogramU8};

const MAGIC: &[u8; 8] = b"pinhuff1";
const CHUNK: usize = 256 << 10;
const DEPTH: usize = 4;

struct Slot {
    index: u16,
    data: Pinned<u8>,
    counts: Pinned<u32>,
    crc: Pinned<u32>,
}

fn slots(gpu: &Accelerator) -> Result<Vec<Slot>> {
    let slot = |index| {
        let (data, counts, crc) = (gpu.alloc(CHUNK)?, gpu.alloc(256)?, gpu.alloc(1)?);
        Ok(Slot { index, data, counts, crc })
    };
    (0..DEPTH as u16).map(slot).collect()
}

fn submit(stream: &Stream, slot: Slot, len: usize, count: bool) -> pinmap::Result<Pending<Slot>> {
    let pending = stream.submit(slot, move |work, slot| {
        let data = slot.data.slice().part(..len)?;
        if count {
            work.launch(HistogramU8 { data, counts: &mut slot.counts.slice_mut() })?;
        }
        work.launch(Crc32c { data, crc: &mut slot.crc.slice_mut() })
    })?;
    Ok(pending)
}

fn compress(from: &str, to: &str) -> Result<()> {
    let gpu = pinmap_testgpu::find()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let input = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(from)
        .with_context(|| format!("cannot open {from}"))?;
    let len = input.metadata()?.len() as usize;
    let chunk_len = |chunk: usize| CHUNK.min(len - chunk * CHUNK);
    let mut output = BufWriter::new(File::create(to)?);
    output.write_all(MAGIC)?;

    let mut free = slots(&gpu)?;
    let mut ring = IoUring::new(DEPTH as u32)?;
    let buffers: Vec<_> = free
        .iter_mut()
        .map(|slot| libc::iovec { iov_base: slot.data.as_mut_ptr().cast(), iov_len: CHUNK })
        .collect();
    // SAFETY: The kernel pins the pages, so they outlive each read, whatever becomes of the slots.
    unsafe { ring.submitter().register_buffers(&buffers) }
        .context("cannot register the buffers")?;

    let mut unread = 0..len.div_ceil(CHUNK);
    let (mut reading, mut working) = (HashMap::new(), HashMap::new());
    for chunk in unread.clone() {
        loop {
            for (mut slot, next) in free.drain(..).zip(unread.by_ref()) {
                let (fd, buffer) = (types::Fd(input.as_raw_fd()), slot.data.as_mut_ptr());
                let read = opcode::ReadFixed::new(fd, buffer, CHUNK as u32, slot.index)
                    .offset((next * CHUNK) as u64)
                    .build()
                    .user_data(next as u64);
                // SAFETY: Nothing refers to the memory until the slot leaves `reading`.
                unsafe { ring.submission().push(&read)? };
                reading.insert(next, slot);
            }
            ring.submit_and_wait(usize::from(!working.contains_key(&chunk)))?;
            for read in ring.completion() {
                let (chunk, result) = (read.user_data() as usize, read.result());
                if result < 0 {
                    return Err(io::Error::from_raw_os_error(-result)).context("cannot read");
                }
                ensure!(result as usize == chunk_len(chunk), "{from} has become shorter");
                let slot = reading.remove(&chunk).context("an unknown read")?;
                working.insert(chunk, submit(&stream, slot, chunk_len(chunk), true)?);
            }
            if let Some(pending) = working.remove(&chunk) {
                let slot = pending.wait()?;
                let data = &slot.data[..chunk_len(chunk)];
                let code = Code::from_counts(&slot.counts);
                let packed = code.encode(data);
                for word in [data.len() as u32, slot.crc[0], packed.len() as u32] {
                    output.write_all(&word.to_le_bytes())?;
                }
                output.write_all(&code.to_bytes())?;
                output.write_all(&packed)?;
                free.push(slot);
                break;
            }
        }
    }
    Ok(output.flush()?)
}

fn decompress(from: &str, to: &str) -> Result<()> {
    let gpu = pinmap_testgpu::find()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut input =
        BufReader::new(File::open(from).with_context(|| format!("cannot open {from}"))?);
    let mut output = BufWriter::new(File::create(to)?);
    ensure!(read_array(&mut input)? == *MAGIC, "{from} is not a compressed file");

    let mut chunks = 0;
    let mut finish = |(crc, len, pending): (u32, usize, Pending<Slot>)| -> Result<Slot> {
        let slot = pending.wait()?;
        ensure!(slot.crc[0] == crc, "chunk {chunks} is corrupt: {:#x}, not {crc:#x}", slot.crc[0]);
        output.write_all(&slot.data[..len])?;
        chunks += 1;
        Ok(slot)
    };
    let (mut free, mut working) = (slots(&gpu)?, VecDeque::new());
    while !input.fill_buf()?.is_empty() {
        let [len, crc, packed_len] =
            [(); 3].map(|()| read_array(&mut input).map(u32::from_le_bytes));
        let (len, packed_len) = (len? as usize, packed_len? as usize);
        ensure!(len <= CHUNK && packed_len <= 2 * CHUNK, "a chunk is too long");
        let code = Code::from_bytes(&read_array(&mut input)?)?;
        let mut packed = vec![0; packed_len];
        input.read_exact(&mut packed).context("the file is cut off")?;
        let mut slot = match free.pop() {
            Some(slot) => slot,
            None => finish(working.pop_front().expect("a slot is free or at work"))?,
        };
        code.decode(&packed, &mut slot.data[..len])?;
        working.push_back((crc?, len, submit(&stream, slot, len, false)?));
    }
    for chunk in working {
        finish(chunk)?;
    }
    Ok(output.flush()?)
}

fn read_array<const N: usize>(input: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes).context("the file is cut off")?;
    Ok(bytes)
}

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--decompress", from, to] => decompress(from, to),
        [from, to] => compress(from, to),
        _ => bail!("usage: compress [--decompress] FROM TO"),
    }
}
