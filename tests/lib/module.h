/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The driver as a loadable module. */
#ifndef TESTS_MODULE_H
#define TESTS_MODULE_H

#include "harness.h"

/* Counts the users of the module; -1: it is not loaded. */
int module_users(void);

int try_module_unload(void);
#define module_unload() CHECK_OK(try_module_unload())

/* Loads the module with the parameters in $PINMAP_PARAMETERS, and binds it to the devices. */
int try_module_load(void);
#define module_load() CHECK_OK(try_module_load())

/* Skips the test if the module cannot be loaded again. */
void need_module(void);

/*
 * Opens /dev/importer, and loads its driver (tests/importer) if it is not; skips the test if that
 * is impossible.
 */
int importer_open(void);

/* A function, as the importer's calls name it. */
uint64_t function_number(const char *bdf);

/* Makes the importer do something with the lock of a device; returns the answer. */
uint64_t with_device_lock(const char *bdf, unsigned long command, uint64_t value);

#endif
