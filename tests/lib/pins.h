/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How many pages are pinned in the whole system: the kernel's count, not the driver's. */
#ifndef TESTS_PINS_H
#define TESTS_PINS_H

#include "harness.h"

/* Pages pinned now. The shared zero page is never counted. Root only. */
long long pins_held(void);

/*
 * Waits until so many pages are pinned: pages of memory that went away are unpinned a little later.
 */
#define CHECK_PINS_SOON(pages)									\
	do {											\
		long long pins_wanted_ = (pages);						\
		if (!WAIT_FOR(2000, pins_held() == pins_wanted_))				\
			FAIL("%lld pages are pinned instead of %lld", pins_held(), pins_wanted_); \
	} while (0)

#define CHECK_PINS(pages) CHECK_EQ(pins_held(), pages)

#endif
