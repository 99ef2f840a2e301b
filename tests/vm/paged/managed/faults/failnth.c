// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Every allocation fails once while a fault is served: by the thread that serves it, or while that
 * thread is made (see inject.h). The fault is served all the same, or it stops the queue because
 * there is no memory; then another queue can make the same access. gpu/failnth.c has the calls.
 */
#define _GNU_SOURCE
#include "../managed.h"

#include "edu.h"
#include "file.h"
#include "inject.h"
#include "memory.h"
#include "pins.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 4000, KTHREADD = 2 };

struct scenario;

struct scene {
	const struct scenario *scenario;
	int fd;
	struct gpu_queue queue;
	struct gpu_memory own;
	char *memory;
	uint64_t managed;
	unsigned char byte;
};

static void map_plain(struct scene *scene, int advice)
{
	SYS(mmap(scene->memory, HUGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	SYS(madvise(scene->memory, HUGE, advice));
}

static void absent(struct scene *scene)
{
	map_plain(scene, MADV_NOHUGEPAGE);
}

/* Pages that are not contiguous, each with an entry of its own. */
static void present(struct scene *scene)
{
	map_plain(scene, MADV_NOHUGEPAGE);
	for (int odd = 0; odd < 2; odd++)
		for (int page = odd; page < 32; page += 2)
			scene->memory[page * PAGE] = 1;
}

/* The device has the page of zeros for reading, and is about to write. */
static void of_zeros(struct scene *scene)
{
	map_plain(scene, MADV_NOHUGEPAGE);
	touch_read(scene->memory);
	touch_read(scene->memory + PAGE);
	copy(&scene->queue, scene->memory, scene->own.addr, 2 * PAGE);
}

static void huge(struct scene *scene)
{
	map_plain(scene, MADV_HUGEPAGE);
	*scene->memory = 1;
}

static void of_a_file(struct scene *scene)
{
	int file = new_memfd(HUGE, 0);

	SYS(mmap(scene->memory, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
	close(file);
}

static const struct scenario {
	const char *name;
	void (*make)(struct scene *scene);
	/* What fails is the thread that serves, or the one that makes it. */
	bool starts;
	uint32_t flags;
} scenarios[] = {
	{ "absent", absent, false },
	{ "present", present, false },
	{ "zeros", of_zeros, false },
	{ "huge", huge, false },
	{ "file", of_a_file, false },
	{ "start", present, true },
	{ "window", absent, false, PINMAP_MANAGE_WINDOW },
};

static void manage_it(struct scene *scene)
{
	struct pinmap_manage args;

	CHECK_OK(try_manage(scene->fd, scene->scenario->flags, scene->memory, HUGE, &args));
	scene->managed = args.out_handle;
}

/* The thread that serves the faults of the queue: the only one, once those of others are gone. */
static int server(void)
{
	struct dirent *entry;
	int found = 0, count = 0;
	DIR *all = opendir("/proc");

	CHECK(all);
	while ((entry = readdir(all))) {
		char path[300], name[32];

		if (atoi(entry->d_name) <= 0)
			continue;
		snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
		if (try_file_read(path, name, sizeof(name)) || strcmp(name, "pinmap-fault"))
			continue;
		found = atoi(entry->d_name);
		count++;
	}
	closedir(all);
	return count == 1 ? found : 0;
}

static void begin(void *data)
{
	struct scene *scene = data;
	int task = KTHREADD;

	scene->memory = address_space(HUGE, HUGE);
	manage_it(scene);
	if (!scene->scenario->starts) {
		/* it has its thread after its first fault */
		absent(scene);
		fill(&scene->queue, scene->memory + 64 * PAGE, 8, 1);
		release(scene->fd, scene->managed);
		manage_it(scene);
		CHECK(WAIT_FOR(5000, (task = server())));
	}
	scene->scenario->make(scene);
	scene->byte++;
	fail_in(task);
}

static int access_it(void *data)
{
	struct scene *scene = data;

	return try_fill(&scene->queue, scene->memory, 2 * PAGE, scene->byte);
}

static void try_again(void *data)
{
	struct scene *scene = data;

	CHECK_EQ(queue_query(&scene->queue).out_state, PINMAP_QUEUE_FAULTED);
	CHECK_EQ(queue_query(&scene->queue).out_reason, PINMAP_FAULT_MEMORY);
	queue_delete(&scene->queue);
	scene->queue = queue_new(scene->fd);
	fill(&scene->queue, scene->memory, 2 * PAGE, scene->byte);
}

static void end(void *data, int result)
{
	struct scene *scene = data;

	(void)result;
	CHECK(bytes_are(scene->memory, 2 * PAGE, scene->byte));
	release(scene->fd, scene->managed);
	SYS(munmap(scene->memory, HUGE));
	if (scene->scenario->starts) {
		queue_delete(&scene->queue);
		scene->queue = queue_new(scene->fd);
	}
}

TEST_EACH(fail_served, scenarios, .seconds = 300)
{
	static const struct attempt attempt = { begin, access_it, try_again, end };
	struct scene scene = { .scenario = row, .fd = open_gpu() };
	long long pins = pins_held();
	uint64_t used;

	need_injection();
	if (!(get_info(scene.fd).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	scene.own = gpu_alloc(scene.fd, 0, 2 * PAGE);
	scene.queue = queue_new(scene.fd);
	used = get_info(scene.fd).out_memlock_used;
	fail_each(&attempt, &scene, MOST);
	CHECK_EQ(get_info(scene.fd).out_memlock_used, used);
	CHECK_EQ(totals(scene.fd, PINMAP_TOTALS_CONTEXT).out_managed.number, 0);
	close(scene.fd);
	CHECK_PINS_SOON(pins);
}
