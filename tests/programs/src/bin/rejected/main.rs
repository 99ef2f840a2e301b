// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one of the programs that a user of the crate tries first: the one that is named.
//!
//! Three others do not compile, and must not. They are examples of the documentation, each beside
//! what to write instead (`userlib/src/stream/mod.rs`):
//!
//! - `launch_without_scope` launches a kernel on a stream itself. The stream would return while the
//!   device works on memory that the program can use (E0599).
//! - `submit_twice` and `readme3` borrow memory for each operation in turn, although the first
//!   operation still has it. If that compiled, two operations could have the same memory at once,
//!   each as if it alone had it (E0499).
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

/// Runs a future on this thread, which sleeps until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(mod $name;)*

        fn run(name: &str) -> Result<(), Box<dyn Error>> {
            match name {
                $(stringify!($name) => {
                    if let Err(error) = $name::main() {
                        return Err(error.to_string().into());
                    }
                    Ok(())
                })*
                _ => Err(format!("there is no program {name}").into()),
            }
        }
    };
}

programs! {
    alloc_as_slice buffer_from_vec interrupt_timeout into_under_lock other_elements overclaims
    own_kernel part_then_whole pending_await pending_chain pending_not_sync raw_is_no_operand
    read_into_alloc register_word_f32 scope_needs_annotation serde_info struct_element
    tokio_interrupt
}

fn main() -> ExitCode {
    for name in std::env::args().skip(1) {
        if let Err(error) = run(&name) {
            eprintln!("{name}: {error}");
            return ExitCode::FAILURE;
        }
        println!("{name}");
    }
    ExitCode::SUCCESS
}
