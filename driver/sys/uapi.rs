// SPDX-License-Identifier: GPL-2.0
//! The structs and constants of `include/uapi/pinmap.h`.

use super::raw;
use crate::logic::request::{map_flags, register_flags};
use kernel::transmute::{AsBytes, FromBytes};

pub(crate) use raw::{
    pinmap_event as Event, pinmap_fail as Fail, pinmap_info as Info, pinmap_map as Map,
    pinmap_query as Query, pinmap_register as Register, pinmap_release as Release,
    pinmap_reserved as GetReserved, pinmap_reset as Reset, pinmap_set_eventfd as SetEventfd,
    pinmap_unmap as Unmap,
};
pub(crate) use raw::{
    PINMAP_BAR_MMAP as BAR_MMAP, PINMAP_BAR_PREFETCHABLE as BAR_PREFETCHABLE,
    PINMAP_BUFFER_USER as BUFFER_USER, PINMAP_CMD_GET_INFO as CMD_GET_INFO,
    PINMAP_CMD_GET_RESERVED as CMD_GET_RESERVED, PINMAP_CMD_MAP as CMD_MAP,
    PINMAP_CMD_QUERY as CMD_QUERY, PINMAP_CMD_REGISTER as CMD_REGISTER,
    PINMAP_CMD_RELEASE as CMD_RELEASE, PINMAP_CMD_RESET as CMD_RESET,
    PINMAP_CMD_SET_EVENTFD as CMD_SET_EVENTFD, PINMAP_CMD_UNMAP as CMD_UNMAP,
    PINMAP_EVENT_GONE as EVENT_GONE, PINMAP_EVENT_STALE as EVENT_STALE,
    PINMAP_FAIL_APERTURE as FAIL_APERTURE, PINMAP_FAIL_FULL as FAIL_FULL,
    PINMAP_FAIL_MEMLOCK as FAIL_MEMLOCK, PINMAP_FAIL_MEMORY as FAIL_MEMORY,
    PINMAP_FAIL_OBJECTS as FAIL_OBJECTS, PINMAP_FAIL_OVERLAP as FAIL_OVERLAP,
    PINMAP_FAIL_RESERVED as FAIL_RESERVED, PINMAP_FAIL_STALE as FAIL_STALE,
    PINMAP_INFO_COHERENT as INFO_COHERENT, PINMAP_INFO_GONE as INFO_GONE,
    PINMAP_INFO_OWNED as INFO_OWNED, PINMAP_INFO_OWNER as INFO_OWNER,
    PINMAP_INFO_RESET as INFO_RESET, PINMAP_IOCTL_TYPE as IOCTL_TYPE,
    PINMAP_KIND_FLAT as KIND_FLAT, PINMAP_NR_BARS as NR_BARS,
    PINMAP_REGISTER_WRITE as REGISTER_WRITE, PINMAP_SOURCE_EVENTS as SOURCE_EVENTS,
    PINMAP_SOURCE_VECTOR as SOURCE_VECTOR, PINMAP_STATE_LIVE as STATE_LIVE,
    PINMAP_STATE_STALE as STATE_STALE,
};

const _: () = {
    assert!(register_flags::WRITE == raw::PINMAP_REGISTER_WRITE);
    assert!(register_flags::NO_MAP == raw::PINMAP_REGISTER_NO_MAP);
    assert!(register_flags::FIXED == raw::PINMAP_REGISTER_FIXED);
    assert!(register_flags::IDENTITY == raw::PINMAP_REGISTER_IDENTITY);
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
    Event: 32,
    Info: 344,
    GetReserved: 32,
    Map: 64,
    Query: 72,
    Register: 88,
    Release: 16,
    Reset: 8,
    SetEventfd: 24,
    Unmap: 24,
}
