# SPDX-License-Identifier: MIT OR Apache-2.0
"""Brings up QEMU's device edu from Python, and plots zero-copy against copies.

Each cell (`# %%`) can be run by itself in an editor that knows cells, one after the other. As a
program: python3 edu.py PICTURE.png
"""

# %% Open the device, and map its registers.
import math
import statistics
import sys
import time

import matplotlib
import numpy as np
import pinmap

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

picture = sys.argv[1] if len(sys.argv) > 1 else "edu.png"
edu = pinmap.find(0x1234, 0x11E8)
registers = edu.bar(0)
interrupt = edu.interrupt(0)  # before the device is told to raise it
version = registers.read32(0x00)
assert version & 0xFFFF == 0x00ED, "that is no edu"
print(f"edu {version >> 24}.{version >> 16 & 0xFF} at {edu.info().pci}")


# %% Registers: the device computes a factorial, and raises an interrupt.
def acknowledge():
    registers.write32(0x64, registers.read32(0x24))


registers.write32(0x20, 0x80)  # an interrupt at the end
registers.write32(0x08, 10)
interrupt.wait(10)
acknowledge()
print(f"10! is {registers.read32(0x08)}")
assert registers.read32(0x08) == math.factorial(10)

# %% DMA: the device reads an array of the program, and writes it elsewhere.
MEMORY = 0x40000  # edu's own, 4096 bytes
FROM_MEMORY, TO_MEMORY = 0x5, 0x7  # start, and an interrupt at the end


def transfer(source, to, count, command):
    for register, value in (0x80, source), (0x88, to), (0x90, count), (0x98, command):
        registers.write64(register, value)
    interrupt.wait(10)
    acknowledge()


buffer = pinmap.empty(2048, "float32")
buffer.numpy()[:512] = np.arange(512)
with edu.register(buffer) as memory:
    transfer(memory.device_addr, MEMORY, 2048, FROM_MEMORY)
    transfer(MEMORY, memory.device_addr + 4096, 2048, TO_MEMORY)
array = buffer.numpy()
print(f"the device has written {array[1024:1029]}, and so on")
assert (array[1024:1536] == np.arange(512)).all() and not array[512:1024].any()
del array

# %% Zero-copy against copies: a kernel of the test GPU adds 1 to floats, where they are in the
# program, or in the device's memory, to which they are copied and from which they are copied back.
gpu = pinmap.find_accelerator()
stream = gpu.stream()
sizes = [1 << bits for bits in range(12, 25, 2)]
host = gpu.alloc(sizes[-1] // 4, "float32")
local = gpu.alloc_vram(sizes[-1] // 4, "float32")


def in_place(count):
    pinmap.testgpu.increment_f32(stream, host.numpy()[:count])


def by_copies(count):
    there = local.numpy()[:count]
    stream.copy(there, host.numpy()[:count])
    pinmap.testgpu.increment_f32(stream, there)
    stream.copy(host.numpy()[:count], there)


def seconds(work, count):
    """The median time of five runs, by the program's clock."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        work(count)
        stream.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


measured = {}
for work in in_place, by_copies:
    measured[work.__name__] = [seconds(work, size // 4) for size in sizes]
assert (host.numpy()[: sizes[0] // 4] == 10 * len(sizes)).all()
print(f"{'bytes':>10} {'zero-copy':>12} {'copies':>12}")
for size, *pair in zip(sizes, *measured.values()):
    print(f"{size:>10} " + " ".join(f"{1e3 * one:>9.3f} ms" for one in pair))

# %% Plot it.
figure, axes = pyplot.subplots(figsize=(7, 4.5))
for name, label in ("in_place", "zero-copy"), ("by_copies", "copied there and back"):
    axes.loglog(sizes, [1e3 * one for one in measured[name]], marker="o", label=label)
axes.set(xlabel="bytes", ylabel="ms", title="Add 1 to floats: test GPU, median of 5")
axes.grid(True, which="both", alpha=0.3)
axes.legend()
figure.savefig(picture, dpi=120)
print(f"plotted in {picture}")

# %% Give everything back.
host.release()
local.release()
stream.close()
interrupt.close()
registers.close()
