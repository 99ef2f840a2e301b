// SPDX-License-Identifier: MIT OR Apache-2.0
// A device is unbound while memory is registered, mapped and exported, and comes back.
a0: r0 = open(flat);
a0: r1 = fill(pool, 0x4000);
a0: r2 = ioctl(r0, PINMAP_REGISTER, .flags = WRITE | PORTABLE, .addr = pool, .length = 0x4000);
a0: r3 = ioctl(r0, PINMAP_EXPORT, .flags = WRITE, .handle = r2.out_handle);
a0: r4 = open(second_flat);
a0: r5 = ioctl(r4, PINMAP_IMPORT, .fd = r3.out_fd);
a0: r6 = ioctl(r4, PINMAP_MAP, .flags = WRITE, .handle = r5.out_handle);
a0: r7 = eventfd(0, NONBLOCK);
a0: r8 = ioctl(r0, PINMAP_SET_EVENTFD, .source = EVENTS, .fd = r7);
a1: nowait r9 = transfer(r0, r2.device_addr, 0x1000, WRITE);
a0: r10 = unbind(flat);
a0: r11 = ioctl(r0, PINMAP_RELEASE, .handle = r2.out_handle);
a0: r12 = ioctl(r4, PINMAP_QUERY, .handle = r5.out_handle);
a0: r13 = bind(flat);
a0: r14 = open(flat);
a0: r15 = read(r0, pool + 0x5000, 0x1000);
