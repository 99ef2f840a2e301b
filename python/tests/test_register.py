# SPDX-License-Identifier: MIT OR Apache-2.0
"""Registering memory of the program: what is taken, what is refused, what the device can do."""

import array
import ctypes
import errno
import gc
import mmap
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pinmap
import pytest
from conftest import PAGE, pinned, wait_until, whole_pages


def test_the_device_reads_and_writes_an_array_in_place(edu):
    numbers = whole_pages(1024)
    numbers[:8] = np.arange(8)
    with edu.device.register(numbers) as memory:
        assert (memory.kind, memory.shape, memory.dtype) == ("registered", (1024,), "float32")
        assert memory.addr == numbers.ctypes.data and memory.writable and not memory.readonly
        edu.read(memory.device_addr, 32)
        edu.write(memory.device_addr + 64, 32)
    assert (numbers[16:24] == np.arange(8)).all() and not numbers[24:].any()


def test_an_array_of_the_heap_needs_round_outwards(gpu, stream):
    numbers = np.arange(100, dtype="float32")
    with pytest.raises(pinmap.InvalidInput) as caught:
        gpu.register(numbers)
    assert "round_outwards=True" in caught.value.hint and caught.value.hint in str(caught.value)
    with gpu.register(numbers, round_outwards=True) as memory:
        pinmap.testgpu.increment_f32(stream, memory)
        stream.synchronize()
    assert (numbers == np.arange(100) + 1).all()


def test_pages_are_pinned_while_registered(gpu):
    numbers = whole_pages(16 * 1024)
    before = pinned()
    memory = gpu.register(numbers)
    wait_until(lambda: pinned() - before == 16)
    assert gpu.own_totals().pinned.bytes == 16 * PAGE
    memory.release()
    wait_until(lambda: pinned() == before)
    assert gpu.own_totals().pinned.number == 0


def test_managed_memory_is_not_pinned(gpu):
    before = pinned()
    with gpu.manage(whole_pages(16 * 1024)) as memory:
        assert memory.kind == "managed" and pinned() == before


def test_the_shape_is_that_of_the_array(gpu):
    numbers = whole_pages(4096).reshape(64, 8, 8)
    with gpu.register(numbers) as memory:
        assert memory.shape == (64, 8, 8)
        same = memory.numpy()
        assert same.ctypes.data == numbers.ctypes.data
        same[1, 2, 3] = 5
        del same
    assert numbers[1, 2, 3] == 5


def test_elements_without_a_name_are_bytes(gpu):
    records = (ctypes.c_uint8 * 3 * PAGE)()
    with gpu.register(records, round_outwards=True) as memory:
        assert (memory.shape, memory.dtype) == ((PAGE, 3), "uint8")
    pairs = ((ctypes.c_uint16 * 2) * 8).from_buffer(bytearray(32))
    with gpu.register(pairs, round_outwards=True) as memory:
        assert memory.dtype == "uint16"


def test_registering_keeps_the_array(edu):
    numbers = whole_pages(1024)
    numbers[:] = 4
    gone = weakref.ref(numbers)
    memory = edu.device.register(numbers)
    addr = memory.device_addr
    del numbers
    gc.collect()
    assert gone() is not None
    edu.read(addr, 4096)
    edu.write(addr, 4096)
    assert (memory.numpy() == 4).all()
    memory.release()
    gc.collect()
    assert gone() is None


def test_python_that_forgets_the_registration_releases_it(gpu):
    numbers = whole_pages(1024)
    before = pinned()
    memory = gpu.register(numbers)
    wait_until(lambda: pinned() == before + 1)
    del memory
    gc.collect()
    wait_until(lambda: pinned() == before)


def test_what_is_registered_cannot_be_resized(gpu):
    mapped = mmap.mmap(-1, PAGE)
    with gpu.register(mapped):
        with pytest.raises(BufferError):
            mapped.close()
    mapped.close()
    for made in (bytearray(100), array.array("b", bytes(100))):
        with gpu.register(made, round_outwards=True):
            with pytest.raises(BufferError):
                made.append(1)
        made.append(1)
    numbers = np.zeros(100)
    with gpu.register(numbers, round_outwards=True):
        with pytest.raises(ValueError, match="referenc"):
            numbers.resize(200)


def test_an_array_that_can_only_be_read(edu):
    numbers = whole_pages(1024)
    numbers[:] = 6
    numbers.flags.writeable = False
    with pytest.raises(BufferError, match="register it with read_only=True"):
        edu.device.register(numbers)
    with edu.device.register(numbers, read_only=True) as memory:
        assert memory.readonly and not memory.writable
        with memoryview(memory) as view:
            assert view.readonly
        seen = memory.numpy()
        with pytest.raises(ValueError, match="read-only"):
            seen[0] = 1
        del seen
        edu.read(memory.device_addr, 64)


def test_the_iommu_stops_a_device_that_writes_what_it_may_only_read(edu):
    numbers = whole_pages(1024, "int32")
    numbers[:] = 0x1111
    scratch = edu.device.alloc(64, "int32")
    scratch.numpy()[:] = 0x2222
    memory = edu.device.register(numbers, read_only=True)
    edu.read(scratch.device_addr, 256)
    edu.write(memory.device_addr, 256)
    assert (numbers == 0x1111).all()
    # The same transfer to memory that the device may write arrives.
    scratch.numpy()[:] = 0
    edu.write(scratch.device_addr, 256)
    assert (scratch.numpy() == 0x2222).all()
    edu.read(memory.device_addr, 256)
    edu.write(scratch.device_addr, 256)
    assert (scratch.numpy() == 0x1111).all()
    memory.release()
    scratch.release()


def test_streams_refuse_to_write_what_the_device_may_only_read(gpu, stream):
    numbers = whole_pages(1024)
    with gpu.register(numbers, read_only=True) as memory, gpu.alloc(1024, "float32") as other:
        for attempt in (
            lambda: stream.fill(memory, 1),
            lambda: stream.copy(memory, other),
            lambda: stream.fill(numbers[:4], 1),
            lambda: pinmap.testgpu.increment_f32(stream, memory),
        ):
            with pytest.raises(PermissionError, match="may only read this memory") as caught:
                attempt()
            assert caught.value.errno == errno.EACCES
        numbers[:] = 3
        stream.copy(other, memory)
        stream.synchronize()
        assert (other.numpy() == 3).all()
    assert (numbers == 3).all()


def test_what_is_no_memory(gpu):
    with pytest.raises(TypeError, match="a list is no memory"):
        gpu.register([1, 2, 3])
    with pytest.raises(pinmap.InvalidInput, match="do not follow each other"):
        gpu.register(np.zeros((64, 64))[:, ::2])
    with pytest.raises(pinmap.InvalidInput, match="its transpose"):
        gpu.register(np.zeros((64, 64)).T)
    for attempt in (gpu.register, gpu.manage):
        with pytest.raises(pinmap.InvalidInput, match="the array is empty.* streams take it"):
            attempt(np.zeros(0))
    with pytest.raises(BufferError, match="read_only=True"):
        gpu.register(b"bytes of Python")


def test_twice(gpu):
    numbers = whole_pages(1024)
    with gpu.register(numbers):
        with pytest.raises(pinmap.AlreadyExists) as caught:
            gpu.register(numbers)
        assert caught.value.errno == errno.EEXIST and isinstance(caught.value, FileExistsError)
    gpu.register(numbers).release()


def test_identity_and_a_chosen_address(flat):
    numbers = whole_pages(1024)
    with flat.register(numbers, identity=True) as memory:
        assert memory.device_addr == memory.addr
    with flat.register(numbers, at=0x1000_0000) as memory:
        assert memory.device_addr == 0x1000_0000 != memory.addr
    with flat.register(numbers, address_bits=28) as memory:
        assert memory.device_addr < 1 << 28
    with pytest.raises(pinmap.Error):
        flat.register(numbers, at=0xFEE0_0000)


def test_portable_memory_is_reached_by_all_devices(gpu, flat, stream):
    numbers = whole_pages(1024)
    with flat.register(numbers, portable=True) as memory:
        assert gpu.translate(memory.addr) == memory.addr
    with pytest.raises(pinmap.NotFound):
        gpu.translate(memory.addr)


def test_a_buffer_is_lent_and_given_back(edu):
    buffer = pinmap.empty((2, 1024), "uint16")
    view = buffer.numpy()
    assert buffer.addr % PAGE == 0 and view.ctypes.data == buffer.addr and not view.any()
    view[0] = 0x55
    with pytest.raises(BufferError, match="cannot register the memory: 1 view of it exists"):
        edu.device.register(buffer)
    del view
    memory = edu.device.register(buffer)
    assert memory.shape == (2, 1024) and memory.addr == buffer.addr
    for attempt in (memoryview, np.asarray, lambda it: it.numpy(), edu.device.register):
        with pytest.raises(BufferError, match="take views of what register"):
            attempt(buffer)
    edu.read(memory.device_addr, 2048)
    edu.write(memory.device_addr + 2048, 2048)
    memory.release()
    assert (buffer.numpy() == 0x55).all()


def test_a_buffer_that_cannot_be_registered_is_as_before(flat):
    buffer = pinmap.empty(100)
    with pytest.raises(pinmap.Error):
        flat.register(buffer, at=0x1001)
    assert buffer.views_count == 0
    buffer.numpy()[:] = 1
    flat.register(buffer).release()
    assert bytes(buffer) == b"\x01" * 100


def test_a_buffer_comes_back_when_python_forgets_the_registration(flat):
    buffer = pinmap.empty(100)
    memory = flat.register(buffer)
    del memory
    gc.collect()
    assert bytes(buffer) == bytes(100)


def test_memory_of_one_device_is_registered_for_another(gpu, edu, stream):
    managed = gpu.alloc_managed(1024, "float32")
    view = managed.numpy()
    with pytest.raises(BufferError, match="1 view of it exists"):
        edu.device.register(managed)
    view[:] = 2
    del view
    with edu.device.register(managed) as memory:
        with pytest.raises(BufferError, match="take views of what register"):
            managed.release()
        edu.read(memory.device_addr, 4096)
    managed.release()


def test_memory_that_goes_is_stale(gpu):
    memory = gpu.register(whole_pages(1024))
    # Behind Python's back, which would refuse it.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
    assert libc.mmap(memory.addr, memory.nbytes, 3, flags, -1, 0) == memory.addr
    event = gpu.next_event(20)
    assert (event.kind, event.id) == ("stale", memory.id)
    assert (event.addr, event.length) == (memory.addr, memory.nbytes)
    with pytest.raises(pinmap.NotFound):
        gpu.translate(memory.addr)
    memory.release()
    with pytest.raises(pinmap.TimedOut) as caught:
        gpu.next_event(0)
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_file(edu):
    file = os.memfd_create("pinmap")
    os.ftruncate(file, 2 * PAGE)
    with edu.device.register_file(file, PAGE, PAGE) as memory:
        assert (memory.kind, memory.addr, memory.nbytes) == ("file", 0, PAGE)
        for attempt in (memoryview, np.asarray, lambda it: it.numpy()):
            with pytest.raises(BufferError, match="map the file with mmap"):
                attempt(memory)
        os.pwrite(file, b"of a file", PAGE)
        edu.read(memory.device_addr, 9)
        edu.write(memory.device_addr + 100, 9)
    assert os.pread(file, 9, PAGE + 100) == b"of a file"
    os.close(file)
    with pytest.raises(pinmap.Error) as caught:
        edu.device.register_file(file, PAGE)
    assert caught.value.errno == errno.EBADF


def test_mappings(edu):
    numbers = whole_pages(1024)
    numbers[:] = 1.5
    memory = edu.device.register(numbers)
    mapping = memory.map(at=0x2000_0000)
    assert mapping.device_addr == 0x2000_0000
    edu.read(mapping.device_addr, 64)
    with pytest.raises(pinmap.Error, match=r"there are 1 mappings.*Mapping.unmap") as caught:
        memory.release()
    assert caught.value.errno == errno.EBUSY and not memory.released
    numbers[:16] = 0
    edu.write(mapping.device_addr, 64)
    assert (numbers == 1.5).all()
    mapping.unmap()
    mapping.unmap()
    with memory.map(read_only=True) as mapping:
        assert mapping.device_addr
    memory.release()


def test_a_limit_of_locked_memory():
    program = """if True:
        import os, resource, pinmap
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        gpu = pinmap.find_accelerator()
        os.setresuid(65534, 65534, 65534)
        buffer = pinmap.empty(1 << 20)
        try:
            gpu.register(buffer)
        except pinmap.OutOfMemory as error:
            print(isinstance(error, MemoryError), error.errno, error.kind, error)
        assert bytes(memoryview(buffer)[:4]) == bytes(4)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith(f"True {errno.ENOMEM} out_of_memory"), done
    assert "memlock" in done.stdout.lower()


def test_a_limit_of_locked_memory_lets_the_device_be_opened():
    program = """if True:
        import os, resource, pinmap
        path = pinmap.find_accelerator().path
        os.setgroups([os.stat(path).st_gid])
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        os.setresuid(65534, 65534, 65534)
        gpu = pinmap.open(path)
        try:
            gpu.stream()
        except pinmap.OutOfMemory as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "4096 bytes locked by this user, and RLIMIT_MEMLOCK allows 0" in done.stdout, done
    assert "`ulimit -l 4`" in done.stdout


def test_a_signal_does_not_fail_a_registration(gpu):
    came = []
    old = signal.signal(signal.SIGALRM, lambda *_: came.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        buffer = pinmap.empty(64 << 20)
        wait_until(lambda: came)
        for _ in range(3):
            gpu.register(buffer).release()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
