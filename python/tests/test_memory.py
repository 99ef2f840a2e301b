# SPDX-License-Identifier: MIT OR Apache-2.0
"""Allocated memory as arrays: shapes, types, views, release."""

import array
import errno
import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pinmap
import pytest
from conftest import PAGE, half_lost, wait_until

DTYPES = """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
complex64 complex128""".split()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype(gpu, dtype):
    with gpu.alloc((3, 5), dtype) as memory:
        seen = np.asarray(memory)
        assert seen.dtype == np.dtype(dtype) and seen.dtype.name == memory.dtype == dtype
        assert seen.shape == memory.shape == (3, 5) and seen.strides[1] == memory.itemsize
        assert seen.nbytes == memory.nbytes and seen.ctypes.data == memory.addr
        seen[2, 4] = 1
        other = np.from_dlpack(memory)
        assert other.dtype == seen.dtype and other.ctypes.data == memory.addr
        assert other[2, 4] == 1
        del seen, other


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "f4", "<f4", "float32"])
def test_dtype_by_other_names(gpu, dtype):
    with gpu.alloc(4, dtype) as memory:
        assert memory.dtype == "float32"


def test_dtype_by_pythons_types(gpu):
    names = {float: "float64", int: "int64", bool: "bool", complex: "complex128"}
    for given, name in names.items():
        with gpu.alloc(4, given) as memory:
            assert memory.dtype == name
    with gpu.alloc(4) as memory:
        assert memory.dtype == "uint8"


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        (4, "float33", "no type of elements 'float33': bool, int8"),
        (4, "object", "no type of elements 'object'"),
        ((3, -1), "uint8", r"\(3, -1\) has a negative dimension"),
        ((1 << 40, 1 << 40), "uint8", "is too large"),
        ((1,) * 65, "uint8", "65 dimensions"),
    ],
)
def test_bad_arrays_are_refused(gpu, shape, dtype, words):
    with pytest.raises(pinmap.InvalidInput, match=words) as caught:
        gpu.alloc(shape, dtype)
    assert caught.value.errno == errno.EINVAL and isinstance(caught.value, ValueError)


def test_shapes_and_types_that_are_none(gpu):
    with pytest.raises(TypeError, match="is no shape"):
        gpu.alloc("four")
    with pytest.raises(TypeError, match="is no type of elements"):
        gpu.alloc(4, 4)


def test_more_than_there_is(gpu):
    with pytest.raises(pinmap.Error) as caught:
        gpu.alloc_vram(1 << 40)
    assert caught.value.errno == errno.ENOSPC and caught.value.kind == "no_space"


def test_addresses_are_equal(gpu):
    with gpu.alloc((100, 100), "float32") as memory:
        assert memory.device_addr == memory.addr == np.asarray(memory).ctypes.data
        assert gpu.translate(memory.addr + 4096) == memory.device_addr + 4096
        assert memory.addr % PAGE == 0


def test_translate_finds_nothing(gpu):
    with pytest.raises(pinmap.NotFound, match="no memory of /dev/pinmap"):
        gpu.translate(0x1000)


def test_memory_is_zeroed_and_shared_with_the_device(gpu, stream):
    with gpu.alloc(1000, "float32") as memory:
        seen = memory.numpy()
        assert not seen.any()
        seen[:] = np.arange(1000)
        pinmap.testgpu.increment_f32(stream, memory)
        stream.synchronize()
        assert (seen == np.arange(1000) + 1).all()
        del seen


def test_a_scalar(gpu, stream):
    with gpu.alloc((), "float32") as memory:
        assert memory.shape == () and memory.nbytes == 4 and memory.ndim == 0
        stream.fill(memory, 2.5)
        stream.synchronize()
        assert memory.numpy()[()] == 2.5
        with pytest.raises(TypeError):
            len(memory)


@pytest.mark.parametrize("how", ["alloc", "alloc_vram", "alloc_managed"])
def test_an_empty_array(gpu, stream, how):
    with getattr(gpu, how)((4, 0), "float32") as memory:
        assert (memory.shape, memory.nbytes, len(memory)) == ((4, 0), 0, 4)
        for seen in (np.asarray(memory), np.from_dlpack(memory)):
            assert (seen.shape, seen.dtype) == ((4, 0), np.float32)
        memory.sync_for_device()
        stream.fill(memory, 1)
        stream.copy(memory, np.zeros(0, "float32"))
        stream.prefetch(memory, gpu)
        pinmap.testgpu.increment_f32(stream, memory)
        stream.synchronize(60)
        del seen


def test_an_empty_buffer(flat):
    buffer = pinmap.empty((0, 3), "int32")
    assert buffer.numpy().shape == (0, 3) and buffer.nbytes == 0
    with flat.register(buffer) as memory:
        assert memory.shape == (0, 3)


def test_memoryview(gpu):
    with gpu.alloc((2, 3), "uint16") as memory:
        with memoryview(memory) as view:
            assert (view.format, view.shape, view.strides) == ("H", (2, 3), (6, 2))
            assert view.c_contiguous and not view.readonly and view.nbytes == 12
            view[1, 2] = 513
        assert bytes(memory)[-2:] == b"\x01\x02"
        assert len(memory) == 2


def test_release_is_refused_while_numpy_has_a_view(gpu):
    memory = gpu.alloc((4, 4), "float32")
    view = memory.numpy()[1:3, ::2]
    assert memory.views_count == 1
    with pytest.raises(BufferError, match="cannot release the memory: 1 view of it exists"):
        memory.release()
    view[:] = 3
    assert not memory.released and memory.device_addr == memory.addr
    more = memoryview(memory)
    with pytest.raises(BufferError, match="2 views of it exist"):
        memory.release()
    del view
    more.release()
    assert memory.views_count == 0
    memory.release()
    assert memory.released and "released" in repr(memory)


def test_a_with_block_leaves_the_memory_to_its_views(gpu):
    with gpu.alloc(8) as memory:
        view, more = memory.numpy(), memoryview(memory)
    assert view[0] == 0 and not memory.released
    more.release()
    assert not memory.released and gpu.own_totals().allocated.number == 1
    del view
    assert memory.released and gpu.own_totals().allocated.number == 0


def test_the_last_view_may_be_a_tensor(gpu):
    with gpu.alloc(8) as memory:
        tensor = np.from_dlpack(memory)
    assert not memory.released and tensor.nbytes == 8
    del tensor
    gc.collect()
    assert memory.released


def test_a_with_block_does_not_hide_an_exception(gpu, stream):
    with pytest.raises(KeyError):
        with gpu.alloc(8) as memory:
            view = memory.numpy()
            raise KeyError
    del view
    assert memory.released
    with pytest.raises(KeyError):
        with gpu.stream() as failed:
            failed.fill(half_lost(), 1)
            raise KeyError
    assert failed.closed
    with pytest.raises(pinmap.Error, match="could not write"):
        with gpu.stream() as failed:
            failed.fill(half_lost(), 1)
    assert failed.closed


def test_released_memory_refuses(gpu, stream):
    memory = gpu.alloc(8)
    addr = memory.addr
    memory.release()
    memory.release()
    assert memory.addr == addr
    views = [memoryview, np.asarray, bytes, pinmap.Memory.__dlpack__]
    for attempt in views:
        with pytest.raises(BufferError, match="the memory was released"):
            attempt(memory)
    for attempt in (
        lambda: memory.device_addr,
        memory.numpy,
        memory.__enter__,
        lambda: stream.fill(memory, 0),
        memory.sync_for_cpu,
        memory.export,
    ):
        with pytest.raises(pinmap.Error, match="the memory was released") as caught:
            attempt()
        assert (caught.value.errno, caught.value.kind) == (errno.ESTALE, "stale")


def test_a_view_keeps_memory_that_python_forgets(gpu):
    memory = gpu.alloc(1 << 16, "uint8")
    gone = weakref.ref(memory)
    view = np.asarray(memory)
    view[:] = 9
    del memory
    gc.collect()
    assert gone() is not None and (view == 9).all()
    assert gpu.own_totals().allocated.number == 1
    del view
    gc.collect()
    assert gone() is None
    assert gpu.own_totals().allocated.number == 0


def test_memory_goes_when_python_forgets_it(gpu):
    gpu.alloc(4096)
    gc.collect()
    assert gpu.own_totals().allocated.number == 0


def test_memory_that_work_names_stays_until_it_is_done(gpu, stream):
    memory, other = gpu.alloc(1 << 20, "uint8"), gpu.alloc(1 << 20, "uint8")
    pinmap.testgpu.spin(stream, 0.05)
    stream.fill(memory, 7)
    stream.copy(other, memory)
    del memory
    gc.collect()
    stream.synchronize()
    assert (other.numpy() == 7).all()
    other.release()


def test_array_with_another_type_copies(gpu):
    with gpu.alloc(4, "int32") as memory:
        other = np.asarray(memory, dtype="float64")
        assert other.dtype == np.float64 and memory.views_count == 0
        copy = np.array(memory, copy=True)
        assert copy.ctypes.data != memory.addr and memory.views_count == 0
        assert memory.__array__(copy=True).ctypes.data != memory.addr
        with pytest.raises(ValueError, match="needs a copy"):
            memory.__array__(np.dtype("float64"), copy=False)


def test_fortran_order_is_refused(gpu):
    with gpu.alloc((2, 3), "float32") as memory:
        view = memoryview(memory)
        assert not view.f_contiguous
        view.release()
        assert np.asfortranarray(memory).ctypes.data != memory.addr


def test_vram(gpu, stream):
    with gpu.alloc_vram((64, 64), "float32") as local, gpu.alloc((64, 64), "float32") as host:
        assert local.kind == "vram" and host.kind == "allocated"
        host.numpy()[:] = np.arange(4096).reshape(64, 64)
        stream.copy(local, host)
        pinmap.testgpu.increment_f32(stream, local)
        stream.synchronize()
        assert (local.numpy() == host.numpy() + 1).all()


def test_write_combined_and_node(gpu):
    with gpu.alloc(4096, write_combined=True) as memory:
        memory.numpy()[:] = 5
        assert (memory.numpy() == 5).all()
    with gpu.alloc(4096, node=0) as memory:
        assert memory.nbytes == 4096
    with pytest.raises(pinmap.Error):
        gpu.alloc(4096, node=63)


def test_sync(gpu):
    with gpu.alloc((4, 1024), "uint8") as memory:
        memory.sync_for_device()
        memory.sync_for_cpu(1, 2)
        with pytest.raises(pinmap.InvalidInput, match="3 elements from 2 on end outside of 4"):
            memory.sync_for_cpu(2, 3)


def test_a_dma_buf_shares_memory_with_another_device(gpu, flat):
    with flat.alloc(1024, "uint32") as memory:
        file = memory.export()
        with gpu.import_(file, 1024, "uint32") as same:
            os.close(file)
            assert same.kind == "imported"
            memory.numpy()[:] = 0x1234
            assert (same.numpy() == 0x1234).all()


def test_bad_dma_bufs(gpu, tmp_path):
    with pytest.raises(pinmap.Error, match="-1 is no file descriptor"):
        gpu.import_(-1, 16)
    with open(tmp_path / "file", "w") as file, pytest.raises(pinmap.Error) as caught:
        gpu.import_(file.fileno(), 16)
    assert caught.value.errno == errno.EINVAL
    with gpu.alloc(1024, "uint8") as memory, open(memory.export()) as file:
        with pytest.raises(pinmap.InvalidInput, match="8192 bytes does not fit into the 4096"):
            gpu.import_(file.fileno(), 1024, "float64")
    with gpu.alloc_managed(4096) as memory:
        with pytest.raises(pinmap.Error, match="are exported") as caught:
            memory.export()
    assert caught.value.kind == "unsupported"


def test_many_pieces_of_memory(gpu, stream):
    pieces = [gpu.alloc(4096) for _ in range(200)]
    for index, piece in enumerate(pieces):
        stream.fill(piece.numpy()[100:200], index)
    stream.synchronize()
    sums = [int(piece.numpy().sum()) for piece in pieces]
    assert sums == [100 * index for index in range(200)]
    for piece in pieces:
        piece.release()


def test_views_are_counted_by_all_threads(gpu):
    memory = gpu.alloc(64)

    def look():
        for _ in range(2000):
            np.asarray(memory)[0] += 0

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.views_count == 0
    memory.release()


def test_a_view_at_the_end_of_the_program(gpu):
    program = """if True:
        import numpy, pinmap
        gpu = pinmap.find_accelerator()
        memory = gpu.alloc(64, "float32")
        array, tensor = numpy.asarray(memory), numpy.from_dlpack(memory)
        stream = gpu.stream()
        stream.call(print, "called")
        pinmap.testgpu.increment_f32(stream, memory)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: gpu.totals().allocated.number == 0)


def test_views_as_they_are_asked_for(gpu):
    with gpu.alloc((2, 512), "float64") as memory:
        with pytest.raises(BufferError, match="row after row"):
            memory.__buffer__(inspect.BufferFlags.F_CONTIGUOUS)
    with gpu.alloc(1024, "float64") as memory:
        with memory.__buffer__(inspect.BufferFlags.SIMPLE) as view:
            assert view.nbytes == 8192
    constant = np.zeros(512)
    constant.flags.writeable = False
    with gpu.register(constant, round_outwards=True, read_only=True) as memory:
        with pytest.raises(BufferError, match="can only be read"):
            memory.__buffer__(inspect.BufferFlags.WRITABLE)


def test_only_what_is_registered_is_mapped_again(gpu):
    with gpu.alloc(1024) as memory, pytest.raises(pinmap.Error, match="are mapped again"):
        memory.map()
    file = os.memfd_create("pinmap")
    os.ftruncate(file, PAGE)
    with gpu.register_file(file, PAGE) as memory, memory.map() as mapping:
        assert mapping.device_addr != memory.device_addr
    os.close(file)


def test_array_of_python(gpu):
    numbers = array.array("f", [1, 2, 3, 4])
    with gpu.alloc(4, "float32") as memory:
        memoryview(memory)[:] = memoryview(numbers)
        assert list(memoryview(memory)) == [1, 2, 3, 4]
