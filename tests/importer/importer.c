// SPDX-License-Identifier: GPL-2.0
/*
 * A driver that uses dma-bufs as drivers of real devices do: it attaches a device, maps, reaches
 * the memory by the addresses that it gets, and lets go at once or later when it is told to. It
 * also holds the lock of a PCI function, as a process that resets or unbinds it does. For the tests
 * only.
 */
#include <linux/delay.h>
#include <linux/dma-buf.h>
#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "importer.h"

struct import {
	struct mutex lock;
	struct dma_buf *dma_buf;
	struct dma_buf_attachment *attachment;
	/* under the dma-buf's reservation */
	struct sg_table *table;
	unsigned int told;
	u32 flags;
	/* the device that is attached, or NULL */
	struct pci_dev *peer;
};

static struct miscdevice importer_device;

static struct device *device_of(const struct import *import)
{
	return import->peer ? &import->peer->dev : importer_device.this_device;
}

static enum dma_data_direction direction(const struct import *import)
{
	return import->flags & IMPORTER_WRITE ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

/* Whether the device takes pieces that long: otherwise it would reach something else. */
static bool fits(const struct import *import, struct sg_table *table)
{
	struct scatterlist *entry;
	unsigned int i;

	for_each_sgtable_dma_sg(table, entry, i)
		if (!import->peer && sg_dma_len(entry) > dma_get_max_seg_size(device_of(import)))
			return false;
	return true;
}

static struct pci_dev *find_function(u64 function)
{
	return pci_get_domain_bus_and_slot(function >> 16, function >> 8 & 0xff, function & 0xff);
}

static void unmap(struct import *import)
{
	if (import->table)
		dma_buf_unmap_attachment(import->attachment, import->table, direction(import));
	import->table = NULL;
}

static void told(struct dma_buf_attachment *attachment)
{
	struct import *import = attachment->importer_priv;

	import->told++;
	if (!(import->flags & IMPORTER_LAZY))
		unmap(import);
}

static const struct dma_buf_attach_ops attach_ops = {
	.allow_peer2peer = false,
	.invalidate_mappings = told,
};

static const struct dma_buf_attach_ops peer_ops = {
	.allow_peer2peer = true,
	.invalidate_mappings = told,
};

static void let_go(struct import *import)
{
	if (!import->dma_buf)
		return;
	dma_resv_lock(import->dma_buf->resv, NULL);
	unmap(import);
	dma_resv_unlock(import->dma_buf->resv);
	dma_buf_detach(import->dma_buf, import->attachment);
	dma_buf_put(import->dma_buf);
	import->dma_buf = NULL;
	pci_dev_put(import->peer);
	import->peer = NULL;
}

static long map(struct import *import, const struct importer_args *args)
{
	const struct dma_buf_attach_ops *ops = &attach_ops;
	struct device *dev = importer_device.this_device;
	struct sg_table *table;
	long result = 0;

	if (import->dma_buf)
		return -EBUSY;
	if (args->flags & IMPORTER_PEER) {
		import->peer = find_function(args->offset);
		if (!import->peer)
			return -ENODEV;
		dev = &import->peer->dev;
		ops = &peer_ops;
	}
	import->flags = args->flags;
	import->told = 0;
	import->dma_buf = dma_buf_get(args->fd);
	if (IS_ERR(import->dma_buf)) {
		result = PTR_ERR(import->dma_buf);
		goto no_peer;
	}
	import->attachment =
		args->flags & IMPORTER_DYNAMIC
			? dma_buf_dynamic_attach(import->dma_buf, dev, ops, import)
			: dma_buf_attach(import->dma_buf, dev);
	if (IS_ERR(import->attachment)) {
		result = PTR_ERR(import->attachment);
		dma_buf_put(import->dma_buf);
		goto no_peer;
	}
	dma_resv_lock(import->dma_buf->resv, NULL);
	table = dma_buf_map_attachment(import->attachment, direction(import));
	if (IS_ERR(table))
		result = PTR_ERR(table);
	else
		import->table = table;
	if (!result && !fits(import, table))
		result = -EMSGSIZE;
	dma_resv_unlock(import->dma_buf->resv);
	if (result)
		let_go(import);
	return result;

no_peer:
	import->dma_buf = NULL;
	pci_dev_put(import->peer);
	import->peer = NULL;
	return result;
}

/* Holds the lock of the dma-buf, as an importer does while it works with the memory. */
static long hold_lock(int fd, int eventfd)
{
	struct eventfd_ctx *held = eventfd_ctx_fdget(eventfd);
	struct dma_buf *dma_buf;

	if (IS_ERR(held))
		return PTR_ERR(held);
	dma_buf = dma_buf_get(fd);
	if (IS_ERR(dma_buf)) {
		eventfd_ctx_put(held);
		return PTR_ERR(dma_buf);
	}
	dma_resv_lock(dma_buf->resv, NULL);
	eventfd_signal(held);
	while (!signal_pending(current))
		schedule_timeout_interruptible(HZ);
	dma_resv_unlock(dma_buf->resv);
	dma_buf_put(dma_buf);
	eventfd_ctx_put(held);
	return -EINTR;
}

/* Where the device's address @address leads. */
static phys_addr_t translated(const struct import *import, dma_addr_t address)
{
	struct iommu_domain *domain;

	if (!import->peer)
		return dma_to_phys(device_of(import), address);
	domain = iommu_get_domain_for_dev(device_of(import));
	return domain ? iommu_iova_to_phys(domain, address) : address;
}

/* Where the byte at @offset is, found by the device's addresses; 0: nowhere. */
static phys_addr_t byte_at(struct import *import, u64 offset)
{
	struct scatterlist *entry;
	unsigned int i;

	if (!import->table)
		return 0;
	for_each_sgtable_dma_sg(import->table, entry, i) {
		if (offset < sg_dma_len(entry))
			return translated(import, sg_dma_address(entry) + offset);
		offset -= sg_dma_len(entry);
	}
	return 0;
}

/* Loads or stores a byte of the host's memory, or of a device's. */
static long access_byte(unsigned int command, phys_addr_t at, u64 *value)
{
	bool is_ram = region_intersects(at, 1, IORESOURCE_SYSTEM_RAM, IORES_DESC_NONE) ==
		      REGION_INTERSECTS;
	u8 *byte = is_ram ? phys_to_virt(at) : NULL;
	void __iomem *there;

	if (byte) {
		if (command == IMPORTER_LOAD)
			*value = READ_ONCE(*byte);
		else
			WRITE_ONCE(*byte, *value);
		return 0;
	}
	there = ioremap(at, 1);
	if (!there)
		return -ENOMEM;
	if (command == IMPORTER_LOAD)
		*value = readb(there);
	else
		writeb(*value, there);
	iounmap(there);
	return 0;
}

static long with_table(struct import *import, unsigned int command, struct importer_args *args)
{
	struct scatterlist *entry;
	unsigned int i;
	phys_addr_t byte;

	if (command == IMPORTER_STATE) {
		args->out_told = import->told;
		args->out_length = 0;
		args->out_entries = 0;
		if (!import->table)
			return 0;
		for_each_sgtable_dma_sg(import->table, entry, i) {
			args->out_length += sg_dma_len(entry);
			args->out_entries++;
		}
		return 0;
	}
	byte = byte_at(import, args->offset);
	if (!byte)
		return -EFAULT;
	return access_byte(command, byte, &args->value);
}

/* Does what the PCI core does under the device lock of a function. */
static long with_lock(unsigned int command, u64 function, u64 *value)
{
	struct pci_dev *pci = find_function(function);
	const struct pci_error_handlers *told;
	const struct dev_pm_ops *power;
	u64 milliseconds;

	if (!pci)
		return -ENODEV;
	device_lock(&pci->dev);
	told = pci->driver ? pci->driver->err_handler : NULL;
	switch (command) {
	case IMPORTER_HOLD:
		msleep(min(*value, 10000));
		break;
	case IMPORTER_RESET:
		if (!told || !told->reset_prepare || !told->reset_done)
			break;
		told->reset_prepare(pci);
		msleep_interruptible(min(*value, 100000));
		told->reset_done(pci);
		break;
	case IMPORTER_ERROR:
		if (told && told->error_detected)
			*value = (__force u32)told->error_detected(
				pci, (__force pci_channel_state_t)*value);
		else
			*value = 0;
		break;
	case IMPORTER_SLEEP:
		power = pci->dev.driver ? pci->dev.driver->pm : NULL;
		if (!power)
			break;
		milliseconds = min(*value, 100000);
		*value = -power->prepare(&pci->dev);
		if (*value)
			break;
		power->suspend(&pci->dev);
		msleep_interruptible(milliseconds);
		power->resume(&pci->dev);
		power->complete(&pci->dev);
		break;
	}
	device_unlock(&pci->dev);
	pci_dev_put(pci);
	return 0;
}

/* Memory that may move, as VRAM of graphics drivers does, unless somebody has it pinned. */
static int pin(struct dma_buf_attachment *attachment)
{
	return -EBUSY;
}

static void unpin(struct dma_buf_attachment *attachment)
{
}

static struct sg_table *map_nothing(struct dma_buf_attachment *attachment,
				    enum dma_data_direction direction)
{
	return ERR_PTR(-EBUSY);
}

static void unmap_nothing(struct dma_buf_attachment *attachment, struct sg_table *table,
			  enum dma_data_direction direction)
{
}

static void forget(struct dma_buf *dma_buf)
{
}

static const struct dma_buf_ops moving = {
	.pin = pin,
	.unpin = unpin,
	.map_dma_buf = map_nothing,
	.unmap_dma_buf = unmap_nothing,
	.release = forget,
};

static int export(void)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *dma_buf;
	int fd;

	info.ops = &moving;
	info.size = PAGE_SIZE;
	info.flags = O_RDWR;
	info.priv = &importer_device;
	dma_buf = dma_buf_export(&info);
	if (IS_ERR(dma_buf))
		return PTR_ERR(dma_buf);
	fd = dma_buf_fd(dma_buf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dma_buf);
	return fd;
}

static long call(struct import *import, unsigned int command, struct importer_args *args)
{
	long result;

	if (command == IMPORTER_MAP)
		return map(import, args);
	if (command == IMPORTER_LOCK)
		return hold_lock(args->fd, args->offset);
	if (command == IMPORTER_HOLD || command == IMPORTER_RESET || command == IMPORTER_ERROR ||
	    command == IMPORTER_SLEEP)
		return with_lock(command, args->offset, &args->value);
	if (command == IMPORTER_EXPORT) {
		args->fd = export();
		return min(args->fd, 0);
	}
	if (!import->dma_buf)
		return -ENOENT;
	switch (command) {
	case IMPORTER_UNMAP:
		let_go(import);
		return 0;
	case IMPORTER_STATE:
	case IMPORTER_LOAD:
	case IMPORTER_STORE:
		dma_resv_lock(import->dma_buf->resv, NULL);
		result = with_table(import, command, args);
		dma_resv_unlock(import->dma_buf->resv);
		return result;
	case IMPORTER_BEGIN:
		return dma_buf_begin_cpu_access(import->dma_buf, DMA_BIDIRECTIONAL);
	case IMPORTER_END:
		return dma_buf_end_cpu_access(import->dma_buf, DMA_BIDIRECTIONAL);
	}
	return -ENOTTY;
}

static long importer_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct import *import = file->private_data;
	struct importer_args args;
	long result;

	if (copy_from_user(&args, (void __user *)argument, sizeof(args)))
		return -EFAULT;
	mutex_lock(&import->lock);
	result = call(import, command, &args);
	mutex_unlock(&import->lock);
	if (copy_to_user((void __user *)argument, &args, sizeof(args)))
		return -EFAULT;
	return result;
}

static int importer_open(struct inode *inode, struct file *file)
{
	struct import *import = kzalloc(sizeof(*import), GFP_KERNEL);

	if (!import)
		return -ENOMEM;
	mutex_init(&import->lock);
	file->private_data = import;
	return 0;
}

static int importer_release(struct inode *inode, struct file *file)
{
	struct import *import = file->private_data;

	let_go(import);
	kfree(import);
	return 0;
}

static const struct file_operations importer_operations = {
	.owner = THIS_MODULE,
	.open = importer_open,
	.release = importer_release,
	.unlocked_ioctl = importer_ioctl,
};

static struct miscdevice importer_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "importer",
	.fops = &importer_operations,
};

static int __init importer_init(void)
{
	int result = misc_register(&importer_device);

	if (!result)
		result =
			dma_coerce_mask_and_coherent(importer_device.this_device, DMA_BIT_MASK(64));
	return result;
}

static void __exit importer_exit(void)
{
	misc_deregister(&importer_device);
}

module_init(importer_init);
module_exit(importer_exit);
MODULE_DESCRIPTION("An importer of dma-bufs, for tests");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
