/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tracepoints, /sys/kernel/tracing/events/pinmap: life of buffers, and faults of devices.
 *
 * No physical address and no kernel pointer is in them.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM pinmap

#if !defined(PINMAP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define PINMAP_TRACE_H

#include <linux/pci.h>
#include <linux/tracepoint.h>
#include "../helpers.h"

#define PINMAP_TRACE_CONTEXT								\
	__field(u32, domain)								\
	__field(u8, bus)								\
	__field(u8, devfn)								\
	__field(u64, context)								\
	__field(u64, handle)

#define PINMAP_TRACE_ASSIGN								\
	__entry->domain = trace->domain;						\
	__entry->bus = trace->bus;							\
	__entry->devfn = trace->devfn;							\
	__entry->context = trace->context;						\
	__entry->handle = trace->handle

#define PINMAP_TRACE_FORMAT "device=%04x:%02x:%02x.%x context=%llu handle=%llu "
#define PINMAP_TRACE_VALUES								\
	__entry->domain, __entry->bus, PCI_SLOT(__entry->devfn), PCI_FUNC(__entry->devfn),	\
	__entry->context, __entry->handle

DECLARE_EVENT_CLASS(pinmap_buffer,
	TP_PROTO(const struct pinmap_trace *trace),
	TP_ARGS(trace),
	TP_STRUCT__entry(
		PINMAP_TRACE_CONTEXT
		__field(u64, addr)
		__field(u64, device_addr)
		__field(u64, bytes)
		__field(u64, runs)
		__field(u32, huge)
		__field(u64, flushes)
		__field(u64, ns)
	),
	TP_fast_assign(
		PINMAP_TRACE_ASSIGN;
		__entry->addr = trace->addr;
		__entry->device_addr = trace->device_addr;
		__entry->bytes = trace->bytes;
		__entry->runs = trace->runs;
		__entry->huge = trace->huge;
		__entry->flushes = trace->flushes;
		__entry->ns = trace->ns;
	),
	TP_printk(PINMAP_TRACE_FORMAT
		  "addr=%#llx device_addr=%#llx bytes=%llu runs=%llu huge=%u%% flushes=%llu "
		  "ns=%llu",
		  PINMAP_TRACE_VALUES, __entry->addr, __entry->device_addr, __entry->bytes,
		  __entry->runs, __entry->huge, __entry->flushes, __entry->ns)
);

#define PINMAP_BUFFER_EVENT(name)							\
	DEFINE_EVENT(pinmap_buffer, name,						\
		TP_PROTO(const struct pinmap_trace *trace),				\
		TP_ARGS(trace))

/* REGISTER has succeeded: charged, pinned, and mapped if that was asked for. */
PINMAP_BUFFER_EVENT(pinmap_register);
/* A registration or an allocation has ended, however. */
PINMAP_BUFFER_EVENT(pinmap_release);
/* A device was given a buffer; also as a part of REGISTER. */
PINMAP_BUFFER_EVENT(pinmap_map);
/*
 * A buffer was taken from a device: unmapped and flushed. Also as a part of RELEASE, or because the
 * buffer is stale.
 */
PINMAP_BUFFER_EVENT(pinmap_unmap);
/* Memory has gone, and its mappings with it. */
PINMAP_BUFFER_EVENT(pinmap_stale);

#define PINMAP_ACCESS(access)								\
	__print_symbolic(access, { 0, "read" }, { 1, "write" }, { 2, "fetch" },			\
			 { 3, "atomic" }, { 255, "none" })
#define PINMAP_REASON(reason)								\
	__print_symbolic(reason, { 0, "none" }, { 1, "unmapped" }, { 2, "hole" },		\
			 { 3, "permission" }, { 4, "device" }, { 5, "secret" }, { 6, "guard" },	\
			 { 7, "file" }, { 8, "poison" }, { 9, "memory" }, { 10, "userfaultfd" },	\
			 { 11, "exited" }, { 12, "atomic" })

DECLARE_EVENT_CLASS(pinmap_access,
	TP_PROTO(const struct pinmap_trace *trace),
	TP_ARGS(trace),
	TP_STRUCT__entry(
		PINMAP_TRACE_CONTEXT
		__field(u64, device_addr)
		__field(u32, access)
		__field(u32, code)
		__field(u64, index)
	),
	TP_fast_assign(
		PINMAP_TRACE_ASSIGN;
		__entry->device_addr = trace->device_addr;
		__entry->access = trace->access;
		__entry->code = trace->code;
		__entry->index = trace->index;
	),
	TP_printk(PINMAP_TRACE_FORMAT "device_addr=%#llx access=%s code=%u index=%llu",
		  PINMAP_TRACE_VALUES, __entry->device_addr, PINMAP_ACCESS(__entry->access),
		  __entry->code, __entry->index)
);

/* A queue has stopped: an access that nothing allowed, or a packet that makes no sense. */
DEFINE_EVENT(pinmap_access, pinmap_fault,
	TP_PROTO(const struct pinmap_trace *trace),
	TP_ARGS(trace));
/* A queue waits for a fault on managed memory, and a thread begins to serve it. */
DEFINE_EVENT(pinmap_access, pinmap_fault_begin,
	TP_PROTO(const struct pinmap_trace *trace),
	TP_ARGS(trace));

/* A fault was served: the device repeats the access. */
TRACE_EVENT(pinmap_fault_served,
	TP_PROTO(const struct pinmap_trace *trace),
	TP_ARGS(trace),
	TP_STRUCT__entry(
		PINMAP_TRACE_CONTEXT
		__field(u64, device_addr)
		__field(u32, access)
		__field(u64, ns)
		__field(u64, pages)
		__field(u64, retries)
	),
	TP_fast_assign(
		PINMAP_TRACE_ASSIGN;
		__entry->device_addr = trace->device_addr;
		__entry->access = trace->access;
		__entry->ns = trace->ns;
		__entry->pages = trace->pages;
		__entry->retries = trace->retries;
	),
	TP_printk(PINMAP_TRACE_FORMAT
		  "device_addr=%#llx access=%s ns=%llu pages=%llu retries=%llu",
		  PINMAP_TRACE_VALUES, __entry->device_addr, PINMAP_ACCESS(__entry->access),
		  __entry->ns, __entry->pages, __entry->retries)
);

/* A fault was not served. The queue stops, unless its owner had the service given up. */
TRACE_EVENT(pinmap_fault_failed,
	TP_PROTO(const struct pinmap_trace *trace),
	TP_ARGS(trace),
	TP_STRUCT__entry(
		PINMAP_TRACE_CONTEXT
		__field(u64, device_addr)
		__field(u32, access)
		__field(u64, ns)
		__field(u32, reason)
		__field(s32, error)
		__field(u64, retries)
	),
	TP_fast_assign(
		PINMAP_TRACE_ASSIGN;
		__entry->device_addr = trace->device_addr;
		__entry->access = trace->access;
		__entry->ns = trace->ns;
		__entry->reason = trace->reason;
		__entry->error = trace->error;
		__entry->retries = trace->retries;
	),
	TP_printk(PINMAP_TRACE_FORMAT
		  "device_addr=%#llx access=%s ns=%llu reason=%s error=%d retries=%llu",
		  PINMAP_TRACE_VALUES, __entry->device_addr, PINMAP_ACCESS(__entry->access),
		  __entry->ns, PINMAP_REASON(__entry->reason), __entry->error, __entry->retries)
);

#define PINMAP_CAUSE(cause)								\
	__print_symbolic(cause, { 0, "touched" }, { 1, "prefetched" }, { 2, "evicted" })
#define PINMAP_RULE(rule)								\
	__print_symbolic(rule, { 0, "none" }, { 1, "fixed" }, { 2, "advised" },		\
			 { 3, "thrashing" }, { 4, "no_room" }, { 5, "preferred" },		\
			 { 6, "touched" }, { 7, "prefetched" }, { 8, "home" },			\
			 { 9, "evicted" }, { 10, "crowded" }, { 11, "atomic" })

/*
 * Managed memory has moved to the device, or home. For an eviction @addr is where a context had it
 * that follows the memory.
 */
TRACE_EVENT(pinmap_migrate,
	TP_PROTO(const struct pinmap_trace *trace),
	TP_ARGS(trace),
	TP_STRUCT__entry(
		PINMAP_TRACE_CONTEXT
		__field(u64, addr)
		__field(u64, bytes)
		__field(u8, home)
		__field(u32, cause)
		__field(u32, rule)
	),
	TP_fast_assign(
		PINMAP_TRACE_ASSIGN;
		__entry->addr = trace->addr;
		__entry->bytes = trace->bytes;
		__entry->home = trace->home;
		__entry->cause = trace->cause;
		__entry->rule = trace->rule;
	),
	TP_printk(PINMAP_TRACE_FORMAT "addr=%#llx bytes=%llu to=%s cause=%s rule=%s",
		  PINMAP_TRACE_VALUES, __entry->addr, __entry->bytes,
		  __entry->home ? "host" : "device", PINMAP_CAUSE(__entry->cause),
		  PINMAP_RULE(__entry->rule))
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
