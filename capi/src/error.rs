// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: what a function of C returns, `errno`, and the words of the last error of a thread.

use std::any::TypeId;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::time::Duration;

use nix::errno::Errno;
use pinmap_dynamic::{Error, Result};

/// The kind of the last error of this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum ErrorKind {
    /// There was no error yet.
    None,
    /// There is no such thing, or the driver is not bound to the function.
    NotFound,
    /// The user may not do this, or the memory may not be accessed so.
    PermissionDenied,
    /// Another context owns the device, or somebody else uses the memory.
    Busy,
    /// The device is gone.
    Gone,
    /// Memory that went away is named.
    Stale,
    /// An argument makes no sense.
    InvalidInput,
    /// The address names no memory that can be used so.
    BadAddress,
    /// Something is there already: a registration, a device address.
    AlreadyExists,
    /// Out of memory, or over a limit such as RLIMIT_MEMLOCK.
    OutOfMemory,
    /// No room: device addresses, the device's memory, queues, handles.
    NoSpace,
    /// The device, the driver or the kernel cannot do this.
    Unsupported,
    /// The call would have to wait, and must not.
    WouldBlock,
    /// The time was up.
    TimedOut,
    /// A signal came first.
    Interrupted,
    /// A host function must not do this, because a stream waits for it.
    Deadlock,
    /// The device refused a piece of work; the words of the error say why.
    Fault,
    /// The hardware failed, or a queue was given up.
    Io,
    /// Something else; see errno.
    Other,
}

impl From<pinmap::ErrorKind> for ErrorKind {
    fn from(kind: pinmap::ErrorKind) -> Self {
        use pinmap::ErrorKind as From;
        match kind {
            From::NotFound => Self::NotFound,
            From::PermissionDenied => Self::PermissionDenied,
            From::Busy => Self::Busy,
            From::Gone => Self::Gone,
            From::Stale => Self::Stale,
            From::InvalidInput => Self::InvalidInput,
            From::BadAddress => Self::BadAddress,
            From::AlreadyExists => Self::AlreadyExists,
            From::OutOfMemory => Self::OutOfMemory,
            From::NoSpace => Self::NoSpace,
            From::Unsupported => Self::Unsupported,
            From::WouldBlock => Self::WouldBlock,
            From::TimedOut => Self::TimedOut,
            From::Interrupted => Self::Interrupted,
            From::Deadlock => Self::Deadlock,
            From::Fault => Self::Fault,
            From::Io => Self::Io,
            _ => Self::Other,
        }
    }
}

/// Names of Rust in hints, and what they are in C.
const NAMES: [(&str, &str); 10] = [
    ("`Accelerator::manage`", "`pinmap_manage()`"),
    ("`manage_all`", "`pinmap_manage_all()`"),
    ("`Accelerator::alloc_managed`", "`pinmap_alloc_managed()`"),
    (
        "`Accelerator::alloc_vram_p2pdma`",
        "`pinmap_alloc_vram_p2pdma()`",
    ),
    ("`AllocOptions::portable`", "`PINMAP_PORTABLE`"),
    ("with `Access::ReadWrite`", "without `PINMAP_READ_ONLY`"),
    ("`Access::Read`", "`PINMAP_READ_ONLY`"),
    (
        "`RegisterOptions::round_outwards`",
        "`PINMAP_ROUND_OUTWARDS`",
    ),
    (
        "a `Buffer` has pages of its own",
        "`mmap()` returns whole ones",
    ),
    ("`Device::alloc_with`", "`pinmap_alloc()`"),
];

/// The last error of a thread.
struct Last {
    kind: ErrorKind,
    text: CString,
    hint: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    /// Why this thread has no value of a type, if the last attempt to make one failed.
    static UNMADE: RefCell<Vec<(TypeId, Error)>> = const { RefCell::new(Vec::new()) };
}

fn c_string(text: String) -> CString {
    let bytes = text.into_bytes().into_iter().filter(|&byte| byte != 0);
    CString::new(bytes.collect::<Vec<u8>>()).unwrap_or_default()
}

/// Runs the body of a function of C. If it fails, this returns `failed`, and the thread's last
/// error and `errno` say why. A panic, which would be a bug of this library, is a failure as well:
/// it must not reach C.
pub(crate) fn enter<T>(failed: T, body: impl FnOnce() -> Result<T>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(_) => Error::new(
            Errno::ENOTRECOVERABLE,
            pinmap::ErrorKind::Other,
            "pinmap has a bug: it panicked, as told on the standard error output",
        ),
    };
    let failure = failure.in_words(&NAMES);
    let last = Last {
        kind: failure.kind().into(),
        text: c_string(failure.to_string()),
        hint: failure.hint().map(|hint| c_string(hint.to_owned())),
    };
    // A thread that is ending has no last error any more.
    let _ = LAST.try_with(|cell| cell.replace(Some(last)));
    Errno::set_raw(failure.errno());
    failed
}

/// Runs the body of a function that returns 0, or -1 if it fails.
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> c_int {
    enter(-1, || body().map(|()| 0))
}

/// Runs the body of a function that makes something, or returns NULL if it fails. Until this thread
/// makes another of its kind, the error is the one of those who are given NULL instead.
pub(crate) fn make<T: 'static>(body: impl FnOnce() -> Result<T>) -> *mut T {
    enter(ptr::null_mut(), || {
        let made = body();
        let of_type = TypeId::of::<T>();
        // A thread that is ending keeps none.
        let _ = UNMADE.try_with(|cell| {
            let mut unmade = cell.borrow_mut();
            unmade.retain(|(other, _)| *other != of_type);
            unmade.extend(made.as_ref().err().map(|error| (of_type, error.clone())));
        });
        made.map(Box::new).map(Box::into_raw)
    })
}

/// The error for NULL where a value of this type must be.
fn is_null<T: 'static>(what: &str) -> Error {
    let text = format!("{what} is NULL");
    let of_type = TypeId::of::<T>();
    let reason = UNMADE.try_with(|cell| {
        let unmade = cell.borrow();
        let mut all = unmade.iter();
        all.find(|(other, _)| *other == of_type)
            .map(|(_, error)| error.clone())
    });
    match reason.ok().flatten() {
        Some(error) => error.reason_of(&text),
        None => Error::invalid(text),
    }
}

/// Refers to the value that a pointer of C points to.
///
/// # Safety
///
/// The pointer is NULL, or that of a value that lives for `'a`.
pub(crate) unsafe fn refer<'a, T: 'static>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: As the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null::<T>(what))
}

/// Takes a value back that [`make`] gave to C, and drops it. NULL is none.
///
/// # Safety
///
/// The pointer is NULL, or comes from [`make`] and is not used again.
pub(crate) unsafe fn destroy<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: As the caller promises.
        let value = unsafe { Box::from_raw(pointer) };
        enter((), || {
            drop(value);
            Ok(())
        });
    }
}

/// Stores a result where a pointer of C says.
///
/// # Safety
///
/// The pointer is NULL, or can be written.
pub(crate) unsafe fn store<T>(to: *mut T, value: T, what: &str) -> Result<()> {
    if to.is_null() {
        return Err(Error::invalid(format!("{what} is NULL")));
    }
    // SAFETY: As the caller promises.
    unsafe { to.write(value) };
    Ok(())
}

/// Stores a result where a pointer of C says, unless it is NULL.
///
/// # Safety
///
/// The pointer is NULL, or can be written.
pub(crate) unsafe fn store_some<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: As the caller promises.
        unsafe { to.write(value) };
    }
}

/// A time to wait in milliseconds, of which -1 is for ever.
pub(crate) fn timeout(milliseconds: c_int) -> Result<Option<Duration>> {
    match u64::try_from(milliseconds) {
        Ok(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        Err(_) if milliseconds == -1 => Ok(None),
        Err(_) => Err(Error::invalid(format!(
            "the timeout is {milliseconds} ms; -1 is the only negative one, for ever"
        ))),
    }
}

/// A length or an offset of C, which Rust has in the same type on the machines of this driver.
pub(crate) fn size(number: u64, what: &str) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::invalid(format!("{what} is {number}")))
}

/// Returns the words of this thread's last error: what failed, why, and what can be done about it.
/// They stay valid until the next call of this library by this thread fails. Empty if none has
/// failed yet.
///
/// NULL instead of what a call should have made is EINVAL; or the error of that call, if it was
/// this thread's last one that makes such a thing: "stream is NULL: " and its words.
#[no_mangle]
pub extern "C" fn pinmap_last_error() -> *const c_char {
    LAST.try_with(|cell| cell.borrow().as_ref().map(|last| last.text.as_ptr()))
        .ok()
        .flatten()
        .unwrap_or(c"".as_ptr())
}

/// Returns the part of pinmap_last_error() that says what can be done, or NULL if there is none.
/// The words stay valid as those of pinmap_last_error() do.
#[no_mangle]
pub extern "C" fn pinmap_last_hint() -> *const c_char {
    LAST.try_with(|cell| {
        cell.borrow()
            .as_ref()
            .and_then(|last| Some(last.hint.as_ref()?.as_ptr()))
    })
    .ok()
    .flatten()
    .unwrap_or(ptr::null())
}

/// Returns the kind of this thread's last error.
#[no_mangle]
pub extern "C" fn pinmap_last_error_kind() -> ErrorKind {
    LAST.try_with(|cell| cell.borrow().as_ref().map(|last| last.kind))
        .ok()
        .flatten()
        .unwrap_or(ErrorKind::None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text(pointer: *const c_char) -> Option<String> {
        // SAFETY: NULL, or a string that is there until the next failure.
        (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into())
    }

    #[test]
    fn the_last_error_of_a_thread_is_told() {
        assert_eq!(text(pinmap_last_error()), Some(String::new()));
        assert_eq!(
            (text(pinmap_last_hint()), pinmap_last_error_kind()),
            (None, ErrorKind::None)
        );
        let failure = || Error::invalid("no\0thing").with_hint("try it");
        assert_eq!(status(|| Err(failure())), -1);
        assert_eq!(Errno::last(), Errno::EINVAL);
        assert_eq!(
            text(pinmap_last_error()).as_deref(),
            Some("nothing; try it")
        );
        assert_eq!(text(pinmap_last_hint()).as_deref(), Some("try it"));
        assert_eq!(pinmap_last_error_kind(), ErrorKind::InvalidInput);
        // A success leaves them, and another thread has its own.
        assert_eq!(status(|| Ok(())), 0);
        assert_eq!(
            text(pinmap_last_error()).as_deref(),
            Some("nothing; try it")
        );
        let other = std::thread::spawn(|| (pinmap_last_error_kind(), text(pinmap_last_error())));
        let nothing = (ErrorKind::None, Some(String::new()));
        assert_eq!(other.join().expect("what is told"), nothing);
    }

    #[test]
    fn a_panic_does_not_reach_c() {
        assert!(make(|| -> Result<u8> { panic!("a bug") }).is_null());
        assert_eq!(Errno::last(), Errno::ENOTRECOVERABLE);
        assert!(text(pinmap_last_error()).is_some_and(|text| text.contains("bug")));
    }

    #[test]
    fn null_is_told_with_the_reason() {
        // SAFETY: NULL is none.
        let refer = || status(|| unsafe { refer(ptr::null::<u8>(), "number") }.map(drop));
        let told = || (Errno::last(), text(pinmap_last_error()).unwrap_or_default());
        assert_eq!(refer(), -1);
        assert_eq!(told(), (Errno::EINVAL, "number is NULL".to_owned()));
        let gone = || Error::new(Errno::ENODEV, pinmap::ErrorKind::Gone, "it is gone");
        assert!(make(|| -> Result<u8> { Err(gone()) }).is_null());
        // What another type is made of is no matter, nor what failed since.
        let other = make(|| Ok(7u16));
        assert_eq!(status(|| Err(Error::invalid("no"))), -1);
        for _ in 0..2 {
            assert_eq!(refer(), -1);
            let expected = "number is NULL: it is gone".to_owned();
            assert_eq!(told(), (Errno::ENODEV, expected));
            assert_eq!(pinmap_last_error_kind(), ErrorKind::Gone);
        }
        let made = make(|| Ok(7u8));
        assert_eq!(refer(), -1);
        assert_eq!(told(), (Errno::EINVAL, "number is NULL".to_owned()));
        // SAFETY: They come from `make`.
        unsafe { (destroy(made), destroy(other)) };
    }

    #[test]
    fn timeouts_are_as_polls() {
        assert_eq!(timeout(-1).expect("for ever"), None);
        assert_eq!(
            timeout(20).expect("a time"),
            Some(Duration::from_millis(20))
        );
        assert!(timeout(-2).is_err());
    }
}
