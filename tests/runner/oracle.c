// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "oracle.h"

#include "device.h"
#include "file.h"
#include "kmsg.h"
#include "lockdep.h"
#include "pins.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A file with the number of the last line of the log that was looked at, for the next run. */
#define LOG_READ "/run/pinmap-tests-log"

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

/* The first device that has an owner, or -1. */
static int owned(void)
{
	struct pinmap_info info;
	int fd;

	for (int i = 0; (fd = try_open_device(i)) >= 0; i++) {
		bool taken = !try_get_info(fd, &info) && (info.out_flags & PINMAP_INFO_OWNED);

		close(fd);
		if (taken)
			return i;
	}
	return -1;
}

/*
 * Reads all that was logged since the last time, also in another run. @faults: reports of the IOMMU
 * are in order.
 */
static bool read_log(bool faults)
{
	static unsigned long long next;
	static int kmsg = -1;
	unsigned long long sequence;
	unsigned int said = 0;
	bool good = true;
	char text[512];
	int got;

	if (kmsg < 0) {
		kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		next = file_number(LOG_READ, 0);
	}
	while ((got = kmsg_read(kmsg, &sequence, text, sizeof(text)))) {
		bool wrong = got < 0;

		if (wrong)
			snprintf(text, sizeof(text),
				 "(lines were overwritten before they were read)");
		else if (sequence < next)
			continue;
		else
			next = sequence + 1;
		wrong |= !faults && kmsg_is_fault(text);
		wrong |= kmsg_is_complaint(text);
		good &= !wrong;
		/* the lines after the first one usually explain it */
		if (!good && said++ < 60)
			diag("log: %s", text);
	}
	snprintf(text, sizeof(text), "%llu", next);
	try_file_create(LOG_READ, text);
	/* warnings that are printed once are armed again for the next test */
	if (!good)
		try_file_write("/sys/kernel/debug/clear_warn_once", "1");
	return good;
}

void oracle_begin(struct oracle *oracle)
{
	oracle->quiet = read_log(true);
	if (!oracle->quiet)
		diag("that was before this test began");
	oracle->pins = pins_held();
	oracle->charged = charged();
	oracle->taint = file_number("/proc/sys/kernel/tainted", 0);
	oracle->lockdep = lockdep_works();
}

bool oracle_end(struct oracle *oracle, bool faults, unsigned int leaks)
{
	long long taint, pins, bytes;
	bool good = oracle->quiet;
	int taken;

	oracle->pins += leaks;
	/* the memory of processes that were killed goes a moment later */
	WAIT_FOR(2000, (pins = pins_held()) == oracle->pins &&
			       ((bytes = charged()) == oracle->charged || bytes < 0 ||
				oracle->charged < 0) &&
			       (taken = owned()) < 0);
	taint = file_number("/proc/sys/kernel/tainted", 0);
	good &= read_log(faults);
	if (pins != oracle->pins) {
		diag("%lld pages were pinned before the test, and %lld are after it", oracle->pins,
		     pins);
		good = false;
	}
	bytes = charged();
	if (oracle->charged >= 0 && bytes >= 0 && bytes != oracle->charged) {
		diag("%lld bytes were charged before the test, and %lld are after it",
		     oracle->charged, bytes);
		good = false;
	}
	taken = owned();
	if (taken >= 0) {
		diag("device %d has an owner after the test", taken);
		good = false;
	}
	if (taint != oracle->taint) {
		diag("the kernel's taint was %#llx before the test, and is %#llx", oracle->taint,
		     taint);
		good = false;
	}
	if (!oracle->lockdep) {
		diag("lockdep was off before the test: wrong locking is not found in it");
	} else if (!lockdep_works()) {
		diag("lockdep is off since the test, and finds nothing in those that follow");
		good = false;
	}
	return good;
}
