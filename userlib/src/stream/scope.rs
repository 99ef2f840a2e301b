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
    used: Mutex<Vec<Arc<Core>>>,
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
/// waits for one that has, is given up: it needs a [reset](Stream::reset).
///
/// # Errors
///
/// That of the function. If it had none: that of a stream, as for [`Stream::synchronize`]; `EDEADLK`:
/// this is a host function.
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
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if !used.iter().any(|core| Arc::ptr_eq(core, stream.core())) {
            used.push(Arc::clone(stream.core()));
        }
        Work::new(stream.core(), &self.kept)
    }

    fn finish(&self) -> Result<()> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        // All of them are told before one is waited for, or they would come to it one by one.
        let ends: Vec<_> = used.iter().map(|core| core.begin_finish()).collect();
        // Every one of them, also after an error.
        let ends = used.iter().zip(ends).map(|(core, end)| core.finish(end));
        let result = ends.fold(Ok(()), Result::and);
        self.kept.release();
        result
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.used).finish()
    }
}
