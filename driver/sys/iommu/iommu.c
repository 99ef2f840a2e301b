// SPDX-License-Identifier: GPL-2.0
#include <linux/iommu.h>
#include "../helpers.h"

/*
 * Fills in the reserved regions of @dev, in any order. Returns how many there are, or -E2BIG if
 * there is no @room for them. @refused marks those that do not allow a domain of our own: memory
 * that firmware wants mapped. @messages: from where on the target of interrupts is to be mapped, or
 * U64_MAX if the architecture's interrupts need no mapping. Where the IOMMU lets writes to some
 * addresses through as interrupts, the kernel wants them mapped all the same, and so they are
 * mapped to themselves.
 */
int pinmap_reserved_regions(struct device *dev, struct pinmap_region *regions, unsigned int room,
			    u64 *messages)
{
	struct iommu_resv_region *region;
	unsigned int count = 0;
	int ret = 0;
	LIST_HEAD(list);

	*messages = U64_MAX;
	iommu_get_resv_regions(dev, &list);
	list_for_each_entry(region, &list, list) {
		/* The kernel itself lets these be mapped over. */
		if (region->type == IOMMU_RESV_DIRECT_RELAXABLE || !region->length)
			continue;
		if (count == room) {
			ret = -E2BIG;
			break;
		}
		if (IS_ENABLED(CONFIG_IRQ_MSI_IOMMU) &&
		    (region->type == IOMMU_RESV_MSI ||
		     (region->type == IOMMU_RESV_SW_MSI && *messages == U64_MAX)))
			*messages = region->start;
		regions[count++] = (struct pinmap_region){
			.start = region->start,
			.last = region->start + region->length - 1,
			.kind = region->type == IOMMU_RESV_MSI ||
						region->type == IOMMU_RESV_SW_MSI ?
					PINMAP_RESERVED_MSI :
					PINMAP_RESERVED_OTHER,
			.refused = region->type == IOMMU_RESV_DIRECT,
		};
	}
	iommu_put_resv_regions(dev, &list);
	return ret ?: count;
}

/*
 * Makes all DMA snoop, as VFIO does: otherwise a device that sets "no snoop" reads memory that the
 * caches have not written back.
 */
void pinmap_enforce_coherency(struct iommu_domain *domain)
{
	if (domain->ops->enforce_cache_coherency)
		domain->ops->enforce_cache_coherency(domain);
}

/*
 * Makes the kernel map the target of interrupts from @base on in @domain, when vectors are
 * allocated for a function that is attached to it.
 */
int pinmap_get_msi_cookie(struct iommu_domain *domain, u64 base)
{
	return iommu_get_msi_cookie(domain, base);
}

/*
 * Maps @runs of pages, up to PINMAP_LENT_RUNS, one behind the other from @start on, and tells the
 * IOMMU once. Each is mapped by itself, as long as its pages are not next to those before it. On
 * failure nothing is mapped. Sleeps.
 */
int pinmap_map_runs(struct iommu_domain *domain, u64 start, const struct pinmap_lent_run *runs,
		    unsigned int count, int prot)
{
	struct scatterlist entries[PINMAP_LENT_RUNS];
	ssize_t mapped;

	if (!count || count > ARRAY_SIZE(entries))
		return -EINVAL;
	sg_init_table(entries, count);
	for (unsigned int i = 0; i < count; i++)
		sg_set_page(&entries[i], pfn_to_page(runs[i].pfn), runs[i].length, 0);
	mapped = iommu_map_sg(domain, start, entries, count, prot, GFP_KERNEL_ACCOUNT);
	return mapped < 0 ? mapped : 0;
}

/*
 * Unmaps @runs, each of which one call has mapped, and flushes once. Returns how many bytes were
 * unmapped. May be called in any context.
 */
u64 pinmap_unmap_runs(struct iommu_domain *domain, const struct pinmap_bus_run *runs,
		      unsigned int count)
{
	struct iommu_iotlb_gather gather;
	u64 bytes = 0;

	iommu_iotlb_gather_init(&gather);
	for (; count--; runs++)
		bytes += iommu_unmap_fast(domain, runs->start, runs->length, &gather);
	iommu_iotlb_sync(domain, &gather);
	return bytes;
}

void pinmap_gather_init(struct iommu_iotlb_gather *gather)
{
	iommu_iotlb_gather_init(gather);
}

/* Flushes everything of @domain. May be called in any context. */
void pinmap_flush_all(struct iommu_domain *domain)
{
	iommu_flush_iotlb_all(domain);
}

/* Flushes what was gathered, and makes @gather empty. */
void pinmap_gather_sync(struct iommu_domain *domain, struct iommu_iotlb_gather *gather)
{
	iommu_iotlb_sync(domain, gather);
}
