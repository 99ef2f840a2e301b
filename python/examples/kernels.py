#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels in C on memory of the program: a search through a graph that is three times as large as
the device's memory, a join, a sort, and a kernel that serves requests as long as there are any.

Each is checked against NumPy, and tells how long it took by the device's clock, and how many
faults the device had.

usage: kernels.py [MIB]: of the device's memory, so many MiB are left to be used (8)
"""

import sys

import numpy as np
import pinmap

SOURCE = """
/* One level of a breadth-first search: a thread has every so manyth vertex. */
__global__ void level(uint32_t count, const uint32_t *begins, const uint32_t *edges, int *levels,
		      int depth, uint64_t *found)
{
	for (uint64_t v = gridThread(); v < count; v += (uint64_t)gridDim.x * blockDim.x) {
		if (levels[v] != depth)
			continue;
		for (uint32_t e = begins[v]; e < begins[v + 1]; e++) {
			if (levels[edges[e]] < 0) {
				levels[edges[e]] = depth + 1;
				atomicAdd(found, 1);
			}
		}
	}
}

static uint32_t slot_of(uint32_t key, uint32_t slots)
{
	return (uint64_t)(key * 2654435761u) * slots >> 32;
}

/* A table of keys, where 0 is none, and their values: each goes to the next slot that is free. */
__global__ void build(uint32_t count, const uint32_t *keys, const uint32_t *values, uint32_t slots,
		      uint32_t *table)
{
	uint64_t i = gridThread();

	if (i >= count)
		return;
	uint32_t slot = slot_of(keys[i], slots);
	while (atomicCAS(&table[2 * slot], 0u, keys[i]))
		slot = slot + 1 == slots ? 0 : slot + 1;
	table[2 * slot + 1] = values[i];
}

/* Adds up the products of the values of all pairs with the same key, and counts them. */
__global__ void probe(uint32_t count, const uint32_t *keys, const uint32_t *values, uint32_t slots,
		      const uint32_t *table, uint64_t *result)
{
	uint64_t *own = sharedMemory(), i = gridThread();

	if (threadIdx.x < 2)
		own[threadIdx.x] = 0;
	__syncthreads();
	if (i < count) {
		for (uint32_t slot = slot_of(keys[i], slots); table[2 * slot];
		     slot = slot + 1 == slots ? 0 : slot + 1) {
			if (table[2 * slot] != keys[i])
				continue;
			atomicAdd(&own[0], 1);
			atomicAdd(&own[1], (uint64_t)values[i] * table[2 * slot + 1]);
		}
	}
	__syncthreads();
	if (threadIdx.x < 2)
		atomicAdd(&result[threadIdx.x], own[threadIdx.x]);
}

/* One step of a bitonic sort. */
__global__ void step(float *data, uint32_t half, uint32_t length)
{
	uint64_t i = gridThread(), other = i ^ half;

	if (other > i && (data[i] > data[other]) == !(i & length)) {
		float kept = data[i];

		data[i] = data[other];
		data[other] = kept;
	}
}

/* Serves requests in a ring until one is 0: answers each with the sum of its words. The program
 * counts up words[0] when a request is there, and the kernel words[1] when an answer is. */
__global__ void serve(volatile uint32_t *words, volatile uint32_t *ring, uint32_t length)
{
	for (uint32_t served = 0;; served++) {
		volatile uint32_t *request = ring + 16 * (served % length);
		uint32_t sum = 0;

		while (words[0] == served)
			__nanosleep(100);
		__threadfence();
		if (!request[0])
			break;
		for (int i = 0; i < 15; i++)
			sum += request[i];
		request[15] = sum;
		__threadfence();
		words[1] = served + 1;
	}
}
"""


class Device:
    """The device, with its program, a stream, and what the last work cost."""

    def __init__(self, mib):
        self.gpu = pinmap.find_accelerator()
        self.stream = self.gpu.stream()
        self.program = self.gpu.load(pinmap.compile(SOURCE))
        self.left = mib << 20
        rest = self.gpu.accelerator_info().vram_free - self.left
        self.rest = self.gpu.alloc_vram(rest) if rest > 0 else None
        # For atomic accesses, which managed memory has only while it is on the device.
        self.counts = self.gpu.alloc(2, "uint64")

    def measure(self, name, work):
        """Has the stream work, and tells what that cost."""
        faults, begin = self.gpu.own_totals().faults_served, self.stream.record()
        work()
        end = self.stream.record()
        self.stream.synchronize()
        seconds = end.elapsed_since(begin)
        faults = self.gpu.own_totals().faults_served - faults
        print(f"{name}: {1000 * seconds:.1f} ms, {faults} faults")

    def launch(self, kernel, threads, *arguments, **options):
        """Launches at least so many threads."""
        blocks = -(-threads // 256)
        self.program.launch(self.stream, kernel, blocks, 256, *arguments, **options)


def search(device):
    """A breadth-first search, in a graph whose edges have three times the memory."""
    count, random = 20_000, np.random.default_rng(1)
    degrees = np.bincount(random.integers(0, count, 3 * device.left // 4), minlength=count)
    begins = np.concatenate([[0], np.cumsum(degrees)]).astype("uint32")
    # To vertices nearby, so that it takes some levels.
    near = random.integers(1, 500, begins[-1])
    edges = ((np.repeat(np.arange(count), degrees) + near) % count).astype("uint32")
    levels = np.full(count, -1, "int32")
    levels[0] = 0

    def work():
        for depth in range(count):
            device.stream.fill(device.counts, 0)
            device.launch("level", 2048, count, begins, edges, levels, depth, device.counts)
            device.stream.synchronize()
            if not device.counts.numpy()[0]:
                return

    device.measure(f"search, {edges.nbytes >> 20} MiB", work)
    wanted, front, depth = np.full(count, -1), np.array([0]), 0
    while front.size:
        wanted[front] = depth
        parts = [edges[begins[v] : begins[v + 1]] for v in front]
        reached = np.unique(np.concatenate(parts))
        front, depth = reached[wanted[reached] < 0], depth + 1
    assert (levels == wanted).all() and levels.max() > 10


def join(device):
    """A join of two tables by a hash table in the device's memory."""
    count, random = 20_000, np.random.default_rng(2)
    keys = [random.integers(1, count, count, dtype="uint32") for _ in range(2)]
    values = [random.integers(0, 1000, count, dtype="uint32") for _ in range(2)]
    slots = 2 * count + 1

    def work():
        device.stream.fill(table, 0)
        device.stream.fill(device.counts, 0)
        device.launch("build", count, count, keys[0], values[0], slots, table)
        arguments = (count, keys[1], values[1], slots, table, device.counts)
        device.launch("probe", count, *arguments, shared_bytes=16)

    with device.gpu.alloc_vram(2 * slots, "uint32") as table:
        device.measure("join", work)
    pairs = np.bincount(keys[0], minlength=count)[keys[1]]
    sums = np.bincount(keys[0], values[0], count)[keys[1]] * values[1]
    assert device.counts.numpy().tolist() == [pairs.sum(), sums.sum()]


def sort(device):
    """A bitonic sort, step by step."""
    data = np.random.default_rng(3).random(4096, dtype="float32")
    wanted = np.sort(data)

    def work():
        length = 2
        while length <= data.size:
            half = length // 2
            while half:
                device.launch("step", data.size, data, half, length)
                half //= 2
            length *= 2

    device.measure("sort", work)
    assert (data == wanted).all()


def serve(device):
    """A kernel that runs while the program hands it requests, by words in memory of the host."""
    requests = np.random.default_rng(4).integers(1, 1000, (200, 15), dtype="uint32")
    length = 8
    with device.gpu.alloc(16, "uint32") as words, device.gpu.alloc((length, 16), "uint32") as ring:
        flags, slots = words.numpy(), ring.numpy()

        def work():
            device.program.launch(device.stream, "serve", 1, 1, words, ring, length)
            for number, request in enumerate([*requests, np.zeros(15, "uint32")]):
                # The answer to the request that was in this slot is there.
                while number - int(flags[1]) >= length:
                    pass
                if number >= length:
                    answers.append(slots[number % length, 15])
                slots[number % length, :15] = request
                flags[0] = number + 1

        answers = []
        device.measure("serve", work)
        last = range(len(requests) + 1 - length, len(requests))
        answers += [slots[number % length, 15] for number in last]
        del flags, slots
    assert answers == requests.sum(axis=1).tolist()


def main():
    device = Device(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
    for work in (search, join, sort, serve):
        work(device)
    print("all results are NumPy's")


main()
