# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory of pinmap for CuPy."""

import weakref

import numpy

# cudaHostRegisterMapped
_MAPPED = 2


class _Registered:
    """Memory that CUDA has registered, as long as this exists."""


def _unregister(runtime, addr, view):
    runtime.hostUnregister(addr)
    view.release()


def cupy_array(memory):
    """Returns memory as an array of CuPy, without a copy: a GPU of CUDA reaches it, too.

    The memory is registered with CUDA (cudaHostRegister) as long as the array or a view of it
    exists, and cannot be released until then. It must be memory that the program may write, and not
    the memory of another device ("vram").

    Raises ImportError if CuPy is not installed, BufferError if the memory was released or can only
    be read, and what CuPy raises. This has been tried with a stub of CuPy only, not with CUDA.
    """
    import cupy

    view = memoryview(memory)
    if view.readonly:
        view.release()
        raise BufferError("the memory can only be read")
    if memory.kind == "vram":
        view.release()
        raise BufferError("CUDA does not register memory of another device")
    runtime = cupy.cuda.runtime
    owner = _Registered()
    try:
        runtime.hostRegister(memory.addr, memory.nbytes, _MAPPED)
    except BaseException:
        view.release()
        raise
    weakref.finalize(owner, _unregister, runtime, memory.addr, view)
    unowned = cupy.cuda.UnownedMemory(memory.addr, memory.nbytes, owner)
    pointer = cupy.cuda.MemoryPointer(unowned, 0)
    return cupy.ndarray(memory.shape, numpy.dtype(memory.dtype), memptr=pointer)
