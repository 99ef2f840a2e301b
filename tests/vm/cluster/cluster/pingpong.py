# SPDX-License-Identifier: MIT OR Apache-2.0
"""The benchmark of mpi4py, with arrays that the accelerator reaches in place of NumPy's."""

import mpi4py.bench
import numpy
import pinmap
from mpi4py import MPI

gpu = pinmap.find_accelerator()
numpy.empty = lambda *what: gpu.alloc(*what).numpy()
addresses = []


class Watched(MPI.Intracomm):
    """Asks of each message where the accelerator sees it, which is an error if it does not."""

    def Send(self, message, *to):
        addresses.append(gpu.translate(message[0].ctypes.data))
        super().Send(message, *to)

    def Recv(self, message, *origin):
        addresses.append(gpu.translate(message[0].ctypes.data))
        super().Recv(message, *origin)


world = Watched(MPI.COMM_WORLD)
mpi4py.bench.pingpong(world, "-m 65536 -n 1048576 --loop 5 --skip 1".split())
counts = world.gather(len(addresses))
if world.rank == 0:
    print(f"messages in the accelerators' memory: {counts}")
