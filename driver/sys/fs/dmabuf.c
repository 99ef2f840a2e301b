// SPDX-License-Identifier: GPL-2.0
#include <linux/dma-buf.h>
#include <linux/dma-buf-mapping.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/pci-p2pdma.h>
#include <linux/scatterlist.h>
#include "../helpers.h"

void pinmap_sg_set_run(struct scatterlist *sg, unsigned long pfn, unsigned int bytes)
{
	sg_set_page(sg, pfn_to_page(pfn), bytes, 0);
}

void pinmap_dma_sync_for_cpu(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction)
{
	dma_sync_sgtable_for_cpu(dev, table, direction);
}

void pinmap_dma_sync_for_device(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction)
{
	dma_sync_sgtable_for_device(dev, table, direction);
}

bool pinmap_dma_may_write(enum dma_data_direction direction)
{
	return direction != DMA_TO_DEVICE;
}

/* The longest segment that the device takes, in bytes: a multiple of the page size. */
unsigned int pinmap_dma_max_segment(struct device *dev)
{
	return max_t(unsigned int, dma_get_max_seg_size(dev) & PAGE_MASK, PAGE_SIZE);
}

/* Tells importers to let go; with @finish, waits for what they had begun. */
void pinmap_dma_buf_invalidate(struct dma_buf *dma_buf, bool finish)
{
	dma_resv_lock(dma_buf->resv, NULL);
	dma_buf_invalidate_mappings(dma_buf);
	if (finish)
		dma_resv_wait_timeout(dma_buf->resv, DMA_RESV_USAGE_BOOKKEEP, false,
				      MAX_SCHEDULE_TIMEOUT);
	dma_resv_unlock(dma_buf->resv);
}

/*
 * Has all entries of @table, which dma_buf_phys_vec_to_sgt() made, freed with it: that of Linux 7.3
 * counts none of them as the table's own, so their memory would be lost.
 */
static void pinmap_own_entries(struct sg_table *table)
{
	if (!table->orig_nents)
		table->orig_nents = table->nents;
}

/* Maps @range of @bar for the importer, by the way that the bus allows. -EINVAL: there is none. */
struct sg_table *pinmap_dma_buf_map_bar(struct dma_buf_attachment *attachment,
					struct pci_dev *pdev, u32 bar, struct phys_vec *range,
					enum dma_data_direction direction)
{
	struct p2pdma_provider *provider = pcim_p2pdma_provider(pdev, bar);

	if (!provider)
		return ERR_PTR(-EOPNOTSUPP);
	return dma_buf_phys_vec_to_sgt(attachment, provider, range, 1, range->len, direction);
}

void pinmap_dma_buf_unmap_bar(struct dma_buf_attachment *attachment, struct sg_table *table,
			      enum dma_data_direction direction)
{
	pinmap_own_entries(table);
	dma_buf_free_sgt(attachment, table, direction);
}
