// SPDX-License-Identifier: GPL-2.0
//! The structs and constants of `include/uapi/pinmap.h`.

use super::raw;
use crate::logic::request::{alloc_flags, map_flags, register_flags, sync_flags};
use kernel::transmute::{AsBytes, FromBytes};

pub(crate) use raw::{
    pinmap_alloc as Alloc, pinmap_event as Event, pinmap_export as Export, pinmap_fail as Fail,
    pinmap_generations as Generations, pinmap_get_totals as GetTotals,
    pinmap_gpu_counters as GpuCounters, pinmap_gpu_info as GpuInfo, pinmap_gpu_walk as GpuWalk,
    pinmap_import as Import, pinmap_info as Info, pinmap_map as Map, pinmap_preflight as Preflight,
    pinmap_query as Query, pinmap_queue_create as QueueCreate,
    pinmap_queue_destroy as QueueDestroy, pinmap_queue_notify as QueueNotify,
    pinmap_queue_query as QueueQuery, pinmap_queue_submit as QueueSubmit,
    pinmap_queue_wait as QueueWait, pinmap_register as Register, pinmap_register_fd as RegisterFd,
    pinmap_release as Release, pinmap_reserved as GetReserved, pinmap_reset as Reset,
    pinmap_set_eventfd as SetEventfd, pinmap_sync as Sync, pinmap_total as Total,
    pinmap_unmap as Unmap,
};
pub(crate) use raw::{
    PINMAP_BAR_MMAP as BAR_MMAP, PINMAP_BAR_PREFETCHABLE as BAR_PREFETCHABLE,
    PINMAP_BUFFER_FILE as BUFFER_FILE, PINMAP_BUFFER_HOST as BUFFER_HOST,
    PINMAP_BUFFER_IMPORT as BUFFER_IMPORT, PINMAP_BUFFER_USER as BUFFER_USER,
    PINMAP_BUFFER_VRAM as BUFFER_VRAM, PINMAP_CMD_ALLOC as CMD_ALLOC,
    PINMAP_CMD_EXPORT as CMD_EXPORT, PINMAP_CMD_GENERATIONS as CMD_GENERATIONS,
    PINMAP_CMD_GET_INFO as CMD_GET_INFO, PINMAP_CMD_GET_RESERVED as CMD_GET_RESERVED,
    PINMAP_CMD_GET_TOTALS as CMD_GET_TOTALS, PINMAP_CMD_GPU_COUNTERS as CMD_GPU_COUNTERS,
    PINMAP_CMD_GPU_INFO as CMD_GPU_INFO, PINMAP_CMD_GPU_WALK as CMD_GPU_WALK,
    PINMAP_CMD_IMPORT as CMD_IMPORT, PINMAP_CMD_MAP as CMD_MAP,
    PINMAP_CMD_PREFLIGHT as CMD_PREFLIGHT, PINMAP_CMD_QUERY as CMD_QUERY,
    PINMAP_CMD_QUEUE_CREATE as CMD_QUEUE_CREATE, PINMAP_CMD_QUEUE_DESTROY as CMD_QUEUE_DESTROY,
    PINMAP_CMD_QUEUE_NOTIFY as CMD_QUEUE_NOTIFY, PINMAP_CMD_QUEUE_QUERY as CMD_QUEUE_QUERY,
    PINMAP_CMD_QUEUE_SUBMIT as CMD_QUEUE_SUBMIT, PINMAP_CMD_QUEUE_WAIT as CMD_QUEUE_WAIT,
    PINMAP_CMD_REGISTER as CMD_REGISTER, PINMAP_CMD_REGISTER_FD as CMD_REGISTER_FD,
    PINMAP_CMD_RELEASE as CMD_RELEASE, PINMAP_CMD_RESET as CMD_RESET,
    PINMAP_CMD_SET_EVENTFD as CMD_SET_EVENTFD, PINMAP_CMD_SYNC as CMD_SYNC,
    PINMAP_CMD_UNMAP as CMD_UNMAP, PINMAP_EVENT_GONE as EVENT_GONE,
    PINMAP_EVENT_STALE as EVENT_STALE, PINMAP_EXPORT_WRITE as EXPORT_WRITE,
    PINMAP_FAIL_APERTURE as FAIL_APERTURE, PINMAP_FAIL_FAULT as FAIL_FAULT,
    PINMAP_FAIL_FULL as FAIL_FULL, PINMAP_FAIL_MEMLOCK as FAIL_MEMLOCK,
    PINMAP_FAIL_MEMORY as FAIL_MEMORY, PINMAP_FAIL_OBJECTS as FAIL_OBJECTS,
    PINMAP_FAIL_OVERLAP as FAIL_OVERLAP, PINMAP_FAIL_RESERVED as FAIL_RESERVED,
    PINMAP_FAIL_STALE as FAIL_STALE, PINMAP_INFO_COHERENT as INFO_COHERENT,
    PINMAP_INFO_GONE as INFO_GONE, PINMAP_INFO_OWNED as INFO_OWNED,
    PINMAP_INFO_OWNER as INFO_OWNER, PINMAP_INFO_RESET as INFO_RESET,
    PINMAP_IOCTL_TYPE as IOCTL_TYPE, PINMAP_KIND_FLAT as KIND_FLAT, PINMAP_NR_BARS as NR_BARS,
    PINMAP_REGISTER_PORTABLE as REGISTER_PORTABLE, PINMAP_REGISTER_WRITE as REGISTER_WRITE,
    PINMAP_SOURCE_EVENTS as SOURCE_EVENTS, PINMAP_SOURCE_VECTOR as SOURCE_VECTOR,
    PINMAP_STATE_BUILDING as STATE_BUILDING, PINMAP_STATE_LIVE as STATE_LIVE,
    PINMAP_STATE_STALE as STATE_STALE, PINMAP_TOTALS_CONTEXT as TOTALS_CONTEXT,
};

#[cfg(not(pinmap_flat))]
pub(crate) use raw::{
    PINMAP_ACCESS_FETCH as ACCESS_FETCH, PINMAP_ACCESS_READ as ACCESS_READ,
    PINMAP_ACCESS_WRITE as ACCESS_WRITE, PINMAP_EVENT_FAULT as EVENT_FAULT,
    PINMAP_KIND_PAGED as KIND_PAGED, PINMAP_QUEUE_COMPUTE as QUEUE_COMPUTE,
    PINMAP_QUEUE_COPY as QUEUE_COPY, PINMAP_QUEUE_ERROR as QUEUE_ERROR,
    PINMAP_QUEUE_FAULTED as QUEUE_FAULTED, PINMAP_QUEUE_READY as QUEUE_READY,
    PINMAP_WALK_FETCH as WALK_FETCH, PINMAP_WALK_HOST as WALK_HOST, PINMAP_WALK_READ as WALK_READ,
    PINMAP_WALK_SNOOP as WALK_SNOOP, PINMAP_WALK_WRITE as WALK_WRITE,
};

const _: () = {
    assert!(alloc_flags::VRAM == raw::PINMAP_ALLOC_VRAM);
    assert!(alloc_flags::WRITE_COMBINED == raw::PINMAP_ALLOC_WRITE_COMBINED);
    assert!(alloc_flags::NODE == raw::PINMAP_ALLOC_NODE);
    assert!(sync_flags::FOR_DEVICE == raw::PINMAP_SYNC_FOR_DEVICE);
    assert!(sync_flags::FOR_CPU == raw::PINMAP_SYNC_FOR_CPU);
    assert!(sync_flags::NO_SNOOP == raw::PINMAP_SYNC_NO_SNOOP);
    assert!(alloc_flags::PORTABLE == raw::PINMAP_ALLOC_PORTABLE);
    assert!(register_flags::WRITE == raw::PINMAP_REGISTER_WRITE);
    assert!(register_flags::NO_MAP == raw::PINMAP_REGISTER_NO_MAP);
    assert!(register_flags::FIXED == raw::PINMAP_REGISTER_FIXED);
    assert!(register_flags::IDENTITY == raw::PINMAP_REGISTER_IDENTITY);
    assert!(register_flags::PORTABLE == raw::PINMAP_REGISTER_PORTABLE);
    assert!(register_flags::INTERRUPTIBLE == raw::PINMAP_REGISTER_INTERRUPTIBLE);
    assert!(map_flags::WRITE == raw::PINMAP_MAP_WRITE);
    assert!(map_flags::FIXED == raw::PINMAP_MAP_FIXED);
};

/// Structs of integers whose fields fill them: the sizes say so.
macro_rules! plain {
    ($($name:ident: $size:literal),* $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $size);
        // SAFETY: Integers only, of which every bit pattern is valid.
        unsafe impl FromBytes for $name {}
        // SAFETY: Integers only, with reserved fields where there would be padding.
        unsafe impl AsBytes for $name {}
    )*};
}

plain! {
    Alloc: 72,
    Export: 24,
    Import: 32,
    Sync: 32,
    Event: 32,
    Generations: 24,
    GpuCounters: 448,
    GpuInfo: 104,
    GpuWalk: 40,
    QueueCreate: 64,
    QueueDestroy: 16,
    QueueNotify: 32,
    QueueQuery: 48,
    QueueSubmit: 40,
    QueueWait: 48,
    Info: 344,
    GetReserved: 32,
    GetTotals: 112,
    Map: 64,
    Preflight: 104,
    Query: 88,
    Register: 88,
    RegisterFd: 88,
    Release: 16,
    Reset: 8,
    SetEventfd: 24,
    Unmap: 24,
}
