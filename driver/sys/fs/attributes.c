// SPDX-License-Identifier: GPL-2.0
/* The attributes are here because lockdep wants them in static memory. */
#include <linux/device.h>
#include <linux/kstrtox.h>
#include <linux/miscdevice.h>
#include <linux/sysfs.h>
#include "../helpers.h"

static int (*pinmap_attribute_get)(struct miscdevice *misc, u32 which, u64 *number,
				   const char **word);
static int (*pinmap_attribute_set)(struct miscdevice *misc, u32 which, u32 value);

static struct device_attribute pinmap_attribute_table[PINMAP_ATTRIBUTES];
static struct attribute *pinmap_attribute_list[PINMAP_ATTRIBUTES + 1];

static ssize_t pinmap_attribute_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	const char *word = NULL;
	u64 number;
	int err = pinmap_attribute_get(dev_get_drvdata(dev), attr - pinmap_attribute_table,
				       &number, &word);

	if (err)
		return err;
	return word ? sysfs_emit(buf, "%s\n", word) : sysfs_emit(buf, "%llu\n", number);
}

static ssize_t pinmap_attribute_store(struct device *dev, struct device_attribute *attr,
				      const char *buf, size_t count)
{
	unsigned int value;
	int err = kstrtouint(buf, 0, &value);

	if (!err)
		err = pinmap_attribute_set(dev_get_drvdata(dev), attr - pinmap_attribute_table,
					   value);
	return err ? err : count;
}

/* An attribute that a device does not have is not there. */
static umode_t pinmap_attribute_visible(struct kobject *kobj, struct attribute *attr, int index)
{
	const char *word;
	u64 number;

	if (pinmap_attribute_get(dev_get_drvdata(kobj_to_dev(kobj)), index, &number, &word))
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

/* Names attribute @which: they are numbered from 0 on. The name stays. */
void pinmap_attribute(u32 which, const char *name, bool writable)
{
	struct device_attribute *attr;

	if (WARN_ON(which >= PINMAP_ATTRIBUTES))
		return;
	attr = &pinmap_attribute_table[which];
	attr->attr.name = name;
	attr->attr.mode = writable ? 0644 : 0444;
	attr->show = pinmap_attribute_show;
	attr->store = pinmap_attribute_store;
	pinmap_attribute_list[which] = &attr->attr;
}

/*
 * The attributes of a misc device that have names, the same for all devices. @get and @set know
 * their values, which are numbers or words.
 */
const struct attribute_group **pinmap_attributes(
	int (*get)(struct miscdevice *misc, u32 which, u64 *number, const char **word),
	int (*set)(struct miscdevice *misc, u32 which, u32 value))
{
	pinmap_attribute_get = get;
	pinmap_attribute_set = set;
	return pinmap_attribute_groups;
}
