// SPDX-License-Identifier: MIT OR Apache-2.0
//! The save area: the state of a launch in memory while its queue is in no slot. Who can write
//! there can change the state, so what comes back is only what a thread could have.

use super::descriptor::{save_bytes, Descriptor, SAVE_HEAD, SAVE_THREAD};
use super::fpu::Status;
use super::launch::{Held, TURN};
use super::thread::{Phase, Reservation, Thread};
use crate::fault::Reason;
use crate::pacer::Stop;
use crate::port::Port;

/// Progress of a launch whose state is in its save area.
pub const SAVED: u64 = 2;
/// Progress of a launch whose state could not be saved.
pub const LOST: u64 = 3;

/// "SAVEAREA"
const MAGIC: u64 = u64::from_le_bytes(*b"SAVEAREA");
const WORDS: usize = SAVE_THREAD as usize / 8;

impl Held {
    /// Writes the state to its save area. Returns the progress.
    pub fn save(&self, port: &mut Port<'_>) -> u64 {
        let head = [
            MAGIC,
            self.phases.len() as u64,
            self.done,
            self.current as u64,
            self.turn.into(),
            self.instructions,
            0,
            0,
        ];
        let mut bytes = head.map(u64::to_le_bytes).as_flattened().to_vec();
        let none = Thread::default();
        for (phase, place) in self.phases.iter().zip(&self.places) {
            let thread = match phase {
                Phase::Running | Phase::Waiting => &self.threads[*place],
                Phase::New | Phase::Ended => &none,
            };
            let words = words(thread, *phase);
            bytes.extend(words.map(u64::to_le_bytes).as_flattened());
        }
        match self.save != 0 && port.attempt(self.save, &bytes) {
            true => SAVED,
            false => LOST,
        }
    }
}

fn words(thread: &Thread, phase: Phase) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[1..32].copy_from_slice(&thread.x[1..32]);
    words[32..64].copy_from_slice(&thread.f);
    let Reservation { va, value, bytes } = thread.reservation;
    words[64] = thread.pc;
    words[65] = u64::from(thread.status.flags | (thread.status.mode << 5));
    words[66] = thread.executed;
    words[67..70].copy_from_slice(&[va, value, bytes as u64]);
    words[70] = match phase {
        Phase::New => 0,
        Phase::Running => 1,
        Phase::Waiting => 2,
        Phase::Ended => 3,
    };
    words
}

fn thread(words: &[u64]) -> (Thread, Phase) {
    let phase = match words[70] {
        0 => Phase::New,
        1 => Phase::Running,
        2 => Phase::Waiting,
        _ => Phase::Ended,
    };
    let mut thread = Thread {
        pc: words[64] & !1,
        status: Status {
            flags: words[65] as u32 & 0x1f,
            mode: (words[65] >> 5) as u32 & 7,
        },
        executed: words[66],
        reservation: Reservation {
            va: words[67],
            value: words[68],
            bytes: match words[69] {
                4 => 4,
                8 => 8,
                _ => 0,
            },
        },
        ..Thread::default()
    };
    thread.x[1..32].copy_from_slice(&words[1..32]);
    thread.f.copy_from_slice(&words[32..64]);
    (thread, phase)
}

/// Reads a state from the save area.
pub(super) fn restore(port: &mut Port<'_>, descriptor: &Descriptor) -> Result<Held, Stop> {
    let mut bytes = vec![0; save_bytes(descriptor.threads()) as usize];
    if descriptor.save == 0 {
        return Err(Reason::StateLost.into());
    }
    port.read(descriptor.save, &mut bytes)?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes))
        .collect();
    let (head, threads) = words.split_at(SAVE_HEAD as usize / 8);
    let (threads, phases): (Vec<_>, Vec<_>) = threads.chunks_exact(WORDS).map(thread).unzip();
    let is_free = |place: &usize| matches!(phases[*place], Phase::New | Phase::Ended);
    let held = Held {
        places: (0..threads.len()).collect(),
        free: (0..threads.len()).filter(is_free).collect(),
        phases,
        threads,
        done: head[2],
        current: usize::try_from(head[3]).unwrap_or(usize::MAX),
        turn: u32::try_from(head[4]).unwrap_or(u32::MAX),
        instructions: head[5],
        save: descriptor.save,
    };
    let is_valid = head[0] == MAGIC
        && head[1] == descriptor.threads()
        && (1..=TURN).contains(&held.turn)
        && held.done < descriptor.count
        && held.instructions < 1 << 60
        && held.is_of(descriptor);
    match is_valid {
        true => Ok(held),
        false => Err(Reason::StateLost.into()),
    }
}
