# SPDX-License-Identifier: MIT OR Apache-2.0
"""Heat in a plate, computed by the accelerators of several machines.

capi/examples/mpi.c explains it, which computes the same: each rank's accelerator works on its rows
where they are, and MPI sends and receives there. mpi4py takes the arrays as they are.

mpirun -n 4 python3 mpi.py [ROWS [COLUMNS [STEPS]]]
"""

import sys

import numpy as np
import pinmap
from mpi4py import MPI

world = MPI.COMM_WORLD
rows, columns, steps = [*map(int, sys.argv[1:]), *(512, 4096, 8)[len(sys.argv) - 1 :]]
if rows % world.size or rows // world.size < 3:
    sys.exit("each rank has as many rows, and at least 3")
gpu = pinmap.find_accelerator()


def compute(stream, now, then, first, count):
    """Some rows of the next state, from number `first` on; 0 is the neighbour's above."""
    begin, end = first * columns, (first + count) * columns
    stream.fill(then[begin:end], 0)
    for part, moved in (0.6, 0), (0.1, -columns), (0.1, columns), (0.1, -1), (0.1, 1):
        cells = now[begin + moved : end + moved]
        pinmap.testgpu.saxpy(stream, part, cells, then[begin:end])


def run(comm):
    """The rows of this rank, and how many exchanges ended while kernels ran."""
    rank, size = comm.rank, comm.size
    mine = rows // size
    above = rank - 1 if rank > 0 else MPI.PROC_NULL
    below = rank + 1 if rank < size - 1 else MPI.PROC_NULL
    now, then = (gpu.alloc((mine + 2) * columns, "float32").numpy() for _ in range(2))
    if rank == 0:
        now[:columns] = then[:columns] = 100
    edge, inner = gpu.stream(), gpu.stream()
    edge_done, inner_done = edge.record(), inner.record()
    first, last = slice(columns, 2 * columns), slice(mine * columns, (mine + 1) * columns)
    overlapped = 0
    for _ in range(steps):
        # Each needs what the other one had computed in the step before.
        edge.wait_event(inner_done)
        inner.wait_event(edge_done)
        compute(edge, now, then, 1, 1)
        compute(edge, now, then, mine, 1)
        compute(inner, now, then, 2, mine - 2)
        edge_done, inner_done = edge.record(), inner.record()
        edge.synchronize()
        MPI.Request.Waitall(
            [
                comm.Irecv(then[:columns], above, 1),
                comm.Irecv(then[-columns:], below, 0),
                comm.Isend(then[first], above, 0),
                comm.Isend(then[last], below, 1),
            ]
        )
        overlapped += not inner_done.query()
        now, then = then, now
    inner.synchronize()
    return now[columns:-columns], overlapped


world.Barrier()
begin = MPI.Wtime()
part, overlapped = run(world)
took = world.reduce(MPI.Wtime() - begin, MPI.MAX)
overlapped = world.reduce(overlapped)
everything = np.empty(rows * columns, "float32") if world.rank == 0 else None
world.Gather(part, everything)
if world.rank == 0:
    print(f"{rows} x {columns} cells, {steps} steps, {world.size} ranks: {took:.3f} s")
    print(f"exchanges that ended while kernels ran: {overlapped} of {world.size * steps}")
    alone, _ = run(MPI.COMM_SELF)
    same = np.array_equal(everything, alone)
    print("as one rank computes it" if same else "WRONG")
    if not same:
        world.Abort(1)
