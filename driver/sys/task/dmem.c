// SPDX-License-Identifier: GPL-2.0
#include <linux/cgroup_dmem.h>
#include <linux/pci.h>
#include "../helpers.h"

/* Without CONFIG_CGROUP_DMEM, regions and pools are NULL, and nothing is charged. */
struct dmem_cgroup_region *pinmap_dmem_register(struct pci_dev *pdev, u64 bytes)
{
	const struct dmem_cgroup_init init = { .size = bytes };

	return dmem_cgroup_register_region(&init, "pinmap/%s/vram", pci_name(pdev));
}

void pinmap_dmem_unregister(struct dmem_cgroup_region *region)
{
	dmem_cgroup_unregister_region(region);
}

/* -EDQUOT: the control group of the current task, or one above it, may not have so much. */
int pinmap_dmem_charge(struct dmem_cgroup_region *region, u64 bytes,
		       struct dmem_cgroup_pool_state **pool)
{
	int result = dmem_cgroup_try_charge(region, bytes, pool, NULL);

	return result == -EAGAIN ? -EDQUOT : result;
}

void pinmap_dmem_uncharge(struct dmem_cgroup_pool_state *pool, u64 bytes)
{
	dmem_cgroup_uncharge(pool, bytes);
}
