// SPDX-License-Identifier: MIT OR Apache-2.0
//! A key-value store in memory, whose values the device checksums in place. The commands come from
//! stdin: put KEY VALUE, get KEY, delete KEY, scrub, and corrupt KEY, which changes a value behind
//! the back of the store.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead};

use anyhow::{bail, Context, Result};
use pinmap::accelerator::{Accelerator, Pinned, Registered, Stream, StreamOptions};
use pinmap_testgpu::Crc32c;

const CAPACITY: usize = 16 << 20;
const BATCH: usize = 512;

struct Value {
    offset: usize,
    len: usize,
    crc: u32,
}

impl Value {
    fn room(len: usize) -> usize {
        len.next_power_of_two().max(64)
    }
}

struct Store {
    stream: Stream,
    memory: Registered<Vec<u8>>,
    crcs: Pinned<u32>,
    values: BTreeMap<String, Value>,
    unused: usize,
    free: HashMap<usize, Vec<usize>>,
}

impl Store {
    fn new(gpu: &Accelerator) -> Result<Self> {
        Ok(Self {
            stream: gpu.stream(StreamOptions::new().packets(2 * BATCH as u32))?,
            memory: gpu.register(vec![0; CAPACITY])?,
            crcs: gpu.alloc(BATCH)?,
            values: BTreeMap::new(),
            unused: 0,
            free: HashMap::new(),
        })
    }

    fn allocate(&mut self, len: usize) -> Option<usize> {
        let room = Value::room(len);
        self.free.get_mut(&room).and_then(Vec::pop).or_else(|| {
            let offset = self.unused;
            self.unused = offset.checked_add(room).filter(|&end| end <= self.memory.len())?;
            Some(offset)
        })
    }

    fn put(&mut self, key: &str, bytes: &[u8]) -> Result<()> {
        let (offset, len) = (self.allocate(bytes.len()).context("the store is full")?, bytes.len());
        self.memory[offset..][..len].copy_from_slice(bytes);
        self.delete(key);
        self.values.insert(key.to_owned(), Value { offset, len, crc: crc32c::crc32c(bytes) });
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&[u8]> {
        let value = self.values.get(key)?;
        Some(&self.memory[value.offset..][..value.len])
    }

    fn get_mut(&mut self, key: &str) -> Option<&mut [u8]> {
        let value = self.values.get(key)?;
        Some(&mut self.memory[value.offset..][..value.len])
    }

    fn delete(&mut self, key: &str) -> bool {
        let value = self.values.remove(key);
        if let Some(value) = &value {
            self.free.entry(Value::room(value.len)).or_default().push(value.offset);
        }
        value.is_some()
    }

    fn scrub(&mut self) -> pinmap::Result<Vec<&str>> {
        let values: Vec<_> = self.values.iter().collect();
        let mut corrupt = Vec::new();
        for values in values.chunks(BATCH) {
            self.stream.scope(|work| {
                let (memory, mut crcs) = (self.memory.slice(), self.crcs.slice_mut());
                work.batch(|| {
                    for (index, (_, value)) in values.iter().enumerate() {
                        let data = memory.part(value.offset..value.offset + value.len)?;
                        work.launch(Crc32c { data, crc: &mut crcs.part(index..=index)? })?;
                    }
                    Ok(())
                })
            })?;
            let wrong = values.iter().zip(&self.crcs).filter(|((_, value), &crc)| value.crc != crc);
            corrupt.extend(wrong.map(|((key, _), _)| key.as_str()));
        }
        Ok(corrupt)
    }
}

fn main() -> Result<()> {
    let mut store = Store::new(&pinmap_testgpu::find()?)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["put", key, value] => store.put(key, value.as_bytes())?,
            ["get", key] => match store.get(key) {
                Some(value) => println!("{key} = {}", value.escape_ascii()),
                None => println!("{key} is not there"),
            },
            ["delete", key] => println!("{key} deleted: {}", store.delete(key)),
            ["corrupt", key] => {
                let bytes = store.get_mut(key).with_context(|| format!("no value {key}"))?;
                *bytes.first_mut().context("an empty value")? ^= 1;
            }
            ["scrub"] => {
                let all = store.values.len();
                println!("corrupt: {:?} of {all}", store.scrub()?);
            }
            _ => bail!("what is this: {line}"),
        }
    }
    Ok(())
}
