// SPDX-License-Identifier: MIT OR Apache-2.0
// A process is killed while it registers, and its child has its device and its memory.
a0: r0 = open(paged);
a0: r1 = fill(pool, 0x10000);
a0: r2 = ioctl(r0, PINMAP_MANAGE, .flags = ALL);
a0: r3 = ioctl(r0, PINMAP_ALLOC, .flags = WRITE_COMBINED, .length = 0x4000);
a0: r4 = ioctl(r0, PINMAP_PREFETCH, .addr = pool, .length = 0x10000);
a0: r5 = fork();
a2: r6 = load(pool, 0x10000);
a1: nowait fail(2) r7 = ioctl(r0, PINMAP_REGISTER, .flags = WRITE, .addr = pool, .length = 0x8000);
a0: r8 = kill(first);
a2: r9 = ioctl(r0, PINMAP_QUERY, .handle = r3.out_handle);
a2: r10 = ioctl(r0, PINMAP_RELEASE, .handle = r3.out_handle);
