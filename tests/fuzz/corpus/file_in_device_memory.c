// SPDX-License-Identifier: MIT OR Apache-2.0
// Pages of a file are registered, punched out, and written again by the device.
a0: r0 = open(paged);
a0: r1 = memfd_create(NAME, 0);
a0: r2 = ftruncate(r1, 0x8000);
a0: r3 = mmap_file(pool + 0x10000, 0x8000, READ | WRITE, SHARED | FIXED, r1, 0);
a0: r4 = fill(pool + 0x10000, 0x8000);
a0: r5 = ioctl(r0, PINMAP_REGISTER_FD, .flags = WRITE | PORTABLE, .fd = r1, .length = 0x4000);
a0: r6 = ioctl(r0, PINMAP_QUEUE_CREATE, .flags = COPY | COMPUTE, .packets = 64);
a0: r7 = submit(r0, r6.out_queue, FILL, r5.device_addr, pool, 0x2000);
a0: r8 = fallocate(r1, PUNCH_HOLE | KEEP_SIZE, 0x1000, 0x2000);
a0: r9 = ioctl(r0, PINMAP_QUERY, .handle = r5.out_handle);
a0: r10 = load(pool + 0x10000, 0x8000);
a0: r11 = ioctl(r0, PINMAP_RELEASE, .handle = r5.out_handle);
