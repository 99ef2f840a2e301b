// SPDX-License-Identifier: MIT OR Apache-2.0
/* A flat device that is in use when the system sleeps. */
#define _GNU_SOURCE
#include "sleep.h"

#include "edu.h"
#include "kmsg.h"
#include "memory.h"
#include "pci.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The owner is told, once for each sleep; memory, registers and interrupts are there as before. */
TEST_EACH(owner_is_told, ways, .seconds = 120)
{
	int fd = open_device(0), other = open_device(0), irq = SYS(eventfd(0, EFD_NONBLOCK));
	struct registration memory = register_memory(fd, anon(2), 2 * PAGE, WRITE);
	struct edu edu = edu_open(fd);
	struct pinmap_event event;
	eventfd_t count;

	need_sleep(row);
	set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, irq);
	CHECK_REACHES(&edu, memory.device_addr, memory.addr, PAGE);
	CHECK_NO_EVENT(fd);
	for (unsigned int round = 0; round < 2; round++) {
		CHECK_OK(try_sleep(row));
		event = next_event(fd);
		CHECK_EQ(event.type, PINMAP_EVENT_RESUMED);
		CHECK_EQ(event.access | event.handle | event.addr | event.length, 0);
		CHECK_NO_EVENT(fd);
		CHECK_NO_EVENT(other);
		CHECK_EQ(edu_register(&edu, EDU_IDENTITY) & 0xff, 0xed);
		CHECK_REACHES(&edu, memory.device_addr, memory.addr, PAGE);
		edu_set_register(&edu, EDU_IRQ_RAISE, 1);
		CHECK(WAIT_FOR(10000, !eventfd_read(irq, &count)));
		edu_set_register(&edu, EDU_IRQ_ACK, 1);
	}
}

/* Registers that another device has are taken from it, since they are lost. */
TEST(bar_is_revoked, .seconds = 60)
{
	int fd, other;
	struct registration bar;
	struct edu edu;

	need_peers();
	need_sleep(quick_way);
	fd = open_device(0);
	other = open_device(1);
	edu = edu_open(fd);
	bar = register_memory(other, (void *)edu.bar, PAGE, WRITE);
	CHECK_OK(try_sleep(quick_way));
	CHECK_EQ(next_event(other).type, PINMAP_EVENT_STALE);
	CHECK_EQ(query_handle(other, bar.handle).out_state, PINMAP_STATE_STALE);
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_RESUMED);
	/* there again for whoever asks for them */
	release(other, bar.handle);
	register_memory(other, (void *)edu.bar, PAGE, WRITE);
}

/*
 * Where another device keeps the system awake, the owner of one that was cut off before is told,
 * and goes on; that of the other device is not.
 */
TEST(cut_off_for_nothing, .seconds = 60)
{
	struct registration memory;
	int kmsg, fd, other;
	struct edu edu;

	need_sleep(quick_way);
	kmsg = kmsg_open();
	fd = open_device(0);
	other = open_device(1);
	edu = edu_open(fd);
	memory = register_memory(fd, anon(1), PAGE, WRITE);
	register_memory(other, anon(1), PAGE, WRITE);
	CHECK_OK(try_stay_awake(other, PINMAP_STAY_AWAKE_ON));
	CHECK_ERR(EBUSY, try_sleep(quick_way));
	CHECK(kmsg_wait(kmsg, "does not sleep: kept awake by", 10000));
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_RESUMED);
	CHECK_NO_EVENT(fd);
	CHECK_NO_EVENT(other);
	CHECK_REACHES(&edu, memory.device_addr, memory.addr, PAGE);
}

/* Keeping the system awake takes the same as it does elsewhere in the kernel. */
TEST(stay_awake_needs_a_capability)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	int fd = open_device(0);

	CHECK_OK(try_stay_awake(fd, PINMAP_STAY_AWAKE_ON));
	SYS(syscall(SYS_capget, &header, data));
	data[1].effective &= ~CAP_TO_MASK(CAP_BLOCK_SUSPEND);
	SYS(syscall(SYS_capset, &header, data));
	CHECK_ERR(EPERM, try_stay_awake(fd, PINMAP_STAY_AWAKE_ON));
	CHECK_OK(try_stay_awake(fd, 0));
}

/* On a flat device, only the owner's word counts. */
TEST(only_the_owner_stays_awake, .seconds = 60)
{
	int fd = open_device(0), other = open_device(0);

	need_sleep(quick_way);
	register_memory(fd, anon(1), PAGE, WRITE);
	CHECK_OK(try_stay_awake(other, PINMAP_STAY_AWAKE_ON));
	CHECK_OK(try_sleep(quick_way));
	CHECK_OK(try_stay_awake(fd, PINMAP_STAY_AWAKE_ON));
	CHECK_ERR(EBUSY, try_sleep(quick_way));
	close(fd);
	CHECK_OK(try_sleep(quick_way));
}
