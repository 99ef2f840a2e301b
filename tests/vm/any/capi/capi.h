/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* libpinmap under test: its calls, which must succeed or fail in a certain way. */
#ifndef TESTS_CAPI_H
#define TESTS_CAPI_H

#include "harness.h"

#include <pinmap.h>
#include <string.h>

/* For calls that return something, or NULL and an error. */
#define MADE(call)									\
	({										\
		__typeof__(call) made_ = (call);					\
		if (!made_)								\
			FAIL("%s: %s: %s", #call, error_name(errno), pinmap_last_error()); \
		made_;									\
	})

/* For calls that return a number, or -1 and an error. */
#define DONE(call)									\
	({										\
		int done_ = (call);							\
		if (done_ < 0)								\
			FAIL("%s: %s: %s", #call, error_name(errno), pinmap_last_error()); \
		done_;									\
	})

/* For calls that must fail: with this errno, this kind of error, and these words in it. */
#define REFUSED(call, errno_, kind, words)							\
	do {											\
		errno = 0;									\
		intptr_t refused_ = (intptr_t)(call);						\
		if (refused_ != 0 && refused_ != -1)						\
			FAIL("%s does not fail", #call);					\
		if (errno != (errno_))								\
			FAIL("%s: %s instead of %s: %s", #call, error_name(errno), \
			     error_name(errno_), pinmap_last_error()); \
		CHECK_EQ(pinmap_last_error_kind(), PINMAP_ERROR_KIND_##kind);			\
		if (!strstr(pinmap_last_error(), words))					\
			FAIL("%s: no \"%s\" in \"%s\"", #call, words, pinmap_last_error()); \
	} while (0)

/* Opens the first edu. Skips the test where there is none. */
struct pinmap_device *capi_edu(void);

/* Opens the test GPU. Skips the test where there is none. */
struct pinmap_device *capi_gpu(void);

/* Opens the first device. */
struct pinmap_device *capi_any(void);

/* Pages of memory that nobody has touched. */
char *capi_pages(size_t count);

/* The device address of a byte of memory. */
uint64_t capi_address(const struct pinmap_memory *memory, size_t offset);

#endif
