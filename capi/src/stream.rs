// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: work of an accelerator, in order.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use pinmap::accelerator::{launch_blocking, Completion, Work};
use pinmap_dynamic::{Error, Operand, Result};

use crate::device::Device;
use crate::error::{destroy, enter, make, refer, status, timeout};
use crate::memory::{bytes, Memory};
use crate::options::{options, StreamOptions};
use crate::program::ended;
use crate::stream_event::StreamEvent;
use crate::submitter;

/// A stream: a queue of work that the device does in order, while the program does something else.
#[derive(Debug)]
pub struct Stream(pub(crate) pinmap_dynamic::Stream);

/// A point in a stream, as a file descriptor.
#[derive(Debug)]
pub struct StreamCompletion(Completion);

/// A function of the program that a stream calls, with its argument.
struct HostFunction {
    /// An exception that leaves it ends the process.
    function: extern "C-unwind" fn(*mut c_void),
    argument: *mut c_void,
}

// SAFETY: The program says that the function may be called by another thread.
unsafe impl Send for HostFunction {}

impl HostFunction {
    fn call(self) {
        (self.function)(self.argument);
    }
}

/// A part of some memory that work names.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) memory: *const Memory,
    pub(crate) what: &'static str,
}

impl Stream {
    /// Submits work that names these parts of memory, which stays until the work is done.
    ///
    /// # Safety
    ///
    /// The memory is NULL, or not released.
    pub(crate) unsafe fn submit<const N: usize>(
        &self,
        parts: [Part; N],
        work: impl for<'w> FnOnce(&Work<'w>, [Operand<'w>; N]) -> Result<()>,
    ) -> Result<()> {
        for part in &parts {
            // SAFETY: As the caller promises.
            unsafe { refer(part.memory, part.what)? };
        }
        // SAFETY: As the caller promises; none is NULL.
        let named = parts.map(|part| unsafe { &(*part.memory).0 });
        self.0.submit(named, work).map_err(placed)
    }
}

/// Makes a stream of a device. Without options (NULL), it has the lowest priority.
///
/// Errors: EOPNOTSUPP, the device has no streams, or packets that this library does not know;
/// EINVAL, the options make no sense; ENOMEM, out of memory, or more than the user may lock;
/// ENOSPC, there are too many streams; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_create(
    device: *const Device,
    stream_options: *const StreamOptions,
) -> *mut Stream {
    make(|| {
        // SAFETY: A device and options, by the rules of C.
        let (device, given) = unsafe { (refer(device, "device")?, options(stream_options)?) };
        if given.reserved != 0 {
            return Err(Error::invalid("reserved is not 0"));
        }
        let mut wanted = pinmap::accelerator::StreamOptions::new().priority(given.priority);
        if given.packets != 0 {
            wanted = wanted.packets(given.packets);
        }
        Ok(Stream(pinmap_dynamic::Stream::new(
            device.accelerator()?,
            wanted,
        )?))
    })
}

/// Destroys a stream, and returns at once. What was submitted is still done, and
/// pinmap_release() waits for it as before. NULL is none.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_destroy(stream: *mut Stream) {
    // SAFETY: It comes from `make`, and is not used again, by the rules of C.
    unsafe { destroy(stream) };
}

/// Returns the number by which events name the queue of a stream.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_id(stream: *const Stream) -> u64 {
    enter(0, || {
        // SAFETY: A stream, by the rules of C.
        Ok(unsafe { refer(stream, "stream")? }.0.id())
    })
}

/// Submits a copy of `length` bytes between any two pieces of memory of the stream's device, or
/// between its VRAM and another accelerator's: by the bus, or through host memory where the bus
/// does not let the stream's device reach the other one. Returns when it is submitted, which waits
/// only if the stream's ring is full. pinmap_release() waits until it is done.
///
/// Errors: EINVAL, the parts do not lie in the memory, or overlap, or neither is the stream's
/// device's; EACCES, the device may only read the target; EIO, the stream is known to have failed;
/// EDEADLK, this is a host function; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_copy(
    stream: *const Stream,
    to: *const Memory,
    to_offset: usize,
    from: *const Memory,
    from_offset: usize,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: A stream and memory, by the rules of C.
        let stream = unsafe { refer(stream, "stream")? };
        let (to, from) = (part(to, "to"), part(from, "from"));
        // SAFETY: As above.
        unsafe {
            stream.submit([to, from], |work, [to, from]| {
                let from = from.part(from_offset, length)?;
                Ok(work.copy(from, to.part_mut(to_offset, length)?)?)
            })
        }
    })
}

/// Submits a copy of `length` bytes between memory that pointers name: any memory of the program.
/// What is registered with the stream's device, or allocated for it, is used as it is. The rest is
/// managed for the copy where the device can fault, and registered for it where it cannot.
///
/// The library does not know whose memory it is: it must stay, and pinmap_release() of it does not
/// wait, until the copy is done.
///
/// Errors: EEXIST, the memory is registered in part; otherwise as for pinmap_stream_copy() and
/// pinmap_register().
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_memcpy(
    stream: *const Stream,
    to: *mut c_void,
    from: *const c_void,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: A stream, and memory that stays, by the rules of C.
        let copied = unsafe {
            let stream = refer(stream, "stream")?;
            stream.0.copy_at(to.cast(), from.cast(), length)
        };
        copied.map_err(placed)
    })
}

/// The error of a submission, with the line of the program if that is wanted.
pub(crate) fn placed(error: Error) -> Error {
    match launch_blocking().then(submitter::place).flatten() {
        Some(place) => error.submitted_at(&place),
        None => error,
    }
}

pub(crate) fn part(memory: *const Memory, what: &'static str) -> Part {
    Part { memory, what }
}

/// Submits a fill: sets `count` elements of `width` bytes, which is 1, 2, 4 or 8, to the lowest
/// bytes of `value`.
///
/// Errors: EINVAL, there is no such width, or the offset is not a multiple of it; otherwise as for
/// pinmap_stream_copy().
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_fill(
    stream: *const Stream,
    to: *const Memory,
    offset: usize,
    count: u64,
    value: u64,
    width: u32,
) -> c_int {
    status(|| {
        // SAFETY: A stream and memory, by the rules of C.
        let stream = unsafe { refer(stream, "stream")? };
        if ![1, 2, 4, 8].contains(&width) {
            return Err(Error::invalid(format!("an element of {width} bytes")));
        }
        let length = bytes(count, width as usize)?;
        // SAFETY: As above.
        unsafe {
            stream.submit([part(to, "to")], |work, [to]| {
                let to = to.part_mut(offset, length)?;
                match width {
                    1 => work.fill(to, value as u8)?,
                    2 => work.fill(to.cast()?, value as u16)?,
                    4 => work.fill(to.cast()?, value as u32)?,
                    _ => work.fill(to.cast()?, value)?,
                }
                Ok(())
            })
        }
    })
}

/// Submits a host function: a thread of this library calls it once with `argument` when everything
/// before is done, and what is submitted next waits for it. If the stream fails before that, it is
/// not called. It must not wait for the stream, and must return: an exception of C++ that leaves it
/// ends the process, and longjmp() out of it is undefined. Functions of this library that
/// might wait fail in it with EDEADLK; pinmap_release() only if there is work in flight that names
/// the memory.
///
/// Errors: EINVAL, the function is NULL; EIO, the stream has failed; EDEADLK, this is a host
/// function.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_call(
    stream: *const Stream,
    function: Option<extern "C-unwind" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: A stream, by the rules of C.
        let stream = unsafe { refer(stream, "stream")? };
        let function = function.ok_or_else(|| Error::invalid("the function is NULL"))?;
        let host = HostFunction { function, argument };
        Ok(stream.0.call(move || host.call())?)
    })
}

/// Records an event in a stream: it is complete when everything that was submitted before is done.
///
/// Errors: EINVAL, the event is another device's; ENOMEM, out of memory; EIO, the stream has
/// failed; EDEADLK, this is a host function.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_record(
    stream: *const Stream,
    event: *const StreamEvent,
) -> c_int {
    status(|| {
        // SAFETY: A stream and an event, by the rules of C.
        let (stream, event) = unsafe { (refer(stream, "stream")?, refer(event, "event")?) };
        Ok(stream.0.record(&event.0)?)
    })
}

/// Has the device wait for an event, as it was recorded last, before it does what is submitted
/// next. The event may be another stream's, also of another device. One that was never recorded is
/// complete.
///
/// Errors: ENOMEM, out of memory; EIO, the stream has failed; EDEADLK, this is a host function.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_wait_event(
    stream: *const Stream,
    event: *const StreamEvent,
) -> c_int {
    status(|| {
        // SAFETY: A stream and an event, by the rules of C.
        let (stream, event) = unsafe { (refer(stream, "stream")?, refer(event, "event")?) };
        Ok(stream.0.wait_event(&event.0)?)
    })
}

/// Returns 1 if everything that was submitted is done, 0 if not, -1 with an error.
///
/// Errors: EIO, the stream has failed, and pinmap_last_error() says at what; ENODEV, the device is
/// gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_query(stream: *const Stream) -> c_int {
    enter(-1, || {
        // SAFETY: A stream, by the rules of C.
        Ok(unsafe { refer(stream, "stream")? }.0.query()?.into())
    })
}

/// Waits until everything that was submitted is done, for at most so many milliseconds; -1 is for
/// ever. The program then sees what the work wrote. What kernels printed is printed.
///
/// Errors: ETIMEDOUT, the time was up; EIO, the stream has failed, and pinmap_last_error() says at
/// what; EDEADLK, this is a host function; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_synchronize(
    stream: *const Stream,
    timeout_ms: c_int,
) -> c_int {
    status(|| {
        // SAFETY: A stream, by the rules of C.
        let stream = unsafe { refer(stream, "stream")? };
        let result = match timeout(timeout_ms)? {
            Some(timeout) => stream.0.synchronize_timeout(timeout),
            None => stream.0.synchronize(),
        };
        ended(stream, result)
    })
}

/// Gives up what a stream that has failed has not done, and has it work again.
///
/// Errors: EDEADLK, this is a host function; ENOMEM, out of memory; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_reset(stream: *const Stream) -> c_int {
    status(|| {
        // SAFETY: A stream, by the rules of C.
        let stream = unsafe { refer(stream, "stream")? };
        stream.0.reset()
    })
}

/// Makes a completion: a file descriptor that poll() finds readable when everything that was
/// submitted so far is done, or the stream has failed.
///
/// Errors: EMFILE, too many files are open; EIO, the stream has failed; EDEADLK, this is a host
/// function.
#[no_mangle]
pub unsafe extern "C" fn pinmap_stream_completion(stream: *const Stream) -> *mut StreamCompletion {
    make(|| {
        // SAFETY: A stream, by the rules of C.
        let stream = unsafe { refer(stream, "stream")? };
        Ok(StreamCompletion(stream.0.completion()?))
    })
}

/// Returns the file descriptor of a completion, which stays the completion's.
#[no_mangle]
pub unsafe extern "C" fn pinmap_completion_fd(completion: *const StreamCompletion) -> c_int {
    enter(-1, || {
        // SAFETY: A completion, by the rules of C.
        Ok(unsafe { refer(completion, "completion")? }.0.as_raw_fd())
    })
}

/// Returns 1 if the work before a completion is done, 0 if not, -1 with an error: see
/// pinmap_stream_query().
#[no_mangle]
pub unsafe extern "C" fn pinmap_completion_query(completion: *const StreamCompletion) -> c_int {
    enter(-1, || {
        // SAFETY: A completion, by the rules of C.
        Ok(unsafe { refer(completion, "completion")? }
            .0
            .query()?
            .into())
    })
}

/// Destroys a completion. NULL is none.
#[no_mangle]
pub unsafe extern "C" fn pinmap_completion_destroy(completion: *mut StreamCompletion) {
    // SAFETY: It comes from `make`, and is not used again, by the rules of C.
    unsafe { destroy(completion) };
}
