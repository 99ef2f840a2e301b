# SPDX-License-Identifier: MIT OR Apache-2.0
"""The exceptions of pinmap."""


class Error(OSError):
    """What failed, why, and what can be done about it.

    `errno` is that of the driver, `strerror` the words, `kind` a word such as "not_found" or
    "stale", and `hint` the part of the words that says what can be done, or None. Some kinds have
    classes of their own, which are also the exceptions that Python has for them.
    """

    kind = "other"
    hint = None

    def __str__(self):
        # Without the number in front: the words name the driver's errno, if it is the driver's.
        return self.strerror or super().__str__()


class NotFound(Error, FileNotFoundError):
    """There is no such thing, or the driver is not bound to the function."""


class PermissionDenied(Error, PermissionError):
    """The user may not do this, or the memory may not be accessed so."""


class InvalidInput(Error, ValueError):
    """An argument makes no sense."""


class AlreadyExists(Error, FileExistsError):
    """It is there already: a registration, a device address."""


class OutOfMemory(Error, MemoryError):
    """Out of memory, or over a limit such as RLIMIT_MEMLOCK."""


class WouldBlock(Error, BlockingIOError):
    """It would have to wait, and must not."""


class TimedOut(Error, TimeoutError):
    """The time was up."""


class Interrupted(Error, InterruptedError):
    """A signal came first."""


class KernelStopped(Error):
    """A kernel of a Program stopped its stream: `kernel` is its name, `block` and `thread` number
    the thread, `function` is where in the program, as in "saxpy+0x1c", or None, and `pc` the
    address of the instruction. `value` is the address that could not be accessed, the instruction
    that is none, or the value with which the kernel aborted.
    """

    kernel = ""
    block = thread = pc = value = 0
    function = None


_CLASSES = {
    "not_found": NotFound,
    "permission_denied": PermissionDenied,
    "invalid_input": InvalidInput,
    "already_exists": AlreadyExists,
    "out_of_memory": OutOfMemory,
    "would_block": WouldBlock,
    "timed_out": TimedOut,
    "interrupted": Interrupted,
}

for _class in (Error, KernelStopped, *_CLASSES.values()):
    _class.__module__ = "pinmap"
del _class


def make(errno, words, kind, hint):
    """Makes the exception of an error of the crate."""
    error = _CLASSES.get(kind, Error)(errno, words)
    error.kind = kind
    error.hint = hint
    return error


def make_stopped(error, words, place):
    """Makes the exception of a kernel that stopped its stream."""
    made = KernelStopped(error.errno, words)
    made.kind, made.hint = error.kind, error.hint
    made.kernel, made.block, made.thread, made.function, made.pc, made.value = place
    return made
