// SPDX-License-Identifier: GPL-2.0
#include <linux/device.h>
#include <linux/ioport.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include "../helpers.h"

/*
 * Device-private pages: page frames without memory behind them that the CPU could reach. They stand
 * for pages that are in a device's memory. A struct dev_pagemap ends with a flexible array, for
 * which bindings can be neither initialized nor embedded, so it lives here.
 */

#if IS_ENABLED(CONFIG_DEVICE_PRIVATE) && IS_ENABLED(CONFIG_HMM_MIRROR)

struct pinmap_device_pages {
	struct dev_pagemap pgmap;
	struct resource *frames;
	const struct pinmap_device_pages_ops *ops;
	void *data;
};

static struct pinmap_device_pages *pinmap_pages_of(const struct folio *folio)
{
	return container_of(folio->pgmap, struct pinmap_device_pages, pgmap);
}

/* Called with locks of page tables held, or in an interrupt. */
static void pinmap_device_folio_free(struct folio *folio)
{
	struct pinmap_device_pages *pages = pinmap_pages_of(folio);

	pages->ops->freed(pages->data, folio_pfn(folio) - PHYS_PFN(pages->frames->start));
}

static vm_fault_t pinmap_migrate_to_ram(struct vm_fault *vmf)
{
	struct pinmap_device_pages *pages = pinmap_pages_of(page_folio(vmf->page));

	return pages->ops->bring_home(pages->data, vmf);
}

static const struct dev_pagemap_ops pinmap_pagemap_ops = {
	.folio_free = pinmap_device_folio_free,
	.migrate_to_ram = pinmap_migrate_to_ram,
};

/* @data is what the pages are owned by, as HMM and migrate_vma call it. */
struct pinmap_device_pages *pinmap_device_pages_add(u64 bytes, int node,
						    const struct pinmap_device_pages_ops *ops,
						    void *data)
{
	struct pinmap_device_pages *pages = kzalloc(sizeof(*pages), GFP_KERNEL);
	void *ret;

	if (!pages)
		return ERR_PTR(-ENOMEM);
	pages->ops = ops;
	pages->data = data;
	/* rounded up to whole sections of memory */
	pages->frames = request_free_mem_region(&iomem_resource, bytes, "pinmap_vram");
	if (IS_ERR(pages->frames)) {
		ret = pages->frames;
		goto free;
	}
	pages->pgmap.type = MEMORY_DEVICE_PRIVATE;
	pages->pgmap.ops = &pinmap_pagemap_ops;
	pages->pgmap.owner = data;
	pages->pgmap.nr_range = 1;
	pages->pgmap.range.start = pages->frames->start;
	pages->pgmap.range.end = pages->frames->end;
	ret = memremap_pages(&pages->pgmap, node);
	if (!IS_ERR(ret))
		return pages;
	release_mem_region(pages->frames->start, resource_size(pages->frames));
free:
	kfree(pages);
	return ret;
}

/* Waits until no page is used any more. */
void pinmap_device_pages_remove(struct pinmap_device_pages *pages)
{
	memunmap_pages(&pages->pgmap);
	release_mem_region(pages->frames->start, resource_size(pages->frames));
	kfree(pages);
}

unsigned long pinmap_device_pages_first(const struct pinmap_device_pages *pages)
{
	return PHYS_PFN(pages->frames->start);
}

/* Whoever touches it may do so again and again. */
void pinmap_tell_lost(struct device *dev, unsigned long start, unsigned long last)
{
	dev_err_ratelimited(dev, "memory at %#lx to %#lx is lost with it: SIGBUS for %s (%d)\n",
			    start, last, current->comm, task_pid_nr(current));
}

/* The page has one reference, and is locked. */
void pinmap_take_device_page(struct pinmap_device_pages *pages, unsigned long index)
{
	struct page *page = pfn_to_page(pinmap_device_pages_first(pages) + index);

	zone_device_folio_init((struct folio *)page, &pages->pgmap, 0);
}

#endif
