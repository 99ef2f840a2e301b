// SPDX-License-Identifier: MIT OR Apache-2.0
/* Limits of a container: locked memory, and memory. */
#define _GNU_SOURCE
#include "container.h"

#include "device.h"
#include "pins.h"

#include <stdio.h>
#include <string.h>

/* The limit of locked memory is said in bytes, and no capability of a container's lifts it. */
TEST(memlock)
{
	struct pci_device device = need_containers();
	const char *const limit = "--ulimit memlock=1048576:1048576";
	char words[64];

	snprintf(words, sizeof(words), "reason %u, needed 2097152, allowed 1048576",
		 PINMAP_FAIL_MEMLOCK);
	CHECK_RUN(as_user, 1, words,
		  WITH "%s %s --cap-add ipc_lock pinmap container --register %s 2", device.node,
		  limit, device.node);
	CHECK_RUN(as_user, 1, "ulimit", WITH "%s %s pinmap pinmap info --need 2M", device.node,
		  limit);
	CHECK_RUN(as_user, 0, "registered", WITH "%s %s pinmap container --register %s 1",
		  device.node, limit, device.node);
}

/* A user's containers do not get more than the user may lock. */
TEST(memlock_of_the_user)
{
	struct pci_device device = need_containers();

	CHECK_RUN(as_user, 1, "allowed 1048576",
		  "ulimit -l 1024; " WITH "%s pinmap container --register %s 2", device.node,
		  device.node);
	CHECK_RUN(as_user, 126, "not permitted",
		  "ulimit -l 1024; " WITH "%s --ulimit memlock=8388608 pinmap pinmap info",
		  device.node);
}

/* Locked memory is counted for each id of the host, also for a user's ids for containers. */
TEST(memlock_of_an_id)
{
	struct pci_device device = need_containers(), other;
	const char *const limit = "--ulimit memlock=6291456:6291456";
	long long pins = pins_held();

	if (!pci_bound(1, &other))
		SKIP("there is one device");
	CHECK_RUN(as_user, 0, "",
		  WITH "%s %s --user 5 -d --name held pinmap container --register %s 4 hold",
		  device.node, limit, device.node);
	await_pins(pins);
	CHECK_RUN(as_user, 1, "needed 8388608, allowed 6291456",
		  WITH "%s %s --user 5 pinmap container --register %s 4", other.node, limit,
		  other.node);
	CHECK_RUN(as_user, 0, "registered",
		  WITH "%s %s --user 6 pinmap container --register %s 4", other.node, limit,
		  other.node);
	CHECK_RUN(as_user, 0, "held", "podman kill held");
	CHECK_PINS_SOON(pins);
}

/*
 * Registered memory is the container's as any memory is: it counts, and whoever wants more than
 * there may be is killed. Nothing stays pinned.
 */
TEST(memory)
{
	struct pci_device device = need_containers();
	const char *const limit = "--memory 64m --memory-swap 64m";
	unsigned long long used = 0;
	long long pins = pins_held();

	CHECK_RUN(as_user, 0, "registered, memory.current ",
		  WITH "%s %s pinmap container --register %s 32", device.node, limit, device.node);
	sscanf(strstr(printed(), "current "), "current %llu", &used);
	diag("32 MiB registered, %llu bytes used", used);
	CHECK(used >= 32 * MIB && used <= 64 * MIB);
	CHECK_RUN(as_user, 137, "", WITH "%s %s pinmap container --register %s 128", device.node,
		  limit, device.node);
	CHECK_PINS_SOON(pins);
}
