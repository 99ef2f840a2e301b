// SPDX-License-Identifier: GPL-2.0
#include <linux/io.h>
#include <linux/pci.h>
#include <linux/pci-p2pdma.h>
#include <linux/pm_runtime.h>
#include <linux/suspend.h>
#include "../helpers.h"

void pinmap_pci_bar(struct pci_dev *pdev, u32 bar, struct pinmap_pci_bar *out)
{
	unsigned long flags = pci_resource_flags(pdev, bar);

	out->start = pci_resource_start(pdev, bar);
	out->length = pci_resource_len(pdev, bar);
	out->flags = 0;
	/* A BAR of less than a page would expose its neighbours. */
	if ((flags & IORESOURCE_MEM) && out->length && PAGE_ALIGNED(out->start) &&
	    PAGE_ALIGNED(out->length))
		out->flags |= PINMAP_BAR_MMAP;
	if (flags & IORESOURCE_PREFETCH)
		out->flags |= PINMAP_BAR_PREFETCHABLE;
	if (flags & IORESOURCE_MEM_64)
		out->flags |= PINMAP_BAR_64BIT;
}

/*
 * Reserves a prefetchable @bar as write-combined if @on, or ends that. Other BARs stay as they are.
 * The flags of a page table do not count on x86: inserting a PFN takes the memory type that its
 * range was reserved with.
 */
int pinmap_pci_combine(struct pci_dev *pdev, u32 bar, bool on)
{
	struct pinmap_pci_bar info;

	pinmap_pci_bar(pdev, bar, &info);
	if (!(info.flags & PINMAP_BAR_MMAP) || !(info.flags & PINMAP_BAR_PREFETCHABLE))
		return 0;
	if (on)
		return arch_io_reserve_memtype_wc(info.start, info.length);
	arch_io_free_memtype_wc(info.start, info.length);
	return 0;
}

/* Fills in @msix. Returns -ENOENT if @pdev has no MSI-X, -EIO if its capability cannot be read. */
int pinmap_pci_msix(struct pci_dev *pdev, struct pinmap_pci_msix *msix)
{
	int vectors;
	u32 table, pending;

	if (!pdev->msix_cap)
		return -ENOENT;
	vectors = pci_msix_vec_count(pdev);
	if (vectors <= 0 ||
	    pci_read_config_dword(pdev, pdev->msix_cap + PCI_MSIX_TABLE, &table) ||
	    pci_read_config_dword(pdev, pdev->msix_cap + PCI_MSIX_PBA, &pending))
		return -EIO;
	*msix = (struct pinmap_pci_msix){
		.vectors = vectors,
		.table_bar = table & PCI_MSIX_TABLE_BIR,
		.table_offset = table & PCI_MSIX_TABLE_OFFSET,
		.pending_bar = pending & PCI_MSIX_PBA_BIR,
		.pending_offset = pending & PCI_MSIX_PBA_OFFSET,
	};
	return 0;
}

/*
 * Whether @pdev reaches the memory of @peer on the bus. Devices that the IOMMU tells apart do so
 * through the host bridge, and with addresses that the IOMMU translates.
 */
bool pinmap_pci_reaches(struct pci_dev *pdev, struct pci_dev *peer)
{
	struct device *client = &pdev->dev;

	return pci_p2pdma_distance_many(peer, &client, 1, false) >= 0;
}

/* Exchanges what the DMA API may do for @pdev: how wide addresses are, and how long segments. */
void pinmap_pci_exchange_limits(struct pci_dev *pdev, struct pinmap_dma_limits *limits)
{
	struct device *dev = &pdev->dev;
	struct pinmap_dma_limits old = { dma_get_mask(dev), dma_get_max_seg_size(dev) };

	if (dma_set_mask(dev, limits->mask))
		pci_dbg(pdev, "keeps its mask for DMA\n");
	dma_set_max_seg_size(dev, limits->segment);
	*limits = old;
}

/* Prepares @pdev to have its BARs mapped by others. Where that cannot be, they are not. */
void pinmap_pci_init_peers(struct pci_dev *pdev)
{
	if (pcim_p2pdma_init(pdev))
		pci_dbg(pdev, "its memory cannot be given to other devices\n");
}

bool pinmap_pci_can_reset(struct pci_dev *pdev)
{
	return pdev->reset_methods[0];
}

/* Returns how many message-signalled vectors @pdev has: of MSI-X, or else of MSI. */
int pinmap_pci_vectors(struct pci_dev *pdev)
{
	int vectors = pci_msix_vec_count(pdev);

	return vectors > 0 ? vectors : max(pci_msi_vec_count(pdev), 0);
}

int pinmap_pci_alloc_vectors(struct pci_dev *pdev, unsigned int wanted)
{
	return pci_alloc_irq_vectors(pdev, 1, wanted, PCI_IRQ_MSIX | PCI_IRQ_MSI);
}

void pinmap_pci_ids(struct pci_dev *pdev, struct pinmap_info *info)
{
	info->out_vendor = pdev->vendor;
	info->out_device = pdev->device;
	info->out_subsystem_vendor = pdev->subsystem_vendor;
	info->out_subsystem_device = pdev->subsystem_device;
	info->out_class = pdev->class;
	info->out_pci_domain = pci_domain_nr(pdev->bus);
	info->out_pci_bus = pdev->bus->number;
	info->out_pci_devfn = pdev->devfn;
}

/* Whether devices are thawed because there is no snapshot that could be written. */
bool pinmap_hibernation_failed(void)
{
	return pm_hibernate_is_recovering();
}

/* How long @pdev is idle before it sleeps, unless the administrator sets something else. */
#define AUTOSUSPEND_MS 5000

/* Lets @pdev, which is being bound, sleep when it is idle, where the administrator wants that. */
void pinmap_runtime_begin(struct pci_dev *pdev)
{
	struct device *dev = &pdev->dev;

	pm_runtime_set_autosuspend_delay(dev, AUTOSUSPEND_MS);
	pm_runtime_use_autosuspend(dev);
	pm_runtime_mark_last_busy(dev);
	/* The PCI core has begun a use for us. */
	pm_runtime_put_autosuspend(dev);
}

/* Undoes pinmap_runtime_begin(). @pdev is awake. */
void pinmap_runtime_end(struct pci_dev *pdev)
{
	pm_runtime_get_noresume(&pdev->dev);
	pm_runtime_dont_use_autosuspend(&pdev->dev);
}

void pinmap_runtime_resume(struct pci_dev *pdev)
{
	pm_runtime_resume(&pdev->dev);
}

void pinmap_runtime_request_resume(struct pci_dev *pdev)
{
	pm_request_resume(&pdev->dev);
}

void pinmap_runtime_keep(struct pci_dev *pdev)
{
	pm_runtime_get_sync(&pdev->dev);
}

void pinmap_runtime_let_go(struct pci_dev *pdev, bool bound)
{
	struct device *dev = &pdev->dev;

	if (!bound) {
		pm_runtime_put_noidle(dev);
		return;
	}
	pm_runtime_mark_last_busy(dev);
	pm_runtime_put_autosuspend(dev);
}

/* Has the kernel ask whether @pdev can sleep, when the time has passed. */
void pinmap_runtime_ask(struct pci_dev *pdev)
{
	pm_request_autosuspend(&pdev->dev);
}

#ifdef CONFIG_PM
/*
 * Has the kernel ask later whether @pdev, which cannot sleep now, can. It does so only if the time
 * has not passed, which with a short delay it may have: so the last use is a little in the future.
 * Where even that has passed when the kernel looks, it does not ask until pinmap_runtime_ask().
 */
void pinmap_runtime_busy(struct pci_dev *pdev)
{
	u64 soon = ktime_get_mono_fast_ns() + 5 * NSEC_PER_MSEC;

	WRITE_ONCE(pdev->dev.power.last_busy, soon);
}

u32 pinmap_runtime_delay(struct pci_dev *pdev)
{
	return max(READ_ONCE(pdev->dev.power.autosuspend_delay), 0);
}
#else
void pinmap_runtime_busy(struct pci_dev *pdev)
{
}

u32 pinmap_runtime_delay(struct pci_dev *pdev)
{
	return 0;
}
#endif

/*
 * Whether @pdev caches translations of the IOMMU. Then it must answer when memory is unmapped,
 * which it does not while it sleeps.
 */
bool pinmap_pci_uses_ats(struct pci_dev *pdev)
{
	return pdev->ats_enabled;
}
