// SPDX-License-Identifier: GPL-2.0
#include <linux/memcontrol.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>
#include "../helpers.h"

static struct workqueue_struct *pinmap_queue_of[PINMAP_QUEUES];

int pinmap_queues_begin(void)
{
	static const struct {
		const char *name;
		int max_active;
	} queues[PINMAP_QUEUES] = {
		[PINMAP_QUEUE_WATCH] = { "pinmap_watch", 4 },
		[PINMAP_QUEUE_END] = { "pinmap_end", 64 },
		[PINMAP_QUEUE_MAP] = { "pinmap_map", 0 },
		[PINMAP_QUEUE_GUARD] = { "pinmap_guard", 0 },
		[PINMAP_QUEUE_START] = { "pinmap_start", 16 },
	};

	for (u32 i = 0; i < PINMAP_QUEUES; i++) {
		pinmap_queue_of[i] = alloc_workqueue("%s", WQ_UNBOUND, queues[i].max_active,
						     queues[i].name);
		if (!pinmap_queue_of[i]) {
			pinmap_queues_end();
			return -ENOMEM;
		}
	}
	return 0;
}

/* Runs what is queued, then frees the queues. */
void pinmap_queues_end(void)
{
	for (u32 i = 0; i < PINMAP_QUEUES; i++) {
		if (pinmap_queue_of[i])
			destroy_workqueue(pinmap_queue_of[i]);
		pinmap_queue_of[i] = NULL;
	}
}

struct workqueue_struct *pinmap_queue(u32 which)
{
	return pinmap_queue_of[which];
}

struct pinmap_beside {
	struct work_struct work;
	struct mem_cgroup *memcg;
	void (*run)(void *data);
	void *data;
};

static void pinmap_run_beside(struct work_struct *work)
{
	struct pinmap_beside *beside = container_of(work, struct pinmap_beside, work);
	struct mem_cgroup *old = set_active_memcg(beside->memcg);

	beside->run(beside->data);
	set_active_memcg(old);
}

/*
 * Calls @own, and meanwhile @other on another processor, if one has time. What @other allocates is
 * charged to the current task's cgroup. @other is not called after this has returned.
 */
void pinmap_beside(void (*own)(void *), void *own_data, void (*other)(void *), void *other_data)
{
	struct pinmap_beside beside = { .run = other, .data = other_data };

	beside.memcg = get_mem_cgroup_from_mm(current->mm);
	INIT_WORK_ONSTACK(&beside.work, pinmap_run_beside);
	queue_work(pinmap_queue(PINMAP_QUEUE_MAP), &beside.work);
	own(own_data);
	cancel_work_sync(&beside.work);
	destroy_work_on_stack(&beside.work);
	mem_cgroup_put(beside.memcg);
}
