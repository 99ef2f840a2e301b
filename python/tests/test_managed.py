# SPDX-License-Identifier: MIT OR Apache-2.0
"""Managed memory: where it is, and how a program steers that."""

import gc

import numpy as np
import pinmap
import pytest
from conftest import PAGE

PAGES = 64
COUNT = PAGES * PAGE // 4


def test_the_device_works_on_it_at_the_same_address(gpu, stream):
    with gpu.alloc_managed(COUNT, "float32") as memory:
        assert memory.kind == "managed" and memory.device_addr == memory.addr
        memory.numpy()[:] = np.arange(COUNT)
        pinmap.testgpu.increment_f32(stream, memory)
        stream.synchronize()
        assert (memory.numpy() == np.arange(COUNT) + 1).all()


def test_an_array_is_managed_where_it_is(gpu, stream):
    numbers = np.zeros(100_000, "float32")
    with gpu.manage(numbers) as memory:
        assert memory.addr == numbers.ctypes.data and memory.shape == (100_000,)
        pinmap.testgpu.increment_f32(stream, numbers)
        stream.synchronize()
    assert (numbers == 1).all()


def test_prefetch_moves_it_there_and_back(gpu, stream):
    with gpu.alloc_managed(COUNT, "float32") as memory:
        memory.numpy()[:] = 7
        assert memory.residency().device == 0
        there = memory.prefetch("device")
        assert there.moved == memory.nbytes
        residency = memory.residency()
        assert (residency.device, residency.host) == (memory.nbytes, 0)
        assert [run.place for run in residency.runs] == ["device"]
        assert residency.runs[0].addr == memory.addr and residency.runs[0].rule == "prefetched"
        assert memory.prefetch(gpu).there == memory.nbytes
        pinmap.testgpu.increment_f32(stream, memory)
        stream.synchronize()
        assert memory.prefetch("host").moved == memory.nbytes
        assert memory.residency().host == memory.nbytes
        assert (memory.numpy() == 8).all()
        statistics = memory.statistics()
        assert statistics.in_prefetched >= memory.nbytes <= statistics.home_prefetched


def test_touching_moves_it_too(gpu, stream):
    with gpu.alloc_managed(COUNT, "float32") as memory:
        memory.prefetch("device")
        assert (memory.numpy() == 0).all()
        assert memory.residency().host == memory.nbytes


def test_advice_keeps_it_on_the_host(gpu, stream):
    with gpu.alloc_managed(COUNT, "float32") as memory:
        memory.numpy()[:] = 1
        memory.advise(prefer="host", accessed_by_device=True)
        pinmap.testgpu.increment_f32(stream, memory)
        stream.synchronize()
        assert memory.residency().device == 0 and (memory.numpy() == 2).all()
        memory.advise(prefer=gpu, read_mostly=True)
        memory.advise()


def test_places_that_are_none(gpu, flat):
    with gpu.alloc_managed(COUNT, "float32") as memory:
        with pytest.raises(pinmap.InvalidInput, match="there is no place 'moon'"):
            memory.prefetch("moon")
        with pytest.raises(pinmap.InvalidInput, match="there is no place 5"):
            memory.advise(prefer=5)
        with pytest.raises(pinmap.InvalidInput, match="another device than the memory's"):
            memory.prefetch(flat)


def test_other_memory_does_not_move(gpu):
    with gpu.alloc(16) as memory:
        for attempt in (
            lambda: memory.prefetch("host"),
            memory.advise,
            memory.residency,
        ):
            with pytest.raises(pinmap.Error, match="memory is allocated, not managed") as caught:
                attempt()
            assert caught.value.kind == "unsupported"
        with pytest.raises(pinmap.Error, match="the memory is not managed"):
            memory.statistics()


def test_released_memory_does_not_move(gpu):
    memory = gpu.alloc_managed(COUNT, "float32")
    memory.release()
    for attempt in (lambda: memory.prefetch("host"), memory.residency, memory.statistics):
        with pytest.raises(pinmap.Error, match="the memory was released") as caught:
            attempt()
        assert caught.value.kind == "stale"


def test_release_ends_the_management(gpu):
    numbers = np.zeros(COUNT, "float32")
    memory = gpu.manage(numbers)
    assert gpu.own_totals().managed.number == 1
    memory.prefetch("device")
    memory.release()
    assert gpu.own_totals().managed.number == 0 and not numbers.any()


def test_it_works_when_the_device_object_is_closed():
    device = pinmap.find_accelerator()
    memory = device.alloc_managed(COUNT, "float32")
    device.close()
    memory.numpy()[:] = 1
    assert memory.prefetch("device").moved == memory.nbytes
    del memory
    gc.collect()


def test_what_cannot_be_managed(gpu, flat):
    with pytest.raises(BufferError, match="the object can only be read"):
        gpu.manage(b"bytes")
    with pytest.raises(pinmap.Error) as caught:
        flat.manage(np.zeros(10))
    assert caught.value.kind == "unsupported"
    with pytest.raises(pinmap.Error):
        flat.alloc_managed(10)
