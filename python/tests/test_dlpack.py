# SPDX-License-Identifier: MIT OR Apache-2.0
"""DLPack, PyTorch, and a stub of CuPy."""

import ctypes
import gc
import sys
import types

import numpy as np
import pinmap
import pytest
from conftest import whole_pages


def name_of(capsule):
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return name(capsule)


def test_numpy_takes_it_without_a_copy(gpu):
    memory = gpu.alloc((3, 4), "int16")
    seen = np.from_dlpack(memory)
    assert seen.ctypes.data == memory.addr and seen.shape == (3, 4) and seen.dtype == np.int16
    memory.numpy()[2, 3] = 77
    assert seen[2, 3] == 77
    with pytest.raises(BufferError, match="1 view of it exists"):
        memory.release()
    del seen
    gc.collect()
    memory.release()


def test_the_device_is_the_cpu(gpu):
    with gpu.alloc(4) as memory:
        assert memory.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError, match=r"the CPU \(1, 0\), not of \(2, 0\)"):
            memory.__dlpack__(dl_device=(2, 0))
        with pytest.raises(BufferError, match="goes with no stream"):
            memory.__dlpack__(stream=1)


def test_versions(gpu):
    with gpu.alloc(4) as memory:
        assert name_of(memory.__dlpack__()) == b"dltensor"
        assert name_of(memory.__dlpack__(max_version=(0, 8))) == b"dltensor"
        assert name_of(memory.__dlpack__(max_version=(1, 0))) == b"dltensor_versioned"
        assert name_of(memory.__dlpack__(max_version=(2, 3), dl_device=(1, 0))).endswith(b"ioned")


def test_capsules_that_nobody_takes_end_their_view(gpu):
    memory = gpu.alloc(4)
    capsules = [memory.__dlpack__(), memory.__dlpack__(max_version=(1, 0))]
    assert memory.views_count == 2
    del capsules
    gc.collect()
    assert memory.views_count == 0
    memory.release()


def test_a_copy_is_no_view(gpu):
    memory = gpu.alloc((2, 2), "float32")
    memory.numpy()[:] = 5
    copy = np.from_dlpack(memory, copy=True)
    assert copy.ctypes.data != memory.addr and memory.views_count == 0
    memory.release()
    assert (copy == 5).all()
    with pytest.raises(BufferError, match="the memory was released"):
        memory.__dlpack__(copy=True)


def test_memory_that_can_only_be_read(gpu):
    numbers = whole_pages(1024)
    numbers.flags.writeable = False
    with gpu.register(numbers, read_only=True) as memory:
        with pytest.raises(BufferError, match="from version 1 on"):
            memory.__dlpack__()
        seen = np.from_dlpack(memory)
        assert not seen.flags.writeable and seen.ctypes.data == memory.addr
        del seen
        assert name_of(memory.__dlpack__(copy=True)) == b"dltensor"


def test_torch(gpu, stream):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    memory = gpu.alloc((10, 10), "float32")
    tensor = torch.from_dlpack(memory)
    assert tensor.data_ptr() == memory.addr and tensor.shape == (10, 10)
    tensor += 2
    pinmap.testgpu.increment_f32(stream, memory)
    stream.synchronize()
    assert bool((tensor == 3).all())
    del tensor
    gc.collect()
    memory.release()


@pytest.fixture
def cupy(monkeypatch):
    """A module that says what CuPy would be asked for."""
    stub = types.ModuleType("cupy")
    stub.calls = []

    class Unowned:
        def __init__(self, ptr, size, owner):
            self.ptr, self.size, self.owner = ptr, size, owner

    class Pointer:
        def __init__(self, memory, offset):
            self.memory, self.offset = memory, offset

    class Array:
        def __init__(self, shape, dtype, memptr):
            self.shape, self.dtype, self.memptr = shape, dtype, memptr

    def register(*arguments):
        if stub.fails:
            raise RuntimeError("cudaErrorNotSupported")
        stub.calls.append(("register", *arguments))

    stub.fails = False
    runtime = types.SimpleNamespace(
        hostRegister=register,
        hostUnregister=lambda *arguments: stub.calls.append(("unregister", *arguments)),
    )
    stub.cuda = types.SimpleNamespace(
        runtime=runtime, UnownedMemory=Unowned, MemoryPointer=Pointer
    )
    stub.ndarray = Array
    monkeypatch.setitem(sys.modules, "cupy", stub)
    return stub


def test_cupy_gets_the_memory_itself(gpu, cupy):
    memory = gpu.alloc((4, 8), "float32")
    made = pinmap.cupy_array(memory)
    assert cupy.calls == [("register", memory.addr, 128, 2)]
    assert (made.shape, made.dtype) == ((4, 8), np.float32)
    assert (made.memptr.memory.ptr, made.memptr.memory.size) == (memory.addr, 128)
    assert made.memptr.offset == 0
    with pytest.raises(BufferError, match="1 view of it exists"):
        memory.release()
    del made
    gc.collect()
    assert cupy.calls[1:] == [("unregister", memory.addr)]
    memory.release()


def test_cupy_that_fails_leaves_no_view(gpu, cupy):
    cupy.fails = True
    with gpu.alloc(4) as memory:
        with pytest.raises(RuntimeError, match="cudaErrorNotSupported"):
            pinmap.cupy_array(memory)
        assert memory.views_count == 0


def test_what_cupy_cannot_have(gpu, cupy):
    numbers = whole_pages(1024)
    numbers.flags.writeable = False
    with gpu.register(numbers, read_only=True) as memory, gpu.alloc_vram(64) as local:
        with pytest.raises(BufferError, match="can only be read"):
            pinmap.cupy_array(memory)
        with pytest.raises(BufferError, match="memory of another device"):
            pinmap.cupy_array(local)
        assert memory.views_count == local.views_count == 0
    assert cupy.calls == []


def test_without_cupy(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with gpu.alloc(4) as memory:
        with pytest.raises(ImportError):
            pinmap.cupy_array(memory)
