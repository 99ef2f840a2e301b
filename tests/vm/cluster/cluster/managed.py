# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two ranks send managed memory, and then have it move to the device: what does not is busy.

With --until-moved they try for five seconds: somebody may have pages in his hands for a moment.
"""

import sys
import time

import pinmap
from mpi4py import MPI

comm = MPI.COMM_WORLD
gpu = pinmap.find_accelerator()
with gpu.alloc_managed(1 << 20, "uint8") as memory:
    array = memory.numpy()
    array[:] = 7 + comm.rank
    if comm.rank == 0:
        comm.Send(array, 1)
    else:
        comm.Recv(array, 0)
        assert (array == 7).all()
    comm.Barrier()
    now = memory.prefetch(gpu)
    moved = now.moved
    end = time.monotonic() + (5 if "--until-moved" in sys.argv else 0)
    while now.busy and time.monotonic() < end:
        now = memory.prefetch(gpu)
        moved += now.moved
    told = comm.gather((now.busy, moved))
    if comm.rank == 0:
        print(f"busy, moved: {told}")
    del array
