/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Defines what OpenCL C cannot: printf, and what compilers call. See pinmap_opencl.h */
#define printf pinmap_printf
#include "pinmap_kernel.h"
#undef printf

int printf(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	pinmap_vprintf(format, arguments);
	va_end(arguments);
	return 0;
}

/*
 * Variables are of a launcher, and not of all launches: a block's local memory, which clang puts
 * into variables, would be that of the blocks of other launches, too. The loader looks for this.
 */
__attribute__((used, visibility("default"))) const char pinmap_variables_of_launchers = 1;
