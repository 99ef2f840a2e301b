# SPDX-License-Identifier: MIT OR Apache-2.0
"""AMD's DMA core, on the model of it (tests/devices/xdma/XDMA.md)."""

import asyncio
import errno
import pathlib
import subprocess
import threading

import numpy as np
import pinmap
import pytest
from conftest import PAGE, whole_pages
from documents import programs, run_program

TREE = pathlib.Path(__file__).resolve().parents[2]
MAPPED, STREAMS = "0000:00:1b.0", "0000:00:1c.0"
# Registers of the design, and an address with an error of the card.
REQUESTS, FORBIDDEN, HOLD, SLAVE_ERROR = 0x08, 0x0C, 0x10, 0x8000_0000


@pytest.fixture(scope="module")
def bound():
    """The cards, which are bound to the driver only for these tests."""
    for card in (MAPPED, STREAMS):
        subprocess.run(["pinmap", "bind", card], check=True)
    yield
    for card in (MAPPED, STREAMS):
        subprocess.run(["pinmap", "unbind", card], check=True)


class Card:
    def __init__(self, device):
        self.device = device
        self.design = device.bar(0)

    def hold(self, holds):
        self.design.write32(HOLD, holds)
        self.design.read32(HOLD)

    def close(self):
        assert self.design.read32(FORBIDDEN) == 0
        self.design.close()


def opened(address):
    with pinmap.open(address) as device:
        card = Card(device)
        yield card
        card.close()


@pytest.fixture
def mapped(bound):
    yield from opened(MAPPED)


@pytest.fixture
def streams(bound):
    yield from opened(STREAMS)


def pattern(count):
    return (np.arange(count) * 13 % 251).astype("uint8")


def test_core_is_found(mapped, edu):
    core = pinmap.xdma.info(mapped.device)
    assert core.bar == 1
    found = [(one.direction, one.number, one.stream) for one in core.channels]
    assert found == [(way, number, False) for way in ("to_card", "to_host") for number in (0, 1)]
    assert core.channels[0].address_bits == 64 and "alignment=" in repr(core)
    with pytest.raises(pinmap.InvalidInput, match="core of PG195"):
        pinmap.xdma.info(edu.device)


@pytest.mark.parametrize("polled", [False, True])
def test_an_array_goes_there_and_back(mapped, polled):
    array = whole_pages(64 << 10, "uint8")
    array[:] = pattern(array.size)
    with mapped.device.register(array) as memory:
        assert memory.nbytes == array.nbytes
        with (
            pinmap.xdma.open(mapped.device, "to_card", 1, polled=polled) as to,
            pinmap.xdma.open(mapped.device, "to_host", 1, polled=polled) as source,
        ):
            to.start(array, 0x1000)
            done = to.wait()
            assert (done.length, done.end_of_packet) == (array.nbytes, False)
            before = array.copy()
            array[:] = 0
            # A part of the array, from the same bytes of the card.
            source.start(array[100:5100], 0x1000 + 100)
            assert source.wait(60).length == 5000
            assert (array[100:5100] == before[100:5100]).all()
            assert not array[:100].any() and not array[5100:].any()


def test_memory_in_flight_stays(mapped):
    memory = mapped.device.alloc(PAGE)
    with pinmap.xdma.open(mapped.device, "to_card") as to:
        mapped.hold(True)
        to.start(memory, 0)
        with pytest.raises(pinmap.Error, match="1 transfers have the memory") as caught:
            memory.release()
        assert (caught.value.errno, caught.value.kind) == (errno.EBUSY, "busy")
        assert "close their channels" in caught.value.hint
        assert to.try_wait() is None
        with pytest.raises(pinmap.TimedOut, match="H2C 0 was not done in time"):
            to.wait(0.06)
        with pytest.raises(pinmap.Error, match="busy"):
            to.start(memory, 0)
        mapped.hold(False)
        to.wait()
        memory.release()
        with pytest.raises(pinmap.Error) as caught:
            to.start(memory, 0)
        assert caught.value.errno == errno.ESTALE
    with pytest.raises(ValueError, match="the channel is closed"):
        to.wait()
    assert to.closed and "closed" in repr(to)


def test_a_transfer_is_stopped(mapped):
    with (
        mapped.device.alloc(PAGE) as memory,
        pinmap.xdma.open(mapped.device, "to_card", piece=64) as to,
    ):
        mapped.hold(True)
        to.start(memory, 0)
        to.stop()
        mapped.hold(False)
        with pytest.raises(pinmap.Error, match="stopped") as caught:
            to.wait()
        assert caught.value.errno == errno.ECANCELED
        to.start(memory, 0)
        assert to.wait().length == PAGE


def test_errors_are_named(mapped):
    with (
        mapped.device.alloc(64) as memory,
        pinmap.xdma.open(mapped.device, "to_card") as to,
    ):
        to.start(memory, SLAVE_ERROR)
        with pytest.raises(pinmap.Error, match="H2C 0 has the status 0x8000: write_error 1") as it:
            to.wait()
        assert (it.value.errno, it.value.kind) == (errno.EIO, "io")


def test_bad_input_is_refused(mapped, streams):
    device, memory = mapped.device, mapped.device.alloc(128)
    foreign = streams.device.alloc(128)
    with (
        pinmap.xdma.open(device, "to_card") as to,
        pinmap.xdma.open(device, "to_host") as source,
        pinmap.xdma.open(streams.device, "to_card") as stream,
    ):
        readable = np.frombuffer(bytes(PAGE), "uint8")
        for words, attempt in (
            ("needs an address", lambda: to.start(memory)),
            ("64 bits of addresses", lambda: to.start(memory, (1 << 64) - 5)),
            ("no memory of the device", lambda: to.start(pattern(64), 0)),
            ("the memory is of", lambda: stream.start(memory)),
            ("is a stream", lambda: stream.start(foreign, 0)),
            ('"to_card" or "to_host"', lambda: pinmap.xdma.open(device, "up")),
            ("no channel C2H 2", lambda: pinmap.xdma.open(device, "to_host", 2)),
            ("descriptors, not 0", lambda: pinmap.xdma.open(device, "to_host", descriptors=0)),
            ("0 to 15", lambda: pinmap.xdma.user_interrupt(device, 16)),
            ("no transfer", to.wait),
        ):
            with pytest.raises(pinmap.InvalidInput, match=words):
                attempt()
        with pytest.raises(pinmap.PermissionDenied, match="only be read"):
            source.start(readable, 0)
        # Nothing has the memory.
        memory.release()
        foreign.release()


def test_packets_in_asyncio(streams):
    async def echo(number):
        device = streams.device
        with (
            device.alloc(640) as sent,
            device.alloc(4096) as received,
            pinmap.xdma.open(device, "to_card", number) as to,
            pinmap.xdma.open(device, "to_host", number) as source,
        ):
            sent.numpy()[:] = pattern(640) + number
            for _ in range(5):
                source.start(received)
                waits = asyncio.create_task(source.done())
                # A packet of two transfers.
                to.start(sent, more=True)
                assert not (await to.done()).end_of_packet
                to.start(sent.numpy()[:100])
                assert (await to.done()).length == 100
                done = await waits
                assert (done.length, done.end_of_packet) == (740, True)
                assert (received.numpy()[:640] == sent.numpy()).all()
            # A wait that is cancelled leaves the transfer.
            source.start(received)
            waits = asyncio.create_task(source.done())
            await asyncio.sleep(0)
            waits.cancel()
            to.start(sent)
            assert (await source.done()).length == 640
            await to.done()

    async def both():
        await asyncio.gather(echo(0), echo(1))

    asyncio.run(both())


def test_a_ring_receives_without_a_pause(streams):
    device, sent = streams.device, streams.device.alloc(1000)
    ring = device.alloc(4 * 256)
    sent.numpy()[:] = pattern(1000)

    async def receive(source, length):
        found = bytearray()
        while len(found) < length:
            block = await source.next_async()
            found += ring.numpy()[block.offset : block.offset + block.length].tobytes()
            source.give_back()
        assert block.end_of_packet
        return found

    with (
        pinmap.xdma.open(device, "to_card") as to,
        pinmap.xdma.open(device, "to_host") as source,
    ):
        source.receive(ring, 256)
        for length in (1, 256, 1000, 700, 512):
            to.start(sent.numpy()[:length])
            assert asyncio.run(receive(source, length)) == sent.numpy()[:length].tobytes()
            to.wait()
        assert source.try_next() is None
        with pytest.raises(pinmap.TimedOut):
            source.next(0)
        with pytest.raises(pinmap.InvalidInput, match="no block"):
            source.give_back()
        with pytest.raises(pinmap.Error, match="transfers have the memory"):
            ring.release()
        to.start(sent)
        assert source.next(60).length == 256
        to.wait()
        # No block is free, so it stops at once.
        source.stop()
        source.wait()
        ring.release()


def test_closing_tells_who_waits(streams):
    device, ring = streams.device, streams.device.alloc(4 * 256)

    def full():
        """A channel whose ring has no free block, so that it waits, and stops at once."""
        source = pinmap.xdma.open(device, "to_host")
        source.receive(ring, 256)
        with pinmap.xdma.open(device, "to_card") as to, device.alloc(4 * 256) as sent:
            to.start(sent)
            to.wait()
        assert [source.next(60).length for _ in range(4)] == 4 * [256]
        return source

    def wait():
        with pytest.raises((pinmap.Error, ValueError), match="closed"):
            source.next()
        told.set()

    source, told = full(), threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    source.close()
    assert told.wait(60)
    thread.join()

    async def closed():
        source = full()
        waits = asyncio.create_task(source.next_async())
        await asyncio.sleep(0)
        source.close()
        with pytest.raises(ValueError, match="closed"):
            await waits

    asyncio.run(closed())
    ring.release()


def test_user_interrupts_in_asyncio(mapped):
    async def come(user):
        for _ in range(3):
            mapped.design.write32(REQUESTS, 1 << 3)
            assert await user.wait_async() == 1
            mapped.design.write32(REQUESTS, 0)

    with pinmap.xdma.user_interrupt(mapped.device, 3) as user:
        asyncio.run(come(user))


def test_polled_channels_have_no_file(mapped):
    with pinmap.xdma.open(mapped.device, "to_card", polled=True) as to:
        for attempt in (to.fileno, to.done):
            with pytest.raises(pinmap.Error, match="because it is polled") as caught:
                attempt()
            assert caught.value.errno == errno.EOPNOTSUPP


def test_documents(bound):
    found = programs(TREE / "docs/xdma.md")
    assert found
    for program in found:
        passed, said = run_program(program)
        assert passed, said
