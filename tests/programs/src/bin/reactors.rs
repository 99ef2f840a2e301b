// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for interrupts and for an event of QEMU's edu on the reactor of a runtime, tokio or
//! async-io. Nothing is ready at first; then the reactor wakes the task.
use memmap2::MmapMut;
use pinmap::{Access, Device, DeviceEvent, Registration};
use std::error::Error;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::task::Poll;

/// Polls a future once, with the waker of the task, and tells whether it has to wait.
async fn waits<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// Registers memory that is unmapped while it is registered, which the driver tells.
fn register(device: &Device, memory: &mut MmapMut) -> pinmap::Result<Registration<()>> {
    // SAFETY: The device is told of no address, so it does nothing with the memory.
    unsafe { device.register_raw(memory.as_mut_ptr(), memory.len(), Access::Read) }
}

macro_rules! waiting {
    ($name:ident, $runtime:ident) => {
        async fn $name() -> Result<(), Box<dyn Error>> {
            use pinmap::reactor::$runtime::{AsyncEvents, AsyncInterrupt};

            let device = Device::find(0x1234, 0x11e8)?;
            let bar = device.bar(0)?;
            let mut interrupt = AsyncInterrupt::new(device.interrupt(0)?)?;
            let mut events = AsyncEvents::new(&device)?;
            for reason in [1u32, 2] {
                {
                    let mut wait = pin!(interrupt.wait());
                    assert!(waits(wait.as_mut()).await, "nothing has raised it");
                    bar.write(0x60, reason)?;
                    assert_eq!(wait.await?, 1);
                }
                bar.write(0x64, u32::MAX)?;
                // A future that is dropped has taken nothing.
                assert!(waits(pin!(interrupt.wait())).await);
            }

            let mut memory = MmapMut::map_anon(4096)?;
            let registered = register(&device, &mut memory)?;
            let mut next = pin!(events.next());
            assert!(waits(next.as_mut()).await, "nothing has happened");
            drop(memory);
            let event = next.await?;
            assert!(matches!(event, DeviceEvent::Stale { .. }), "{event}");
            drop(registered);
            Ok(())
        }
    };
}

waiting!(on_tokio, tokio);
waiting!(on_async_io, async_io);

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("tokio") => {
            tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(on_tokio())
        }
        Some("async-io") => async_io::block_on(on_async_io()),
        _ => Err("usage: reactors tokio|async-io".into()),
    }
}
