// SPDX-License-Identifier: MIT OR Apache-2.0
// A child has the memory, the device and a dma-buf of its parent, who ends first.
a0: r0 = open(paged);
a0: r1 = fill(pool, 0x3000);
a0: r2 = ioctl(r0, PINMAP_REGISTER, .flags = WRITE, .addr = pool, .length = 0x3000);
a0: r3 = ioctl(r0, PINMAP_EXPORT, .flags = WRITE, .handle = r2.out_handle);
a0: r4 = fork();
a2: r5 = fill(pool + 0x1000, 0x1000);
a2: r6 = open(paged);
a2: r7 = ioctl(r6, PINMAP_IMPORT, .fd = r3.out_fd);
a0: r8 = exit();
a2: r9 = ioctl(r6, PINMAP_QUERY, .handle = r7.out_handle);
