// SPDX-License-Identifier: GPL-2.0
/* The tracepoints, for Rust: see trace.h. */
#include "helpers.h"

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

/* Whether anybody listens: a jump that is patched in where somebody does. */
bool pinmap_trace_enabled(u32 what)
{
	switch (what) {
#define PINMAP_ENABLED(number, name) case number: return trace_##name##_enabled();
	PINMAP_TRACEPOINTS(PINMAP_ENABLED)
	}
	return false;
}

void pinmap_trace_emit(u32 what, const struct pinmap_trace *trace)
{
	switch (what) {
#define PINMAP_EMIT(number, name) case number: trace_##name(trace); break;
	PINMAP_TRACEPOINTS(PINMAP_EMIT)
	}
}
