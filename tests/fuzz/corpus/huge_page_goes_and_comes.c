// SPDX-License-Identifier: MIT OR Apache-2.0
// A huge page goes to the device, is split there, forked, and its parts come back.
a0: r0 = open(paged);
a0: r1 = madvise(pool, 0x200000, HUGEPAGE);
a0: r2 = fill(pool, 0x20000);
a0: r3 = ioctl(r0, PINMAP_MANAGE, .flags = ALL);
a0: r4 = ioctl(r0, PINMAP_PREFETCH, .addr = pool, .length = 0x200000);
a0: r5 = mprotect(pool + 0x4000, 0x1000, READ);
a0: r6 = fork();
a2: r7 = load(pool, 0x8000);
a2: r8 = fill(pool + 0x8000, 0x1000);
a0: r9 = ioctl(r0, PINMAP_QUEUE_CREATE, .flags = COPY | COMPUTE, .packets = 64);
a0: r10 = copy(r0, r9.out_queue, pool + 0x200000, pool + 0x8000, 0x2000);
a0: r11 = madvise(pool + 0x10000, 0x8000, PAGEOUT);
a0: r12 = mremap(pool, 0x8000, 0x8000, MAYMOVE | FIXED, pool + 0x210000);
a0: r13 = load(pool + 0x210000, 0x8000);
a0: r14 = memory(compact);
