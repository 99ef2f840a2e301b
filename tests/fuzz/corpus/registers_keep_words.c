// SPDX-License-Identifier: MIT OR Apache-2.0
// An edu is not reset: what one program writes to its registers, the next one reads there.
a0: r0 = open(second_flat);
a0: r1 = mmap_device(pool + 0x1000, 0x1000, READ | WRITE, SHARED | FIXED, r0, 0);
a0: r2 = load(pool + 0x1000, 0x1000);
a0: r3 = fill(pool + 0x1000, 0x1000);
a0: r4 = load(pool + 0x1000, 0x1000);
