/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every ioctl that there is, with arguments for which it succeeds. */
#ifndef TESTS_IOCTLS_H
#define TESTS_IOCTLS_H

#include "gpu.h"

union argument {
	struct {
		uint32_t size;
		uint32_t flags;
	};
	struct pinmap_info info;
	struct pinmap_reserved reserved;
	struct pinmap_register register_;
	struct pinmap_release release;
	struct pinmap_register_buffers register_buffers;
	struct pinmap_release_buffers release_buffers;
	struct pinmap_query query;
	struct pinmap_map map;
	struct pinmap_unmap unmap;
	struct pinmap_set_eventfd eventfd;
	struct pinmap_reset reset;
	struct pinmap_stay_awake stay_awake;
	struct pinmap_get_totals totals;
	struct pinmap_register_fd register_fd;
	struct pinmap_preflight preflight;
	struct pinmap_generations generations;
	struct pinmap_alloc alloc;
	struct pinmap_export export;
	struct pinmap_import import;
	struct pinmap_sync sync;
	struct pinmap_manage manage;
	struct pinmap_prefetch prefetch;
	struct pinmap_advise advise;
	struct pinmap_residency residency;
	struct pinmap_statistics statistics;
	struct pinmap_budget budget;
	struct pinmap_gpu_info gpu_info;
	struct pinmap_gpu_counters gpu_counters;
	struct pinmap_gpu_walk gpu_walk;
	struct pinmap_queue_create queue_create;
	struct pinmap_queue_destroy queue_destroy;
	struct pinmap_queue_wait queue_wait;
	struct pinmap_queue_query queue_query;
	struct pinmap_queue_submit queue_submit;
	struct pinmap_queue_notify queue_notify;
};

/**
 * struct context - what the arguments refer to
 * @fd: an open device
 * @paged: the device is a paged one
 * @memfd: a file of one page
 * @page: five pages of memory; the first and the last two are not registered
 * @pinned: the second page, registered and not mapped
 * @mapped: the fourth page, registered and mapped
 * @dma_buf: @pinned, exported
 * @eventfd: an eventfd
 * @queue: a queue, on a paged device
 * @managed: five more pages, which are managed if the device and the kernel allow that
 * @range: the handle of them; 0: nothing can be managed
 */
struct context {
	int fd;
	bool paged;
	int memfd;
	char *page;
	struct registration pinned;
	struct registration mapped;
	int dma_buf;
	int eventfd;
	uint64_t queue;
	char *managed;
	uint64_t range;
};

struct context context_new(void);
void context_end(struct context *context);

/**
 * struct command - an ioctl
 * @name: part of the names of its tests
 * @number: its number
 * @size: size of its struct
 * @flags: the flags that are known
 * @reserved: offset of its reserved field; 0: it has none
 * @writes_back: its struct is written when it succeeds
 * @paged: it is for paged devices only
 * @mirror: it is for managed memory, which some kernels cannot have
 * @fill: makes a zeroed argument a good one
 */
struct command {
	const char *name;
	unsigned long number;
	size_t size;
	uint32_t flags;
	size_t reserved;
	bool writes_back;
	bool paged;
	bool mirror;
	void (*fill)(const struct context *context, union argument *argument);
};

enum { NR_COMMANDS = 35 };
extern const struct command commands[NR_COMMANDS];

#endif
