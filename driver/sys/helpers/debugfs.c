// SPDX-License-Identifier: GPL-2.0
#include <linux/debugfs.h>
#include "helpers.h"

static struct dentry *pinmap_debug_root;

void pinmap_debug_begin(void)
{
	pinmap_debug_root = debugfs_create_dir("pinmap", NULL);
}

void pinmap_debug_end(void)
{
	debugfs_remove(pinmap_debug_root);
}

/*
 * Makes a directory with one file that root may read. debugfs takes an error pointer for a
 * directory.
 */
struct dentry *pinmap_debug_files(const char *directory, const char *name, void *data,
				  const struct file_operations *operations)
{
	struct dentry *dir = debugfs_create_dir(directory, pinmap_debug_root);

	debugfs_create_file(name, 0400, dir, data, operations);
	return dir;
}
