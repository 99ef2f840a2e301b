// SPDX-License-Identifier: MIT OR Apache-2.0
//! Canonical Huffman codes of bytes, most significant bit first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use anyhow::{ensure, Result};

const MAX_BITS: u8 = 12;

pub struct Code {
    lengths: [u8; 256],
}

impl Code {
    pub fn from_counts(counts: &[u32]) -> Self {
        let mut weights: Vec<u64> = counts.iter().map(|&count| count.into()).collect();
        loop {
            let lengths = optimal_lengths(&weights);
            if lengths.iter().all(|&length| length <= MAX_BITS) {
                return Self { lengths };
            }
            weights.iter_mut().for_each(|weight| *weight = weight.div_ceil(2));
        }
    }

    pub fn to_bytes(&self) -> [u8; 128] {
        std::array::from_fn(|i| self.lengths[2 * i] | (self.lengths[2 * i + 1] << 4))
    }

    pub fn from_bytes(bytes: &[u8; 128]) -> Result<Self> {
        let lengths = std::array::from_fn(|i| (bytes[i / 2] >> (i % 2 * 4)) & 15);
        let space: u32 = lengths.iter().filter(|&&l| l > 0).map(|&l| (1 << MAX_BITS) >> l).sum();
        ensure!(lengths.iter().all(|&l| l <= MAX_BITS) && space <= 1 << MAX_BITS, "not a code");
        Ok(Self { lengths })
    }

    fn words(&self) -> impl Iterator<Item = (u8, u8, u16)> + '_ {
        let mut word = 0;
        let symbols = (1..=MAX_BITS).flat_map(|l| (0..=255).map(move |symbol| (symbol, l)));
        symbols.filter(|&(symbol, l)| self.lengths[usize::from(symbol)] == l).map(
            move |(symbol, l)| {
                let left_aligned = word;
                word += 1 << (MAX_BITS - l);
                (symbol, l, left_aligned)
            },
        )
    }

    pub fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut table = [(0, 0); 256];
        for (symbol, length, word) in self.words() {
            table[usize::from(symbol)] = (length, u64::from(word >> (MAX_BITS - length)));
        }
        let mut out = Vec::with_capacity(data.len());
        let (mut bits, mut pending) = (0u64, 0);
        for &byte in data {
            let (length, word) = table[usize::from(byte)];
            bits = (bits << length) | word;
            pending += length;
            while pending >= 8 {
                pending -= 8;
                out.push((bits >> pending) as u8);
            }
        }
        if pending > 0 {
            out.push((bits << (8 - pending)) as u8);
        }
        out
    }

    pub fn decode(&self, packed: &[u8], data: &mut [u8]) -> Result<()> {
        let mut table = vec![(0, 0); 1 << MAX_BITS];
        for (symbol, length, word) in self.words() {
            table[usize::from(word)..][..1 << (MAX_BITS - length)].fill((symbol, length));
        }
        let mut packed = packed.iter();
        let (mut bits, mut pending) = (0u64, 0);
        for byte in data {
            while pending < MAX_BITS {
                bits = (bits << 8) | u64::from(*packed.next().unwrap_or(&0));
                pending += 8;
            }
            let window = (bits >> (pending - MAX_BITS)) & ((1 << MAX_BITS) - 1);
            let (symbol, length) = table[window as usize];
            ensure!(length > 0, "a word that is not in the code");
            (*byte, pending) = (symbol, pending - length);
        }
        Ok(())
    }
}

fn optimal_lengths(weights: &[u64]) -> [u8; 256] {
    let leaves = weights.iter().enumerate().filter(|(_, &weight)| weight > 0);
    let mut heap: BinaryHeap<_> = leaves.map(|(leaf, &weight)| Reverse((weight, leaf))).collect();
    let mut lengths = [0; 256];
    if let (1, Some(Reverse((_, leaf)))) = (heap.len(), heap.peek()) {
        lengths[*leaf] = 1;
        return lengths;
    }
    let mut children = Vec::new();
    while let (Some(Reverse((a, left))), Some(Reverse((b, right)))) = (heap.pop(), heap.pop()) {
        heap.push(Reverse((a + b, 256 + children.len())));
        children.push([left, right]);
    }
    let mut depths = [0; 512];
    for (node, pair) in children.iter().enumerate().rev() {
        pair.iter().for_each(|&child| depths[child] = depths[256 + node] + 1);
    }
    lengths.copy_from_slice(&depths[..256]);
    lengths
}
