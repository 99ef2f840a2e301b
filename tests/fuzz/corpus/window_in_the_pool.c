// SPDX-License-Identifier: MIT OR Apache-2.0
// A window of managed memory takes addresses of the pool, and its memory outlives parts of it.
a0: r0 = open(paged);
a0: r1 = load(pool + 0x200000, 0x1000);
a0: r2 = ioctl(r0, PINMAP_MANAGE, .flags = WINDOW, .addr = pool + 0x200000, .length = 0x200000);
a0: r3 = ioctl(r0, PINMAP_RESIDENCY, .addr = pool + 0x200000, .length = 0x200000);
a0: r4 = fill(pool + 0x200000, 0x8000);
a0: r5 = ioctl(r0, PINMAP_PREFETCH, .addr = pool + 0x200000, .length = 0x200000);
a0: r6 = load(pool + 0x200000, 0x8000);
a0: r7 = fork();
a2: r8 = load(pool + 0x200000, 0x8000);
a0: r9 = munmap(pool + 0x201000, 0x1000);
a0: r10 = mmap(pool, 0x1000, READ | WRITE, PRIVATE | ANONYMOUS | FIXED, NONE, 0);
a0: r11 = ioctl(r0, PINMAP_RELEASE, .handle = r2.out_handle);
