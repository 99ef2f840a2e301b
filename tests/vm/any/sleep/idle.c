// SPDX-License-Identifier: MIT OR Apache-2.0
/* Devices that nobody uses sleep while the system goes on, and wake when they are used. */
#define _GNU_SOURCE
#include "sleep.h"

#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "kmsg.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Lets a function sleep when it has been idle for so long; has it awake for good. */
static void let_sleep(const char *bdf, const char *milliseconds)
{
	if (try_file_write(pci_path(bdf, "power/control"), "auto"))
		SKIP("the kernel has no runtime power management");
	file_write(pci_path(bdf, "power/autosuspend_delay_ms"), milliseconds);
}

static void keep_awake(const char *bdf)
{
	file_write(pci_path(bdf, "power/control"), "on");
}

static bool is_asleep(const char *bdf)
{
	char status[16] = "";

	file_read(pci_path(bdf, "power/runtime_status"), status, sizeof(status));
	return !strcmp(status, "suspended");
}

#define AWAIT_SLEEP(bdf) CHECK(WAIT_FOR(slow(30000), is_asleep(bdf)))

/* Has a function that a test left so stay awake again. */
__attribute__((destructor)) static void restore(void)
{
	char bdfs[PCI_MOST][16];

	for (unsigned int count = pci_driven(bdfs); count--;)
		try_file_write(pci_path(bdfs[count], "power/control"), "on");
}

static const char *power_state(const char *bdf)
{
	static char state[16];

	file_read(pci_path(bdf, "power_state"), state, sizeof(state));
	return state;
}

/* Milliseconds that the function has been asleep, or awake, so far. */
static long long slept(const char *bdf)
{
	return file_number(pci_path(bdf, "power/runtime_suspended_time"), -1);
}

static long long was_awake(const char *bdf)
{
	return file_number(pci_path(bdf, "power/runtime_active_time"), -1);
}

/*
 * Whether the function sleeps in a time in which another one, that nobody uses, has slept several
 * times: it is asked as often, and one time more where it was used.
 */
static bool sleeps_beside(const char *bdf, const char *other)
{
	long long before = slept(bdf);

	for (unsigned int round = 0; round < 4; round++) {
		let_sleep(other, "20");
		AWAIT_SLEEP(other);
		keep_awake(other);
	}
	return slept(bdf) != before || is_asleep(bdf);
}

static char *managed(int fd, size_t length)
{
	char *memory = anon(length / PAGE);
	struct pinmap_manage args;

	CHECK_OK(try_manage(fd, 0, memory, length, &args));
	return memory;
}

/* A device, and memory and a queue there. */
struct use {
	const char *bdf;
	int fd;
	struct gpu_queue queue;
	struct gpu_memory vram, host;
};

static struct use use_function(const char *bdf, size_t length)
{
	struct use use = { .bdf = bdf, .fd = open_function(bdf) };

	use.queue = queue_new(use.fd);
	use.vram = gpu_alloc(use.fd, PINMAP_ALLOC_VRAM, length);
	use.host = gpu_alloc(use.fd, 0, length);
	return use;
}

static struct use use_gpu(size_t length)
{
	return use_function(need_gpu(), length);
}

static void by_doorbell(struct use *use)
{
	gpu_copy(&use->queue, (uintptr_t)use->host.addr, (uintptr_t)use->vram.addr, PAGE);
	CHECK(pattern_is(use->host.addr, PAGE, 0x11));
}

static void by_touch(struct use *use)
{
	CHECK(pattern_is(use->vram.addr, PAGE, 0x11));
}

static void by_call(struct use *use)
{
	gpu_alloc(use->fd, PINMAP_ALLOC_VRAM, PAGE);
}

static void by_open(struct use *use)
{
	struct gpu_queue queue = queue_new(open_gpu());
	struct gpu_memory memory = gpu_alloc(queue.fd, PINMAP_ALLOC_VRAM, PAGE);

	(void)use;
	gpu_fill(&queue, (uintptr_t)memory.addr, PAGE, 0x12);
	CHECK(bytes_are(memory.addr, PAGE, 0x12));
}

static void by_administrator(struct use *use)
{
	keep_awake(use->bdf);
}

/* Bytes that the device has copied from VRAM, by all engines. */
static uint64_t vram_read(int fd)
{
	struct pinmap_gpu_counters args = { .size = sizeof(args) };
	uint64_t sum = 0;

	CHECK_OK(try_ioctl(fd, PINMAP_GPU_COUNTERS, &args));
	for (unsigned int i = 0; i < args.out_nr_engines; i++)
		sum += args.out_engines[i].vram_read;
	return sum;
}

static const struct waker {
	const char *name;
	void (*wake)(struct use *use);
} wakers[] = {
	{ "doorbell", by_doorbell }, { "touch", by_touch }, { "call", by_call },
	{ "open", by_open },	     { "administrator", by_administrator },
};

/* All that a device has is there when it wakes; pages of programs have come home before. */
TEST_EACH(idle_wakes, wakers, .seconds = 60)
{
	enum { LENGTH = 3 * MIB };
	struct use use = use_gpu(LENGTH);
	char *moved = managed(use.fd, LENGTH);
	struct pinmap_prefetch there;
	uint64_t free, read;

	pattern_fill(use.vram.addr, LENGTH, 0x11);
	pattern_fill(moved, LENGTH, 0x22);
	gpu_copy(&use.queue, (uintptr_t)use.host.addr, (uintptr_t)use.vram.addr, LENGTH);
	read = vram_read(use.fd);
	CHECK(read >= LENGTH);
	gpu_fill(&use.queue, (uintptr_t)use.host.addr, LENGTH, 0x33);
	free = vram_free(use.fd);
	CHECK_OK(try_prefetch(use.fd, 0, moved, LENGTH, &there));
	CHECK_EQ(there.out_there + there.out_moved, LENGTH);
	let_sleep(use.bdf, "10");
	AWAIT_SLEEP(use.bdf);
	CHECK(!strcmp(power_state(use.bdf), "D3hot"));
	CHECK(!pci_is_master(use.bdf));
	CHECK(bytes_are(use.host.addr, LENGTH, 0x33));
	CHECK(is_asleep(use.bdf));

	/* it does not sleep again before it was looked at */
	file_write(pci_path(use.bdf, "power/autosuspend_delay_ms"), "100000");
	row->wake(&use);
	CHECK(!is_asleep(use.bdf));
	keep_awake(use.bdf);
	CHECK(vram_read(use.fd) >= read);
	CHECK(!strcmp(power_state(use.bdf), "D0"));
	if (row->wake == by_doorbell)
		CHECK_EQ(vram_free(use.fd), free);
	CHECK(pattern_is(use.vram.addr, LENGTH, 0x11));
	gpu_copy(&use.queue, (uintptr_t)use.host.addr, (uintptr_t)use.vram.addr, LENGTH);
	CHECK(pattern_is(use.host.addr, LENGTH, 0x11));
	gpu_copy(&use.queue, (uintptr_t)use.vram.addr, (uintptr_t)moved, LENGTH);
	CHECK(pattern_is(use.vram.addr, LENGTH, 0x22));
	CHECK(pattern_is(moved, LENGTH, 0x22));
}

/* Memory goes away while the device sleeps, and without waking it. */
TEST(idle_loses_memory, .seconds = 60, .faults = true)
{
	struct use use = use_gpu(PAGE);
	long long pins = pins_held(), awake;
	struct registration gone = register_memory(use.fd, anon(4), 4 * PAGE, WRITE);
	struct registration stays = register_memory(use.fd, anon(4), 4 * PAGE, WRITE);

	gpu_fill(&use.queue, (uintptr_t)gone.addr, 4 * PAGE, 0x41);
	gpu_fill(&use.queue, (uintptr_t)stays.addr, 4 * PAGE, 0x42);
	let_sleep(use.bdf, "10");
	AWAIT_SLEEP(use.bdf);
	awake = was_awake(use.bdf);
	SYS(munmap(gone.addr, 4 * PAGE));
	CHECK_PINS_SOON(pins + 4);
	CHECK(is_asleep(use.bdf));
	CHECK_EQ(was_awake(use.bdf), awake);
	gpu_copy(&use.queue, (uintptr_t)use.host.addr, (uintptr_t)stays.addr, PAGE);
	CHECK(bytes_are(use.host.addr, PAGE, 0x42));
	queue_push(&use.queue, GPU_FILL, gone.device_addr, 8, 0x43);
	queue_submit(&use.queue);
	CHECK_EQ(queue_stopped(&use.queue), GPU_NOT_PRESENT);
	keep_awake(use.bdf);
}

/* Takes memory until the kernel has swapped out so much that this many pages of shmem are left. */
static void squeeze(long long left)
{
	size_t size = (size_t)file_field("/proc/meminfo", "MemTotal:") << 10;
	char *all = SYS(mmap(NULL, size, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

	file_write("/proc/self/oom_score_adj", "1000");
	for (size_t at = 0; at < size && file_field("/proc/vmstat", "nr_shmem") > left; at += MIB)
		for (size_t page = 0; page < MIB; page += PAGE)
			all[at + page] = 1;
	_exit(file_field("/proc/vmstat", "nr_shmem") > left);
}

/* VRAM of programs may be swapped out while the device sleeps. */
TEST(idle_is_swapped_out, .seconds = 200)
{
	enum { LENGTH = 64 * MIB };
	const long long pages = LENGTH / PAGE;
	struct use use = use_gpu(LENGTH);
	long long before, swapped;
	pid_t pid;

	need_sleep(quick_way);
	swap_on_disk();
	pattern_fill(use.vram.addr, LENGTH, 0x51);
	before = file_field("/proc/vmstat", "nr_shmem");
	let_sleep(use.bdf, "10");
	AWAIT_SLEEP(use.bdf);
	/* The number is put together from those of the processors now and then. */
	CHECK(file_field("/proc/vmstat", "nr_shmem") >= before + pages * 3 / 4);
	pid = SYS(fork());
	if (pid == 0)
		/* Then a half of it at least is not there any more. */
		squeeze(pages / 2);
	join(pid);
	CHECK(is_asleep(use.bdf));
	swapped = file_field("/proc/vmstat", "pswpin");
	CHECK(pattern_is(use.vram.addr, LENGTH, 0x51));
	CHECK(file_field("/proc/vmstat", "pswpin") >= swapped + pages / 2);
	keep_awake(use.bdf);
	/* Nothing of it is left. */
	CHECK(WAIT_FOR(slow(10000),
		       file_field("/proc/vmstat", "nr_shmem") < before + pages / 2));
	no_swap_on_disk();
}

/* A device whose VRAM would take more memory than others can spare stays awake. */
TEST(idle_without_room, .seconds = 120)
{
	static const char huge[] = "/proc/sys/vm/nr_hugepages";
	enum { LENGTH = 128 * MIB };
	const char *bdf = need_gpu(), *other = need_device(0).bdf;
	int fd = open_function(bdf);
	long long had = file_number(huge, 0), available;
	char count[32];

	need_sleep(quick_way);
	no_swap_on_disk();
	gpu_alloc(fd, PINMAP_ALLOC_VRAM, LENGTH);
	/* Huge pages take what there is, but for some more than VRAM has. */
	available = file_field("/proc/meminfo", "MemAvailable:") / 1024;
	snprintf(count, sizeof(count), "%lld", had + (available - 160) / 2);
	file_write(huge, count);
	available = file_field("/proc/meminfo", "MemAvailable:") / 1024;
	if (available >= (long long)(2 * LENGTH / MIB)) {
		snprintf(count, sizeof(count), "%lld", had);
		file_write(huge, count);
		SKIP("memory has no huge pages left");
	}
	let_sleep(bdf, "10");
	CHECK(!sleeps_beside(bdf, other));
	snprintf(count, sizeof(count), "%lld", had);
	file_write(huge, count);
	AWAIT_SLEEP(bdf);
	keep_awake(bdf);
}

/* Calls that only ask the driver, and files, do not wake the device. */
TEST(idle_asked, .seconds = 60)
{
	struct pinmap_get_totals totals = { .size = sizeof(totals) };
	struct use use = use_gpu(PAGE);
	struct registration memory = register_memory(use.fd, anon(1), PAGE, WRITE);
	char fdinfo[64], vram[128];
	struct pci_device device;
	long long awake;

	snprintf(device.bdf, sizeof(device.bdf), "%s", use.bdf);
	pci_look(&device);
	snprintf(fdinfo, sizeof(fdinfo), "/proc/self/fdinfo/%d", use.fd);
	snprintf(vram, sizeof(vram), "/sys/class/misc/%s/vram", strrchr(device.node, '/') + 1);
	let_sleep(use.bdf, "10");
	AWAIT_SLEEP(use.bdf);
	awake = was_awake(use.bdf);
	get_info(use.fd);
	CHECK_OK(try_ioctl(use.fd, PINMAP_GET_TOTALS, &totals));
	CHECK_EQ(query_handle(use.fd, memory.handle).out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(file_field(fdinfo, "pinmap-pinned:"), PAGE / 1024);
	CHECK(file_number(vram, -1) > 0);
	CHECK(is_asleep(use.bdf));
	CHECK_EQ(was_awake(use.bdf), awake);
	keep_awake(use.bdf);
}

/* No device sleeps unless it is allowed, nor at once. */
TEST(idle_if_allowed)
{
	const char *bdf = need_gpu();
	char control[16] = "";

	gpu_rebind();
	file_read(pci_path(bdf, "power/control"), control, sizeof(control));
	CHECK(!strcmp(control, "on"));
	CHECK_EQ(file_number(pci_path(bdf, "power/autosuspend_delay_ms"), -1), 5000);
}

/* Each time the device sleeps, and wakes for work, while another program works now and then. */
TEST(idle_again_and_again, .seconds = 600)
{
	enum { LENGTH = 64 * PAGE };
	const char *wanted = getenv("PINMAP_CYCLES");
	unsigned int cycles = wanted ? (unsigned int)atoi(wanted) : 30;
	struct use use = use_gpu(LENGTH);
	struct registration number = register_memory(use.fd, anon(1), PAGE, WRITE);
	volatile uint64_t *count = (volatile uint64_t *)number.addr;
	volatile bool *ended = SYS(
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	pid_t pid = SYS(fork());

	if (pid == 0) {
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);
		struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, LENGTH);
		char *memory = managed(fd, LENGTH);

		for (unsigned int round = 0; !*ended; round++) {
			gpu_fill_pages(&queue, (uintptr_t)memory, LENGTH / PAGE, round);
			gpu_copy(&queue, (uintptr_t)vram.addr, (uintptr_t)memory, LENGTH);
			check_pages(memory, LENGTH / PAGE, round);
			usleep(25000 * (round % 8));
			check_pages(vram.addr, LENGTH / PAGE, round);
		}
		_exit(EXIT_PASS);
	}
	*count = 0;
	let_sleep(use.bdf, "1");
	for (unsigned int cycle = 0; cycle < cycles; cycle++) {
		pattern_fill(use.vram.addr, LENGTH, cycle);
		AWAIT_SLEEP(use.bdf);
		queue_push_add(&use.queue, count, 1, 1, 1);
		gpu_copy(&use.queue, (uintptr_t)use.host.addr, (uintptr_t)use.vram.addr, LENGTH);
		CHECK_EQ(*count, cycle + 1);
		CHECK(pattern_is(use.host.addr, LENGTH, cycle));
	}
	*ended = true;
	join(pid);
	keep_awake(use.bdf);
}

static void by_stay_awake(struct use *use)
{
	CHECK_OK(try_stay_awake(use->fd, PINMAP_STAY_AWAKE_ON));
}

static void by_fence(struct use *use)
{
	queue_push(&use->queue, GPU_FENCE_WAIT, use->queue.args.out_fence_addr + 64, 1, 0);
	queue_submit(&use->queue);
}

static void by_eventfd(struct use *use)
{
	CHECK_OK(try_queue_notify(use->fd, use->queue.args.out_queue, 8, 1,
				  SYS(eventfd(0, EFD_NONBLOCK))));
}

static void by_peer(struct use *use)
{
	int second, dma_buf;

	second = open_second_gpu();
	dma_buf = export_buffer(use->fd, use->vram.args.out_handle, PINMAP_EXPORT_WRITE);
	import_buffer(second, dma_buf);
}

static struct gpu_queue *waited_for;

static int task_wait(struct task *task)
{
	(void)task;
	waited_for->fence = 1;
	return try_queue_wait(waited_for, 1000000);
}

static void by_waiting(struct use *use)
{
	static struct task waiter = { .what = task_wait };

	waited_for = &use->queue;
	task_begin(&waiter);
	CHECK(WAIT_FOR(10000, sleeps_in(waiter.id, "[pinmap]")));
}

static const struct keeper {
	const char *name;
	void (*keep)(struct use *use);
} keepers[] = {
	{ "context", by_stay_awake },
	{ "call", by_waiting },
	{ "fence", by_fence },
	{ "eventfd", by_eventfd },
	{ "peer", by_peer },
};

/* A device that somebody waits for, or relies on, does not sleep as long as that goes on. */
TEST_EACH(idle_kept_awake, keepers, .seconds = 60)
{
	const char *bdf = need_gpu(), *other = need_second_gpu();
	struct gate gate = gate_new();
	pid_t pid;

	if (row->keep == by_peer)
		need_peers();
	pid = SYS(fork());
	if (pid == 0) {
		struct use use = use_gpu(PAGE);

		row->keep(&use);
		gate_open(&gate);
		for (;;)
			pause();
	}
	gate_pass(&gate);
	let_sleep(bdf, "10");
	/* where the second one is in use, too, an edu is not */
	CHECK(!sleeps_beside(bdf, row->keep == by_peer ? need_device(0).bdf : other));
	kill_now(pid);
	AWAIT_SLEEP(bdf);
	keep_awake(bdf);
}

static void then_unbind(struct use *use, pid_t pid)
{
	pci_unbind(use->bdf);
	kill_now(pid);
	pci_bind(use->bdf);
}

/* The function is removed from the system, as by unplugging it, and found again. */
static void then_remove(struct use *use, pid_t pid)
{
	file_write(pci_path(use->bdf, "remove"), "1");
	kill_now(pid);
	file_write("/sys/bus/pci/rescan", "1");
	pci_bind(use->bdf);
}

/* The program is stopped, so that it cannot let go of anything by itself. */
static void then_unbind_from_stopped(struct use *use, pid_t pid)
{
	int status;

	SYS(kill(pid, SIGSTOP));
	SYS(waitpid(pid, &status, WUNTRACED));
	then_unbind(use, pid);
}

static void then_kill(struct use *use, pid_t pid)
{
	(void)use;
	kill_now(pid);
}

static void then_reset(struct use *use, pid_t pid)
{
	file_write(pci_path(use->bdf, "reset"), "1");
	kill_now(pid);
	gpu_rebind();
}

/* The device is reset without having been woken. */
static void then_bus_reset(struct use *use, pid_t pid)
{
	char file[128];

	snprintf(file, sizeof(file), "/sys/bus/pci/devices/%s/../reset_subordinate", use->bdf);
	file_write(file, "1");
	kill_now(pid);
	pci_unbind(use->bdf);
	pci_bind(use->bdf);
}

static void then_system(struct use *use, pid_t pid)
{
	CHECK_OK(try_sleep(quick_way));
	AWAIT_SLEEP(use->bdf);
	kill_now(pid);
}

static const struct ending {
	const char *name;
	void (*end)(struct use *use, pid_t pid);
} endings[] = {
	{ "unbind", then_unbind },
	{ "remove", then_remove },
	{ "unbind_from_stopped", then_unbind_from_stopped },
	{ "kill", then_kill },
	{ "reset", then_reset },
	{ "bus_reset", then_bus_reset },
	{ "system", then_system },
};

/* Whatever comes while the device sleeps, nothing is left of who had it, and it works. */
TEST_EACH(idle_then, endings, .seconds = 120)
{
	/* the second one is behind a bridge */
	bool is_second = row->end == then_bus_reset;
	struct use use = { .bdf = is_second ? need_second_gpu() : need_gpu() };
	long long pins = pins_held();
	struct gate gate = gate_new();
	char bridge[128];
	pid_t pid;

	if (row->end == then_system)
		need_sleep(quick_way);
	snprintf(bridge, sizeof(bridge), "/sys/bus/pci/devices/%s/../reset_subordinate", use.bdf);
	if (row->end == then_bus_reset && access(bridge, W_OK))
		SKIP("the device is behind no bridge");
	pid = SYS(fork());
	if (pid == 0) {
		struct use mine = use_function(use.bdf, MIB);

		register_memory(mine.fd, anon(16), 16 * PAGE, WRITE);
		gpu_fill(&mine.queue, (uintptr_t)mine.vram.addr, MIB, 0x61);
		gate_open(&gate);
		for (;;)
			pause();
	}
	gate_pass(&gate);
	let_sleep(use.bdf, "10");
	AWAIT_SLEEP(use.bdf);
	row->end(&use, pid);
	CHECK_PINS_SOON(pins);
	keep_awake(use.bdf);
	use = use_function(use.bdf, MIB);
	gpu_fill(&use.queue, (uintptr_t)use.vram.addr, MIB, 0x62);
	CHECK(bytes_are(use.vram.addr, MIB, 0x62));
}

/* A flat device sleeps while nobody has it open. */
TEST(idle_flat, .seconds = 60)
{
	struct pci_device device = need_device(0);
	struct edu edu;
	struct registration memory;
	int fd;

	let_sleep(device.bdf, "10");
	AWAIT_SLEEP(device.bdf);
	for (unsigned int round = 0; round < 2; round++) {
		fd = open_function(device.bdf);
		get_info(fd);
		CHECK(!is_asleep(device.bdf));
		memory = register_memory(fd, anon(1), PAGE, WRITE);
		edu = edu_open(fd);
		CHECK_REACHES(&edu, memory.device_addr, memory.addr, PAGE);
		CHECK(!sleeps_beside(device.bdf, need_gpu()));
		CHECK_REACHES(&edu, memory.device_addr, memory.addr, PAGE);
		edu_close(&edu);
		close(fd);
		AWAIT_SLEEP(device.bdf);
	}
	keep_awake(device.bdf);
}

/* Allocates and frees VRAM until it is told to end, stores there, and has it copied. */
static void use_vram(volatile int *end)
{
	struct use use = use_gpu(MIB);

	for (uint8_t round = 1; !*end; round = round % 200 + 1) {
		struct gpu_memory fresh = gpu_alloc(use.fd, PINMAP_ALLOC_VRAM, 16 * PAGE);

		CHECK(bytes_are(fresh.addr, 16 * PAGE, 0));
		pattern_fill(fresh.addr, 16 * PAGE, round);
		gpu_copy(&use.queue, (uintptr_t)use.host.addr, (uintptr_t)fresh.addr, 16 * PAGE);
		CHECK(pattern_is(use.host.addr, 16 * PAGE, round));
		CHECK(pattern_is(fresh.addr, 16 * PAGE, round));
		munmap(fresh.addr, 16 * PAGE);
		release(use.fd, fresh.args.out_handle);
	}
	_exit(0);
}

/*
 * If a hibernation cannot be written, programs go on before the device does. Their VRAM is zeroed
 * and written, and their work done, as at any other time.
 */
TEST(used_beside_a_hibernation_that_fails, .seconds = 120)
{
	volatile int *end = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				     -1, 0));
	/* The more there is to be restored, the longer it takes. */
	struct use use = use_gpu(32 * MIB);
	pid_t pids[3];

	need_sleep(quick_way);
	if (try_file_write("/sys/power/disk", "reboot"))
		SKIP("the kernel cannot hibernate");
	pattern_fill(use.vram.addr, 32 * MIB, 0x71);
	no_swap_on_disk();
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
		pids[i] = SYS(fork());
		if (pids[i] == 0)
			use_vram(end);
	}
	for (unsigned int round = 0; round < 3; round++)
		CHECK(try_file_write("/sys/power/state", "disk") < 0);
	*end = 1;
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++)
		join(pids[i]);
	CHECK(pattern_is(use.vram.addr, 32 * MIB, 0x71));
}

/*
 * A hibernation that cannot be written: the device sleeps on after the snapshot, and its own sleep
 * does not come between.
 */
TEST(idle_while_hibernating, .seconds = 120)
{
	struct use use = use_gpu(MIB);

	need_sleep(quick_way);
	if (try_file_write("/sys/power/disk", "reboot"))
		SKIP("the kernel cannot hibernate");
	pattern_fill(use.vram.addr, MIB, 0x71);
	gpu_fill(&use.queue, (uintptr_t)use.host.addr, MIB, 0x72);
	no_swap_on_disk();
	let_sleep(use.bdf, "1");
	CHECK(try_file_write("/sys/power/state", "disk") < 0);
	AWAIT_SLEEP(use.bdf);
	gpu_copy(&use.queue, (uintptr_t)use.host.addr, (uintptr_t)use.vram.addr, MIB);
	CHECK(pattern_is(use.host.addr, MIB, 0x71));
	keep_awake(use.bdf);
}
