// SPDX-License-Identifier: GPL-2.0
/* The tracepoints, for Rust: see trace.h. */
#include "../helpers.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

#define PINMAP_TRACEPOINTS(each)							\
	each(PINMAP_TRACE_REGISTER, pinmap_register)					\
	each(PINMAP_TRACE_RELEASE, pinmap_release)					\
	each(PINMAP_TRACE_MAP, pinmap_map)						\
	each(PINMAP_TRACE_UNMAP, pinmap_unmap)						\
	each(PINMAP_TRACE_STALE, pinmap_stale)						\
	each(PINMAP_TRACE_FAULT, pinmap_fault)						\
	each(PINMAP_TRACE_FAULT_BEGIN, pinmap_fault_begin)				\
	each(PINMAP_TRACE_FAULT_SERVED, pinmap_fault_served)				\
	each(PINMAP_TRACE_FAULT_FAILED, pinmap_fault_failed)				\
	each(PINMAP_TRACE_MIGRATE, pinmap_migrate)

/*
 * How many listen to each tracepoint: what trace_..._enabled() asks, which Rust could only call. A
 * pair of calls asks five times.
 */
#ifdef CONFIG_TRACEPOINTS
#define PINMAP_LISTENERS(number, name)							\
	[number] = &__tracepoint_##name.key.key.enabled.counter,
#else
static const int nobody;
#define PINMAP_LISTENERS(number, name) [number] = &nobody,
#endif
const int *const pinmap_trace_listeners[PINMAP_TRACE_COUNT] = {
	PINMAP_TRACEPOINTS(PINMAP_LISTENERS)
};

void pinmap_trace_emit(u32 what, const struct pinmap_trace *trace)
{
	switch (what) {
#define PINMAP_EMIT(number, name) case number: trace_##name(trace); break;
	PINMAP_TRACEPOINTS(PINMAP_EMIT)
	}
}
