// SPDX-License-Identifier: MIT OR Apache-2.0
/* Registered memory of which the hardware has lost a page. */
#define _GNU_SOURCE
#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void live_on(int signal)
{
	(void)signal;
}

static const struct lost_kind {
	const char *name;
	enum memory_kind kind;
} kinds[] = { { "anonymous", ANON }, { "memfd", MEMFD } };

/*
 * The registration goes stale as a whole, its other pages can be registered again, and the one that
 * is lost cannot.
 */
TEST_EACH(poisoned, kinds)
{
	struct memory memory = memory_new(row->kind, 8 * PAGE);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory.addr, 8 * PAGE, WRITE);

	/* the process that has it mapped is told, too */
	signal(SIGBUS, live_on);
	/* EBUSY: the page is lost, and cannot be taken out because it is pinned */
	if (madvise(memory.addr + 3 * PAGE, PAGE, MADV_HWPOISON) && errno != EBUSY)
		SKIP("the kernel poisons no memory: %s", error_name(errno));
	CHECK_STALE_EVENT(fd, registration);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
	CHECK_PINS_SOON(0);
	CHECK_EQ(touch_read(memory.addr + 3 * PAGE), SIGBUS);
	CHECK_EQ(touch_read(memory.addr + 2 * PAGE), 0);
	CHECK_REGISTER_FAILS(fd, memory.addr, 8 * PAGE, WRITE, EFAULT, PINMAP_FAIL_FAULT,
			     memory.addr + 3 * PAGE);
	release(fd, registration.handle);
	registration = register_memory(fd, memory.addr, 3 * PAGE, WRITE);
	register_memory(fd, memory.addr + 4 * PAGE, 4 * PAGE, WRITE);
	if (get_info(fd).out_kind == PINMAP_KIND_FLAT) {
		struct edu edu = edu_open(fd);

		CHECK_REACHES(&edu, registration.device_addr + 2 * PAGE, memory.addr + 2 * PAGE,
			      64);
	}
}
