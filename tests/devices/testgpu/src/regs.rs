// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of `MANUAL.md`, under the names that they have there. A test compares the two.

macro_rules! constants {
    ($($name:ident = $value:expr,)*) => {
        $(#[allow(missing_docs)] pub const $name: u64 = $value;)*
        /// Every constant, with its name.
        pub const ALL: &[(&str, u64)] = &[$((stringify!($name), $value)),*];
    };
}

constants! {
    // Identification
    MAGIC = 0x0000,
    VERSION = 0x0008,
    FEATURES = 0x0010,
    VRAM_SIZE = 0x0018,
    DOORBELLS = 0x0020,
    SLOTS = 0x0028,
    COPY_ENGINES = 0x0030,
    COMPUTE_SLOTS = 0x0038,
    VMIDS = 0x0040,
    VA_BITS = 0x0048,
    BUS_BITS = 0x0050,
    MAX_TRANSFER = 0x0058,
    TLB_ENTRIES = 0x0060,
    FAULT_ENTRIES = 0x0068,
    VECTORS = 0x0070,
    TIME = 0x0078,
    FEATURE_COPY = 0x01,
    FEATURE_COMPUTE = 0x02,
    FEATURE_RETRY = 0x04,
    FEATURE_KNOBS = 0x08,
    FEATURE_MESSAGE = 0x10,
    FEATURE_PAGING = 0x20,
    FEATURE_ATOMIC = 0x40,
    FEATURE_ZEROS = 0x80,
    FEATURE_STAMP = 0x100,
    FEATURE_PROGRAM = 0x200,
    FEATURE_INTEGRATED = 0x400,
    // Control
    RESET = 0x0100,
    BUS_MASTER = 0x0108,
    MAX_RUN_NS = 0x0110,
    SCRATCH = 0x0118,
    ENGINE_RESET = 0x0120,
    ENGINE_BUSY = 0x0128,
    // 3. Interrupts
    INT_STATUS = 0x0200,
    INT_ENABLE = 0x0208,
    PENDING_SUMMARY = 0x0210,
    COMPLETION_SUMMARY = 0x0218,
    SLOT_EVENT = 0x0220,
    PENDING = 0x0280,
    COMPLETION = 0x0300,
    DOORBELL_ENABLE = 0x0380,
    INT_PENDING = 0x01,
    INT_COMPLETION = 0x02,
    INT_FAULT = 0x04,
    INT_SLOT = 0x08,
    INT_INVALIDATE = 0x10,
    INT_RESET = 0x20,
    INT_PAGING = 0x40,
    // 4. The MMU
    ROOT = 0x1000,
    ROOT_ENABLE = 0x01,
    ROOT_HOST = 0x02,
    // Tables
    PTE_VALID = 0x01,
    PTE_READ = 0x02,
    PTE_WRITE = 0x04,
    PTE_EXECUTE = 0x08,
    PTE_HOST = 0x10,
    PTE_SNOOP = 0x20,
    PTE_LEAF = 0x40,
    PTE_ATOMIC = 0x80,
    PTE_ADDRESS = 0x000f_ffff_ffff_f000,
    // INVALIDATE
    INV_SCOPE = 0x0400,
    INV_FIRST = 0x0408,
    INV_LAST = 0x0410,
    INV_SUBMIT = 0x0418,
    INV_DONE = 0x0420,
    INV_FREE = 0x0428,
    INV_ALL = 0x80000000,
    // 5. Queues and doorbells
    DOORBELL_VALUE = 0x4000,
    // Slots
    SLOT = 0x2000,
    SLOT_STRIDE = 0x80,
    SLOT_CONFIG = 0x00,
    SLOT_RING = 0x08,
    SLOT_SIZE = 0x10,
    SLOT_READ_INDEX = 0x18,
    SLOT_PROGRESS = 0x20,
    SLOT_COMMAND = 0x28,
    SLOT_STATE = 0x30,
    SLOT_SINCE = 0x38,
    SLOT_ERROR = 0x40,
    SLOT_FAULT_VA = 0x48,
    SLOT_WRITE_INDEX = 0x50,
    SLOT_ENGINE = 0x58,
    CLASS_COPY = 1,
    CLASS_COMPUTE = 2,
    STATE_FREE = 0,
    STATE_IDLE = 1,
    STATE_READY = 2,
    STATE_RUNNING = 3,
    STATE_WAITING = 4,
    STATE_FAULTED = 5,
    STATE_ERROR = 6,
    STATE_UNBINDING = 7,
    COMMAND_BIND = 1,
    COMMAND_UNBIND = 2,
    COMMAND_RETRY = 3,
    COMMAND_CANCEL = 4,
    COMMAND_RESET = 5,
    RESULT_OK = 0,
    RESULT_BAD_STATE = 1,
    RESULT_BAD_CONFIG = 2,
    RESULT_BOUND = 3,
    // 7. Faults and errors
    NOT_PRESENT = 1,
    PERMISSION = 2,
    RESERVED_BIT = 3,
    ROOT_DISABLED = 4,
    VA_RANGE = 5,
    BUS = 6,
    VRAM_RANGE = 7,
    BAD_OPCODE = 16,
    BAD_FIELD = 17,
    BAD_ALIGNMENT = 18,
    BAD_LENGTH = 19,
    BAD_KERNEL = 20,
    BAD_CLASS = 21,
    BAD_INDEX = 22,
    ILLEGAL_INSTRUCTION = 24,
    MISALIGNED = 25,
    BREAKPOINT = 26,
    BAD_CALL = 27,
    ABORTED = 28,
    STATE_LOST = 29,
    STACK_OVERFLOW = 30,
    TIMEOUT = 32,
    CANCELLED = 33,
    ENGINE_LOST = 34,
    FAULT_WRITE = 0x0500,
    FAULT_READ = 0x0508,
    FAULT_DROPPED = 0x0510,
    FAULT_ENTRY = 0x0800,
    FAULT_INFO = 0x00,
    FAULT_VA = 0x08,
    FAULT_INDEX = 0x10,
    FAULT_TIME = 0x18,
    ACCESS_READ = 0,
    ACCESS_WRITE = 1,
    ACCESS_FETCH = 2,
    ACCESS_ATOMIC = 3,
    // 8. Packets
    NOP = 1,
    COPY = 2,
    FILL = 3,
    LAUNCH = 4,
    FENCE_WRITE = 5,
    FENCE_WAIT = 6,
    TIMESTAMP = 7,
    INTERRUPT = 8,
    LAUNCH_INDIRECT = 0x01,
    COPY_ENGINE_0 = 0x01,
    COPY_ENGINE_1 = 0x02,
    TIMESTAMP_PACKET = 0x01,
    FENCE_WAIT_EQ = 0x01,
    FENCE_WAIT_AND = 0x02,
    FENCE_WAIT_NOR = 0x03,
    // 9. Kernels
    KERNEL_COPY = 1,
    KERNEL_FILL = 2,
    KERNEL_INCREMENT_F32 = 3,
    KERNEL_SAXPY = 4,
    KERNEL_SUM_F32 = 5,
    KERNEL_HISTOGRAM_U8 = 6,
    KERNEL_CRC32C = 7,
    KERNEL_MATMUL_F32 = 8,
    KERNEL_SPIN = 9,
    KERNEL_ATOMIC_ADD_U64 = 10,
    KERNEL_PROGRAM = 11,
    // 11. The bus model
    LINK_BANDWIDTH = 0x9000,
    LINK_LATENCY = 0x9008,
    VRAM_BANDWIDTH = 0x9010,
    VRAM_LATENCY = 0x9018,
    PROGRAM_RATE = 0x9020,
    // 12. Trouble knobs
    KNOB_LOSE_INTERRUPTS = 0xa000,
    KNOB_DELAY_NS = 0xa008,
    KNOB_AFTER_UNMAP = 0xa010,
    KNOB_AFTER_RESULT = 0xa018,
    KNOB_AFTER_ADDRESS = 0xa020,
    KNOB_STUCK = 0xa028,
    KNOB_NO_ACK = 0xa030,
    KNOB_POST_NS = 0xa038,
    KNOB_HOLD = 0xa040,
    NO_ACK_INVALIDATE = 1,
    NO_ACK_UNBIND = 2,
    NO_ACK_ENGINE_RESET = 4,
    NO_ACK_PAGING = 8,
    AFTER_UNMAP_MARKER = 0x5afe_dead_c0ff_ee01,
    // 14. Counters
    ENGINE = 0x7000,
    ENGINE_STRIDE = 0x80,
    ENGINE_HOST_READ = 0x00,
    ENGINE_HOST_WRITTEN = 0x08,
    ENGINE_VRAM_READ = 0x10,
    ENGINE_VRAM_WRITTEN = 0x18,
    ENGINE_PACKETS = 0x20,
    ENGINE_BUSY_NS = 0x28,
    TLB_HITS = 0x8000,
    TLB_MISSES = 0x8008,
    WALK_READS = 0x8010,
    FETCHES = 0x8018,
    SYNC_ACCESSES = 0x8020,
    NO_SNOOP = 0x8028,
    BINDS = 0x8030,
    UNBINDS = 0x8038,
    INVALIDATES = 0x8040,
    FAULTS = 0x8048,
    DOORBELL_WRITES = 0x8050,
    IGNORED_DOORBELLS = 0x8058,
    BAD_ACCESSES = 0x8060,
    INTERRUPTS = 0x8068,
    LOST_INTERRUPTS = 0x8070,
    BUS_ERRORS = 0x8078,
    DMA_MAPPED = 0x8080,
    DMA_MAPS = 0x8088,
    DMA_UNMAPS = 0x8090,
    MESSAGE_ACCESSES = 0x8098,
    // 16. The paging engine
    PAGING_SOURCE = 0x0600,
    PAGING_TARGET = 0x0608,
    PAGING_BYTES = 0x0610,
    PAGING_SUBMIT = 0x0618,
    PAGING_DONE = 0x0620,
    PAGING_FREE = 0x0628,
    PAGING_ERROR = 0x0630,
    PAGING_HOST = 0x01,
    PAGING_ZEROS = 0x02,
    PAGING_ENGINE = 6,
    // 17. Programs
    PROGRAM_FLAGS = 0x00,
    PROGRAM_ENTRY = 0x08,
    PROGRAM_GRID = 0x10,
    PROGRAM_BLOCK = 0x1c,
    PROGRAM_FIRST = 0x28,
    PROGRAM_COUNT = 0x30,
    PROGRAM_ARGUMENTS = 0x38,
    PROGRAM_ARGUMENTS_BYTES = 0x40,
    PROGRAM_STACKS = 0x48,
    PROGRAM_STACK_BYTES = 0x50,
    PROGRAM_SHARED = 0x58,
    PROGRAM_SHARED_BYTES = 0x60,
    PROGRAM_GP = 0x68,
    PROGRAM_RING = 0x70,
    PROGRAM_SAVE = 0x78,
    PROGRAM_SAVE_BYTES = 0x80,
    PROGRAM_REPORT = 0xc0,
    PROGRAM_DETERMINISTIC = 0x01,
    PROGRAM_CHECK_STACK = 0x02,
    CSR_CYCLE = 0xc00,
    CSR_TIME = 0xc01,
    CSR_INSTRET = 0xc02,
    CSR_THREAD = 0xcc0,
    CSR_BLOCK = 0xcc3,
    CSR_THREADS = 0xcc6,
    CSR_BLOCKS = 0xcc9,
    CSR_THREAD_NUMBER = 0xccc,
    CSR_BLOCK_NUMBER = 0xccd,
    CSR_NUMBER = 0xcce,
    CSR_SHARED = 0xccf,
    CSR_SHARED_BYTES = 0xcd0,
    CSR_ENGINE = 0xcd1,
    CALL_EXIT = 0,
    CALL_BARRIER = 1,
    CALL_PRINT = 2,
    CALL_ABORT = 3,
    RING_WRITTEN = 0x00,
    RING_DROPPED = 0x08,
    RING_READ = 0x20,
    RING_BYTES = 0x28,
    RING_DATA = 0x40,
    REPORT_CODE = 0x00,
    REPORT_PC = 0x08,
    REPORT_VALUE = 0x10,
    REPORT_THREAD = 0x18,
    REPORT_BLOCK = 0x20,
    REPORT_INSTRUCTIONS = 0x28,
    REPORT_BLOCKS = 0x30,
}

/// Size of a descriptor in bytes, which its VA is a multiple of.
pub const PROGRAM_SIZE: u64 = 256;
/// Size of BAR 0 in bytes.
pub const BAR0_SIZE: u64 = 64 << 10;
/// Number of queue ids, and of pages of BAR 1.
pub const QUEUE_COUNT: usize = 1024;
/// Number of hardware slots.
pub const SLOT_COUNT: usize = 32;
/// Number of copy engines; these are the engines 0 and 1.
pub const COPY_ENGINE_COUNT: usize = 2;
/// Number of slots of the compute engine; these are the engines after the copy engines.
pub const COMPUTE_SLOT_COUNT: usize = 4;
/// Number of engines that execute packets.
pub const PACKET_ENGINE_COUNT: usize = COPY_ENGINE_COUNT + COMPUTE_SLOT_COUNT;
/// Number of engines; the last is the paging engine.
pub const ENGINE_COUNT: usize = PACKET_ENGINE_COUNT + 1;
const _: () = assert!(PAGING_ENGINE as usize == PACKET_ENGINE_COUNT);
/// Number of address spaces.
pub const VMID_COUNT: usize = 16;
/// Number of words of a bitmap with one bit for each queue.
pub const BITMAP_WORDS: usize = QUEUE_COUNT / 64;
/// Number of entries of the fault queue.
pub const FAULT_COUNT: usize = 64;
/// Distance of the entries of the fault queue in bytes.
pub const FAULT_STRIDE: u64 = 32;
/// Number of INVALIDATEs that can be queued.
pub const INVALIDATE_COUNT: usize = 64;
/// Number of copies of the paging engine that can be queued.
pub const PAGING_COUNT: usize = 64;
/// Number of MSI-X vectors.
pub const VECTOR_COUNT: usize = 16;
/// Bytes that a `COPY` or `FILL` packet, or a copy of the paging engine, may move.
pub const TRANSFER_LIMIT: u64 = 64 << 20;
/// First address beyond the device's virtual addresses.
pub const VA_END: u64 = 1 << 48;
/// Page size in bytes.
pub const PAGE: u64 = 4096;
/// Bytes that a leaf of level 1 maps.
pub const LARGE_PAGE: u64 = 2 << 20;
/// Bytes that a leaf of level 2 maps.
pub const GIANT_PAGE: u64 = 1 << 30;
