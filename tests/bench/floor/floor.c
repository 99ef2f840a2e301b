// SPDX-License-Identifier: GPL-2.0
/*
 * The floor of the bench: the time of pinning and mapping when nothing else is done. move.c has
 * that of moving, and fault.c that of faults.
 *
 * Pins as gup_test's PIN_FAST_BENCHMARK does with the flags 0x101, but tells nanoseconds. It keeps
 * no account, watches nothing and answers to root only: a measuring device, not a driver.
 */
#include <linux/iommu.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "floor.h"
#include "move.h"

static DEFINE_MUTEX(floor_lock);
static struct iommu_domain *floor_domain;

static u64 floor_runs(struct page **pages, unsigned long nr)
{
	unsigned long i;
	u64 runs = 1;

	for (i = 1; i < nr; i++)
		runs += pages[i] != pages[i - 1] + 1;
	return runs;
}

/* Makes a table with one entry a run, of at most 2 GiB. */
static int floor_table(struct sg_table *table, struct page **pages, unsigned long nr, u64 runs)
{
	struct scatterlist *sg;
	unsigned long i = 0;
	int ret = sg_alloc_table(table, runs + nr / (SZ_2G / PAGE_SIZE), GFP_KERNEL);

	if (ret)
		return ret;
	table->nents = 0;
	for (sg = table->sgl; i < nr; sg = sg_next(sg)) {
		unsigned long first = i;

		do
			i++;
		while (i < nr && pages[i] == pages[i - 1] + 1 && i - first < SZ_2G / PAGE_SIZE);
		sg_set_page(sg, pages[first], (i - first) * PAGE_SIZE, 0);
		table->nents++;
	}
	return 0;
}

static int floor_map(struct bench_floor *floor, struct sg_table *table)
{
	const int prot = IOMMU_READ | IOMMU_WRITE | IOMMU_CACHE;
	u64 began = ktime_get_ns();
	ssize_t mapped = iommu_map_sg(floor_domain, floor->addr, table->sgl, table->nents, prot,
				      GFP_KERNEL_ACCOUNT);

	floor->out_map_ns = ktime_get_ns() - began;
	if (mapped < 0)
		return mapped;
	began = ktime_get_ns();
	iommu_unmap(floor_domain, floor->addr, mapped);
	floor->out_unmap_ns = ktime_get_ns() - began;
	return mapped == floor->length ? 0 : -EIO;
}

static int floor_run(struct bench_floor *floor)
{
	unsigned long nr = floor->length / PAGE_SIZE, pinned = 0;
	struct sg_table table = {};
	struct page **pages;
	u64 began;
	int ret = 0;

	if (!floor->length || !PAGE_ALIGNED(floor->addr | floor->length) || floor->length > SZ_16G)
		return -EINVAL;
	pages = kvmalloc_array(nr, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	began = ktime_get_ns();
	while (pinned < nr && !fatal_signal_pending(current)) {
		ret = pin_user_pages_fast(floor->addr + pinned * PAGE_SIZE,
					  min(nr - pinned, (unsigned long)INT_MAX),
					  FOLL_WRITE | FOLL_LONGTERM, pages + pinned);
		if (ret <= 0)
			break;
		pinned += ret;
	}
	floor->out_pin_ns = ktime_get_ns() - began;
	ret = pinned == nr ? 0 : ret < 0 ? ret : -EFAULT;
	if (!ret) {
		floor->out_runs = floor_runs(pages, nr);
		ret = floor_table(&table, pages, nr, floor->out_runs);
	}
	if (!ret)
		ret = floor_map(floor, &table);
	sg_free_table(&table);
	began = ktime_get_ns();
	unpin_user_pages(pages, pinned);
	floor->out_unpin_ns = ktime_get_ns() - began;
	kvfree(pages);
	return ret;
}

static long floor_ioctl_move(void __user *arg)
{
	struct bench_floor_move move;
	int ret;

	if (copy_from_user(&move, arg, sizeof(move)))
		return -EFAULT;
	mutex_lock(&floor_lock);
	ret = floor_move(&move);
	mutex_unlock(&floor_lock);
	if (!ret && copy_to_user(arg, &move, sizeof(move)))
		ret = -EFAULT;
	return ret;
}

static long floor_ioctl_fault(void __user *arg)
{
	struct bench_floor_fault fault;
	int ret;

	if (copy_from_user(&fault, arg, sizeof(fault)))
		return -EFAULT;
	mutex_lock(&floor_lock);
	ret = floor_domain ? floor_fault(floor_domain, &fault) : -ENODEV;
	mutex_unlock(&floor_lock);
	if (!ret && copy_to_user(arg, &fault, sizeof(fault)))
		ret = -EFAULT;
	return ret;
}

static long floor_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct bench_floor floor;
	int ret;

	if (cmd == BENCH_FLOOR_MOVE)
		return floor_ioctl_move((void __user *)arg);
	if (cmd == BENCH_FLOOR_FAULT)
		return floor_ioctl_fault((void __user *)arg);
	if (cmd != BENCH_FLOOR_RUN)
		return -ENOTTY;
	if (copy_from_user(&floor, (void __user *)arg, sizeof(floor)))
		return -EFAULT;
	mutex_lock(&floor_lock);
	ret = floor_domain ? floor_run(&floor) : -ENODEV;
	mutex_unlock(&floor_lock);
	if (!ret && copy_to_user((void __user *)arg, &floor, sizeof(floor)))
		ret = -EFAULT;
	return ret;
}

static const struct file_operations floor_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = floor_ioctl,
};

static struct miscdevice floor_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = BENCH_FLOOR_NODE,
	.fops = &floor_fops,
	.mode = 0600,
};

static int floor_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct iommu_domain *domain;
	int ret;

	if (floor_domain)
		return -EBUSY;
	ret = iommu_device_claim_dma_owner(&pdev->dev, &floor_domain);
	if (ret)
		return ret;
	domain = iommu_paging_domain_alloc_flags(&pdev->dev, 0);
	if (IS_ERR(domain)) {
		ret = PTR_ERR(domain);
		goto out_release;
	}
	ret = iommu_attach_device(domain, &pdev->dev);
	if (ret)
		goto out_free;
	mutex_lock(&floor_lock);
	floor_domain = domain;
	mutex_unlock(&floor_lock);
	return 0;

out_free:
	iommu_domain_free(domain);
out_release:
	iommu_device_release_dma_owner(&pdev->dev);
	return ret;
}

static void floor_remove(struct pci_dev *pdev)
{
	struct iommu_domain *domain = floor_domain;

	mutex_lock(&floor_lock);
	floor_domain = NULL;
	mutex_unlock(&floor_lock);
	iommu_detach_device(domain, &pdev->dev);
	iommu_domain_free(domain);
	iommu_device_release_dma_owner(&pdev->dev);
}

/* A driver without ids: it is bound by driver_override only. */
static struct pci_driver floor_driver = {
	.name = BENCH_FLOOR_NODE,
	.probe = floor_probe,
	.remove = floor_remove,
	.driver_managed_dma = true,
};

static int __init floor_init(void)
{
	int ret = floor_move_init();

	if (ret)
		return ret;
	ret = misc_register(&floor_misc);
	if (ret)
		goto out_move;
	ret = pci_register_driver(&floor_driver);
	if (ret)
		goto out_misc;
	return 0;

out_misc:
	misc_deregister(&floor_misc);
out_move:
	floor_move_exit();
	return ret;
}
module_init(floor_init);

static void __exit floor_exit(void)
{
	misc_deregister(&floor_misc);
	pci_unregister_driver(&floor_driver);
	floor_move_exit();
}
module_exit(floor_exit);

MODULE_DESCRIPTION("The floor of pinmap's bench");
MODULE_LICENSE("GPL");
