// SPDX-License-Identifier: GPL-2.0
#include <linux/cc_platform.h>
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/memory_hotplug.h>
#include <linux/memremap.h>
#include <linux/scatterlist.h>
#include <linux/swiotlb.h>
#include "../helpers.h"

bool pinmap_dma_buf_is_writable(struct dma_buf *dma_buf)
{
	return dma_buf->file->f_mode & FMODE_WRITE;
}

enum dma_data_direction pinmap_dma_direction(bool write)
{
	return write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

void pinmap_dma_buf_get(struct dma_buf *dma_buf)
{
	get_dma_buf(dma_buf);
}

/* Waits until the exporter has finished what it does to the memory. Negative: a signal came. */
long pinmap_dma_buf_await(struct dma_buf *dma_buf)
{
	return dma_resv_wait_timeout(dma_buf->resv, DMA_RESV_USAGE_KERNEL, true,
				     MAX_SCHEDULE_TIMEOUT);
}

bool pinmap_dma_buf_is_idle(struct dma_buf *dma_buf)
{
	return dma_resv_test_signaled(dma_buf->resv, DMA_RESV_USAGE_KERNEL);
}

struct sg_table *pinmap_dma_buf_map(struct dma_buf_attachment *attachment,
				    enum dma_data_direction direction)
{
	struct dma_resv *resv = attachment->dmabuf->resv;
	struct sg_table *table;

	if (dma_resv_lock_interruptible(resv, NULL))
		return ERR_PTR(-EINTR);
	table = dma_buf_map_attachment(attachment, direction);
	dma_resv_unlock(resv);
	return table;
}

/* Whether the DMA API gives @dev the addresses of memory itself, as it is for everybody. */
bool pinmap_dma_is_plain(struct device *dev)
{
	return !is_swiotlb_force_bounce(dev) && !cc_platform_has(CC_ATTR_MEM_ENCRYPT);
}

void pinmap_dma_buf_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
			  enum dma_data_direction direction)
{
	dma_resv_lock(attachment->dmabuf->resv, NULL);
	/* What VFIO exports has the same fault. */
	pinmap_own_entries(table);
	dma_buf_unmap_attachment(attachment, table, direction);
	dma_resv_unlock(attachment->dmabuf->resv);
}

void pinmap_sg_dma(struct scatterlist *sg, struct pinmap_bus_run *part)
{
	part->start = sg_dma_address(sg);
	part->length = sg_dma_len(sg);
}

/* Whether @pfn is a page of the host's memory, and not of a device. */
bool pinmap_is_ram(unsigned long pfn)
{
	struct page *page = pfn_to_online_page(pfn);

	return page && !PageReserved(page) && !is_zone_device_page(page);
}
