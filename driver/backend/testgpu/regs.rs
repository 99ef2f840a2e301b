// SPDX-License-Identifier: GPL-2.0
//! The numbers of the test GPU's manual, `tests/devices/testgpu/MANUAL.md`, under the manual's
//! names. A test compares them.

/// Vendor and device id (section 1).
pub(super) const VENDOR: u16 = 0x1234;
pub(super) const DEVICE: u16 = 0x7e57;

// Section 1: BARs.
pub(super) const BAR_REGISTERS: u32 = 0;
pub(super) const BAR_DOORBELLS: u32 = 1;
pub(super) const BAR_VRAM: u32 = 2;

/// Value of `MAGIC`, and major number of `VERSION`.
pub(super) const MAGIC_VALUE: u64 = 0x3155_5047_5453_4554;
pub(super) const VERSION_MAJOR: u64 = 1;

macro_rules! numbers {
    ($($name:ident = $value:expr;)*) => {$(
        pub(super) const $name: u64 = $value;
    )*};
}

// Section 2: identification and control.
numbers! {
    MAGIC = 0x0000;
    VERSION = 0x0008;
    FEATURES = 0x0010;
    VRAM_SIZE = 0x0018;
    DOORBELLS = 0x0020;
    SLOTS = 0x0028;
    COPY_ENGINES = 0x0030;
    COMPUTE_SLOTS = 0x0038;
    VMIDS = 0x0040;
    VA_BITS = 0x0048;
    MAX_TRANSFER = 0x0058;
    FAULT_ENTRIES = 0x0068;
    VECTORS = 0x0070;
    TIME = 0x0078;
    FEATURE_ATOMIC = 0x40;
    FEATURE_PROGRAM = 0x200;
    FEATURE_INTEGRATED = 0x400;
    RESET = 0x0100;
    MAX_RUN_NS = 0x0110;
}

// Section 3: interrupts.
numbers! {
    INT_STATUS = 0x0200;
    INT_ENABLE = 0x0208;
    PENDING_SUMMARY = 0x0210;
    COMPLETION_SUMMARY = 0x0218;
    SLOT_EVENT = 0x0220;
    PENDING = 0x0280;
    COMPLETION = 0x0300;
    DOORBELL_ENABLE = 0x0380;
    INT_PENDING = 0x01;
    INT_COMPLETION = 0x02;
    INT_FAULT = 0x04;
    INT_SLOT = 0x08;
}

// Section 4: the MMU.
numbers! {
    ROOT = 0x1000;
    ROOT_ENABLE = 0x01;
    ROOT_HOST = 0x02;
    PTE_VALID = 0x01;
    PTE_READ = 0x02;
    PTE_WRITE = 0x04;
    PTE_EXECUTE = 0x08;
    PTE_HOST = 0x10;
    PTE_SNOOP = 0x20;
    PTE_LEAF = 0x40;
    PTE_ATOMIC = 0x80;
    PTE_ADDRESS = 0x000f_ffff_ffff_f000;
    INV_SCOPE = 0x0400;
    INV_FIRST = 0x0408;
    INV_LAST = 0x0410;
    INV_SUBMIT = 0x0418;
    INV_DONE = 0x0420;
    INV_FREE = 0x0428;
}

// Section 5: queues and slots.
numbers! {
    DOORBELL_VALUE = 0x4000;
    SLOT = 0x2000;
    SLOT_STRIDE = 0x80;
    SLOT_CONFIG = 0x00;
    SLOT_RING = 0x08;
    SLOT_SIZE = 0x10;
    SLOT_READ_INDEX = 0x18;
    SLOT_PROGRESS = 0x20;
    SLOT_COMMAND = 0x28;
    SLOT_STATE = 0x30;
    SLOT_SINCE = 0x38;
    SLOT_ERROR = 0x40;
    SLOT_FAULT_VA = 0x48;
    SLOT_ENGINE = 0x58;
    CLASS_COPY = 1;
    CLASS_COMPUTE = 2;
    STATE_FREE = 0;
    STATE_IDLE = 1;
    STATE_READY = 2;
    STATE_RUNNING = 3;
    STATE_WAITING = 4;
    STATE_FAULTED = 5;
    STATE_ERROR = 6;
    STATE_UNBINDING = 7;
    COMMAND_BIND = 1;
    COMMAND_UNBIND = 2;
    COMMAND_RETRY = 3;
    COMMAND_RESET = 5;
    RESULT_OK = 0;
}

// Section 7: faults and errors. Codes below BAD_OPCODE stop in FAULTED.
numbers! {
    NOT_PRESENT = 1;
    PERMISSION = 2;
    BAD_OPCODE = 16;
    FAULT_WRITE = 0x0500;
    FAULT_READ = 0x0508;
    FAULT_ENTRY = 0x0800;
    FAULT_INFO = 0x00;
    FAULT_VA = 0x08;
    FAULT_INDEX = 0x10;
    ACCESS_WRITE = 1;
    ACCESS_FETCH = 2;
    ACCESS_ATOMIC = 3;
}
/// Value of `SLOT_ENGINE` if no engine holds the slot's packet.
pub(super) const NO_ENGINE: u64 = 0xff;
/// Bytes of an entry of the fault queue.
pub(super) const FAULT_STRIDE: u64 = 32;

// Sections 2 and 16: the paging engine.
#[cfg(pinmap_mirror)]
numbers! {
    FEATURE_ZEROS = 0x80;
    ENGINE_RESET = 0x0120;
    PAGING_SOURCE = 0x0600;
    PAGING_TARGET = 0x0608;
    PAGING_BYTES = 0x0610;
    PAGING_SUBMIT = 0x0618;
    PAGING_DONE = 0x0620;
    PAGING_FREE = 0x0628;
    PAGING_ERROR = 0x0630;
    PAGING_HOST = 0x01;
    PAGING_ZEROS = 0x02;
    PAGING_ENGINE = 6;
}

// Sections 11 and 14: the bus model, counters.
numbers! {
    LINK_BANDWIDTH = 0x9000;
    LINK_LATENCY = 0x9008;
    VRAM_BANDWIDTH = 0x9010;
    VRAM_LATENCY = 0x9018;
    ENGINE = 0x7000;
    ENGINE_STRIDE = 0x80;
    ENGINE_HOST_READ = 0x00;
    ENGINE_HOST_WRITTEN = 0x08;
    ENGINE_VRAM_READ = 0x10;
    ENGINE_VRAM_WRITTEN = 0x18;
    ENGINE_PACKETS = 0x20;
    ENGINE_BUSY_NS = 0x28;
    TLB_HITS = 0x8000;
    TLB_MISSES = 0x8008;
    BINDS = 0x8030;
    INVALIDATES = 0x8040;
    FAULTS = 0x8048;
}
