// SPDX-License-Identifier: MIT OR Apache-2.0
// Memory is swapped out, comes back to a device that faults, and the swap space goes.
a0: r0 = open(paged);
a0: r1 = fill(pool, 0x10000);
a0: r2 = ioctl(r0, PINMAP_MANAGE, .flags = ALL);
a0: r3 = ioctl(r0, PINMAP_PREFETCH, .addr = pool, .length = 0x8000);
a0: r4 = swap(on);
a0: r5 = madvise(pool, 0x10000, PAGEOUT);
a0: r6 = ioctl(r0, PINMAP_QUEUE_CREATE, .flags = COPY | COMPUTE, .packets = 64);
a0: r7 = copy(r0, r6.out_queue, pool + 0x20000, pool + 0x8000, 0x2000);
a0: r8 = ioctl(r0, PINMAP_PREFETCH, .flags = HOST, .addr = pool, .length = 0x10000);
a0: r9 = limit(0x400000);
a1: nowait r10 = madvise(pool, 0x10000, PAGEOUT);
a0: r11 = ioctl(r0, PINMAP_REGISTER, .flags = WRITE, .addr = pool + 0x30000, .length = 0x4000);
a0: r12 = swap(off);
a0: r13 = load(pool, 0x10000);
