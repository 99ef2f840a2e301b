// SPDX-License-Identifier: MIT OR Apache-2.0
// The program has ended when its device is unbound, which is waited for all the same.
a0: r0 = open(paged);
a0: r1 = exit();
a0: r2 = unbind(paged);
