# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests share: devices, and an oracle that looks for what a test has left behind."""

import faulthandler
import gc
import mmap
import os
import threading
import time

import numpy as np
import pinmap
import pytest

PAGE = mmap.PAGESIZE
EDU = (0x1234, 0x11E8)


def pinned():
    """How many pages are pinned, of all that ever were."""
    # The counters are per CPU; this folds them together.
    with open("/proc/sys/vm/stat_refresh", "w") as file:
        file.write("1")
    with open("/proc/vmstat") as file:
        counts = dict(line.split() for line in file)
    return int(counts["nr_foll_pin_acquired"]) - int(counts["nr_foll_pin_released"])


def wait_until_equal(get, wanted, seconds=20):
    """Waits until something has the value that is wanted."""
    end = time.monotonic() + seconds
    while (value := get()) != wanted:
        assert time.monotonic() < end, f"{value} did not become {wanted} in time"
        time.sleep(0.005)


def wait_until(condition, seconds=20):
    """Waits for an effect."""
    wait_until_equal(lambda: bool(condition()), True, seconds)


def whole_pages(count, dtype="float32"):
    """An array that begins with a page and has whole pages, as mmap gives it."""
    size = np.dtype(dtype).itemsize * count
    assert size % PAGE == 0
    return np.frombuffer(mmap.mmap(-1, size), dtype)


def half_lost():
    """An array of two pages of a file that has only the first one."""
    file = os.memfd_create("pinmap")
    os.ftruncate(file, 2 * PAGE)
    array = np.frombuffer(mmap.mmap(file, 2 * PAGE), "uint8")
    os.ftruncate(file, PAGE)
    os.close(file)
    return array


class Gate:
    """A host function that holds a stream up until it is opened."""

    def __init__(self, stream):
        self.reached, self.opened = threading.Event(), threading.Event()
        stream.call(self.wait)

    def wait(self):
        self.reached.set()
        assert self.opened.wait(120)

    def open(self):
        self.opened.set()


class Edu:
    """A driver for QEMU's device edu."""

    MEMORY = 0x40000

    def __init__(self, device):
        self.device = device
        self.registers = device.bar(0)
        self.interrupt = device.interrupt(0)

    def start(self, source, to, count, command):
        self.registers.write64(0x80, source)
        self.registers.write64(0x88, to)
        self.registers.write64(0x90, count)
        self.registers.write64(0x98, command | 0x4)

    def acknowledge(self):
        self.registers.write32(0x64, self.registers.read32(0x24))

    def finish(self):
        self.interrupt.wait(60)
        self.acknowledge()

    def read(self, address, count):
        """The device reads memory of the program."""
        self.start(address, self.MEMORY, count, 0x1)
        self.finish()

    def write(self, address, count):
        """The device writes what it has read to memory of the program."""
        self.start(self.MEMORY, address, count, 0x3)
        self.finish()

    def factorial(self, number):
        """Starts a computation that ends with an interrupt."""
        self.registers.write32(0x20, 0x80)
        self.registers.write32(0x08, number)

    def close(self):
        self.interrupt.close()
        self.registers.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.has_failed = getattr(item, "has_failed", False) or report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """After each test, no page is pinned that was not before, and no device has memory."""
    faulthandler.dump_traceback_later(240, exit=True)
    before = pinned()
    yield
    if request.node.has_failed:
        # What it had is in its traceback.
        faulthandler.cancel_dump_traceback_later()
        return
    gc.collect()
    devices = [pinmap.open(node.path) for node in pinmap.list()]

    def left():
        totals = [device.totals() for device in devices]
        kinds = [(each.allocated, each.vram, each.managed, each.pinned) for each in totals]
        numbers = sum(total.number for group in kinds for total in group)
        # Nobody else has one open: what was closed is gone, too.
        others = sum(each.contexts - 1 for each in totals)
        pages = max(pinned() - before, 0)
        return {"pages pinned": pages, "memory": numbers, "contexts": others}

    wait_until_equal(left, {"pages pinned": 0, "memory": 0, "contexts": 0})
    for device in devices:
        device.close()
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def gpu():
    with pinmap.find_accelerator() as device:
        yield device


@pytest.fixture
def stream(gpu):
    with gpu.stream() as made:
        yield made


@pytest.fixture
def flat():
    with pinmap.find(*EDU) as device:
        yield device


@pytest.fixture
def edu(flat):
    driver = Edu(flat)
    yield driver
    driver.close()
