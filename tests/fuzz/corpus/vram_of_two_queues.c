// SPDX-License-Identifier: MIT OR Apache-2.0
// Memory of the device is mapped, filled by two queues, and freed while one of them works.
a0: r0 = open(paged);
a0: r1 = ioctl(r0, PINMAP_ALLOC, .flags = VRAM, .length = 0x8000);
a0: r2 = mmap_device(pool + 0x20000, 0x8000, READ | WRITE, SHARED | FIXED, r0, r1.out_offset);
a0: r3 = load(pool + 0x20000, 0x8000);
a0: r4 = fill(pool + 0x20000, 0x8000);
a0: r5 = ioctl(r0, PINMAP_QUEUE_CREATE, .flags = COPY | COMPUTE, .packets = 64);
a0: r6 = ioctl(r0, PINMAP_QUEUE_CREATE, .flags = COPY, .priority = 2, .packets = 64);
a0: r7 = ioctl(r0, PINMAP_MAP, .flags = WRITE, .handle = r1.out_handle);
a0: r8 = submit(r0, r5.out_queue, FILL, r7.device_addr, pool, 0x8000);
a1: nowait r9 = submit(r0, r6.out_queue, COPY, r7.device_addr, r7.device_addr, 0x4000);
a0: r10 = ioctl(r0, PINMAP_RELEASE, .handle = r1.out_handle);
a0: r11 = ioctl(r0, PINMAP_ALLOC, .flags = VRAM, .length = 0x8000);
a0: r12 = mmap_device(pool + 0x28000, 0x8000, READ | WRITE, SHARED | FIXED, r0, r11.out_offset);
a0: r13 = load(pool + 0x28000, 0x8000);
a0: r14 = ioctl(r0, PINMAP_QUEUE_DESTROY, .queue = r5.out_queue);
