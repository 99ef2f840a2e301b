# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two ranks send managed memory, and then have it move to the device: what does not is busy."""

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
    moved = memory.prefetch(gpu)
    print(f"busy: {moved.busy}, moved: {moved.moved}")
    del array
