# SPDX-License-Identifier: MIT OR Apache-2.0
"""Waits: other threads, signals, asyncio."""

import asyncio
import ctypes
import mmap
import os
import signal
import threading

import numpy as np
import pinmap
import pytest
from conftest import Gate, half_lost, pinned, wait_until


class Progress:
    """A thread of Python that counts."""

    def __enter__(self):
        self.count, self.ends = 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while not self.ends:
            self.count += 1

    def __exit__(self, *_):
        self.ends = True
        self.thread.join()


def waits(gpu, stream, interrupt):
    """Each way to wait, by its name."""
    event = stream.record()
    completion = stream.completion()
    return {
        "Stream.synchronize": stream.synchronize,
        "Event.synchronize": event.synchronize,
        "Completion.wait": completion.wait,
        "Interrupt.wait": interrupt.wait,
        "Device.next_event": gpu.next_event,
    }


WAITS = "Stream.synchronize Event.synchronize Completion.wait Interrupt.wait Device.next_event"


@pytest.mark.parametrize("name", WAITS.split())
def test_another_thread_makes_progress_during(gpu, stream, edu, name):
    gate = Gate(stream)
    gate.reached.wait()
    wait = waits(gpu, stream, edu.interrupt)[name]
    with Progress() as progress:
        before = progress.count
        with pytest.raises(pinmap.TimedOut):
            wait(0.3)
        assert progress.count - before > 1000
    gate.open()


@pytest.mark.parametrize("name", WAITS.split())
def test_ctrl_c_ends(gpu, stream, edu, name):
    gate = Gate(stream)
    gate.reached.wait()
    wait = waits(gpu, stream, edu.interrupt)[name]
    begins = threading.Event()

    def press():
        begins.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        begins.set()
        wait()
    thread.join()
    gate.open()
    stream.synchronize(60)


def test_a_signal_whose_handler_returns_does_not_end_a_wait(edu):
    came = []

    def handler(*_):
        came.append(1)
        if len(came) == 3:
            edu.factorial(5)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        assert edu.interrupt.wait(60) == 1
        assert len(came) >= 3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    edu.acknowledge()


def test_release_lets_other_threads_run(gpu, stream):
    memory = gpu.alloc(1024)
    gate = Gate(stream)
    stream.fill(memory, 1)
    # The host function needs the interpreter's lock, which the release must not keep.
    threading.Timer(0.05, gate.open).start()
    memory.release()
    stream.synchronize(60)


def test_submitting_to_a_full_ring_lets_other_threads_run(gpu):
    with gpu.stream(packets=64) as stream, gpu.alloc(64) as memory:
        gate = Gate(stream)
        threading.Timer(0.05, gate.open).start()
        for _ in range(500):
            stream.fill(memory, 3)
        stream.synchronize(60)
        assert bytes(memory) == b"\x03" * 64


def test_streams_in_asyncio(gpu, stream):
    async def main():
        with gpu.alloc(16, "float32") as memory:
            ticks = []

            async def tick():
                while len(ticks) < 3:
                    ticks.append(1)
                    await asyncio.sleep(0.001)

            gate = Gate(stream)
            stream.fill(memory, 5)
            done = asyncio.ensure_future(stream.done())
            await tick()
            assert not done.done()
            gate.open()
            await asyncio.wait_for(done, 60)
            assert (memory.numpy() == 5).all()
            await stream.done()

    asyncio.run(main())


def test_many_streams_in_asyncio(gpu):
    async def work(stream, memory, number):
        for _ in range(number):
            pinmap.testgpu.increment_f32(stream, memory)
            await stream.done()
        return float(memory.numpy()[0])

    async def main():
        streams = [gpu.stream() for _ in range(10)]
        memories = [gpu.alloc(16, "float32") for _ in streams]
        numbers = range(1, len(streams) + 1)
        found = await asyncio.gather(*map(work, streams, memories, numbers))
        assert found == [float(number) for number in numbers]
        for made in streams:
            made.close()
        for memory in memories:
            memory.release()

    asyncio.run(main())


def test_a_cancelled_wait_leaves_the_work(gpu, stream):
    async def main():
        with gpu.alloc(16) as memory:
            gate = Gate(stream)
            stream.fill(memory, 9)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.done(), 0.05)
            gate.open()
            await asyncio.wait_for(stream.done(), 60)
            assert bytes(memory) == b"\x09" * 16

    asyncio.run(main())


def test_streams_end_with_async_with(gpu):
    async def main():
        with gpu.alloc(16) as memory:
            async with gpu.stream() as stream:
                pinmap.testgpu.spin(stream, 0.02)
                stream.fill(memory, 4)
            assert stream.closed and bytes(memory) == b"\x04" * 16
            async with gpu.stream() as stream:
                stream.close()
            with pytest.raises(pinmap.Error, match="could not write"):
                async with gpu.stream() as failed:
                    failed.fill(half_lost(), 1)
            assert failed.closed

    asyncio.run(main())


def test_a_cancelled_task_does_not_stop_the_loop(gpu):
    async def work(gate_of, memory):
        async with gpu.stream() as stream:
            gate_of.append(Gate(stream))
            stream.fill(memory, 5)
            await asyncio.sleep(120)

    async def main():
        gates = []
        with gpu.alloc(16) as memory:
            task = asyncio.ensure_future(work(gates, memory))
            while not gates:
                await asyncio.sleep(0)
            task.cancel()
            # It ends though the stream has work that cannot be done yet.
            with pytest.raises(asyncio.CancelledError):
                await task
            gates[0].open()
        assert memory.released

    asyncio.run(main())


def test_interrupts_in_asyncio(edu):
    async def main():
        for number in (3, 4):
            wait = asyncio.ensure_future(edu.interrupt.wait_async())
            await asyncio.sleep(0)
            edu.factorial(number)
            assert await asyncio.wait_for(wait, 60) == 1
            edu.acknowledge()

    asyncio.run(main())


def test_two_tasks_wait_for_one_interrupt(edu):
    async def main():
        waits = [asyncio.ensure_future(edu.interrupt.wait_async()) for _ in range(2)]
        for _ in waits:
            await asyncio.sleep(0)
            edu.factorial(5)
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            (first,) = done
            assert first.result() == 1
            waits.remove(first)
            edu.acknowledge()
            if not waits:
                break

    asyncio.run(main())


def test_a_cancelled_wait_loses_no_interrupt(edu):
    async def main():
        wait = asyncio.ensure_future(edu.interrupt.wait_async())
        await asyncio.sleep(0)
        edu.factorial(5)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert await asyncio.wait_for(edu.interrupt.wait_async(), 60) == 1
        edu.acknowledge()

    asyncio.run(main())


def test_device_events_in_asyncio(gpu):
    memory = gpu.register(pinmap.empty(1024))
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    async def main():
        wait = asyncio.ensure_future(gpu.next_event_async())
        await asyncio.sleep(0)
        assert libc.madvise(memory.addr, mmap.PAGESIZE, 4) == 0
        event = await asyncio.wait_for(wait, 60)
        assert (event.kind, event.id) == ("stale", memory.id)

    asyncio.run(main())
    memory.release()


def test_a_wait_in_asyncio_raises_what_failed(gpu, stream):
    async def main():
        buffer = pinmap.empty(1024)
        memory = gpu.register(buffer)
        libc = ctypes.CDLL(None)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        gate = Gate(stream)
        stream.fill(memory, 1)
        done = asyncio.ensure_future(stream.done())
        await asyncio.sleep(0)
        assert libc.madvise(memory.addr, mmap.PAGESIZE, 4) == 0
        # A worker finds out that the pages have gone: until then the device has them.
        event = await asyncio.wait_for(gpu.next_event_async(), 60)
        assert (event.kind, event.id) == ("stale", memory.id)
        gate.open()
        with pytest.raises(pinmap.Error) as caught:
            await asyncio.wait_for(done, 60)
        assert caught.value.kind == "fault"
        stream.reset()
        memory.release()

    asyncio.run(main())


def test_work_of_many_threads(gpu):
    before = pinned()

    def work(failures):
        try:
            with gpu.stream() as stream:
                for _ in range(20):
                    with gpu.register(pinmap.empty(1024, "float32")) as memory:
                        pinmap.testgpu.increment_f32(stream, memory)
                        stream.synchronize(60)
                        assert (np.asarray(memory) == 1).all()
        except BaseException as error:
            failures.append(error)

    failures = []
    threads = [threading.Thread(target=work, args=(failures,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    wait_until(lambda: pinned() == before)
