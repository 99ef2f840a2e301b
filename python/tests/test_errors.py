# SPDX-License-Identifier: MIT OR Apache-2.0
"""Exceptions: their classes, words, and what is done with them."""

import copy
import errno
import pickle

import pinmap
import pytest
from pinmap import _errors

CLASSES = [
    (pinmap.NotFound, FileNotFoundError, "not_found"),
    (pinmap.PermissionDenied, PermissionError, "permission_denied"),
    (pinmap.InvalidInput, ValueError, "invalid_input"),
    (pinmap.AlreadyExists, FileExistsError, "already_exists"),
    (pinmap.OutOfMemory, MemoryError, "out_of_memory"),
    (pinmap.WouldBlock, BlockingIOError, "would_block"),
    (pinmap.TimedOut, TimeoutError, "timed_out"),
    (pinmap.Interrupted, InterruptedError, "interrupted"),
]


@pytest.mark.parametrize(("made", "pythons", "kind"), CLASSES)
def test_class_of(made, pythons, kind):
    error = _errors.make(errno.EIO, "what failed; a hint", kind, "a hint")
    assert type(error) is made and isinstance(error, (pinmap.Error, OSError))
    assert isinstance(error, pythons) and isinstance(error, pinmap.Error)
    assert (error.errno, error.kind, error.hint) == (errno.EIO, kind, "a hint")
    assert str(error) == "what failed; a hint"
    assert error.__module__ == "pinmap" and made.__doc__


def test_other_kinds_are_of_the_class_error():
    for kind in ("busy", "gone", "stale", "deadlock", "fault", "io", "other"):
        error = _errors.make(errno.EBUSY, "words", kind, None)
        assert type(error) is pinmap.Error and error.kind == kind and error.hint is None


def test_errors_are_copied_and_pickled():
    error = _errors.make(errno.ENOENT, "words", "not_found", "a hint")
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is pinmap.NotFound and same.errno == errno.ENOENT
        assert (same.kind, same.hint, same.strerror) == ("not_found", "a hint", "words")


def test_the_words_have_the_hint(flat):
    import numpy as np

    with pytest.raises(pinmap.Error) as caught:
        flat.register(np.zeros(3))
    error = caught.value
    assert "register" in error.strerror and error.strerror.endswith(error.hint)
