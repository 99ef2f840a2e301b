// SPDX-License-Identifier: GPL-2.0
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include "../helpers.h"

#ifdef CONFIG_MEMCG

u64 pinmap_memory_limit(struct mm_struct *mm)
{
	struct mem_cgroup *own = get_mem_cgroup_from_mm(mm), *at;
	unsigned long pages = PAGE_COUNTER_MAX;

	for (at = own; at; at = parent_mem_cgroup(at))
		pages = min(pages, READ_ONCE(at->memory.max));
	mem_cgroup_put(own);
	return pages == PAGE_COUNTER_MAX ? U64_MAX : (u64)pages << PAGE_SHIFT;
}

#else

u64 pinmap_memory_limit(struct mm_struct *mm)
{
	return U64_MAX;
}

#endif
