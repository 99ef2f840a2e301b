/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Containers, and other sandboxes, on a machine with systemd and podman (scripts/vm --systemd). */
#ifndef TESTS_CONTAINER_H
#define TESTS_CONTAINER_H

#include "harness.h"
#include "pci.h"

/*
 * Skips the test on other machines. Otherwise the user of the tests has the image `pinmap`, and the
 * first device is returned.
 */
struct pci_device need_containers(void);

/* Runs a line of shell as the user of the tests, or as root. Returns its exit status. */
int run_as(const char *user, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define as_user(...) run_as("user", __VA_ARGS__)
#define as_root(...) run_as("root", __VA_ARGS__)

/* Returns what the last line of shell has printed. */
const char *printed(void);

/* Asserts that a line of shell ends with @status, and prints @words. */
#define CHECK_RUN(as, status, words, ...)							\
	do {											\
		int status_ = as(__VA_ARGS__);							\
		if (status_ != (status) || !strstr(printed(), words))				\
			FAIL("exit status %d instead of %d, or not \"%s\": %s", status_,	\
			     (int)(status), words, printed());					\
	} while (0)

/* Begins of lines: a container; and one that has a device. */
#define RUN "podman run --rm --network none "
#define WITH RUN "--group-add keep-groups --device "

/*
 * Waits until more than @pins pages are pinned, which a container or a unit does.
 */
void await_pins(long long pins);

#endif
