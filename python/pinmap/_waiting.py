# SPDX-License-Identifier: MIT OR Apache-2.0
"""Waiting in asyncio."""

import asyncio
import contextlib
import os
import select


async def until(files, attempt):
    """Returns what attempt() returns, once that is not None.

    It is tried again when one of the files is readable, or hung up: each is a file descriptor, and
    whether it is waited for until it is readable. Each wait has an epoll of its own, so that
    several can wait for the same file. What is attempted is taken only by a wait that returns it,
    so nothing is lost if the wait is cancelled.
    """
    loop = asyncio.get_running_loop()
    with select.epoll() as epoll, contextlib.ExitStack() as copies:
        for file, is_read in files:
            # One that is closed meanwhile would leave the epoll, and nobody would be told.
            file = os.dup(file)
            copies.callback(os.close, file)
            epoll.register(file, select.EPOLLIN if is_read else 0)
        while (found := attempt()) is None:
            ready = loop.create_future()
            loop.add_reader(epoll.fileno(), _set, ready)
            try:
                await ready
            finally:
                loop.remove_reader(epoll.fileno())
    return found


def _set(ready):
    if not ready.done():
        ready.set_result(None)


async def entered(stream):
    """Begins an `async with` block."""
    return stream


async def left(stream, is_failing, give_up):
    """Ends an `async with` block: waits for the stream's work, unless an exception ends it."""
    try:
        if not is_failing and not stream.closed:
            await stream.done()
    finally:
        give_up()
