// SPDX-License-Identifier: MIT OR Apache-2.0
/* Containers of an ordinary user: what they reach, and what they do not. */
#define _GNU_SOURCE
#include "container.h"

#include "device.h"
#include "gpu.h"
#include "pins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A device works in a container by its node, under podman's own filter of system calls. */
TEST(rootless_by_node, .smoke = true)
{
	struct pci_device device = need_containers();
	long long pins = pins_held();

	CHECK_RUN(as_user, 0, "all right", WITH "%s pinmap pinmap copy-test", device.node);
	CHECK_PINS_SOON(pins);
	CHECK_RUN(as_user, 0, "Seccomp:\t2", RUN "pinmap cat /proc/self/status");
}

/* By CDI a container has the device that is named, or all, and no other. */
TEST(rootless_by_cdi)
{
	struct pci_device device = need_containers(), other;

	if (!pci_bound(1, &other))
		SKIP("there is one device");
	CHECK_RUN(as_user, 0, "all right",
		  WITH "pinmap/device=%s pinmap pinmap copy-test --device %s", other.bdf,
		  other.bdf);
	CHECK_RUN(as_user, 1, "there is no such device node",
		  WITH "pinmap/device=%s pinmap pinmap copy-test --device %s", other.bdf,
		  device.node);
	CHECK_RUN(as_user, 0, device.node, WITH "pinmap/device=all pinmap ls %s %s", device.node,
		  other.node);
	CHECK_RUN(as_user, 126, "unresolvable CDI devices pinmap/device=none",
		  WITH "pinmap/device=none pinmap pinmap info");
}

/* A node that a container makes itself is no device. */
TEST(no_node_of_its_own)
{
	struct pci_device device = need_containers();
	char path[64];

	CHECK_RUN(as_root, 0, ":", "stat -c %%t:%%T %s", device.node);
	snprintf(path, sizeof(path), "%s", printed());
	CHECK_RUN(as_user, 1, "Operation not permitted",
		  RUN "--cap-add mknod pinmap sh -c 'numbers=%.*s; mknod /tmp/node c "
		      "$((0x${numbers%%:*})) $((0x${numbers#*:}))'",
		  (int)strcspn(path, "\n"), path);
}

/* Without the group that may use devices, the error says how a container is given it. */
TEST(without_the_group)
{
	struct pci_device device = need_containers();

	CHECK_RUN(as_user, 1, "--group-add keep-groups",
		  RUN "--device %s pinmap pinmap copy-test", device.node);
	CHECK_RUN(as_user, 1, "group `pinmap`", RUN "--device %s pinmap pinmap copy-test",
		  device.node);
}

/* A container of root's needs no group, unless it runs as another user. */
TEST(of_root)
{
	struct pci_device device = need_containers();
	const char *const run = "podman --root /home/containers run --rm --network none";

	CHECK_RUN(as_root, 0, "",
		  "runuser -u user -- env XDG_RUNTIME_DIR=/run/user/1000 "
		  "podman save pinmap | podman --root /home/containers load");
	CHECK_RUN(as_root, 0, "all right", "%s --device %s pinmap pinmap copy-test", run,
		  device.node);
	CHECK_RUN(as_root, 1, "group `pinmap`",
		  "%s --user 1234 --device %s pinmap pinmap copy-test", run, device.node);
	CHECK_RUN(as_root, 0, "all right",
		  "%s --user 1234 --group-add \"$(getent group pinmap | cut -d: -f3)\" --device %s "
		  "pinmap pinmap copy-test",
		  run, device.node);
}

/* Nothing else is needed: no capability, no new privileges, and nothing to write to. */
TEST(confined)
{
	struct pci_device device = need_containers();

	CHECK_RUN(as_user, 0, "all right",
		  WITH "%s --cap-drop all --security-opt no-new-privileges --read-only "
		       "--read-only-tmpfs=false --user 1234:1234 pinmap pinmap copy-test",
		  device.node);
}

/* The user of a container may have the ids that the user has outside. */
TEST(ids_are_kept)
{
	struct pci_device device = need_containers();

	CHECK_RUN(as_user, 0, "all right", WITH "%s --userns keep-id pinmap pinmap copy-test",
		  device.node);
	CHECK_RUN(as_user, 0, "uid=1000", RUN "--userns keep-id pinmap id");
}

/* A paged device works for several containers at once, with all that a program has of it. */
TEST(accelerator_is_shared)
{
	const char *bdf;

	need_containers();
	bdf = need_gpu();
	CHECK_RUN(as_user, 0, "ints copied",
		  "one() { " WITH "pinmap/device=%s --ulimit memlock=67108864 pinmap zero_copy; }\n"
		  "one >first 2>&1 & one >second 2>&1; status=$?\n"
		  "wait $! && cat first second && exit $status",
		  bdf);
}

/* Has a container register memory and keep it. @pins: what was pinned before. */
static void hold(const struct pci_device *device, long long pins)
{
	CHECK_RUN(as_user, 0, "", WITH "%s -d --name held pinmap container --register %s 4 hold",
		  device->node, device->node);
	await_pins(pins);
}

/* A flat device is one container's; others are told so. Who is killed keeps nothing. */
TEST(killed)
{
	struct pci_device device = need_containers();
	long long pins = pins_held();

	hold(&device, pins);
	CHECK_RUN(as_user, 1, "EBUSY", WITH "%s pinmap container --register %s 1", device.node,
		  device.node);
	CHECK_RUN(as_user, 0, "held", "podman kill held");
	CHECK_PINS_SOON(pins);
}

/* A device can be taken away while a container has it. */
TEST(taken_away)
{
	struct pci_device device = need_containers();
	long long pins = pins_held();

	hold(&device, pins);
	CHECK_RUN(as_root, 0, "", "pinmap unbind %s", device.bdf);
	CHECK_PINS_SOON(pins);
	CHECK_RUN(as_root, 0, "", "pinmap bind %s", device.bdf);
	CHECK_RUN(as_user, 0, "held", "podman kill held");
	/* The node is another one. */
	pci_look(&device);
	CHECK_RUN(as_root, 0, "", "pinmap cdi --output /etc/cdi/pinmap.json");
	CHECK_RUN(as_user, 0, "all right",
		  WITH "pinmap/device=%s pinmap pinmap copy-test --device %s", device.bdf,
		  device.bdf);
}
