// SPDX-License-Identifier: MIT OR Apache-2.0
//! Races on memory in flight, which the compiler does not refuse: two streams, and the CPU. The
//! memory then has one of the values that the order of the accesses could give it, and none of the
//! accesses is undefined behaviour. And forgets that timeouts exist: they are errors, so `?` does
//! not go on as if the work were done.
use pinmap::{stream, testgpu, Accelerator, Result, StreamOptions};
use std::{sync::mpsc, time::Duration};

fn is_timeout<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.errno() == libc::ETIMEDOUT)
}

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let (mut a, mut b) = (gpu.alloc::<f32>(1024)?, gpu.alloc_vram::<f32>(1024)?);
    let (s, t) = (gpu.stream(StreamOptions::new())?, gpu.stream(StreamOptions::new())?);
    let seen = stream::scope(|scope| {
        let (up, down) = (scope.on(&s), scope.on(&t));
        let (mut a, mut b) = (a.slice_mut(), b.slice_mut());
        up.copy(&a, &mut b)?;
        up.launch(testgpu::IncrementF32 { data: &mut b })?;
        // Another stream, without an event between the two.
        down.launch(testgpu::IncrementF32 { data: &mut b })?;
        down.copy(&b, &mut a)?;
        // The CPU reads and writes what is in flight.
        let seen = b.get(0)?;
        a.write(0, &[0.0; 1024])?;
        Ok(seen)
    })?;
    assert!([0.0, 1.0, 2.0].contains(&seen), "{seen}");
    assert!(a.iter().all(|x| [0.0, 1.0, 2.0].contains(x)));
    // Each stream has incremented last what it or the other one stored.
    assert!(b.to_vec().iter().all(|x| [1.0, 2.0].contains(x)));

    // The stream waits for a function that waits for the end of all this.
    let short = Duration::from_millis(1);
    let (end, ended) = mpsc::channel::<()>();
    s.call(move || {
        let _ = ended.recv();
    })?;
    let event = gpu.event()?;
    s.record(&event)?;
    assert!(is_timeout(s.synchronize_timeout(short)));
    assert!(is_timeout(s.completion()?.wait_timeout(short)));
    assert!(is_timeout(event.synchronize_timeout(short)));
    assert!(is_timeout(gpu.device().next_event_timeout(short)));
    drop(end);
    s.synchronize()
}
