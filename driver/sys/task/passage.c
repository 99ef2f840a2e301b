// SPDX-License-Identifier: GPL-2.0
#include <linux/slab.h>
#include <linux/srcu.h>
#include "../helpers.h"

/* Allocates a domain. Returns NULL if there is no memory. */
struct srcu_struct *pinmap_srcu_new(void)
{
	struct srcu_struct *domain = kzalloc(sizeof(*domain), GFP_KERNEL);

	if (domain && init_srcu_struct(domain)) {
		kfree(domain);
		domain = NULL;
	}
	return domain;
}

void pinmap_srcu_free(struct srcu_struct *domain)
{
	cleanup_srcu_struct(domain);
	kfree(domain);
}

int pinmap_srcu_lock(struct srcu_struct *domain)
{
	return srcu_read_lock(domain);
}

void pinmap_srcu_unlock(struct srcu_struct *domain, int index)
{
	srcu_read_unlock(domain, index);
}

void pinmap_srcu_wait(struct srcu_struct *domain)
{
	synchronize_srcu(domain);
}
