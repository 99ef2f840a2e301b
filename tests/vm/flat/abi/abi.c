// SPDX-License-Identifier: MIT OR Apache-2.0
/* The layout of the structs, and the order of the checks (every ioctl: any/ioctl). */
#define _GNU_SOURCE
#include "device.h"
#include "memory.h"

/* The layout is the same for 32 bits and for 64, and never changes. */
_Static_assert(sizeof(struct pinmap_bar) == 40, "bar");
_Static_assert(sizeof(struct pinmap_info) == 344, "info");
_Static_assert(offsetof(struct pinmap_info, out_bars) == 104, "info.out_bars");
_Static_assert(sizeof(struct pinmap_reserved) == 32, "reserved");
_Static_assert(sizeof(struct pinmap_fail) == 32, "fail");
_Static_assert(sizeof(struct pinmap_register) == 88, "register");
_Static_assert(offsetof(struct pinmap_register, fail) == 56, "register.fail");
_Static_assert(sizeof(struct pinmap_release) == 16, "release");
_Static_assert(sizeof(struct pinmap_query) == 88, "query");
_Static_assert(sizeof(struct pinmap_map) == 64, "map");
_Static_assert(sizeof(struct pinmap_unmap) == 24, "unmap");
_Static_assert(sizeof(struct pinmap_set_eventfd) == 24, "set_eventfd");
_Static_assert(sizeof(struct pinmap_reset) == 8, "reset");
_Static_assert(sizeof(struct pinmap_stay_awake) == 8, "stay_awake");
_Static_assert(sizeof(struct pinmap_event) == 32, "event");
_Static_assert(sizeof(struct pinmap_get_totals) == 160, "get_totals");
_Static_assert(offsetof(struct pinmap_get_totals, out_managed) == 112, "get_totals.out_managed");
_Static_assert(sizeof(struct pinmap_manage) == 64, "manage");
_Static_assert(sizeof(struct pinmap_prefetch) == 96, "prefetch");
_Static_assert(sizeof(struct pinmap_advise) == 64, "advise");
_Static_assert(sizeof(struct pinmap_run) == 32, "run");
_Static_assert(sizeof(struct pinmap_residency) == 104, "residency");
_Static_assert(sizeof(struct pinmap_statistics) == 144, "statistics");
_Static_assert(sizeof(struct pinmap_budget) == 40, "budget");
_Static_assert(sizeof(struct pinmap_registration) == 32, "registration");
_Static_assert(sizeof(struct pinmap_register_buffers) == 64, "register_buffers");
_Static_assert(sizeof(struct pinmap_release_buffers) == 24, "release_buffers");
_Static_assert(sizeof(struct pinmap_queue_query) == 72, "queue_query");
_Static_assert(sizeof(struct pinmap_register_fd) == 88, "register_fd");
_Static_assert(sizeof(struct pinmap_preflight) == 104, "preflight");
_Static_assert(sizeof(struct pinmap_generations) == 24, "generations");

/* Each error has one meaning, so those that are said first are checked first. */
static const uint64_t no_handle = 12345;

TEST(unsupported_before_all_else)
{
	int fd = open_device(0);
	struct pinmap_register args = register_args(anon(1), 0, 1 << 31);
	struct pinmap_map map = { .size = sizeof(map), .handle = no_handle, .flags = 1 << 30 };
	struct pinmap_set_eventfd eventfd = {
		.size = sizeof(eventfd),
		.flags = 1,
		.source = PINMAP_SOURCE_VECTOR,
		.index = 999,
		.fd = -7,
	};

	CHECK_ERR(EOPNOTSUPP, try_register_args(fd, &args));
	args = register_args((void *)(uintptr_t)-1, PAGE, 0);
	args.addr = UINT64_MAX - 1;
	args.__reserved = 1;
	CHECK_ERR(EOPNOTSUPP, try_register_args(fd, &args));
	CHECK_ERR(EOPNOTSUPP, try_ioctl(fd, PINMAP_MAP, &map));
	CHECK_ERR(EOPNOTSUPP, try_ioctl(fd, PINMAP_SET_EVENTFD, &eventfd));
}

TEST(overflow_before_nonsense)
{
	struct pinmap_register args = register_args((void *)(uintptr_t)-1, PAGE, 0);

	args.addr = UINT64_MAX - 1;
	CHECK_ERR(EOVERFLOW, try_register_args(open_device(0), &args));
}

TEST(nonsense_before_missing_handle)
{
	struct pinmap_map map = { .size = sizeof(map), .handle = no_handle, .device_addr = PAGE };

	CHECK_ERR(EINVAL, try_ioctl(open_device(0), PINMAP_MAP, &map));
}

/* The rest of a struct that is too short cannot be judged. */
TEST(size_before_unsupported)
{
	struct pinmap_map map = { .size = sizeof(map) - 1, .handle = no_handle, .flags = 1 << 30 };

	CHECK_ERR(EINVAL, try_ioctl(open_device(0), PINMAP_MAP, &map));
}
