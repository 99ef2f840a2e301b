// SPDX-License-Identifier: GPL-2.0
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
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

void pinmap_dma_buf_invalidate(struct dma_buf *dma_buf)
{
	dma_resv_lock(dma_buf->resv, NULL);
	dma_buf_invalidate_mappings(dma_buf);
	dma_resv_unlock(dma_buf->resv);
}
