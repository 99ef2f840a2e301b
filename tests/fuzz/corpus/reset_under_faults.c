// SPDX-License-Identifier: MIT OR Apache-2.0
// A device is reset while a queue waits for pages and an answer is held back.
a0: r0 = open(paged);
a0: r1 = ioctl(r0, PINMAP_MANAGE, .addr = pool, .length = 0x10000);
a0: r2 = ioctl(r0, PINMAP_QUEUE_CREATE, .flags = COPY | COMPUTE, .packets = 64);
a0: r3 = knob(DELAY_NS, 0x2710);
a0: r4 = submit(r0, r2.out_queue, FILL, pool, pool, 0x8000);
a1: nowait r5 = madvise(pool + 0x2000, 0x4000, DONTNEED);
a0: r6 = ioctl(r0, PINMAP_RESET);
a0: r7 = ioctl(r0, PINMAP_QUEUE_QUERY, .queue = r2.out_queue);
a0: r8 = ioctl(r0, PINMAP_QUEUE_CREATE, .flags = COPY | COMPUTE, .packets = 64);
a0: r9 = copy(r0, r8.out_queue, pool + 0x8000, pool + 0x9000, 0x1000);
a0: r10 = ioctl(r0, PINMAP_ADVISE, .addr = pool, .length = 0x8000, .advice = READ_MOSTLY);
a0: r11 = ioctl(r0, PINMAP_PREFETCH, .addr = pool, .length = 0x8000);
a0: r12 = ioctl(r0, PINMAP_BUDGET, .flags = SET, .bytes = 0x1000);
a0: r13 = ioctl(r0, PINMAP_RELEASE, .handle = r1.out_handle);
