// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "uffd.h"

#include "device.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFDIO_RWPROTECT
#define UFFD_FEATURE_RWP (1 << 17)
#define UFFDIO_REGISTER_MODE_RWP ((__u64)1 << 3)
#define UFFDIO_RWPROTECT_MODE_RWP ((__u64)1 << 0)
#define UFFDIO_RWPROTECT _IOWR(UFFDIO, 0x09, struct uffdio_rwprotect)
struct uffdio_rwprotect {
	struct uffdio_range range;
	__u64 mode;
};
#endif

static int new(void *addr, size_t length, int flags, uint64_t mode, uint64_t features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	struct uffdio_register range = {
		.range = { .start = (uintptr_t)addr, .len = length },
		.mode = mode,
	};
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags);

	if (uffd < 0)
		SKIP("the kernel has no userfaultfd: %s", error_name(errno));
	if (ioctl(uffd, UFFDIO_API, &api))
		SKIP("the kernel's userfaultfd lacks features %#llx", (unsigned long long)features);
	SYS(ioctl(uffd, UFFDIO_REGISTER, &range));
	return uffd;
}

int uffd_new(void *addr, size_t length)
{
	return new(addr, length, 0, UFFDIO_REGISTER_MODE_MISSING, 0);
}

int uffd_new_user_mode(void *addr, size_t length)
{
	return new(addr, length, UFFD_USER_MODE_ONLY, UFFDIO_REGISTER_MODE_MISSING, 0);
}

int uffd_new_protect(void *addr, size_t length)
{
	return new(addr, length, 0, UFFDIO_REGISTER_MODE_WP, UFFD_FEATURE_PAGEFAULT_FLAG_WP);
}

bool uffd_touched(int uffd)
{
	struct pollfd poller = { .fd = uffd, .events = POLLIN };

	return poll(&poller, 1, 0) == 1;
}

void uffd_await(int uffd, const void *page)
{
	struct pollfd poller = { .fd = uffd, .events = POLLIN };
	struct uffd_msg message;

	if (poll(&poller, 1, slow(60000)) != 1)
		FAIL("nobody touches the missing page");
	CHECK_EQ(SYS(read(uffd, &message, sizeof(message))), sizeof(message));
	CHECK_EQ(message.event, UFFD_EVENT_PAGEFAULT);
	CHECK_EQ(message.arg.pagefault.address & ~(PAGE - 1), (uintptr_t)page);
}

void uffd_supply(int uffd, void *page, char byte)
{
	char content[PAGE];
	struct uffdio_copy copy = { .dst = (uintptr_t)page,
				    .src = (uintptr_t)content,
				    .len = PAGE };

	memset(content, byte, PAGE);
	SYS(ioctl(uffd, UFFDIO_COPY, &copy));
}

void uffd_protect(int uffd, void *addr, size_t length, bool protect)
{
	struct uffdio_writeprotect args = {
		.range = { .start = (uintptr_t)addr, .len = length },
		.mode = protect ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	SYS(ioctl(uffd, UFFDIO_WRITEPROTECT, &args));
}

int uffd_new_access(void *addr, size_t length)
{
	return new(addr, length, 0, UFFDIO_REGISTER_MODE_RWP, UFFD_FEATURE_RWP);
}

void uffd_forbid(int uffd, void *addr, size_t length, bool forbid)
{
	struct uffdio_rwprotect args = {
		.range = { .start = (uintptr_t)addr, .len = length },
		.mode = forbid ? UFFDIO_RWPROTECT_MODE_RWP : 0,
	};

	SYS(ioctl(uffd, UFFDIO_RWPROTECT, &args));
}

int uffd_move(int uffd, void *to, void *from, size_t length)
{
	struct uffdio_move args = { .dst = (uintptr_t)to, .src = (uintptr_t)from, .len = length };

	return ioctl(uffd, UFFDIO_MOVE, &args) ? -errno : 0;
}
