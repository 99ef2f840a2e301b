// SPDX-License-Identifier: GPL-2.0
#include <linux/eventfd.h>
#include <linux/interrupt.h>
#include "../helpers.h"

static irqreturn_t pinmap_signal_eventfd(int irq, void *slot)
{
	struct eventfd_ctx *eventfd = READ_ONCE(*(struct eventfd_ctx **)slot);

	if (eventfd)
		eventfd_signal(eventfd);
	return IRQ_HANDLED;
}

/* Makes each interrupt signal the eventfd that @slot points to at that time, if any. */
int pinmap_request_eventfd_irq(unsigned int irq, const char *name, void *slot)
{
	return request_irq(irq, pinmap_signal_eventfd, 0, name, slot);
}
