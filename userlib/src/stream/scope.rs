// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work for streams on borrowed memory, which ends before the borrows do.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Operation, Result};
use crate::host;

use super::core::Core;
use super::work::{Kept, Work};
use super::Stream;

/// A scope in which work is submitted to streams: see [`scope()`].
pub struct Scope<'scope, 'env: 'scope> {
    /// Streams, and the names of the queues that they had.
    used: Mutex<Vec<(Arc<Core>, u64)>>,
    kept: Arc<Kept>,
    /// Invariant: no operand may live shorter, nor the scope be taken for another one.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Runs a function that submits work to streams, and waits until all of it is done. So memory can
/// be borrowed for the work, as by [`std::thread::scope`].
///
/// However the function ends, with an error or a panic too, and also if the streams were dropped,
/// the device has finished what was submitted when this returns. A stream that has failed, or that
/// waits for one that has, is given up: it needs a [reset](Stream::reset). One that is reset meanwhile
/// takes no more work of this scope, unless it is asked for again by [`Scope::on`].
///
/// # Errors
///
/// That of the function. If it had none: that of a stream, as for [`Stream::synchronize`]; `EIO`: one was
/// reset meanwhile, or memory of [`Work::copy_to`] could not be taken back from the device, which the
/// driver has cut off from all memory (if it did not, the process is aborted: somebody would refer to
/// memory that a device may write); `EDEADLK`: this is a host function.
pub fn scope<'env, F, T, E>(work: F) -> Result<T, E>
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
    E: From<Error>,
{
    host::check(Operation::Stream, || "begin a scope".to_owned())?;
    let scope = Scope {
        used: Mutex::default(),
        kept: Arc::default(),
        scope: PhantomData,
        env: PhantomData,
    };
    // What the panic leaves behind are the streams, which `finish` makes good.
    let result = catch_unwind(AssertUnwindSafe(|| work(&scope)));
    let finished = scope.finish();
    match result {
        Err(panic) => resume_unwind(panic),
        // Most likely it tells the same.
        Ok(Err(error)) => Err(error),
        Ok(Ok(value)) => finished.map(|()| value).map_err(E::from),
    }
}

impl<'scope> Scope<'scope, '_> {
    /// A stream, for work on memory that outlives the scope.
    pub fn on(&'scope self, stream: &Stream) -> Work<'scope> {
        let (core, queue) = (stream.core(), stream.core().id());
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let is_this = |(other, its): &(Arc<Core>, u64)| Arc::ptr_eq(other, core) && *its == queue;
        if !used.iter().any(is_this) {
            used.push((Arc::clone(core), queue));
        }
        Work::new(core, queue, &self.kept)
    }

    fn finish(&self) -> Result<()> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        // All of them are told before one is waited for, or they would come to it one by one.
        let ends = used.iter().map(|(core, queue)| core.begin_finish(*queue));
        let ends: Vec<_> = ends.collect();
        // Every one of them, also after an error.
        let ends = used.iter().zip(ends);
        let ends = ends.map(|((core, _), end)| core.finish(end));
        let result = ends.fold(Ok(()), Result::and);
        let released = self.kept.release();
        if released.is_err() {
            for (core, queue) in used.iter() {
                core.give_up(*queue);
            }
        }
        result.and(released)
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.used).finish()
    }
}
