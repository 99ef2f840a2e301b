// SPDX-License-Identifier: GPL-2.0
#include <linux/debugfs.h>
#include "../helpers.h"

static struct dentry *pinmap_debug_root;

void pinmap_debug_begin(void)
{
	pinmap_debug_root = debugfs_create_dir("pinmap", NULL);
}

void pinmap_debug_end(void)
{
	debugfs_remove(pinmap_debug_root);
}

struct dentry *pinmap_debug_directory(const char *name)
{
	return debugfs_create_dir(name, pinmap_debug_root);
}

/* Makes a file that root may read. debugfs takes an error pointer for a directory. */
void pinmap_debug_file(struct dentry *directory, const char *name, void *data, const void *aux,
		       const struct file_operations *operations)
{
	debugfs_create_file_aux(name, 0400, directory, data, aux, operations);
}
