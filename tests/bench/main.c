// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "bench.h"

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static const struct system *const systems[] = {
	&pinmap_system, &iommufd_system, &vfio_system, &udmabuf_system, &floor_system,
};
enum { SYSTEMS = sizeof(systems) / sizeof(*systems), MAX_THREADS = 4 };

static const size_t sizes[] = { 4 * KIB, 64 * KIB, MIB, 64 * MIB, 256 * MIB, GIB };
/* The length of measurements for which it does not matter. */
static const size_t usual = 64 * MIB;

static unsigned int rounds = 15;
bool least;
bool apart;
static size_t max_length = GIB;
static const char *only;
static char **patterns;
static int nr_patterns;

static bool wanted(const char *operation, enum kind kind)
{
	char name[64];

	snprintf(name, sizeof(name), "%s/%s", operation, kind_names[kind]);
	for (int i = 0; i < nr_patterns; i++) {
		if (strstr(name, patterns[i]))
			return true;
	}
	return !nr_patterns;
}

static bool fits(const struct system *system, const struct memory *memory)
{
	return (!only || !strcmp(only, system->name)) && (!system->fits || system->fits(memory));
}

/*
 * Opens all systems that are measured, each with a function of its own, so that they can take turns
 * without being set up anew.
 */
static void systems_open(void)
{
	struct function functions[MAX_FUNCTIONS];
	size_t count = functions_find(functions), next = 0;

	for (size_t i = 0; i < SYSTEMS; i++) {
		const char *bdf = NULL;

		if (only && strcmp(only, systems[i]->name))
			continue;
		if (systems[i]->driver) {
			if (next == count)
				DIE("there are only %zu edu functions", count);
			bdf = functions[next++].bdf;
			function_bind(bdf, systems[i]->driver);
		}
		systems[i]->open(bdf);
	}
}

static void once(const struct system *system, const struct memory *memory, char *addr,
		 size_t length, uint64_t *add_ns, uint64_t *remove_ns)
{
	uint64_t token = 0, began, between;

	profile_begin();
	if (system->measure) {
		system->measure(addr, length, add_ns, remove_ns);
		profile_end();
		return;
	}
	began = now();
	system->add(memory, addr, length, &token);
	between = now();
	system->remove(addr, length, token);
	*remove_ns = now() - between;
	profile_end();
	*add_ns = between - began;
}

/*
 * Tells how much memory pinmap uses while memory is registered: what a cgroup is charged for small
 * kernel objects, so without the IOMMU's tables.
 */
static void tell_metadata(const struct memory *memory, size_t length, size_t runs)
{
	static struct samples kept;
	uint64_t token = 0, bytes;

	if (!try_enter_cgroup(true)) {
		fprintf(stderr,
			"bench: without cgroup2 and its memory controller what is kept "
			"cannot be told\n");
		return;
	}
	for (unsigned int round = 0; round < 5; round++) {
		uint64_t before = slab_bytes(), with;

		pinmap_system.add(memory, memory->addr, length, &token);
		with = slab_bytes();
		pinmap_system.remove(memory->addr, length, token);
		sample(&kept, with > before ? with - before : 0);
	}
	try_enter_cgroup(false);
	bytes = median(&kept);
	fprintf(stderr, "bench: %s, %zu KiB: pinmap keeps %llu bytes, %.2f a run\n",
		kind_names[memory->kind], length / KIB, (unsigned long long)bytes,
		(double)bytes / (double)runs);
}

/* Measures registering and releasing the same pages again and again. */
static void bench_register(enum kind kind, size_t length)
{
	static struct samples add[SYSTEMS], remove[SYSTEMS];
	unsigned int repeat = length < MIB ? 16 : length < 64 * MIB ? 4 : 1;
	struct memory memory = memory_of_runs(kind, length);
	size_t runs = memory_runs(&memory, length);

	fprintf(stderr, "bench: %s, %zu KiB: %zu runs in %zu pages\n", kind_names[kind],
		length / KIB, runs, length / PAGE);
	for (unsigned int round = 0; round <= rounds; round++) {
		for (unsigned int turn = 0; turn < SYSTEMS; turn++) {
			unsigned int i = (round + turn) % SYSTEMS;
			uint64_t adding = 0, removing = 0;

			if (!fits(systems[i], &memory))
				continue;
			for (unsigned int again = 0; again < repeat; again++) {
				uint64_t add_ns, remove_ns;

				once(systems[i], &memory, memory.addr, length, &add_ns, &remove_ns);
				adding += add_ns;
				removing += remove_ns;
			}
			/* In the first round everything is new. */
			if (round) {
				sample(&add[i], adding / repeat);
				sample(&remove[i], removing / repeat);
			}
		}
	}
	for (unsigned int i = 0; i < SYSTEMS; i++) {
		report("register", length, kind, systems[i]->name, &add[i]);
		report("release", length, kind, systems[i]->name, &remove[i]);
	}
	/* The statistics of a cgroup are not told before they have changed by half a megabyte. */
	if (!only && length >= GIB)
		tell_metadata(&memory, length, runs);
	memory_free(&memory);
}

/* Measures releasing pages that were not dirty yet: new ones each time. */
static void bench_first_release(enum kind kind, size_t length)
{
	static struct samples remove[SYSTEMS];

	for (unsigned int round = 0; round < rounds; round++) {
		for (unsigned int i = 0; i < SYSTEMS; i++) {
			struct memory memory = memory_new(kind, length);
			uint64_t add_ns, remove_ns;

			/* The floor does not mark pages dirty. */
			if (fits(systems[i], &memory) && !systems[i]->measure) {
				once(systems[i], &memory, memory.addr, length, &add_ns, &remove_ns);
				sample(&remove[i], remove_ns);
			}
			memory_free(&memory);
		}
	}
	for (unsigned int i = 0; i < SYSTEMS; i++)
		report("release-first", length, kind, systems[i]->name, &remove[i]);
}

/* Measures registering and releasing one page. */
static void bench_pair(enum kind kind)
{
	enum { REPEAT = 64 };
	static struct samples pairs[SYSTEMS];
	struct memory memory = memory_new(kind, PAGE);

	for (unsigned int round = 0; round <= rounds; round++) {
		for (unsigned int turn = 0; turn < SYSTEMS; turn++) {
			unsigned int i = (round + turn) % SYSTEMS;
			const struct system *system = systems[i];
			uint64_t sum = 0, began = now();

			if (!fits(system, &memory))
				continue;
			for (unsigned int again = 0; again < REPEAT; again++) {
				uint64_t token, add_ns, remove_ns;

				profile_begin();
				if (system->measure) {
					system->measure(memory.addr, PAGE, &add_ns, &remove_ns);
					sum += add_ns + remove_ns;
				} else {
					system->add(&memory, memory.addr, PAGE, &token);
					system->remove(memory.addr, PAGE, token);
				}
				profile_end();
			}
			if (round)
				sample(&pairs[i], (system->measure ? sum : now() - began) / REPEAT);
		}
	}
	for (unsigned int i = 0; i < SYSTEMS; i++)
		report("pair", PAGE, kind, systems[i]->name, &pairs[i]);
	memory_free(&memory);
}

/*
 * Measures registering pages that are far from each other, and releasing them, by one call each:
 * for each page. The others register the same pages one by one.
 */
static void bench_batch(enum kind kind)
{
	static struct samples pairs[SYSTEMS];
	/* Every third page, so that no two are neighbours. */
	struct memory memory = memory_new(kind, 3 * BATCH * PAGE);
	char *addrs[BATCH];

	for (unsigned int i = 0; i < BATCH; i++)
		addrs[i] = memory.addr + 3 * i * PAGE;
	for (unsigned int round = 0; round <= rounds; round++) {
		for (unsigned int turn = 0; turn < SYSTEMS; turn++) {
			unsigned int i = (round + turn) % SYSTEMS;
			const struct system *system = systems[i];
			uint64_t tokens[BATCH], sum = 0, began = now();

			if (!fits(system, &memory))
				continue;
			profile_begin();
			if (system == &pinmap_system) {
				pinmap_add_all(addrs, tokens);
				pinmap_remove_all(tokens);
			} else if (system->measure) {
				for (unsigned int page = 0; page < BATCH; page++) {
					uint64_t add_ns, remove_ns;

					system->measure(addrs[page], PAGE, &add_ns, &remove_ns);
					sum += add_ns + remove_ns;
				}
			} else {
				for (unsigned int page = 0; page < BATCH; page++)
					system->add(&memory, addrs[page], PAGE, &tokens[page]);
				for (unsigned int page = 0; page < BATCH; page++)
					system->remove(addrs[page], PAGE, tokens[page]);
			}
			profile_end();
			if (round)
				sample(&pairs[i], (system->measure ? sum : now() - began) / BATCH);
		}
	}
	for (unsigned int i = 0; i < SYSTEMS; i++)
		report("batch", PAGE, kind, systems[i]->name, &pairs[i]);
	memory_free(&memory);
}

/*
 * Measures how long it takes to get new memory for CPU and device: the driver's own, or the
 * program's, touched and then registered.
 */
static void bench_alloc(size_t length)
{
	static struct samples alloc, touched, own[SYSTEMS];

	for (unsigned int round = 0; round <= rounds; round++) {
		uint64_t began = now(), ready;
		struct pinmap_memory memory = pinmap_alloc_memory(length);

		ready = now();
		memory_touch(memory.addr, length);
		if (round) {
			sample(&touched, now() - began);
			sample(&alloc, ready - began);
		}
		pinmap_free_memory(memory, length);
		for (unsigned int i = 0; i < SYSTEMS; i++) {
			const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
			struct memory plain = { .length = length, .fd = -1, .kind = NATURAL };
			uint64_t token = 0;

			if (systems[i]->measure || !fits(systems[i], &plain))
				continue;
			began = now();
			plain.addr = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0));
			SYS(madvise(plain.addr, length, MADV_NOHUGEPAGE));
			memory_touch(plain.addr, length);
			systems[i]->add(&plain, plain.addr, length, &token);
			if (round)
				sample(&own[i], now() - began);
			systems[i]->remove(plain.addr, length, token);
			SYS(munmap(plain.addr, length));
		}
	}
	report("alloc", length, THP, "pinmap", &alloc);
	report("alloc-touch", length, THP, "pinmap", &touched);
	for (unsigned int i = 0; i < SYSTEMS; i++)
		report("touch-register", length, NATURAL, systems[i]->name, &own[i]);
}

/* --- threads --- */

struct part {
	const struct system *system;
	const struct memory *memory;
	char *addr;
	size_t length;
	pthread_barrier_t *start;
	uint64_t token, began, ended;
};

static void *register_part(void *argument)
{
	struct part *part = argument;

	pthread_barrier_wait(part->start);
	part->began = now();
	part->system->add(part->memory, part->addr, part->length, &part->token);
	part->ended = now();
	return NULL;
}

static uint64_t register_in_parts(const struct system *system, const struct memory *memory,
				  unsigned int threads)
{
	struct part parts[MAX_THREADS];
	pthread_t ids[MAX_THREADS];
	pthread_barrier_t start;
	uint64_t first = UINT64_MAX, last = 0;

	pthread_barrier_init(&start, NULL, threads);
	for (unsigned int i = 0; i < threads; i++) {
		size_t length = memory->length / threads / PAGE * PAGE;

		parts[i] =
			(struct part){ system, memory, memory->addr + i * length, length, &start, 0,
				       0,      0 };
		if (pthread_create(&ids[i], NULL, register_part, &parts[i]))
			DIE("no thread");
	}
	for (unsigned int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	for (unsigned int i = 0; i < threads; i++) {
		first = parts[i].began < first ? parts[i].began : first;
		last = parts[i].ended > last ? parts[i].ended : last;
		system->remove(parts[i].addr, parts[i].length, parts[i].token);
	}
	pthread_barrier_destroy(&start);
	return last - first;
}

/* Measures registering memory in disjoint parts by so many threads at once. */
static void bench_threads(enum kind kind, size_t length)
{
	static struct samples add[SYSTEMS];
	struct memory memory = memory_new(kind, length);

	for (unsigned int threads = 1; threads <= MAX_THREADS; threads++) {
		char name[32];

		for (unsigned int round = 0; round <= rounds; round++) {
			for (unsigned int i = 0; i < SYSTEMS; i++) {
				if (systems[i]->measure || !fits(systems[i], &memory))
					continue;
				uint64_t ns = register_in_parts(systems[i], &memory, threads);

				if (round)
					sample(&add[i], ns);
			}
		}
		snprintf(name, sizeof(name), "register-%u-threads", threads);
		for (unsigned int i = 0; i < SYSTEMS; i++)
			report(name, length, kind, systems[i]->name, &add[i]);
	}
	memory_free(&memory);
}

static size_t parse_size(const char *text)
{
	char *end;
	size_t size = strtoul(text, &end, 0);

	switch (*end) {
	case 'K':
		return size * KIB;
	case 'M':
		return size * MIB;
	case 'G':
		return size * GIB;
	}
	return size;
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "label", required_argument, NULL, 'l' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "max", required_argument, NULL, 'm' },
		{ "system", required_argument, NULL, 's' },
		{ "least", no_argument, NULL, 'L' },
		{},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'l':
			label = optarg;
			break;
		case 'r':
			rounds = (unsigned int)strtoul(optarg, NULL, 0);
			break;
		case 'm':
			max_length = parse_size(optarg);
			break;
		case 's':
			only = optarg;
			break;
		case 'L':
			least = true;
			break;
		default:
			fprintf(stderr,
				"usage: bench [--label LABEL] [--rounds N] [--max SIZE] "
				"[--system NAME] [--least] [OPERATION[/KIND]...]\n"
				"OPERATION: register, release-first, pair, alloc, threads; "
				"KIND: 4k-scattered, 4k-natural, thp, hugetlb, memfd-huge\n");
			exit(2);
		}
	}
	apart = least && only;
	if (!rounds || rounds > MAX_ROUNDS)
		DIE("--rounds is a number from 1 to %d", MAX_ROUNDS);
	patterns = argv + optind;
	nr_patterns = argc - optind;
}

int main(int argc, char **argv)
{
	const struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };

	parse(argc, argv);
	SYS(setrlimit(RLIMIT_MEMLOCK, &unlimited));
	systems_open();
	for (enum kind kind = 0; kind < KINDS; kind++) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			if (wanted("register", kind) && sizes[i] <= max_length)
				bench_register(kind, sizes[i]);
		}
		if (wanted("pair", kind) && (kind == NATURAL || kind == SCATTERED))
			bench_pair(kind);
		if (wanted("batch", kind) && kind == NATURAL)
			bench_batch(kind);
		if (wanted("release-first", kind) && usual <= max_length)
			bench_first_release(kind, usual);
	}
	if (wanted("alloc", NATURAL) && usual <= max_length)
		bench_alloc(usual);
	if (wanted("threads", NATURAL) && usual <= max_length)
		bench_threads(NATURAL, usual);
	return 0;
}
