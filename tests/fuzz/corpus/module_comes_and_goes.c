// SPDX-License-Identifier: MIT OR Apache-2.0
// The module stays while a device is open, goes when none is, and has the devices when it is back.
a0: r0 = open(flat);
a0: r1 = fill(pool, 0x4000);
a0: r2 = ioctl(r0, PINMAP_REGISTER, .flags = WRITE | IDENTITY, .addr = pool, .length = 0x4000);
a0: r3 = module(unload);
a0: r4 = transfer(r0, pool, 0x1000, WRITE);
a0: nowait r5 = close(r0);
a0: r6 = module(unload);
a0: r7 = open(flat);
a0: r8 = module(load);
a0: r9 = open(flat);
a0: r10 = open(paged);
a0: nowait r11 = module(unload);
a0: r12 = ioctl(r9, PINMAP_REGISTER, .flags = WRITE, .addr = pool, .length = 0x2000);
