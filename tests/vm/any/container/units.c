// SPDX-License-Identifier: MIT OR Apache-2.0
/* Units of systemd that confine what a program may do. */
#define _GNU_SOURCE
#include "container.h"

#include "device.h"
#include "pins.h"

#include <stdio.h>
#include <string.h>

#define UNIT "systemd-run --quiet --wait --pipe --collect --uid=user "
#define REGISTER "/usr/lib/pinmap/tests/container --register "

/* A unit has the devices that it is allowed; the error says how. */
TEST(unit_device_allow)
{
	struct pci_device device = need_containers();

	CHECK_RUN(as_root, 1, "DeviceAllow=",
		  UNIT "-p DevicePolicy=closed /usr/lib/pinmap/bin/pinmap copy-test --device %s",
		  device.node);
	CHECK_RUN(as_root, 0, "all right",
		  UNIT "-p DevicePolicy=closed -p 'DeviceAllow=%s rw' "
		       "/usr/lib/pinmap/bin/pinmap copy-test --device %s",
		  device.node, device.node);
}

/* A unit has a limit of locked memory. */
TEST(unit_memlock)
{
	struct pci_device device = need_containers();

	CHECK_RUN(as_root, 1, "needed 2097152, allowed 1048576",
		  UNIT "-p LimitMEMLOCK=1M " REGISTER "%s 2", device.node);
	CHECK_RUN(as_root, 0, "registered", UNIT "-p LimitMEMLOCK=2M " REGISTER "%s 2",
		  device.node);
}

/* A unit that registers more memory than it may have is killed, and nothing stays pinned. */
TEST(unit_memory_max)
{
	struct pci_device device = need_containers();
	long long pins = pins_held();

	CHECK_RUN(as_root, 1, "oom-kill",
		  "systemd-run --wait --collect --uid=user -p MemoryMax=64M -p MemorySwapMax=0 "
		  "-p LimitMEMLOCK=infinity " REGISTER "%s 128",
		  device.node);
	CHECK_PINS_SOON(pins);
}

/* A user who is there for as long as the unit needs the group, and nothing else. */
TEST(unit_dynamic_user)
{
	struct pci_device device = need_containers();

	CHECK_RUN(as_root, 0, "all right",
		  "systemd-run --quiet --wait --pipe --collect -p DynamicUser=yes "
		  "-p SupplementaryGroups=pinmap -p 'DeviceAllow=%s rw' "
		  "/usr/lib/pinmap/bin/pinmap copy-test --device %s",
		  device.node, device.node);
}

/* The unit that docs/containers.md shows works as it is, and fails for each thing left out. */
TEST(unit_of_the_documentation)
{
	static const struct {
		const char *setting, *says;
	} without[] = {
		{ "DeviceAllow=", "DeviceAllow=" },
		{ "SupplementaryGroups=", "group `pinmap`" },
		{ "LimitMEMLOCK=16K", "LimitMEMLOCK=" },
	};
	const char *const unit = "/run/systemd/system/pinmap-example.service";
	const char *const drop_in = "/run/systemd/system/pinmap-example.service.d";

	need_containers();
	CHECK_RUN(as_root, 0, "",
		  "sed 's,/usr/bin/pinmap,/usr/lib/pinmap/bin/pinmap,' "
		  "/src/packaging/pinmap-example.service >%s && systemctl daemon-reload && "
		  "systemctl start pinmap-example", unit);
	CHECK_RUN(as_root, 0, "all right", "journalctl --sync; journalctl -qu pinmap-example");
	for (size_t i = 0; i < ARRAY_SIZE(without); i++) {
		CHECK_RUN(as_root, 0, "",
			  "mkdir -p %s && printf '[Service]\\n%s\\n' >%s/test.conf && "
			  "systemctl daemon-reload && journalctl --rotate --vacuum-time=1s",
			  drop_in, without[i].setting, drop_in);
		CHECK_RUN(as_root, 1, "failed", "systemctl start pinmap-example");
		CHECK_RUN(as_root, 0, without[i].says,
			  "journalctl --sync; journalctl -qu pinmap-example");
	}
	CHECK_RUN(as_root, 0, "",
		  "rm -r %s %s && systemctl reset-failed pinmap-example; systemctl daemon-reload",
		  drop_in, unit);
}
