// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies from memory that is not registered, with several copies in flight at once.

use pinmap::accelerator::{Accelerator, StreamOptions};
use pinmap::{accelerator, Element, Result};

use crate::fake::Fake;

/// Copies windows of the same memory, each by a stream of its own, all in flight at once.
fn copy<T: Element>(
    gpu: &Accelerator,
    data: &[T],
    windows: &[std::ops::Range<usize>],
) -> Result<()> {
    let mut streams = Vec::new();
    let mut targets = Vec::new();
    for window in windows {
        streams.push(gpu.stream(StreamOptions::new())?);
        targets.push(gpu.alloc_vram::<T>(window.len())?);
    }
    accelerator::scope(|scope| {
        for ((window, stream), target) in windows.iter().zip(&streams).zip(&mut targets) {
            let (from, mut to) = (&data[window.clone()], target.slice_mut());
            scope.on(stream).copy(from, &mut to)?;
        }
        Ok(())
    })
}

#[test]
fn windows_of_the_same_memory_may_overlap() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let data = vec![1.0f32; 20_000];
    for windows in [
        // A stencil with a halo; a part, then all; all, then a part; a window that joins two;
        // the same window twice.
        vec![0..8192, 4096..12_288],
        vec![5000..9000, 0..20_000],
        vec![0..20_000, 5000..9000],
        vec![0..5000, 9000..14_000, 2000..12_000, 0..20_000],
        vec![100..200, 150..250, 0..20_000, 100..200],
        vec![3000..12_000, 2000..13_000, 1000..14_000, 0..20_000],
    ] {
        copy(&gpu, &data, &windows).unwrap_or_else(|error| panic!("{windows:?}: {error}"));
        assert_eq!(fake.registrations().0, 0, "{windows:?}");
    }
}

#[test]
fn what_several_copies_need_is_registered_once() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let data = vec![1u8; 64 << 12];
    let whole = 0..data.len();
    let (_, before) = fake.registrations();
    copy(&gpu, &data, &[whole.clone(), whole.clone()]).expect("copied");
    let (_, once) = fake.registrations();
    copy(&gpu, &data, &[whole]).expect("copied");
    let (_, again) = fake.registrations();
    assert_eq!(once - before, again - once);
}
