# SPDX-License-Identifier: MIT OR Apache-2.0
"""Arrays of the program as operands, without registering them."""

import gc
import mmap
import weakref

import numpy as np
import pinmap
import pytest
from conftest import Gate, PAGE, half_lost, pinned, wait_until


def test_any_array_is_an_operand(gpu, stream):
    # Neighbours in the heap have pages in common.
    arrays = [np.full(1000 + 10 * n, n, "float32") for n in range(20)]
    before = pinned()
    for array in arrays:
        pinmap.testgpu.increment_f32(stream, array)
    for low, high in zip(arrays, arrays[1:]):
        pinmap.testgpu.saxpy(stream, 2.0, low, high[: low.size])
    stream.synchronize(60)
    assert pinned() == before
    first = 1.0
    for n, array in enumerate(arrays[1:], 1):
        first = n + 1 + 2 * first
        assert array[0] == first and array[-1] == n + 1


def test_work_keeps_an_array_that_python_forgets(gpu, stream):
    result = np.zeros(1 << 16, "float32")
    gate = Gate(stream)
    array = np.full(1 << 16, 5, "float32")
    gone = weakref.ref(array)
    stream.copy(result, array)
    with pytest.raises(ValueError, match="referenc"):
        array.resize(10)
    del array
    gc.collect()
    assert gone() is not None
    gate.open()
    stream.synchronize(60)
    assert (result == 5).all()
    wait_until(lambda: gone() is None)


def test_an_array_that_cannot_be_written_is_only_read(gpu, stream):
    text = np.frombuffer(b"0123456789abcdef", "uint8")
    with gpu.alloc(16) as memory:
        stream.copy(memory, text)
        stream.synchronize(60)
        assert bytes(memory) == b"0123456789abcdef"
        with pytest.raises(PermissionError, match="to is an array that can only be read"):
            stream.copy(text, memory)


def test_a_fault_in_an_array_says_why(gpu, stream):
    array = half_lost()
    stream.fill(array, 1)
    with pytest.raises(pinmap.Error, match="could not write") as caught:
        stream.synchronize(60)
    assert caught.value.kind == "fault"
    stream.reset()
    assert (array[:PAGE] == 1).all()


def test_copies_between_types_name_bytes(gpu, stream):
    bits, words = np.array([1.0, 2.0], "float32"), np.zeros(2, "uint32")
    with pytest.raises(pinmap.InvalidInput, match="to are uint32, and those of source float32"):
        stream.copy(words, bits)
    stream.copy(words.view("uint8"), bits)
    stream.synchronize(60)
    assert words[0] == 0x3F800000


def test_columns_are_no_operand(gpu, stream):
    table = np.zeros((4, 6), "float32", order="F")
    with pytest.raises(pinmap.InvalidInput, match="ascontiguousarray"):
        stream.fill(table, 1)
    with pytest.raises(pinmap.InvalidInput, match="array.T"):
        gpu.register(table, round_outwards=True)
    stream.fill(table.T, 1)
    stream.synchronize(60)
    assert (table == 1).all()


def test_registered_arrays_with_a_page_in_common_say_so(gpu, edu):
    page = np.frombuffer(mmap.mmap(-1, PAGE), "uint8")
    for device in (gpu, edu.device):
        with device.register(page[:100], round_outwards=True):
            with pytest.raises(pinmap.AlreadyExists, match="has a page in common") as caught:
                device.register(page[200:300], round_outwards=True)
            assert "pinmap.empty()" in caught.value.hint


def test_a_part_of_an_array_moves(gpu, stream):
    array = pinmap.empty(64 * PAGE).numpy()
    array[:] = 3
    part = array[16 * PAGE : 32 * PAGE]
    assert gpu.prefetch(part, "device").moved == part.nbytes
    assert gpu.residency(part).device == part.nbytes
    assert gpu.residency(array).device == part.nbytes
    assert gpu.prefetch(array, gpu).there == part.nbytes
    gpu.prefetch(array, "host")
    gpu.advise(part, prefer="host", accessed_by_device=True)
    stream.fill(part, 4)
    stream.synchronize(60)
    assert gpu.residency(part).device == 0 and gpu.residency(part).runs[0].rule == "advised"
    gpu.advise(part)
    stream.prefetch(part, gpu)
    stream.fill(part, 5)
    stream.prefetch(part, "host")
    stream.synchronize(60)
    assert gpu.residency(part).host == part.nbytes
    assert (part == 5).all() and (array[: 16 * PAGE] == 3).all()


def test_parts_that_cannot_move(gpu, flat, stream):
    array = np.zeros(1 << 16)
    for attempt in (gpu.prefetch, stream.prefetch):
        with pytest.raises(pinmap.InvalidInput, match="there is no place 'moon'"):
            attempt(array, "moon")
        with pytest.raises(TypeError, match="list is neither Memory nor an array"):
            attempt([1], "host") if attempt == gpu.prefetch else gpu.residency([1])
    with pytest.raises(pinmap.InvalidInput, match="do not follow each other"):
        gpu.prefetch(array[::2], "host")
    with pytest.raises(pinmap.InvalidInput, match="there is no place 'moon'"):
        gpu.advise(array, prefer="moon")
    # What was refused has left nothing managed.
    assert gpu.own_totals().managed.number == 0
    with pytest.raises(pinmap.Error) as caught:
        flat.prefetch(array, "host")
    assert caught.value.kind == "unsupported"
    # The program has chosen what is managed.
    other = pinmap.find_accelerator()
    with other.manage(np.zeros(10)):
        with pytest.raises(pinmap.Error) as caught:
            other.prefetch(array, "device")
        assert caught.value.kind == "not_found"
    other.close()


RECORD = np.dtype([("address", "<u8"), ("length", "<u4"), ("flags", "u1"), ("pad", "V3")])


@pytest.mark.parametrize("dtype", [RECORD, "S8", ">u4", [("a", "u1"), ("b", "<f4", 3)]])
def test_structured_types(gpu, stream, dtype):
    dtype = np.dtype(dtype)
    with gpu.alloc((4, 2), dtype) as memory:
        array = memory.numpy()
        assert (array.dtype, array.shape, memory.dtype) == (dtype, (4, 2), str(dtype))
        array.view("u1")[:] = np.arange(8 * dtype.itemsize, dtype="u1").reshape(4, -1)
        copy = np.zeros((4, 2), dtype)
        stream.copy(copy, memory)
        stream.synchronize(60)
        assert copy.tobytes() == array.tobytes()
        with pytest.raises(BufferError, match="DLPack has no elements of the type"):
            memory.__dlpack__()
        with pytest.raises(pinmap.Error):
            stream.fill(memory, 1)
        del array
    made = pinmap.empty(3, dtype)
    assert made.numpy().dtype == dtype
    with gpu.register(np.ones(5, dtype), round_outwards=True) as memory:
        assert memory.shape == (5,) and memory.numpy().dtype == dtype


def test_types_that_mean_nothing_to_a_device(gpu, stream):
    for dtype in ("object", "V0", np.dtype("M8[s]")):
        with pytest.raises(pinmap.InvalidInput, match="there is no type of elements"):
            gpu.alloc(4, dtype)
    objects = np.array([{}, {}], dtype="object")
    for array in (objects, memoryview(objects), np.zeros(2, "i4, O")):
        with pytest.raises(TypeError, match="are objects of Python"):
            gpu.register(array, round_outwards=True)
        with pytest.raises(TypeError, match="are objects of Python"):
            stream.fill(array, 0)
