// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "oracle.h"

#include "device.h"
#include "file.h"
#include "kmsg.h"
#include "pins.h"

#include <string.h>
#include <unistd.h>

/* What the kernel says when something is wrong with it. */
static const char *const splats[] = {
	"WARNING:",
	"BUG:",
	"BUG ",
	"KASAN",
	"UBSAN",
	"Oops",
	"general protection fault",
	"rust_kernel: panicked",
	"possible circular locking",
	"possible recursive locking",
	"inconsistent lock state",
	"suspicious RCU usage",
	"Detected page leak",
	"DMA-API:",
	"Bad rss-counter",
	"Bad page state",
	"Bad page map",
	"refcount_t:",
	"list_add corruption",
	"list_del corruption",
	"ODEBUG:",
	"INFO: task",
	"rcu: INFO:",
	"soft lockup",
	"blocked for more than",
	"unreferenced object",
	"nobody cared",
};

static long long charged(void)
{
	struct pinmap_info info;
	int fd = try_open_device(0), result;

	if (fd < 0)
		return -1;
	result = try_get_info(fd, &info);
	close(fd);
	return result ? -1 : (long long)info.out_memlock_used;
}

void oracle_begin(struct oracle *oracle)
{
	oracle->pins = pins_held();
	oracle->charged = charged();
	oracle->taint = file_number("/proc/sys/kernel/tainted", 0);
	oracle->kmsg = kmsg_open();
}

static bool read_log(int kmsg, bool faults)
{
	unsigned int said = 0;
	bool good = true;
	char line[512];

	while (kmsg_next(kmsg, line, sizeof(line))) {
		bool wrong = !faults && kmsg_is_fault(line);

		for (size_t i = 0; i < ARRAY_SIZE(splats); i++)
			wrong |= strstr(line, splats[i]) != NULL;
		good &= !wrong;
		/* what follows the first of them usually explains it */
		if (!good && said++ < 60)
			diag("log: %s", line);
	}
	return good;
}

bool oracle_end(struct oracle *oracle, bool faults, unsigned int leaks)
{
	long long taint = file_number("/proc/sys/kernel/tainted", 0), pins, bytes;
	bool good;

	oracle->pins += leaks;
	/* what belonged to processes that were killed goes a moment later */
	WAIT_FOR(2000, (pins = pins_held()) == oracle->pins && ((bytes = charged()) == oracle->charged || bytes < 0));
	good = read_log(oracle->kmsg, faults);
	close(oracle->kmsg);
	if (pins != oracle->pins) {
		diag("%lld pages were pinned before the test, and %lld are after it", oracle->pins, pins);
		good = false;
	}
	bytes = charged();
	if (oracle->charged >= 0 && bytes >= 0 && bytes != oracle->charged) {
		diag("%lld bytes were charged before the test, and %lld are after it", oracle->charged, bytes);
		good = false;
	}
	if (taint != oracle->taint) {
		diag("the kernel's taint was %#llx before the test, and is %#llx", oracle->taint, taint);
		good = false;
	}
	return good;
}
