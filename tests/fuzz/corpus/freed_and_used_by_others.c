// SPDX-License-Identifier: MIT OR Apache-2.0
// Registered pages are freed, and given to another user while the device writes to them.
a0: r0 = open(flat);
a0: r1 = open(paged);
a0: r2 = fill(pool, 0x8000);
a0: r3 = ioctl(r0, PINMAP_REGISTER, .flags = WRITE | IDENTITY, .addr = pool, .length = 0x4000);
a0: r4 = ioctl(r1, PINMAP_MANAGE, .flags = ALL);
a0: r5 = ioctl(r1, PINMAP_QUEUE_CREATE, .flags = COPY | COMPUTE, .packets = 64);
a0: r6 = copy(r1, r5.out_queue, pool + 0x6000, pool + 0x4000, 0x2000);
a0: r7 = munmap(pool, 0x8000);
a0: r8 = others_use(64);
a0: r9 = transfer(r0, pool + 0x1000, 0x1000, WRITE);
a0: r10 = submit(r1, r5.out_queue, FILL, pool + 0x4000, pool, 0x4000);
a0: r11 = ioctl(r1, PINMAP_QUEUE_WAIT, .queue = r5.out_queue, .value = 1, .timeout_ns = 0x4c4b40);
