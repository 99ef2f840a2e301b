// SPDX-License-Identifier: GPL-2.0
/*
 * The attributes are here because lockdep wants them in static memory, with keys that are set by a
 * macro.
 */
#include <linux/device.h>
#include <linux/kstrtox.h>
#include <linux/miscdevice.h>
#include <linux/sysfs.h>
#include "../helpers.h"

static int (*pinmap_attribute_get)(struct miscdevice *misc, u32 which, u64 *value);
static int (*pinmap_attribute_set)(struct miscdevice *misc, u32 which, u32 value);

struct pinmap_attribute {
	struct device_attribute attr;
	u32 which;
};

static ssize_t pinmap_attribute_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	u32 which = container_of(attr, struct pinmap_attribute, attr)->which;
	u64 value;
	int err = pinmap_attribute_get(dev_get_drvdata(dev), which, &value);

	if (err)
		return err;
	if (which == PINMAP_ATTR_KIND)
		return sysfs_emit(buf, "%s\n", value == PINMAP_KIND_PAGED ? "paged" : "flat");
	return sysfs_emit(buf, "%llu\n", value);
}

static ssize_t pinmap_attribute_store(struct device *dev, struct device_attribute *attr,
				      const char *buf, size_t count)
{
	u32 which = container_of(attr, struct pinmap_attribute, attr)->which;
	unsigned int value;
	int err = kstrtouint(buf, 0, &value);

	if (!err)
		err = pinmap_attribute_set(dev_get_drvdata(dev), which, value);
	return err ? err : count;
}

#define PINMAP_READ(name, number)							\
	static struct pinmap_attribute pinmap_attr_##name = {				\
		__ATTR(name, 0444, pinmap_attribute_show, NULL), number			\
	}
#define PINMAP_WRITE(name, number)							\
	static struct pinmap_attribute pinmap_attr_##name = {				\
		__ATTR(name, 0644, pinmap_attribute_show, pinmap_attribute_store), number	\
	}

PINMAP_READ(kind, PINMAP_ATTR_KIND);
PINMAP_READ(contexts, PINMAP_ATTR_CONTEXTS);
PINMAP_READ(pinned, PINMAP_ATTR_PINNED);
PINMAP_READ(mapped, PINMAP_ATTR_MAPPED);
PINMAP_READ(managed, PINMAP_ATTR_MANAGED);
PINMAP_READ(queues, PINMAP_ATTR_QUEUES);
PINMAP_READ(vram, PINMAP_ATTR_VRAM);
PINMAP_READ(vram_free, PINMAP_ATTR_VRAM_FREE);
PINMAP_READ(faults_served, PINMAP_ATTR_FAULTS_SERVED);
PINMAP_READ(faults_failed, PINMAP_ATTR_FAULTS_FAILED);
PINMAP_READ(fault_failed_at, PINMAP_ATTR_FAULT_FAILED_AT);
PINMAP_WRITE(fault_limit, PINMAP_ATTR_FAULT_LIMIT);
PINMAP_WRITE(fault_hold_off_ms, PINMAP_ATTR_FAULT_HOLD_OFF);
PINMAP_READ(held_off, PINMAP_ATTR_HELD_OFF);

static struct attribute *pinmap_attribute_list[] = {
	&pinmap_attr_kind.attr.attr,
	&pinmap_attr_contexts.attr.attr,
	&pinmap_attr_pinned.attr.attr,
	&pinmap_attr_mapped.attr.attr,
	&pinmap_attr_managed.attr.attr,
	&pinmap_attr_queues.attr.attr,
	&pinmap_attr_vram.attr.attr,
	&pinmap_attr_vram_free.attr.attr,
	&pinmap_attr_faults_served.attr.attr,
	&pinmap_attr_faults_failed.attr.attr,
	&pinmap_attr_fault_failed_at.attr.attr,
	&pinmap_attr_fault_limit.attr.attr,
	&pinmap_attr_fault_hold_off_ms.attr.attr,
	&pinmap_attr_held_off.attr.attr,
	NULL,
};

/* An attribute that a device does not have is not there. */
static umode_t pinmap_attribute_visible(struct kobject *kobj, struct attribute *attr, int index)
{
	struct pinmap_attribute *own = container_of(attr, struct pinmap_attribute, attr.attr);
	u64 value;

	if (pinmap_attribute_get(dev_get_drvdata(kobj_to_dev(kobj)), own->which, &value))
		return 0;
	return attr->mode;
}

static const struct attribute_group pinmap_attribute_group = {
	.attrs = pinmap_attribute_list,
	.is_visible = pinmap_attribute_visible,
};

static const struct attribute_group *pinmap_attribute_groups[] = {
	&pinmap_attribute_group,
	NULL,
};

/* The attributes of a misc device, whose values @get and @set know: the same for all devices. */
const struct attribute_group **pinmap_attributes(
	int (*get)(struct miscdevice *misc, u32 which, u64 *value),
	int (*set)(struct miscdevice *misc, u32 which, u32 value))
{
	pinmap_attribute_get = get;
	pinmap_attribute_set = set;
	return pinmap_attribute_groups;
}
