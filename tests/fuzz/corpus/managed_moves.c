// SPDX-License-Identifier: MIT OR Apache-2.0
// Managed memory goes to the device, is freed under it, and comes home.
a0: r0 = open(paged);
a0: r1 = ioctl(r0, PINMAP_MANAGE, .flags = ALL);
a0: r2 = ioctl(r0, PINMAP_QUEUE_CREATE, .flags = COPY | COMPUTE, .packets = 64);
a0: r3 = fill(pool, 0x8000);
a0: r4 = copy(r0, r2.out_queue, pool + 0x4000, pool, 0x1000);
a0: r5 = ioctl(r0, PINMAP_PREFETCH, .addr = pool, .length = 0x8000);
a0: r6 = copy(r0, r2.out_queue, pool + 0x5000, pool + 0x1000, 0x1000);
a1: r7 = madvise(pool + 0x1000, 0x2000, DONTNEED);
a0: r8 = copy(r0, r2.out_queue, pool + 0x6000, pool + 0x2000, 0x1000);
a0: r9 = ioctl(r0, PINMAP_PREFETCH, .flags = HOST, .addr = pool, .length = 0x8000);
a0: r10 = load(pool, 0x8000);
