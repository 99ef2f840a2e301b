# SPDX-License-Identifier: MIT OR Apache-2.0
"""The kernels of the test GPU, a device of virtual machines.

Each function submits a kernel to a stream. The operands are Memory, or arrays that are views of it.
"""

from ._pinmap import testgpu as _testgpu

atomic_add_u64 = _testgpu.atomic_add_u64
crc32c = _testgpu.crc32c
histogram_u8 = _testgpu.histogram_u8
increment_f32 = _testgpu.increment_f32
matmul_f32 = _testgpu.matmul_f32
saxpy = _testgpu.saxpy
spin = _testgpu.spin
sum_f32 = _testgpu.sum_f32

__all__ = [
    "atomic_add_u64",
    "crc32c",
    "histogram_u8",
    "increment_f32",
    "matmul_f32",
    "saxpy",
    "spin",
    "sum_f32",
]
