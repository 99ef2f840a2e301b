/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The driver as a loadable module. */
#ifndef TESTS_MODULE_H
#define TESTS_MODULE_H

#include "harness.h"

/* How many users the module has; -1: not loaded. */
int module_users(void);

int try_module_unload(void);
#define module_unload() CHECK_OK(try_module_unload())

/* Loads it with the parameters in $PINMAP_PARAMETERS, and binds it to the devices. */
int try_module_load(void);
#define module_load() CHECK_OK(try_module_load())

/* The test is skipped if the module cannot be loaded again. */
void need_module(void);

/* A file of the other driver, tests/importer, which is loaded if it is not; skips the test if it cannot be. */
int importer_open(void);

#endif
