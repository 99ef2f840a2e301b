/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The device node and its calls.
 *
 * They come in pairs: try_x() returns 0 or -errno, x() asserts that it works.
 */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include "harness.h"

#include <linux/pinmap.h>
#include <sys/ioctl.h>

#define MIB ((size_t)1 << 20)
/* A huge page: what an entry of the table above the last maps. */
#define HUGE (PAGE / 8 * PAGE)

/* Short names for flags of REGISTER. */
enum {
	WRITE = PINMAP_REGISTER_WRITE,
	NO_MAP = PINMAP_REGISTER_NO_MAP,
	FIXED = PINMAP_REGISTER_FIXED,
	IDENTITY = PINMAP_REGISTER_IDENTITY,
};

/* Opens the n-th of the devices that are bound now, in the order of their PCI addresses. */
int try_open_device(unsigned int index);

/*
 * Opens the n-th bound device and uses it once, so that all portable memory of the process is
 * there.
 */
int try_use_device(unsigned int index);
#define open_device(index)									\
	({											\
		int device_ = try_use_device(index);						\
		if (device_ < 0)								\
			FAIL("opening device %u: %s", (unsigned int)(index), \
			     error_name(-device_)); \
		device_;									\
	})

/* Makes an ioctl: 0 or -errno. */
int try_ioctl(int fd, unsigned long number, void *argument);

/* Opens the function with this address. */
int open_function(const char *bdf);

int try_get_info(int fd, struct pinmap_info *info);
#define get_info(fd)							\
	({								\
		struct pinmap_info info_;				\
		CHECK_OK(try_get_info(fd, &info_));			\
		info_;							\
	})

/**
 * struct registration - registered memory
 * @addr: where it begins
 * @length: bytes
 * @handle: its name
 * @device_addr: where the device sees it; 0: nowhere
 */
struct registration {
	char *addr;
	size_t length;
	uint64_t handle;
	uint64_t device_addr;
};

/*
 * Makes the arguments of REGISTER; outputs are filled with junk, so that it shows what the kernel
 * writes.
 */
struct pinmap_register register_args(const void *addr, size_t length, uint32_t flags);
int try_register_args(int fd, struct pinmap_register *args);
int try_register_memory(int fd, const void *addr, size_t length, uint32_t flags,
			struct registration *out);
#define register_memory(fd, addr, length, flags)					\
	({										\
		struct registration registration_;					\
		CHECK_OK(try_register_memory(fd, addr, length, flags, &registration_));	\
		registration_;								\
	})

/*
 * Asserts that a call failed with @error, for this reason and (if the reason has one) at this
 * address.
 */
void check_fail(const char *file, int line, int result, int error, const struct pinmap_fail *fail,
		uint32_t reason, uint64_t addr);
#define CHECK_REGISTER_FAILS(fd, addr, length, flags, error, reason, fail_addr)			\
	do {											\
		struct pinmap_register args_ = register_args(addr, length, flags);		\
		int failed_ = try_register_args(fd, &args_);					\
		check_fail(__FILE__, __LINE__, failed_, error, &args_.fail, reason, \
			   (uintptr_t)(fail_addr)); \
	} while (0)

int try_release(int fd, uint64_t handle);
#define release(fd, handle) CHECK_OK(try_release(fd, handle))

int try_query_handle(int fd, uint64_t handle, struct pinmap_query *query);
int try_query_addr(int fd, const void *addr, struct pinmap_query *query);
#define query_handle(fd, handle)					\
	({								\
		struct pinmap_query query_;				\
		CHECK_OK(try_query_handle(fd, handle, &query_));	\
		query_;							\
	})
#define query_addr(fd, addr)						\
	({								\
		struct pinmap_query query_;				\
		CHECK_OK(try_query_addr(fd, addr, &query_));		\
		query_;							\
	})

int try_map(int fd, uint64_t handle, uint32_t flags, uint64_t *device_addr,
	    struct pinmap_fail *fail);
#define map(fd, handle, flags, wish)						\
	({									\
		uint64_t address_ = (wish);					\
		struct pinmap_fail fail_;					\
		CHECK_OK(try_map(fd, handle, flags, &address_, &fail_));	\
		address_;							\
	})

int try_unmap(int fd, uint64_t handle, uint64_t device_addr);
#define unmap(fd, handle, device_addr) CHECK_OK(try_unmap(fd, handle, device_addr))

int try_set_eventfd(int fd, uint32_t source, uint32_t index, int eventfd);
#define set_eventfd(...) CHECK_OK(try_set_eventfd(__VA_ARGS__))

int try_reset_device(int fd);
#define reset_device(fd) CHECK_OK(try_reset_device(fd))

int try_get_reserved(int fd, uint32_t index, struct pinmap_reserved *reserved);

/* A device address that cannot be mapped, because writes to it are interrupts. */
uint64_t interrupt_address(int fd);

/* Waits for an event and reads it: 0, -ETIMEDOUT, -ENODATA (the end), or what read() says. */
int try_next_event(int fd, struct pinmap_event *event, unsigned int milliseconds);
#define next_event(fd)							\
	({								\
		struct pinmap_event event_;				\
		CHECK_OK(try_next_event(fd, &event_, 10000));		\
		event_;							\
	})

/* Asserts that the next event says that this registration went stale. */
#define CHECK_STALE_EVENT(fd, registration)				\
	do {								\
		struct pinmap_event stale_ = next_event(fd);		\
		CHECK_EQ(stale_.type, PINMAP_EVENT_STALE);		\
		CHECK_EQ(stale_.access, 0);				\
		CHECK_EQ(stale_.handle, (registration).handle);		\
		CHECK_EQ(stale_.addr, (uintptr_t)(registration).addr);	\
		CHECK_EQ(stale_.length, (registration).length);		\
	} while (0)

#define CHECK_NO_EVENT(fd)						\
	do {								\
		struct pinmap_event none_;				\
		CHECK_ERR(ETIMEDOUT, try_next_event(fd, &none_, 0));	\
	} while (0)

#endif
