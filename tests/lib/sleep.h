/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The system sleeps: how it is told to, and what it can do. */
#ifndef TESTS_SLEEP_H
#define TESTS_SLEEP_H

#include "device.h"

/**
 * struct way - how the system sleeps
 * @name: of the test
 * @level: how far it goes (/sys/power/pm_test); "none" is all the way
 * @state: what is written to /sys/power/state
 */
struct way {
	const char *name;
	const char *level;
	const char *state;
};

/*
 * Suspended to idle and to memory, up to the devices, or all the way until a button is pressed
 * (scripts/vm does so); and hibernated to a disk, without and with a reboot.
 */
extern const struct way ways[6];
/* The quickest of them. */
extern const struct way *const quick_way;

/* Skips the test if the machine cannot sleep so. */
void need_sleep(const struct way *way);

/* Has the kernel swap to the disk on which the system hibernates, which is a GiB, or ends that. */
void swap_on_disk(void);
void no_swap_on_disk(void);

/* Has the system sleep, and wake up: 0, or what the write to /sys/power/state failed with. */
int try_sleep(const struct way *way);

/* Says whether the system may sleep while a context has the device. */
int try_stay_awake(int fd, uint32_t flags);

#endif
