// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Every allocation fails once while memory moves: by call, there and home, and when the CPU touches
 * it (see inject.h). The call fails or moves less, and the contents are what they were.
 * faults/failnth.c has the faults of the device.
 */
#define _GNU_SOURCE
#include "../moving.h"

#include "edu.h"
#include "inject.h"
#include "kmsg.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Small pages that move: each is an allocation on the way home, and several on the bus. */
enum { MOST = 3000, FEW = 12 };

struct scenario;

struct scene {
	const struct scenario *scenario;
	int fd, other;
	struct gpu_queue queue;
	char *memory, *seen;
	size_t length;
	unsigned char byte;
	uint64_t vram;
};

static int call_there(struct scene *scene)
{
	struct pinmap_prefetch args;
	int error = try_prefetch(scene->fd, 0, scene->memory, scene->length, &args);

	if (!error)
		CHECK_EQ(args.out_moved + args.out_there + args.out_no_room + args.out_busy,
			 scene->length);
	return error;
}

static int call_home(struct scene *scene)
{
	struct pinmap_prefetch args;
	int error = try_prefetch(scene->fd, PINMAP_PREFETCH_HOST, scene->memory, scene->length,
				 &args);

	if (!error)
		CHECK_EQ(args.out_moved + args.out_there + args.out_no_room + args.out_busy,
			 scene->length);
	return error;
}

/* The kernel takes up a fault again for which there was no memory. */
static int touch(struct scene *scene)
{
	CHECK_EQ(*(volatile unsigned char *)scene->memory, scene->byte);
	return 0;
}

static int pin(struct scene *scene)
{
	struct registration registration;
	int error = try_register_memory(scene->other, scene->memory, scene->length, WRITE,
					&registration);

	if (!error)
		/* what fails may be this */
		while (try_release(scene->other, registration.handle) == -EFAULT)
			;
	return error;
}

static const struct scenario {
	const char *name;
	bool huge, untouched, there;
	int (*call)(struct scene *scene);
} scenarios[] = {
	{ "there", false, false, false, call_there },
	{ "there_huge", true, false, false, call_there },
	{ "there_untouched", false, true, false, call_there },
	{ "there_untouched_huge", true, true, false, call_there },
	{ "home", false, false, true, call_home },
	{ "home_huge", true, false, true, call_home },
	{ "touched", false, false, true, touch },
	{ "touched_huge", true, false, true, touch },
	{ "pinned", false, false, true, pin },
	{ "pinned_huge", true, false, true, pin },
};

static void begin(void *data)
{
	struct scene *scene = data;
	const struct scenario *scenario = scene->scenario;

	SYS(mmap(scene->memory, HUGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	SYS(madvise(scene->memory, HUGE, scenario->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	scene->length = scenario->huge ? HUGE : FEW * PAGE;
	scene->byte = 0;
	if (!scenario->untouched) {
		scene->byte = 0x31;
		memset(scene->memory, scene->byte, scene->length);
	}
	if (scenario->there) {
		scene->byte = 0x32;
		MOVE_THERE(scene->fd, scene->memory, scene->length);
		fill(&scene->queue, scene->memory, scene->length, scene->byte);
	}
}

static int make_call(void *data)
{
	struct scene *scene = data;

	return scene->scenario->call(scene);
}

static void call_again(void *data)
{
	CHECK_OK(make_call(data));
}

static void end(void *data, int result)
{
	struct scene *scene = data;

	(void)result;
	copy(&scene->queue, scene->memory, scene->seen, scene->length);
	CHECK(bytes_are(scene->seen, scene->length, scene->byte));
	CHECK(bytes_are(scene->memory, scene->length, scene->byte));
	SYS(madvise(scene->memory, HUGE, MADV_DONTNEED));
	CHECK(WAIT_FOR(2000, vram_free(scene->fd) == scene->vram));
}

TEST_EACH(moved_fail, scenarios, .seconds = 400)
{
	static const struct attempt attempt = { begin, make_call, call_again, end };
	struct scene scene = { .scenario = row, .fd = open_gpu(), .other = open_gpu() };
	long long pins = pins_held();

	need_injection();
	scene.seen = anon(HUGE / PAGE);
	scene.memory = small_blocks(1);
	scene.queue = queue_new(scene.fd);
	manage_all_host(scene.fd);
	/* once before what counts: page tables of the device stay */
	begin(&scene);
	make_call(&scene);
	copy(&scene.queue, scene.memory, scene.seen, scene.length);
	SYS(madvise(scene.memory, HUGE, MADV_DONTNEED));
	scene.vram = vram_free(scene.fd);
	fail_each(&attempt, &scene, MOST);
	close(scene.fd);
	close(scene.other);
	CHECK_PINS_SOON(pins);
}

static int go_home(struct scene *scene)
{
	MOVE_HOME(scene->fd, scene->memory, HUGE);
	return 0;
}

static const struct {
	const char *name;
	int (*come)(struct scene *scene);
} homecomings[] = { { "call", go_home }, { "touched", touch }, { "pinned", pin } };

/* There is no huge page on the way home: the memory comes in small ones. */
TEST_EACH(moved_home_no_huge, homecomings, .seconds = 200)
{
	struct scene scene = { .fd = open_gpu(), .other = open_gpu() };

	need_injection();
	scene.memory = block_of(true);
	scene.length = HUGE;
	scene.byte = 0x33;
	scene.queue = queue_new(scene.fd);
	manage_all_host(scene.fd);
	scene.vram = vram_free(scene.fd);
	memset(scene.memory, 1, HUGE);
	CHECK(is_thp(scene.memory));
	MOVE_THERE(scene.fd, scene.memory, HUGE);
	fill(&scene.queue, scene.memory, HUGE, scene.byte);
	fail_huge_pages(true);
	CHECK_OK(row->come(&scene));
	CHECK(bytes_are(scene.memory, HUGE, scene.byte));
	fail_huge_pages(false);
	CHECK(!is_thp(scene.memory));
	CHECK_EQ(pages_away(scene.memory, HUGE), 0);
	fill(&scene.queue, scene.memory, HUGE, 0x34);
	CHECK(bytes_are(scene.memory, HUGE, 0x34));
	queue_delete(&scene.queue);
}

/* Where there is no huge page, what was one comes home page by page when the device goes. */
TEST(moved_unbind_no_huge, .seconds = 200)
{
	char *memory = block_of(true);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	need_injection();
	manage_all_host(fd);
	memset(memory, 1, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x35);
	fail_huge_pages(true);
	gpu_rebind();
	fail_huge_pages(false);
	CHECK_EQ(pages_away(memory, HUGE), 0);
	CHECK(bytes_are(memory, HUGE, 0x35));
	check_works();
}

/* Where there is no page at all, the device goes as soon as there are some, and says so. */
TEST(moved_unbind_no_memory, .seconds = 200)
{
	enum { SOME = 16 * PAGE };
	char *memory = block_of(false), bdf[16];
	int fd = open_gpu(), kmsg = kmsg_open();
	struct gpu_queue queue = queue_new(fd);
	pid_t pid;

	need_injection();
	snprintf(bdf, sizeof(bdf), "%.15s", need_gpu());
	manage_host(fd, memory, HUGE);
	memset(memory, 1, SOME);
	MOVE_THERE(fd, memory, SOME);
	fill(&queue, memory, SOME, 0x36);
	queue_unmap(&queue);
	close(fd);
	fail_pages_below("pinmap_alloc_home");
	pid = fork();
	if (pid == 0) {
		pci_unbind(bdf);
		_exit(0);
	}
	CHECK(kmsg_wait(kmsg, "65536 bytes of programs' memory wait", slow(20000)));
	CHECK(runs_still(pid));
	fail_below_end();
	join(pid);
	CHECK_EQ(pages_away(memory, SOME), 0);
	CHECK(bytes_are(memory, SOME, 0x36));
	pci_bind(bdf);
	check_works();
}
