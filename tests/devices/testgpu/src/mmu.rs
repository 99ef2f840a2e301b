// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translation: the root registers, the TLB, and the gate that lets INVALIDATE wait for accesses.

use crate::counter::Counters;
use crate::fault::{Access, Fault, Reason};
use crate::pagetable::{walk, Leaf};
use crate::regs;
use crate::tlb::Tlb;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

const ROOT_DEFINED: u64 = regs::ROOT_ENABLE | regs::ROOT_HOST | regs::PTE_ADDRESS;

/// The MMU.
#[derive(Debug, Default)]
pub struct Mmu {
    roots: [AtomicU64; regs::VMID_COUNT],
    tlb: Mutex<Tlb>,
    gate: RwLock<()>,
    /// Number of INVALIDATEs, which changes while the gate is closed.
    generation: AtomicU64,
}

/// Guard of one translation and the access made with it. An INVALIDATE that begins during its life
/// does not complete before its end.
#[derive(Debug)]
pub struct Passage<'a>(#[allow(dead_code)] RwLockReadGuard<'a, ()>);

/// Scope and range of an INVALIDATE.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// VMID, or `None` for all address spaces.
    pub vmid: Option<usize>,
    /// First VA.
    pub first: u64,
    /// Last VA.
    pub last: u64,
}

impl Mmu {
    /// Returns the root register of an address space.
    pub fn root(&self, vmid: usize) -> u64 {
        self.roots[vmid].load(Ordering::Acquire)
    }

    /// Writes a root register.
    pub fn set_root(&self, vmid: usize, value: u64) {
        self.roots[vmid].store(value & ROOT_DEFINED, Ordering::Release);
    }

    /// Begins an access.
    pub fn enter(&self) -> Passage<'_> {
        Passage(self.gate.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a number that grows with each INVALIDATE. What was translated before has to be
    /// translated again.
    pub fn generation(&self, _: &Passage<'_>) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Finds the leaf for `va`, cached or by a walk that reads entries with `read`.
    pub fn translate(
        &self,
        _: &Passage<'_>,
        (vmid, va, access): (usize, u64, Access),
        counters: &Counters,
        read: impl FnMut(bool, u64) -> Result<u64, Reason>,
    ) -> Result<Leaf, Fault> {
        let cached = match va < regs::VA_END {
            true => self.tlb().lookup(vmid, va),
            false => None,
        };
        let leaf = match cached {
            Some(leaf) => {
                counters.add(regs::TLB_HITS, 1);
                leaf
            }
            None => {
                counters.add(regs::TLB_MISSES, 1);
                let leaf = walk(self.root(vmid), va, read).map_err(|failure| Fault {
                    reason: failure.reason,
                    va,
                    access,
                    level: failure.level,
                })?;
                self.tlb().insert(vmid, va, leaf);
                leaf
            }
        };
        if leaf.permits(access) {
            Ok(leaf)
        } else {
            Err(Fault::at(Reason::Permission, va, access))
        }
    }

    /// Drops cached translations, once every access that began before is over. Returns the first
    /// bus address that could be written through one of them.
    pub fn invalidate(&self, scope: Scope) -> Option<u64> {
        // An access in the gate may use or insert an old entry. When all have left, none can.
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::Relaxed);
        let writable = |leaf: &Leaf| leaf.host && leaf.permits(Access::Write);
        let Scope { vmid, first, last } = scope;
        let dropped = self.tlb().invalidate(vmid, first, last, writable);
        dropped.map(|leaf| leaf.address)
    }

    /// Restores the reset values.
    pub fn reset(&self) {
        for root in &self.roots {
            root.store(0, Ordering::Release);
        }
        self.invalidate(Scope {
            vmid: None,
            first: 0,
            last: u64::MAX,
        });
    }

    fn tlb(&self) -> std::sync::MutexGuard<'_, Tlb> {
        self.tlb.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
