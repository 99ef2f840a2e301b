# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory of one device for another device, and for another context of the same device."""

import os

import numpy as np
import pinmap
import pytest

COUNT = 300_000


@pytest.fixture
def other(gpu):
    """The second accelerator."""
    paths = [node.path for node in pinmap.list() if node.path != gpu.path]
    for path in paths:
        device = pinmap.open(path)
        if device.info().kind == "paged":
            with device:
                yield device
            return
        device.close()
    pytest.fail("the machine has no second accelerator")


@pytest.fixture
def numbers():
    return np.arange(COUNT, dtype="float32")


def test_vram_of_two_devices_is_copied(gpu, other, numbers):
    with gpu.alloc_vram(COUNT, "float32") as a, other.alloc_vram(COUNT, "float32") as b:
        for offset, device in enumerate((gpu, other)):
            a.numpy()[:] = numbers + offset
            with device.stream() as stream:
                stream.copy(b, a)
                stream.synchronize()
            assert (b.numpy() == numbers + offset).all()


def test_vram_of_another_device_is_registered(gpu, other, numbers):
    with gpu.alloc_vram(COUNT, "float32") as vram, other.stream() as stream:
        vram.numpy()[:] = numbers
        with other.register(vram, round_outwards=True) as peer:
            assert peer.device_addr == vram.addr
            assert other.own_totals().pinned.bytes == 0
            pinmap.testgpu.increment_f32(stream, peer)
            stream.synchronize()
        assert (vram.numpy() == numbers + 1).all()


def test_vram_of_another_context_is_imported(gpu, numbers):
    with gpu.alloc_vram(COUNT, "float32") as vram, pinmap.open(gpu.path) as same:
        file = vram.export()
        with same.import_(file, COUNT, "float32") as taken, same.stream() as stream:
            os.close(file)
            vram.numpy()[:] = numbers
            pinmap.testgpu.increment_f32(stream, taken)
            stream.synchronize()
            assert (taken.numpy() == numbers + 1).all() and (vram.numpy() == numbers + 1).all()
