# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hands memory of a program to PCI devices, without a copy.

A device works on the memory of the program, and NumPy has the same memory as arrays:

    import numpy, pinmap

    with pinmap.find_accelerator() as gpu, gpu.stream() as stream:
        memory = gpu.alloc((1000, 1000), "float32")
        array = numpy.asarray(memory)            # no copy: array.ctypes.data == memory.addr
        array[:] = 1
        pinmap.testgpu.increment_f32(stream, memory)
        stream.synchronize()
        print(array[0, 0])                       # 2.0

Devices: open(), find(), find_accelerator(), list(), Device. Memory: Device.alloc() and others,
Device.register(), empty(). Registers and interrupts: Device.bar(), Device.interrupt(). Work:
Device.stream(), Device.event(), testgpu, xdma. Kernels: compile(), Device.load(), Program. Errors:
Error and what is derived from it.

The documentation is docs/python.md in pinmap's sources.
"""

from . import testgpu, xdma
from ._cupy import cupy_array
from ._errors import (
    AlreadyExists,
    Error,
    Interrupted,
    InvalidInput,
    KernelStopped,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    TimedOut,
    WouldBlock,
)
from ._pinmap import (
    AcceleratorInfo,
    Bar,
    BarInfo,
    Buffer,
    Completion,
    Device,
    DeviceEvent,
    DeviceNode,
    Event,
    Info,
    Interrupt,
    Mapping,
    Memory,
    Prefetched,
    Residency,
    Run,
    Statistics,
    Stream,
    Total,
    Totals,
    __version__,
    empty,
    find,
    find_accelerator,
    list,
    open,
)
from ._program import Local, Program, compile

__all__ = [
    "AcceleratorInfo",
    "AlreadyExists",
    "Bar",
    "BarInfo",
    "Buffer",
    "Completion",
    "Device",
    "DeviceEvent",
    "DeviceNode",
    "Error",
    "Event",
    "Info",
    "Interrupt",
    "Interrupted",
    "InvalidInput",
    "KernelStopped",
    "Local",
    "Mapping",
    "Memory",
    "NotFound",
    "OutOfMemory",
    "PermissionDenied",
    "Prefetched",
    "Program",
    "Residency",
    "Run",
    "Statistics",
    "Stream",
    "TimedOut",
    "Total",
    "Totals",
    "WouldBlock",
    "cupy_array",
    "empty",
    "find",
    "find_accelerator",
    "testgpu",
    "xdma",
]
