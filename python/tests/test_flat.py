# SPDX-License-Identifier: MIT OR Apache-2.0
"""BARs and interrupts, on QEMU's device edu."""

import errno
import math
import select
import threading

import numpy as np
import pinmap
import pytest


def test_registers_of_every_width(edu):
    bar = edu.registers
    assert (bar.number, bar.length) == (0, 1 << 20)
    assert bar.read32(0x00) & 0xFFFF == 0x00ED
    bar.write32(0x04, 0x1234_5678)
    assert bar.read32(0x04) == 0xEDCB_A987
    bar.write64(0x80, 0x1234_5678_9ABC)
    assert bar.read64(0x80) == 0x1234_5678_9ABC
    bar.flush()


def test_registers_that_are_not_there(edu):
    bar = edu.registers
    for attempt in (
        lambda: bar.read32(1 << 20),
        lambda: bar.read32(2),
        lambda: bar.write64(4, 0),
        lambda: bar.read16((1 << 20) - 1),
        lambda: bar.write8(1 << 20, 0),
    ):
        with pytest.raises(pinmap.InvalidInput) as caught:
            attempt()
        assert caught.value.errno == errno.EINVAL and "BAR 0" in str(caught.value)
    for attempt in (
        lambda: bar.write32(0x04, 1 << 32),
        lambda: bar.write8(0, -1),
        lambda: bar.read32(-4),
    ):
        with pytest.raises(OverflowError):
            attempt()


def test_bars_that_are_not_there(flat):
    for number in (1, 6, 100):
        with pytest.raises(pinmap.NotFound, match="the function has no such BAR"):
            flat.bar(number)


def test_an_array_of_registers_is_the_device(edu):
    registers = edu.registers.array("uint32", 0, 4)
    assert registers.dtype == np.uint32 and registers.shape == (4,)
    assert int(registers[0]) & 0xFFFF == 0x00ED
    registers[1] = 0x0F0F_0F0F
    assert edu.registers.read32(0x04) == 0xF0F0_F0F0


def test_an_array_keeps_the_bar_mapped(flat):
    bar = flat.bar(0)
    registers = bar.array("uint32", 4, 1)
    bar.close()
    bar.close()
    with pytest.raises(ValueError, match="the BAR is closed"):
        bar.read32(0)
    registers[0] = 0xFFFF_0000
    assert registers[0] == 0x0000_FFFF


def test_arrays_end_with_the_bar(edu):
    bar = edu.registers
    assert bar.array("uint32").shape == (1 << 18,)
    assert bar.array("uint64", 0x80).nbytes == (1 << 20) - 0x80
    for offset, count in [(0, (1 << 20) + 1), (1 << 20, 1), ((1 << 20) + 8, None), (8, 1 << 62)]:
        with pytest.raises(pinmap.InvalidInput):
            bar.array("uint8", offset, (count if count else 1))
    with pytest.raises(pinmap.InvalidInput, match="the offset 0x2 is not a multiple of 4"):
        bar.array("uint32", 2)


def test_factorial_and_interrupt(edu):
    for number in (5, 10):
        edu.factorial(number)
        assert edu.interrupt.wait(60) == 1
        edu.acknowledge()
        assert edu.registers.read32(0x08) == math.factorial(number)


def test_dma_both_ways(edu):
    memory = edu.device.alloc(4096)
    seen = memory.numpy()
    seen[:5] = list(b"hello")
    edu.read(memory.device_addr, 5)
    edu.write(memory.device_addr + 100, 5)
    assert bytes(seen[100:105]) == b"hello" and not seen[105:].any()
    del seen
    memory.release()


def test_no_interrupt_in_time(edu):
    with pytest.raises(pinmap.TimedOut, match="wait for interrupt vector 0") as caught:
        edu.interrupt.wait(0.06)
    assert caught.value.errno == errno.ETIMEDOUT
    assert edu.interrupt.try_wait() is None
    with pytest.raises(pinmap.TimedOut):
        edu.interrupt.wait(0)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_times_that_are_none(edu, timeout):
    with pytest.raises(pinmap.InvalidInput, match="None is for ever"):
        edu.interrupt.wait(timeout)


def test_very_long_times(edu):
    for timeout in (1e300, float("inf"), 1e9):
        edu.factorial(3)
        assert edu.interrupt.wait(timeout) == 1
        edu.acknowledge()


def test_an_interrupt_is_a_file(edu):
    assert edu.interrupt.vector == 0
    assert select.select([edu.interrupt], [], [], 0)[0] == []
    edu.factorial(3)
    assert select.select([edu.interrupt], [], [], 60)[0] == [edu.interrupt]
    assert edu.interrupt.try_wait() == 1
    edu.acknowledge()


def test_vectors_that_are_not_there_or_taken(edu):
    with pytest.raises(pinmap.NotFound, match="the function has no such vector"):
        edu.device.interrupt(17)
    with pytest.raises(pinmap.AlreadyExists, match="this program has it already"):
        edu.device.interrupt(0)
    edu.interrupt.close()
    with pytest.raises(ValueError, match="the interrupt is closed"):
        edu.interrupt.wait(0)
    with edu.device.interrupt() as interrupt:
        edu.factorial(4)
        assert interrupt.wait(60) == 1
        edu.acknowledge()


def test_another_thread_runs_while_one_waits_for_an_interrupt(edu):
    waits = threading.Event()

    def start():
        waits.wait()
        edu.factorial(6)

    thread = threading.Thread(target=start)
    thread.start()
    # If the wait kept the interpreter's lock, the interrupt would never be raised.
    waits.set()
    assert edu.interrupt.wait(60) == 1
    edu.acknowledge()
    thread.join()


def test_the_device_is_owned_while_it_is_used(edu):
    assert edu.device.info().owner
    with pinmap.open(edu.device.path) as other:
        with pytest.raises(pinmap.Error, match="another context owns the device") as caught:
            other.alloc(4096)
        assert (caught.value.errno, caught.value.kind) == (errno.EBUSY, "busy")
