// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels in Rust that tests of the crate launch.

use pinmap_kernel::*;

program!();

/// Sets y to a · x + y.
#[kernel]
pub fn saxpy(a: f32, x: DeviceSlice<f32>, y: DeviceSliceMut<f32>) {
    let i = grid_thread();
    if i < y.len() {
        y.set(i, a * x.get(i) + y.get(i));
    }
}

/// Rows and columns of a tile, and the threads of a block in x and y.
pub(crate) const TILE: usize = 8;

/// Multiplies square matrices of `n` rows, tile by tile.
#[kernel]
pub fn multiply(
    n: u32,
    a: DeviceSlice<f32>,
    b: DeviceSlice<f32>,
    c: DeviceSliceMut<f32>,
    rows: Shared<f32, { TILE * TILE }>,
    columns: Shared<f32, { TILE * TILE }>,
) {
    let (x, y, n) = (thread_idx().x as usize, thread_idx().y as usize, n as usize);
    let (column, row) = (
        block_idx().x as usize * TILE + x,
        block_idx().y as usize * TILE + y,
    );
    let at = |from: &DeviceSlice<f32>, row: usize, column: usize| {
        if row < n && column < n {
            from.get(row * n + column)
        } else {
            0.0
        }
    };
    let mut sum = 0.0;
    for tile in (0..n).step_by(TILE) {
        rows.set(y * TILE + x, at(&a, row, tile + x));
        columns.set(y * TILE + x, at(&b, tile + y, column));
        sync_threads();
        for k in 0..TILE {
            sum += rows.get(y * TILE + k) * columns.get(k * TILE + x);
        }
        sync_threads();
    }
    if row < n && column < n {
        c.set(row * n + column, sum);
    }
}

/// Counts bytes in memory of the block, and adds that to the counts of all.
#[kernel]
pub fn histogram(data: DeviceSlice<u8>, counts: DeviceSliceMut<u32>, own: Shared<u32, 256>) {
    let each = block_dim().x as usize;
    for i in (thread_idx().x as usize..256).step_by(each) {
        own.set(i, 0);
    }
    sync_threads();
    for i in (grid_thread()..data.len()).step_by(grid_threads()) {
        own.atomic(data.get(i).into())
            .fetch_add(1, Ordering::Relaxed);
    }
    sync_threads();
    for i in (thread_idx().x as usize..256).step_by(each) {
        counts.atomic(i).fetch_add(own.get(i), Ordering::Relaxed);
    }
}

element! {
    /// A struct that both sides have.
    #[derive(Debug, PartialEq)]
    pub struct Body { pub place: [f64; 3], pub mass: f32, pub kind: u16, pub flags: [u8; 2] }
}

/// Launches that have run, in the memory of the program.
#[device]
static LAUNCHES: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(40);

#[device]
fn length(place: [f64; 3]) -> f64 {
    place[2]
        .mul_add(place[2], place[1].mul_add(place[1], place[0] * place[0]))
        .sqrt()
}

/// Moves a body, and tells of it.
#[kernel]
pub fn travel(bodies: DeviceSliceMut<Body>, by: f64, kind: i16, far: bool) {
    if grid_thread() == 0 {
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
    }
    let i = grid_thread();
    let mut body = bodies.get(i);
    body.place[0] += by;
    body.kind = kind as u16;
    body.flags[usize::from(far)] = 7;
    bodies.set(i, body);
    println!(
        "{i} of {:?}: {:.3} {}",
        grid_dim(),
        length(body.place),
        body.mass
    );
    if i == 3 {
        print!(
            "{} launches, {:>600}\n",
            LAUNCHES.load(Ordering::Relaxed),
            "far"
        );
    }
}

/// Takes more arguments than there are registers.
#[kernel]
#[allow(clippy::too_many_arguments)]
pub fn sum(
    to: DeviceSliceMut<f64>,
    a: i8,
    b: u32,
    c: i32,
    d: u64,
    e: i16,
    more: DeviceSlice<u128>,
    f: u8,
) {
    let all = f64::from(a) + f64::from(b) + f64::from(c) + d as f64 + f64::from(e) + f64::from(f);
    to.set(0, all + more.get(1) as u64 as f64);
}

/// Has one thread read what is not there.
#[kernel]
pub fn read_beyond(from: DeviceSlice<u32>, to: DeviceSliceMut<u32>) {
    let i = grid_thread();
    to.set(i, from.get(i)); // the line that the test looks for
}

/// Writes through a pointer.
///
/// # Safety
///
/// The number is there.
#[kernel]
pub unsafe fn poke(to: *mut u32, value: u32) {
    // SAFETY: The caller promises it.
    unsafe { to.write_volatile(value) };
}

// What a type is called need not be the same type for the device.
#[cfg(target_os = "none")]
type Real = f32;
#[cfg(not(target_os = "none"))]
type Real = f64;
const DEVICE: usize = cfg!(target_os = "none") as usize;

/// Has another value for the device than for the program.
#[kernel]
pub fn other_value(to: DeviceSliceMut<f64>, value: Real) {
    to.set(0, value.into());
}

/// Has other elements for the device.
#[kernel]
pub fn other_elements(to: DeviceSliceMut<Real>) {
    to.set(0, 1.0);
}

/// Shares more on the device.
#[kernel]
pub fn other_shared(own: Shared<u32, { 8 + 8 * DEVICE }>) {
    own.set(15, 1);
}

/// Is unsafe on the device alone.
#[cfg(not(target_os = "none"))]
#[kernel]
pub fn other_promise(at: u64) {}
/// Writes at an address.
///
/// # Safety
///
/// A number is there.
#[device]
#[kernel]
pub unsafe fn other_promise(at: u64) {
    // SAFETY: As the caller promises.
    unsafe { (at as *mut u32).write_volatile(1) };
}

/// Is named as what the macro makes of a kernel was.
#[kernel]
pub fn entry(to: DeviceSliceMut<u32>) {
    to.set(0, here(to.len()));
}

/// Takes so much of the stack, in one thread.
#[kernel]
pub fn deep(depth: u32, to: DeviceSliceMut<u32>) {
    if thread_idx().x == 1 {
        to.set(0, deeper(depth, &mut [0; 64]));
    }
}

/// Calls itself with an array for each.
#[device]
#[inline(never)]
fn deeper(depth: u32, before: &mut [u32; 64]) -> u32 {
    let mut own = [depth; 64];
    let sum = match depth {
        0 => 0,
        _ => deeper(depth - 1, &mut own),
    };
    before[depth as usize % 64] += sum;
    sum + own[depth as usize % 64]
}

/// Takes more than a stack at once.
#[kernel]
pub fn wide(to: DeviceSliceMut<u32>) {
    let mut array = [0u32; 4096];
    for (i, number) in array.iter_mut().enumerate() {
        *number = to.get(i % to.len());
    }
    to.set(0, array[to.get(0) as usize % 4096]);
}

#[device]
fn here(len: usize) -> u32 {
    len as u32
}
