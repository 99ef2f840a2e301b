# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two programs in which the test GPU works on host memory in place, as with CUDA's mapped memory.

The first one adds 1 to 1024 floats: in memory that the driver allocates (cudaHostAlloc), in memory
that is registered (cudaHostRegister), and in memory that is managed, of which nothing is pinned.
The second one copies 128 ints between two write-combined buffers.
"""

import mmap

import numpy as np
import pinmap

gpu = pinmap.find_accelerator()
stream = gpu.stream()


def pinned():
    """The pages that this program has pinned or allocated for the device."""
    totals = gpu.own_totals()
    return (totals.pinned.bytes + totals.allocated.bytes) // mmap.PAGESIZE


def increment(how, memory, before):
    """The device has the floats at the address at which the program has them."""
    floats = memory.numpy()
    floats[:] = np.arange(1024)
    pinmap.testgpu.increment_f32(stream, memory)
    stream.synchronize()
    addresses = f"pointer {memory.addr:#x}, device address {memory.device_addr:#x}"
    print(f"{how}: {addresses}, pages pinned: {pinned() - before}\n  {floats[:10]}")
    assert (floats == np.arange(1, 1025)).all()
    assert memory.addr == memory.device_addr
    del floats
    memory.release()


# The first program. `empty` gives whole pages.
before = pinned()
increment("allocated", gpu.alloc(1024, "float32"), before)
floats = pinmap.empty(1024, "float32")
increment("registered", gpu.register(floats), before)
increment("managed", gpu.manage(floats), before)

# The second program. The CPU only writes `source`, in order: write-combined memory is for that.
source = gpu.alloc(128, "int32", write_combined=True)
target = gpu.alloc(128, "int32", write_combined=True)
source.numpy()[:] = np.arange(128)
stream.copy(target, source)
stream.synchronize()
# `numpy()` is an array at this address, which is the device's pointer.
assert target.addr == target.device_addr
print(f"write-combined, at the device's pointer {target.device_addr:#x}:\n{target.numpy()}")
assert (target.numpy() == np.arange(128)).all()

source.release()
target.release()
stream.close()
gpu.close()
