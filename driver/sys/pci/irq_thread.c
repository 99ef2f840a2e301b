// SPDX-License-Identifier: GPL-2.0
#include <linux/interrupt.h>
#include <linux/sched.h>
#include <linux/sched/rt.h>
#include "../helpers.h"

static irqreturn_t pinmap_run_irq_thread(int irq, void *cookie)
{
	struct pinmap_irq_thread *thread = cookie;

	/*
	 * The kernel makes this a real-time thread. Here user space decides how often it runs, and
	 * no program may keep a processor from others.
	 */
	if (rt_task(current))
		sched_set_normal(current, 0);
	thread->run(thread->data);
	return IRQ_HANDLED;
}

/*
 * Makes each interrupt wake a thread that calls @thread, which must stay until the interrupt is
 * freed.
 */
int pinmap_request_irq_thread(unsigned int irq, const char *name, struct pinmap_irq_thread *thread)
{
	return request_threaded_irq(irq, NULL, pinmap_run_irq_thread, IRQF_ONESHOT, name, thread);
}
