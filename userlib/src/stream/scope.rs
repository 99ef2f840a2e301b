// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scopes of streams: work on borrowed memory, which ends before the borrows do.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{check_outside, Error, Operation, Result};
use crate::memory::lent::{or_abort, Loans};

use super::core::Core;
use super::work::Work;
use super::Stream;

/// A scope in which work is submitted to streams. Made by [`scope()`].
///
/// ```no_run
/// use pinmap::accelerator::{self, Pinned, Stream};
/// # fn f(
/// #     up: &Stream, down: &Stream, a: &mut Pinned<f32>, b: &Pinned<f32>, c: &mut Pinned<f32>,
/// # ) -> pinmap::Result<()> {
/// accelerator::scope(|scope| {
///     let (up, down) = (scope.on(up), scope.on(down));
///     up.fill(a, 1.0)?;
///     down.copy(b, c)
/// })?;
/// # Ok(()) }
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    /// The streams that were used, with the ids of the queues that they had.
    used: Mutex<Vec<(Arc<Core>, u64)>>,
    loans: Arc<Loans>,
    /// Makes `'scope` invariant: an operand cannot live for less, nor one scope pass for another.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Runs a function that submits work to streams, as [`try_scope`] does; its error is one of this
/// crate, so that `?` needs no annotation.
///
/// ```no_run
/// use pinmap::accelerator::{self, Pinned, Stream};
/// # type Numbers = Pinned<f32>;
/// # fn f(up: &Stream, down: &Stream, a: &mut Numbers, b: &mut Numbers) -> pinmap::Result<()> {
/// accelerator::scope(|scope| {
///     scope.on(up).fill(a, 1.0)?;
///     scope.on(down).fill(b, 2.0)?;
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
///
/// As for [`try_scope`].
pub fn scope<'env, F, T>(work: F) -> Result<T>
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T>,
{
    try_scope(work)
}

/// Runs a function that submits work to streams, and waits until all of it is done. So the work can
/// borrow memory, as threads can in [`std::thread::scope`].
///
/// When this returns, the device has finished all work of the scope, also if the function failed or
/// panicked, and also if the streams were dropped. If it failed or panicked after
/// [`Work::wait_value`], a stream that has not finished within a second is given up, since the
/// program may never store the value. A stream that has failed, or that waits for one that has, is
/// given up: it needs a [reset](Stream::reset). A stream that is reset during the scope takes no
/// more work of it, unless [`Scope::on`] is called again.
///
/// ```no_run
/// use pinmap::accelerator::{self, Pinned, Stream};
/// use std::io;
/// # fn f(stream: &Stream, numbers: &mut Pinned<f32>) -> std::io::Result<()> {
/// accelerator::try_scope(|scope| {
///     let value = "1.5".parse().map_err(io::Error::other)?;
///     scope.on(stream).fill(numbers, value)?;
///     io::Result::Ok(())
/// })?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The error of the function; or else that of a stream, as for [`Stream::synchronize`]. `EIO`: a
/// stream was reset during the scope, or memory of [`Work::slice_mut`] could not be released, after
/// which the driver has cut the device off from all memory. `EDEADLK`: this is a host function.
///
/// # Aborts
///
/// If there would be references to memory that a device still writes, the process is aborted: if a
/// stream can be neither waited for nor given up although slices of ordinary memory were lent to
/// it, or if their memory cannot be released and the device is not cut off within 10 seconds.
pub fn try_scope<'env, F, T, E>(work: F) -> Result<T, E>
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
    E: From<Error>,
{
    check_outside(Operation::Stream, || "begin a scope".to_owned())?;
    let scope = Scope {
        used: Mutex::default(),
        loans: Arc::default(),
        scope: PhantomData,
        env: PhantomData,
    };
    // A panic leaves only the streams behind, and `finish` puts that right.
    let result = catch_unwind(AssertUnwindSafe(|| work(&scope)));
    let finished = or_abort(|| scope.finish(!matches!(result, Ok(Ok(_)))));
    match result {
        Err(panic) => resume_unwind(panic),
        // The error of `finish`, if there is one, most likely has the same cause.
        Ok(Err(error)) => Err(error),
        Ok(Ok(value)) => finished.map(|()| value).map_err(E::from),
    }
}

impl Stream {
    /// Runs a function that submits work to this stream, on borrowed memory, and waits until all of
    /// it is done: [`scope()`] for one stream.
    ///
    /// ```no_run
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = pinmap_testgpu::find()?;
    /// let stream = gpu.stream(pinmap::accelerator::StreamOptions::new())?;
    /// let mut numbers = gpu.alloc_from(&[1.0f32, 2.0, 3.0])?;
    /// stream.scope(|work| {
    ///     work.launch(pinmap_testgpu::IncrementF32 { data: &mut numbers.slice_mut() })
    /// })?;
    /// assert_eq!(&numbers[..], [2.0, 3.0, 4.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// The device is told about each piece of work at once; [`submit`](Self::submit) tells it about
    /// all of them when its function returns. For errors of another type there is
    /// [`try_scope`](Self::try_scope).
    ///
    /// # Errors
    ///
    /// As for [`scope()`].
    pub fn scope<'env, F, T>(&self, work: F) -> Result<T>
    where
        F: for<'scope> FnOnce(&StreamScope<'scope, 'env>) -> Result<T>,
    {
        self.try_scope(work)
    }

    /// Runs a function as [`scope`](Self::scope) does, whose error can be of any type that is made
    /// of this crate's.
    ///
    /// ```no_run
    /// # use pinmap::accelerator::{Pinned, Stream};
    /// # fn f(stream: &Stream, n: &mut Pinned<f32>) -> std::io::Result<()> {
    /// stream.try_scope(|work| {
    ///     work.fill(n, "1.5".parse().map_err(std::io::Error::other)?)?;
    ///     std::io::Result::Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`try_scope()`].
    pub fn try_scope<'env, F, T, E>(&self, work: F) -> Result<T, E>
    where
        F: for<'scope> FnOnce(&StreamScope<'scope, 'env>) -> Result<T, E>,
        E: From<Error>,
    {
        try_scope(|scope: &Scope<'_, 'env>| {
            work(&StreamScope {
                work: scope.on(self),
                env: PhantomData,
            })
        })
    }
}

/// A scope in which [work](Work) is submitted to one stream. Made by [`Stream::scope`].
#[derive(Debug)]
pub struct StreamScope<'scope, 'env: 'scope> {
    work: Work<'scope>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Deref for StreamScope<'scope, '_> {
    type Target = Work<'scope>;

    fn deref(&self) -> &Work<'scope> {
        &self.work
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Begins work on a stream, with memory that outlives the scope.
    pub fn on(&'scope self, stream: &Stream) -> Work<'scope> {
        let (core, queue) = (stream.core(), stream.core().id());
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let is_this = |(other, its): &(Arc<Core>, u64)| Arc::ptr_eq(other, core) && *its == queue;
        if !used.iter().any(is_this) {
            used.push((Arc::clone(core), queue));
        }
        Work::new(core, queue, &self.loans)
    }

    /// Waits for all work, and ends the loans. `failed`: the scope's function has.
    fn finish(&self, failed: bool) -> Result<()> {
        let patience = self.loans.patience(failed);
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        // All are published before one is waited for, so that they run at the same time.
        let ends = used.iter().map(|(core, queue)| core.begin_finish(*queue));
        let ends: Vec<_> = ends.collect();
        // Each of them is waited for, also after an error.
        let ends = used.iter().zip(ends);
        let ends = ends.map(|((core, _), end)| core.finish(end, patience));
        let result = ends.fold(Ok(()), Result::and);
        let ended = self.loans.end();
        if ended.is_err() {
            for (core, queue) in used.iter() {
                core.give_up(*queue);
            }
        }
        result.and(ended)
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.used).finish()
    }
}
