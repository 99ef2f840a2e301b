// SPDX-License-Identifier: MIT OR Apache-2.0
// A flat device writes to registered memory, of which another thread takes a page.
a0: r0 = open(flat);
a0: r1 = fill(pool, 0x4000);
a0: r2 = ioctl(r0, PINMAP_REGISTER, .flags = WRITE | IDENTITY, .addr = pool, .length = 0x4000);
a0: r3 = transfer(r0, pool + 0x1000, 0x1000, WRITE);
a1: nowait r4 = munmap(pool + 0x1000, 0x1000);
a0: r5 = transfer(r0, pool + 0x1000, 0x1000, WRITE);
a0: r6 = ioctl(r0, PINMAP_RELEASE, .handle = r2.out_handle);
