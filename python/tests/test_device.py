# SPDX-License-Identifier: MIT OR Apache-2.0
"""Devices: opening, properties, closing, forks."""

import errno
import os
import pathlib

import pinmap
import pytest
from conftest import whole_pages


def test_list_names_all_devices():
    nodes = pinmap.list()
    ids = [(node.vendor, node.device) for node in nodes]
    assert ids.count((0x1234, 0x11E8)) == 2 and len(ids) == 4
    assert [node.path for node in nodes] == [f"/dev/pinmap{i}" for i in range(4)]


def test_open_by_path_by_address_and_the_first(gpu):
    node = pinmap.list()[1]
    for name in (node.path, node.pci, pathlib.Path(node.path)):
        with pinmap.open(name) as device:
            assert device.info().pci == node.pci and device.path == node.path
    with pinmap.open() as device:
        assert device.path == pinmap.list()[0].path


def test_objects_say_what_they_are(gpu, edu, stream):
    with gpu.alloc(1024) as memory, gpu.register(whole_pages(1024)) as registered:
        buffer, mapping = pinmap.empty((2, 3), "float32"), registered.map()
        words = {
            "<pinmap.Bar 0 of 0x100000 bytes>": edu.registers,
            "<pinmap.Interrupt 0>": edu.interrupt,
            f"<pinmap.Stream {stream.id} of {gpu.path}>": stream,
            "<pinmap.Event>": stream.record(),
            "<pinmap.Completion>": stream.completion(),
            f"<pinmap.Mapping at {mapping.device_addr:#x}>": mapping,
            f"<pinmap.Buffer [2, 3] float32 at {buffer.addr:#x}>": buffer,
        }
        assert [repr(thing) for thing in words.values()] == list(words)
        assert (buffer.shape, buffer.dtype, len(buffer)) == ((2, 3), "float32", 2)
        assert memory.device is gpu and stream.device is gpu
        mapping.unmap()


def test_a_device_that_is_not_there():
    with pytest.raises(pinmap.NotFound) as caught:
        pinmap.open("/dev/pinmap77")
    error = caught.value
    assert error.errno == errno.ENOENT and error.kind == "not_found"
    assert "cannot open /dev/pinmap77" in str(error)
    assert isinstance(error, FileNotFoundError) and isinstance(error, pinmap.Error)


def test_no_device_has_these_ids():
    with pytest.raises(pinmap.Error, match="dead:beef") as caught:
        pinmap.find(0xDEAD, 0xBEEF)
    assert caught.value.errno == errno.ENODEV and caught.value.hint


def test_a_path_that_is_none():
    with pytest.raises(TypeError):
        pinmap.open(17)
    with pytest.raises(OverflowError):
        pinmap.find(0x12345, 0)


def test_info_of_a_flat_device(flat):
    info = flat.info()
    assert (info.kind, info.vendor, info.device) == ("flat", 0x1234, 0x11E8)
    assert info.pci == "0000:00:10.0" and not info.managed and not info.gone
    assert info.bars[0].length == 1 << 20 and info.bars[0].mappable and info.bars[1] is None
    assert "kind=" in repr(info)


def test_info_of_an_accelerator(gpu):
    info = gpu.info()
    assert info.kind == "paged" and info.managed
    more = gpu.accelerator_info()
    assert more.copy_engines == 2 and more.vram_length == 256 << 20
    assert 0 < more.vram_free <= more.vram_length


def test_a_flat_device_has_no_streams(flat):
    for attempt in (flat.stream, flat.event, flat.accelerator_info, lambda: flat.alloc_vram(1)):
        with pytest.raises(pinmap.Error, match="it has no queues") as caught:
            attempt()
        assert (caught.value.errno, caught.value.kind) == (errno.EOPNOTSUPP, "unsupported")


def test_totals_follow_what_is_allocated(gpu):
    before = gpu.own_totals()
    with gpu.alloc(4096), gpu.alloc_vram(8192):
        own, everyone = gpu.own_totals(), gpu.totals()
        assert own.allocated.bytes - before.allocated.bytes == 4096
        assert own.vram.bytes - before.vram.bytes == 8192
        assert everyone.contexts >= 1 and everyone.vram.number >= own.vram.number
    assert gpu.own_totals().allocated.number == before.allocated.number


def test_a_closed_device_refuses_and_what_it_made_stays():
    device = pinmap.find_accelerator()
    memory = device.alloc(16, "uint8")
    device.close()
    device.close()
    assert device.closed and "closed" in repr(device)
    with pytest.raises(ValueError, match="the device is closed"):
        device.info()
    memory.numpy()[:] = 7
    assert bytes(memory) == b"\x07" * 16
    assert memory.device_addr == memory.addr
    memory.release()


def test_a_context_manager_closes():
    with pinmap.open() as device:
        assert device.fileno() > 2
    assert device.closed


def test_reset_where_the_function_has_one(gpu, flat):
    for device in (gpu, flat):
        if device.info().can_reset:
            device.reset()
        else:
            with pytest.raises(pinmap.Error, match="the function has no reset") as caught:
                device.reset()
            assert caught.value.kind == "unsupported"
    assert not flat.info().can_reset


def test_the_system_may_be_kept_awake(gpu):
    state = pathlib.Path("/sys/power/state")
    test = pathlib.Path("/sys/power/pm_test")
    with pinmap.open(gpu.path) as device:
        device.stay_awake()
        test.write_text("devices")
        try:
            with pytest.raises(OSError) as caught:
                state.write_text("freeze")
        finally:
            test.write_text("none")
        assert caught.value.errno == errno.EBUSY
        device.stay_awake(False)


def in_child(test):
    """Runs a function in a child; returns what it returns, or the exception as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(test())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_child_can_use_nothing_that_it_inherited(gpu, stream):
    memory = gpu.alloc(4096)
    buffer = pinmap.empty(4096)
    event = gpu.event()
    uses = [
        gpu.info,
        memory.release,
        memory.numpy,
        lambda: bytes(memory),
        lambda: gpu.register(buffer),
        lambda: stream.fill(memory, 1),
        stream.synchronize,
        event.query,
    ]
    for use in uses:
        said = in_child(use)
        assert said.startswith("PermissionDenied") and "forked from" in said, said
        assert "open the device again in this process" in said
    memory.release()


def test_what_a_child_drops_stays_the_parents(gpu, stream):
    buffer = pinmap.empty(1024, "float32")
    memory = gpu.register(buffer)
    held = [memory, memory.numpy()]

    def drop():
        nonlocal memory
        del memory
        held.clear()
        return "dropped"

    assert in_child(drop) == "'dropped'"
    pinmap.testgpu.increment_f32(stream, memory)
    stream.synchronize()
    assert (held[1] == 1).all()
    held.clear()
    memory.release()
    assert (buffer.numpy() == 1).all()


def test_a_child_opens_the_device_anew(gpu):
    def work():
        device = pinmap.find_accelerator()
        memory = device.alloc(1024, "float32")
        stream = device.stream()
        pinmap.testgpu.increment_f32(stream, memory)
        stream.synchronize()
        return float(memory.numpy().sum())

    assert in_child(work) == "1024.0"
