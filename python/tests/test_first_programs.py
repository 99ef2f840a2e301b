# SPDX-License-Identifier: MIT OR Apache-2.0
"""The programs that users of CuPy, numba.cuda and PyCUDA write first: see docs/python.md."""

import asyncio

import numpy as np
import pinmap
from conftest import PAGE
from pinmap import testgpu

COUNT = 1 << 16


def test_a_kernel_on_arrays_of_numpy(gpu, stream):
    x, y = np.arange(COUNT, dtype="f4"), np.ones(COUNT, "f4")
    testgpu.saxpy(stream, 2.0, x, y)
    stream.synchronize()
    np.testing.assert_array_equal(y, 2 * np.arange(COUNT) + 1)


def test_copies_to_the_device_and_back(gpu, stream):
    x = np.arange(COUNT, dtype="f4")
    on_device = gpu.alloc_vram(x.shape, x.dtype)
    stream.copy(on_device, x)
    testgpu.increment_f32(stream, on_device)
    result = np.empty_like(x)
    stream.copy(result, on_device)
    stream.synchronize()
    np.testing.assert_array_equal(result, x + 1)


def test_pinned_memory(gpu, stream):
    with gpu.alloc(COUNT, "f4") as memory:
        array = memory.numpy()
        array[:] = 1
        testgpu.increment_f32(stream, array)
        stream.synchronize()
        assert array.sum() == 2 * COUNT
        assert array.ctypes.data == memory.device_addr


def test_mapped_write_combined_memory(gpu, stream):
    with gpu.alloc(COUNT, "f4", write_combined=True) as source, gpu.alloc(1, "f4") as total:
        source.numpy()[:] = 0.5
        testgpu.sum_f32(stream, source, total)
        stream.synchronize()
        assert total.numpy()[0] == COUNT / 2


def test_pinning_an_array_that_exists(gpu, stream):
    array = pinmap.empty(COUNT, "f4")
    array.numpy()[:] = 3
    with gpu.register(array) as memory:
        testgpu.increment_f32(stream, memory)
        stream.synchronize()
    assert (array.numpy() == 4).all()


def test_managed_memory_prefetched_by_part(gpu, stream):
    with gpu.alloc_managed(64 * PAGE // 4, "f4") as memory:
        array = memory.numpy()
        array[:] = 1
        for part in np.split(array, 8):
            stream.prefetch(part, gpu)
            testgpu.increment_f32(stream, part)
        stream.synchronize()
        assert memory.residency().device == memory.nbytes
        assert (array == 2).all()


def test_the_time_of_a_kernel(gpu, stream):
    memory = gpu.alloc(COUNT, "f4")
    begin = stream.record()
    testgpu.increment_f32(stream, memory)
    end = stream.record()
    end.synchronize()
    assert 0 < end.elapsed_since(begin) < 60


def test_copies_beside_kernels(gpu):
    data = np.arange(8 * COUNT, dtype="f4")
    result = np.zeros_like(data)
    with gpu.stream() as first, gpu.stream() as second:
        buffers = [gpu.alloc_vram(COUNT, "f4") for _ in range(2)]
        parts = zip(np.split(data, 8), np.split(result, 8))
        for index, (source, target) in enumerate(parts):
            stream, buffer = (first, second)[index % 2], buffers[index % 2]
            stream.copy(buffer, source)
            testgpu.increment_f32(stream, buffer)
            stream.copy(target, buffer)
    np.testing.assert_array_equal(result, data + 1)


def test_a_product_of_matrices(gpu, stream):
    a, b = np.random.rand(32, 48).astype("f4"), np.random.rand(48, 16).astype("f4")
    c = np.zeros((32, 16), "f4")
    testgpu.matmul_f32(stream, a, b, c)
    stream.synchronize()
    np.testing.assert_allclose(c, a @ b, rtol=1e-4)


def test_descriptors_and_asyncio(gpu):
    descriptor = np.dtype([("address", "<u8"), ("length", "<u4"), ("flags", "<u4")])

    async def main():
        async with gpu.stream() as stream:
            ring = gpu.alloc(16, descriptor)
            stream.fill(ring.numpy().view("u4"), 7)
            await stream.done()
            return ring.numpy()["length"].tolist()

    assert asyncio.run(main()) == [7] * 16
