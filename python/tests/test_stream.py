# SPDX-License-Identifier: MIT OR Apache-2.0
"""Streams, their events, host functions, and who may wait."""

import ctypes
import errno
import os
import select
import subprocess
import sys
import threading

import numpy as np
import pinmap
import pytest
from conftest import Gate, wait_until, whole_pages


def test_copies_between_all_kinds_of_memory(gpu, stream):
    numbers = whole_pages(1024)
    numbers[:] = np.arange(1024)
    places = [
        gpu.register(numbers),
        gpu.alloc(1024, "float32"),
        gpu.alloc_vram(1024, "float32"),
        gpu.alloc_managed(1024, "float32"),
        gpu.manage(whole_pages(1024)),
    ]
    for source, to in zip(places, places[1:]):
        stream.copy(to, source)
    stream.synchronize()
    for place in places:
        assert (place.numpy() == np.arange(1024)).all(), place
        place.release()


def test_slices_of_arrays_are_operands(gpu, stream):
    numbers = whole_pages(1024)
    with gpu.register(numbers) as registered, gpu.alloc(1024, "float32") as memory:
        seen = memory.numpy()
        stream.fill(seen[100:200], 2)
        stream.copy(numbers[:100], seen[100:200])
        stream.copy(memoryview(seen)[:50], memoryview(numbers)[:50])
        pinmap.testgpu.increment_f32(stream, seen[10:20])
        stream.synchronize()
        expected = np.zeros(1024)
        expected[100:200] = expected[:50] = 2
        expected[10:20] = 3
        assert (seen == expected).all() and (numbers[:100] == 2).all()
        assert registered.addr == numbers.ctypes.data
        del seen


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("bool", True), ("int8", -3), ("uint8", 250), ("int16", -300), ("uint16", 65535),
        ("int32", -70000), ("uint32", 1 << 31), ("int64", -(1 << 40)), ("uint64", 1 << 63),
        ("float16", 1.5), ("float32", -2.25), ("float64", 1e300),
    ],
)  # fmt: skip
def test_fill(gpu, stream, dtype, value):
    with gpu.alloc(100, dtype) as memory:
        stream.fill(memory.numpy()[10:90], value)
        stream.synchronize()
        seen = memory.numpy()
        assert (seen[10:90] == np.dtype(dtype).type(value)).all()
        assert not seen[:10].any() and not seen[90:].any()
        del seen


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        ("uint8", 256, "256 is no element of the type uint8"),
        ("int8", -129, "-129 is no element"),
        ("uint32", 1.5, "1.5 is no element"),
        ("float16", 1e9, "no element of the type float16"),
    ],
)
def test_fill_with_what_is_no_element(gpu, stream, dtype, value, words):
    with gpu.alloc(10, dtype) as memory:
        with pytest.raises(pinmap.InvalidInput, match=words):
            stream.fill(memory, value)


def test_fill_with_what_is_no_number(gpu, stream):
    with gpu.alloc(10, "float32") as memory:
        for value in ("one", b"1", None, [1]):
            with pytest.raises(TypeError, match="is no element of the type float32"):
                stream.fill(memory, value)
        records = gpu.alloc(2, [("a", "u4")])
        with pytest.raises(pinmap.Error, match="cannot be filled in"):
            stream.fill(records, 1)


def test_bad_operands(gpu, stream):
    with gpu.alloc((8, 8), "float32") as memory, gpu.alloc(8, "complex64") as numbers:
        seen = memory.numpy()
        outside = np.zeros(64, "uint32")
        readable = seen.view()
        readable.flags.writeable = False
        for attempt, error, words in [
            (lambda: stream.copy(memory, seen[:4]), ValueError, "to has 256 bytes, and source 128"),
            (lambda: stream.copy(seen[:4], seen[2:6]), pinmap.Error, "overlap"),
            (lambda: stream.copy(memory, outside), ValueError, "to are float32, and those of sou"),
            (lambda: stream.copy([1], memory), TypeError, "to is a list: neither Memory nor an"),
            (lambda: stream.fill(seen[:, 1], 1), ValueError, "of to do not follow each other"),
            (lambda: stream.fill(readable, 1), PermissionError, "to is an array that can only be"),
            (lambda: stream.fill(numbers, 1j), pinmap.Error, "type complex64 cannot be filled in"),
        ]:
            with pytest.raises(error, match=words):
                attempt()
        stream.synchronize()
        assert not seen.any()
        del seen, readable


def test_memory_of_another_device(gpu, flat, stream):
    with flat.alloc(16) as memory:
        with pytest.raises(pinmap.InvalidInput):
            stream.fill(memory, 1)
        # An array of it is one as any other.
        stream.fill(memory.numpy(), 1)
        stream.synchronize(60)
        assert memory.numpy().all()


def test_a_file_is_no_operand(gpu, stream):
    file = os.memfd_create("pinmap")
    os.ftruncate(file, 4096)
    with gpu.register_file(file, 4096) as memory:
        with pytest.raises(pinmap.Error, match="no address here that a stream could name"):
            stream.fill(memory, 1)
    os.close(file)


def test_kernels(gpu, stream):
    kernels = pinmap.testgpu
    rng = np.random.default_rng(1)
    with (
        gpu.alloc(1000, "float32") as x,
        gpu.alloc(1000, "float32") as y,
        gpu.alloc(1, "float32") as total,
        gpu.alloc(256, "uint32") as counts,
        gpu.alloc(1, "uint32") as crc,
        gpu.alloc(10, "uint64") as words,
        gpu.alloc(1000, "uint8") as data,
    ):
        x.numpy()[:] = rng.integers(0, 9, 1000)
        y.numpy()[:] = rng.integers(0, 9, 1000)
        data.numpy()[:] = rng.integers(0, 256, 1000)
        data.numpy()[:9] = np.frombuffer(b"123456789", "uint8")
        expected = 2 * x.numpy() + y.numpy()
        kernels.saxpy(stream, 2, x, y)
        kernels.sum_f32(stream, x, total)
        kernels.histogram_u8(stream, data, counts)
        kernels.crc32c(stream, data.numpy()[:9], crc)
        kernels.atomic_add_u64(stream, words, 7, times=3)
        kernels.spin(stream, 0.001)
        stream.synchronize()
        assert (y.numpy() == expected).all()
        assert total.numpy()[0] == x.numpy().sum()
        assert (counts.numpy() == np.bincount(data.numpy(), minlength=256)).all()
        assert crc.numpy()[0] == 0xE3069283
        assert (words.numpy() == 21).all()


def test_matmul(gpu, stream):
    rng = np.random.default_rng(2)
    shapes = (5, 7), (7, 3), (5, 3)
    a, b, c = (gpu.alloc(shape, "float32") for shape in shapes)
    a.numpy()[:] = rng.integers(0, 9, (5, 7))
    b.numpy()[:] = rng.integers(0, 9, (7, 3))
    pinmap.testgpu.matmul_f32(stream, a, b, c)
    stream.synchronize()
    assert (c.numpy() == a.numpy() @ b.numpy()).all()
    with pytest.raises(pinmap.InvalidInput, match=r"\(7, 3\) times \(5, 7\) is not \(5, 3\)"):
        pinmap.testgpu.matmul_f32(stream, b, a, c)
    with pytest.raises(pinmap.InvalidInput, match="a has 1 dimensions, not 2"):
        pinmap.testgpu.matmul_f32(stream, a.numpy().ravel(), b, c)
    for memory in (a, b, c):
        memory.release()


def test_kernels_refuse_other_types(gpu, stream):
    with gpu.alloc(8, "float64") as doubles, gpu.alloc(8, "float32") as floats:
        with pytest.raises(pinmap.InvalidInput, match="of data are float64, not float32"):
            pinmap.testgpu.increment_f32(stream, doubles)
        with pytest.raises(pinmap.InvalidInput, match="x has 4 elements, not 8"):
            pinmap.testgpu.saxpy(stream, 1, floats.numpy()[:4], floats)
        with pytest.raises(pinmap.InvalidInput, match="a kernel cannot take -1"):
            pinmap.testgpu.spin(stream, -1)


def test_order_and_query(gpu, stream):
    with gpu.alloc(16, "float32") as memory:
        gate = Gate(stream)
        stream.fill(memory, 1)
        assert not stream.query()
        with pytest.raises(pinmap.TimedOut, match="the time was up") as caught:
            stream.synchronize(0.01)
        assert caught.value.kind == "timed_out" and isinstance(caught.value, TimeoutError)
        assert not memory.numpy().any()
        gate.open()
        stream.synchronize(60)
        assert stream.query() and (memory.numpy() == 1).all()


def test_events_order_two_streams(gpu):
    with gpu.stream() as up, gpu.stream(priority=1) as down, gpu.alloc(16, "float32") as memory:
        assert down.priority == 1 and up.id != down.id
        gate = Gate(up)
        stream_event = up.record(gpu.event())
        down.wait_event(stream_event)
        down.fill(memory, 2)
        down_event = down.record()
        assert not stream_event.query() and not down_event.query()
        with pytest.raises(pinmap.TimedOut):
            down_event.synchronize(0.01)
        gate.open()
        down_event.synchronize(60)
        assert stream_event.query() and (memory.numpy() == 2).all()


def test_elapsed_time_is_the_devices(gpu, stream):
    begin = stream.record()
    pinmap.testgpu.spin(stream, 0.02)
    end = stream.record()
    never = gpu.event()
    end.synchronize(60)
    assert end.elapsed_since(begin) >= 0.02
    with pytest.raises(pinmap.Error) as caught:
        end.elapsed_since(never)
    assert caught.value.errno == errno.EINVAL


def test_host_functions_are_called_in_order(gpu, stream):
    said = []
    with gpu.alloc(4, "float32") as memory:
        seen = memory.numpy()
        for number in range(5):
            stream.fill(memory, number)
            stream.call(lambda *given: said.append((*given, float(seen[0]))), "call", number)
        stream.synchronize()
        del seen
    assert said == [("call", number, float(number)) for number in range(5)]


def test_an_exception_of_a_host_function_is_reported(gpu, stream, monkeypatch):
    reports = []

    def report(unraisable):
        reports.append((type(unraisable.exc_value), str(unraisable.exc_value), unraisable.object))

    monkeypatch.setattr(sys, "unraisablehook", report)

    def fails():
        raise KeyError("of the host function")

    later = []
    stream.call(fails)
    stream.call(later.append, 1)
    stream.synchronize()
    assert reports == [(KeyError, "'of the host function'", fails)] and later == [1]


def test_what_cannot_be_called(stream):
    with pytest.raises(TypeError, match="7 cannot be called"):
        stream.call(7)


def test_a_host_function_that_waits_is_refused(gpu, stream):
    event = gpu.event()
    memory = gpu.alloc(16)
    errors = []

    def collect(attempt):
        try:
            attempt()
            errors.append(None)
        except pinmap.Error as error:
            errors.append((error.errno, error.kind))

    gate = Gate(stream)
    attempts = [
        stream.synchronize,
        lambda: stream.synchronize(1),
        lambda: stream.fill(memory, 1),
        lambda: stream.call(print),
        lambda: stream.record(event),
        stream.completion,
        gpu.info,
        lambda: gpu.alloc(16),
        memory.release,
    ]
    for attempt in attempts:
        stream.call(collect, attempt)
    stream.fill(memory, 5)
    gate.open()
    stream.synchronize(60)
    assert errors == [(errno.EDEADLK, "deadlock")] * len(attempts)
    # The release that was refused has changed nothing.
    assert not memory.released and (memory.numpy() == 5).all()
    memory.release()


def test_a_host_function_releases_memory_that_no_work_names(gpu, stream):
    memory, errors = gpu.alloc(16), []
    stream.fill(memory, 1)
    stream.synchronize()

    def release():
        try:
            memory.release()
        except Exception as error:
            errors.append(error)

    stream.call(release)
    stream.synchronize(60)
    assert errors == [] and memory.released


def test_submitting_in_a_host_function_is_refused_while_another_thread_submits(gpu):
    with gpu.stream(packets=64) as stream, gpu.alloc(16) as memory:
        errors = []
        gate = Gate(stream)

        def submits():
            for _ in range(200):
                stream.fill(memory, 1)

        def refused():
            try:
                stream.fill(memory, 2)
            except pinmap.Error as error:
                errors.append(error.errno)

        stream.call(refused)
        thread = threading.Thread(target=submits)
        thread.start()
        # The ring is full: the thread waits with the stream's locks held.
        thread.join(0.5)
        assert thread.is_alive()
        gate.open()
        thread.join(60)
        assert not thread.is_alive() and errors == [errno.EDEADLK]
        stream.synchronize(60)


def test_release_waits_for_the_work_that_names_the_memory(gpu, stream):
    buffer = pinmap.empty(1024, "float32")
    memory = gpu.register(buffer)
    gate = Gate(stream)
    stream.fill(memory, 8)
    released = threading.Thread(target=memory.release)
    released.start()
    wait_until(lambda: memory.released)
    released.join(0.2)
    assert released.is_alive()
    gate.open()
    released.join(60)
    assert (buffer.numpy() == 8).all()
    stream.synchronize()


def test_two_threads_release_memory_of_the_same_stream(gpu, stream):
    first, last = pinmap.empty(1024, "float32"), pinmap.empty(1024, "float32")
    named_first, named_last = gpu.register(first), gpu.register(last)
    gate = Gate(stream)
    stream.fill(named_first, 1)
    stream.fill(named_last, 2)
    threads = []
    # Who waits for what came last must not hide what came before from the other one.
    for memory in (named_last, named_first):
        threads.append(threading.Thread(target=memory.release))
        threads[-1].start()
        wait_until(lambda memory=memory: memory.released)
        threads[-1].join(0.3)
    assert all(thread.is_alive() for thread in threads)
    gate.open()
    for thread in threads:
        thread.join(60)
    stream.synchronize()
    assert (first.numpy() == 1).all() and (last.numpy() == 2).all()


def test_a_fault_names_the_packet_and_reset_helps(gpu, stream):
    buffer = pinmap.empty(1024, "float32")
    memory, fine = gpu.register(buffer), gpu.alloc(16)
    called = []
    # Memory that goes away behind Python's back.
    libc = ctypes.CDLL(None)
    gate = Gate(stream)
    stream.fill(memory, 1)
    stream.call(called.append, 1)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert libc.madvise(memory.addr, memory.nbytes, 4) == 0
    assert gpu.next_event(20).kind == "stale"
    gate.open()
    with pytest.raises(pinmap.Error) as caught:
        stream.synchronize(60)
    assert caught.value.errno == errno.EIO and caught.value.kind == "fault"
    event = gpu.next_event(20)
    assert (event.kind, event.id) == ("fault", stream.id)
    with pytest.raises(pinmap.Error):
        stream.query()
    stream.reset()
    stream.fill(fine, 3)
    stream.synchronize(60)
    assert bytes(fine) == b"\x03" * 16 and called == []
    memory.release()
    fine.release()


def test_launch_blocking_raises_at_the_line():
    program = """import ctypes, pinmap
gpu = pinmap.find_accelerator()
stream = gpu.stream()
gone, fine = gpu.register(pinmap.empty(4096)), gpu.alloc(4096)
stream.fill(fine, 5)
print(bytes(fine) == bytes([5]) * 4096)
# Another page in its place: MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS.
long = ctypes.c_long
ctypes.CDLL(None).mmap(long(gone.addr), long(gone.nbytes), 3, 0x32, -1, long(0))
stream.copy(fine, gone)
stream.fill(fine, 1)
"""
    blocking = dict(os.environ, PINMAP_LAUNCH_BLOCKING="1")
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env=blocking, capture_output=True, text=True)
    assert done.stdout == "True\n", done
    assert 'line 10, in <module>' in done.stderr and "stopped the queue" in done.stderr, done


def test_completions_are_files(gpu, stream):
    gate = Gate(stream)
    with_gate = stream.completion()
    assert not with_gate.query()
    assert not select.select([with_gate], [], [], 0)[0]
    gate.open()
    assert select.select([with_gate], [], [], 60)[0] == [with_gate]
    with_gate.wait(60)
    assert with_gate.query()
    with_gate.close()
    with pytest.raises(ValueError, match="the completion is closed"):
        with_gate.query()


def test_close_waits_and_a_closed_stream_refuses(gpu):
    stream = gpu.stream()
    with gpu.alloc(16) as memory:
        pinmap.testgpu.spin(stream, 0.02)
        stream.fill(memory, 4)
        stream.close()
        stream.close()
        assert bytes(memory) == b"\x04" * 16
        with pytest.raises(ValueError, match="the stream is closed"):
            stream.fill(memory, 1)


def test_python_that_forgets_a_stream_does_not_stop_its_work(gpu):
    with gpu.alloc(16) as memory:
        stream = gpu.stream()
        event = gpu.event()
        gate = Gate(stream)
        stream.fill(memory, 6)
        stream.record(event)
        del stream
        gate.open()
        event.synchronize(60)
        assert bytes(memory) == b"\x06" * 16


def test_options(gpu):
    with gpu.stream(priority=1000, packets=64) as stream:
        assert stream.priority == gpu.accelerator_info().max_priority
    with pytest.raises(pinmap.InvalidInput, match="packets|power of two"):
        gpu.stream(packets=63)
    with pytest.raises(TypeError):
        gpu.stream(1)
