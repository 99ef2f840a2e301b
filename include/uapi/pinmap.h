/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * pinmap: user memory for PCI accelerators, without a copy.
 *
 * This file is the ABI and its manual. Everything a program may rely on is
 * said here; whatever is not said here may change.
 */
#ifndef _UAPI_LINUX_PINMAP_H
#define _UAPI_LINUX_PINMAP_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * DOC: Overview
 *
 * One PCI function bound to the driver is one character device,
 * ``/dev/pinmapN``. Opening it makes a *context*: a device address space with
 * its buffers, its accounting and its events. All of it dies with the last
 * reference to the open file, in order: the device stops being a bus master,
 * the IOMMU mappings are removed and flushed, the pages are unpinned, the
 * charges are given back.
 *
 * A context belongs to the address space (the ``mm``) and the user that opened
 * it. Memory can be registered only from that address space (``EPERM``). When
 * it ends, by exit or by exec, everything registered goes stale, even if the
 * file lives on in another process.
 *
 * A *buffer* is a range of pinned pages with permissions; a *mapping* is a
 * buffer at an address of the device. Device addresses are I/O virtual
 * addresses in an IOMMU domain that belongs to the driver alone. Whatever is
 * not mapped there, the device cannot reach.
 *
 * A *flat* device (%PINMAP_KIND_FLAT) has no MMU of its own, so it cannot tell
 * two users apart. One context owns it: the first that maps memory, maps a
 * BAR, takes an interrupt or resets the function. It keeps it until its file
 * is closed; until then such calls from other contexts fail with ``EBUSY``.
 * Opening, asking (%PINMAP_GET_INFO, %PINMAP_GET_RESERVED, %PINMAP_QUERY) and
 * pinning without mapping (%PINMAP_REGISTER_NO_MAP) work whoever owns it. Only while it
 * is owned is the function a bus master. When the owner goes and the function
 * can be reset, it is reset.
 *
 * A *paged* device (%PINMAP_KIND_PAGED) has an MMU of its own, and each context
 * has a page table in it. Device addresses are then virtual addresses of that
 * context, and equal to user addresses: the device's MMU translates them to I/O
 * virtual addresses of the driver's choice, the IOMMU those to memory. Many
 * contexts use the device at once, through *queues*, and none reaches what
 * another has mapped. Each of its page tables is charged to the context as a
 * locked page, the first when it is opened (``ENOMEM``: over the limit). No user has so
 * many contexts that no other could have one (``ENOSPC``, from open()), and for each
 * some memory of the device is set aside for page tables. Its DMA must snoop the
 * CPU's caches: on a platform where it does not it cannot be bound
 * (``EOPNOTSUPP``). BARs, vectors and the reset belong to the driver
 * (``EOPNOTSUPP``). A reset by somebody else (in sysfs) takes every context's
 * queues and memory of the device: for them the device is gone; bound again,
 * it is there again.
 */

/**
 * DOC: General ioctl format
 *
 * Every ioctl takes a pointer to a struct that begins with its own size. The
 * number of an ioctl does not contain the size, so that a struct can grow:
 *
 *  - a caller built against an older header passes a shorter struct; the
 *    fields it lacks are taken as zero and are not written back;
 *  - a caller built against a newer header passes a longer struct; that works
 *    as long as everything behind what the kernel knows is zero, and fails
 *    with ``E2BIG`` otherwise. The kernel does not write there.
 *
 * Unused fields (``__reserved``) must be zero. A call that fails changes
 * nothing, keeps nothing and makes no handle; %PINMAP_REGISTER and %PINMAP_MAP
 * then still write their ``fail`` struct, as documented there.
 *
 * The checks are made in this order, so that each error has one meaning:
 *
 *  ================ ======================================================
 *  errno            meaning
 *  ================ ======================================================
 *  ``ENOTTY``       the ioctl number is not known at all
 *  ``EFAULT``       the struct cannot be read or written
 *  ``EINVAL``       ``size`` is smaller than the first version of the struct
 *  ``E2BIG``        ``size`` is larger than known and the rest is not zero,
 *                   or larger than a page
 *  ``EOPNOTSUPP``   an unknown bit in ``flags``, a non-zero ``__reserved``,
 *                   or something this device or IOMMU cannot do
 *  ``EOVERFLOW``    an address plus a length leaves the 64-bit range
 *  ``EINVAL``       a value that makes no sense: length 0, not whole pages,
 *                   an address outside user space, ...
 *  ``ENODEV``       the device is gone (unbound, removed or switched off); by
 *                   then it does nothing any more, and reaches no memory
 *  ``EPERM``        memory of another address space than the opener's
 *  ``EACCES``       mapping for writing what was registered for reading
 *  ``ENOENT``       no such handle, address, vector or range
 *  ``ESTALE``       the handle was released, or its memory went away
 *  ``EBUSY``        another context owns the device
 *  ``EEXIST``       overlaps a live registration of this context, or the
 *                   demanded device address is taken
 *  ``ENOSPC``       no room left in the device's address space, or too many
 *                   objects in this context
 *  ``ENOMEM``       RLIMIT_MEMLOCK, or the kernel is out of memory: see
 *                   ``fail`` for which
 *  ``EIO``          the IOMMU did not unmap what it was told to, the device did
 *                   not confirm that it has forgotten it, or a queue has stopped
 *  ``EINTR``        a fatal signal arrived meanwhile, or any signal where the
 *                   caller asked for that
 *  ================ ======================================================
 */
#define PINMAP_IOCTL_TYPE 0xBC

enum {
	PINMAP_CMD_GET_INFO = 0x00,
	PINMAP_CMD_GET_RESERVED = 0x01,
	PINMAP_CMD_REGISTER = 0x02,
	PINMAP_CMD_RELEASE = 0x03,
	PINMAP_CMD_QUERY = 0x04,
	PINMAP_CMD_MAP = 0x05,
	PINMAP_CMD_UNMAP = 0x06,
	PINMAP_CMD_SET_EVENTFD = 0x07,
	PINMAP_CMD_RESET = 0x08,
	PINMAP_CMD_ALLOC = 0x09,
	PINMAP_CMD_GPU_INFO = 0x0a,
	PINMAP_CMD_GPU_COUNTERS = 0x0b,
	PINMAP_CMD_QUEUE_CREATE = 0x0c,
	PINMAP_CMD_QUEUE_DESTROY = 0x0d,
	PINMAP_CMD_QUEUE_WAIT = 0x0e,
	PINMAP_CMD_QUEUE_QUERY = 0x0f,
	PINMAP_CMD_QUEUE_SUBMIT = 0x10,
	PINMAP_CMD_EXPORT = 0x11,
	PINMAP_CMD_IMPORT = 0x12,
	PINMAP_CMD_SYNC = 0x13,
	PINMAP_CMD_REGISTER_FD = 0x14,
	PINMAP_CMD_PREFLIGHT = 0x15,
	PINMAP_CMD_GENERATIONS = 0x16,
	PINMAP_CMD_GET_TOTALS = 0x19,
	PINMAP_CMD_QUEUE_NOTIFY = 0x1c,
	PINMAP_CMD_GPU_WALK = 0x20,
};

/** define PINMAP_NR_BARS - base address registers that a function can have */
#define PINMAP_NR_BARS 6

/**
 * enum pinmap_kind - what kind of device it is
 * @PINMAP_KIND_FLAT: no MMU of its own; one context owns it at a time
 * @PINMAP_KIND_PAGED: an MMU of its own; many contexts use it through queues
 */
enum pinmap_kind {
	PINMAP_KIND_FLAT = 1,
	PINMAP_KIND_PAGED = 2,
};

/**
 * enum pinmap_bar_flags - what a base address register is
 * @PINMAP_BAR_MMAP: can be mapped with mmap(); without it: I/O ports, or
 *                   smaller than a page
 * @PINMAP_BAR_PREFETCHABLE: mapped write-combined, otherwise uncached
 * @PINMAP_BAR_64BIT: takes up two registers
 */
enum pinmap_bar_flags {
	PINMAP_BAR_MMAP = 1 << 0,
	PINMAP_BAR_PREFETCHABLE = 1 << 1,
	PINMAP_BAR_64BIT = 1 << 2,
};

/**
 * struct pinmap_bar - one base address register
 * @offset: what to pass to mmap() for the first byte of it
 * @length: bytes; 0: the function does not have this register
 * @hole_offset: first byte, counted from the start of the BAR, of the pages
 *               with the MSI-X table and its pending bits, which cannot be
 *               mapped; whole pages
 * @hole_length: bytes of them; 0: none
 * @flags: enum pinmap_bar_flags
 * @__reserved: 0
 */
struct pinmap_bar {
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 hole_offset;
	__aligned_u64 hole_length;
	__u32 flags;
	__u32 __reserved;
};

/**
 * enum pinmap_info_flags - properties of the device
 * @PINMAP_INFO_COHERENT: DMA snoops the CPU's caches
 * @PINMAP_INFO_RESET: %PINMAP_RESET works
 * @PINMAP_INFO_OWNED: some context owns the device now
 * @PINMAP_INFO_OWNER: this context owns the device now
 * @PINMAP_INFO_GONE: the device is gone; the other fields are as they were
 */
enum pinmap_info_flags {
	PINMAP_INFO_COHERENT = 1 << 0,
	PINMAP_INFO_RESET = 1 << 1,
	PINMAP_INFO_OWNED = 1 << 2,
	PINMAP_INFO_OWNER = 1 << 3,
	PINMAP_INFO_GONE = 1 << 4,
};

/**
 * struct pinmap_info - ioctl(PINMAP_GET_INFO)
 * @size: sizeof(struct pinmap_info)
 * @flags: must be 0
 * @out_kind: enum pinmap_kind
 * @out_flags: enum pinmap_info_flags
 * @out_aperture_start: lowest device address that can be mapped
 * @out_aperture_last: highest one, inclusive
 * @out_page_sizes: bitmap of the IOMMU's page sizes: bit n is 1 << n bytes
 * @out_memlock_limit: bytes this process may have locked (RLIMIT_MEMLOCK);
 *                     ~0: no limit, also for a caller with CAP_IPC_LOCK
 * @out_memlock_used: bytes already charged to this user by all drivers that
 *                    charge the user (io_uring, iommufd, pinmap, ...)
 * @out_max_registrations: registrations that this context may have at once
 * @out_registrations: registrations that this context has now
 * @out_nr_reserved: ranges that %PINMAP_GET_RESERVED knows
 * @out_nr_vectors: interrupt vectors for %PINMAP_SET_EVENTFD
 * @out_vendor: PCI vendor id
 * @out_device: PCI device id
 * @out_subsystem_vendor: PCI subsystem vendor id
 * @out_subsystem_device: PCI subsystem id
 * @out_class: PCI class code, 24 bits
 * @out_pci_domain: PCI segment of the function
 * @out_pci_bus: its bus
 * @out_pci_devfn: its device (high 5 bits) and function (low 3 bits)
 * @out_iommu_group: number of its IOMMU group
 * @__reserved: 0
 * @out_bars: the base address registers, by number
 *
 * Never fails for a well-formed struct, whoever owns the device, also when it
 * is gone.
 */
struct pinmap_info {
	__u32 size;
	__u32 flags;
	__u32 out_kind;
	__u32 out_flags;
	__aligned_u64 out_aperture_start;
	__aligned_u64 out_aperture_last;
	__aligned_u64 out_page_sizes;
	__aligned_u64 out_memlock_limit;
	__aligned_u64 out_memlock_used;
	__u32 out_max_registrations;
	__u32 out_registrations;
	__u32 out_nr_reserved;
	__u32 out_nr_vectors;
	__u16 out_vendor;
	__u16 out_device;
	__u16 out_subsystem_vendor;
	__u16 out_subsystem_device;
	__u32 out_class;
	__u32 out_pci_domain;
	__u32 out_pci_bus;
	__u32 out_pci_devfn;
	__u32 out_iommu_group;
	__u32 __reserved;
	struct pinmap_bar out_bars[PINMAP_NR_BARS];
};
#define PINMAP_GET_INFO _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GET_INFO)

/**
 * enum pinmap_reserved_kind - why a range of device addresses cannot be used
 * @PINMAP_RESERVED_MSI: writes to it are interrupts
 * @PINMAP_RESERVED_OTHER: kept by the platform or the firmware
 */
enum pinmap_reserved_kind {
	PINMAP_RESERVED_MSI = 1,
	PINMAP_RESERVED_OTHER = 2,
};

/**
 * struct pinmap_reserved - ioctl(PINMAP_GET_RESERVED)
 * @size: sizeof(struct pinmap_reserved)
 * @flags: must be 0
 * @index: which one, counted from 0 in the order of the addresses
 * @out_kind: enum pinmap_reserved_kind
 * @out_start: first device address of the range
 * @out_last: last one, inclusive
 *
 * Reads one range of device addresses that no mapping can take. ``ENOENT``
 * behind the last one; ``ENODEV`` once the device is gone.
 */
struct pinmap_reserved {
	__u32 size;
	__u32 flags;
	__u32 index;
	__u32 out_kind;
	__aligned_u64 out_start;
	__aligned_u64 out_last;
};
#define PINMAP_GET_RESERVED _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GET_RESERVED)

/**
 * enum pinmap_totals_flags - whose totals
 * @PINMAP_TOTALS_CONTEXT: those of this context alone; otherwise those of all
 *                         contexts of the device
 */
enum pinmap_totals_flags {
	PINMAP_TOTALS_CONTEXT = 1 << 0,
};

/**
 * struct pinmap_total - how much there is of something
 * @number: of buffers, or of mappings
 * @bytes: of all of them; what is mapped twice counts twice
 */
struct pinmap_total {
	__aligned_u64 number;
	__aligned_u64 bytes;
};

/**
 * struct pinmap_get_totals - ioctl(PINMAP_GET_TOTALS)
 * @size: sizeof(struct pinmap_get_totals)
 * @flags: enum pinmap_totals_flags
 * @out_contexts: open files of the device, this one included; 1 with
 *                %PINMAP_TOTALS_CONTEXT
 * @__reserved: must be 0
 * @out_pinned: registered user memory and parts of files, as long as they are pinned.
 *              Portable memory counts where it was registered or allocated; its
 *              mappings, and that it is stale, count in each context
 * @out_allocated: host memory that the driver allocated
 * @out_vram: memory of the device's own that is in use
 * @out_shared: memory that belongs to somebody else: what was imported
 * @out_mapped: what devices can reach
 * @out_stale: buffers whose memory went away and that were not released yet
 *
 * The numbers are of different moments where other calls are under way. Rings and
 * fences of queues are not in them. The same is told of each open file in
 * ``/proc/PID/fdinfo/FD``:
 *
 *  ======================== ===================================================
 *  key                      value
 *  ======================== ===================================================
 *  ``pinmap-pdev``          the PCI function
 *  ``pinmap-client-id``     names the context among those of the function
 *  ``pinmap-objects``       buffers with a handle
 *  ``pinmap-objects-limit`` how many there may be
 *  ``pinmap-pinned``        bytes, as @out_pinned, in KiB; likewise
 *                           ``pinmap-allocated``, ``pinmap-vram``,
 *                           ``pinmap-shared`` and ``pinmap-mapped``
 *  ``pinmap-mappings``      number of mappings
 *  ``pinmap-stale``         number of stale buffers
 *  ``pinmap-locked``        what the opener's user has locked, by all drivers, KiB
 *  ``pinmap-limit``         RLIMIT_MEMLOCK of the process that opened the file,
 *                           in KiB; missing: no limit, or it has ended
 *  ======================== ===================================================
 *
 * Never fails for a well-formed struct.
 */
struct pinmap_get_totals {
	__u32 size;
	__u32 flags;
	__u32 out_contexts;
	__u32 __reserved;
	struct pinmap_total out_pinned;
	struct pinmap_total out_allocated;
	struct pinmap_total out_vram;
	struct pinmap_total out_shared;
	struct pinmap_total out_mapped;
	struct pinmap_total out_stale;
};
#define PINMAP_GET_TOTALS _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GET_TOTALS)

/**
 * enum pinmap_fail_reason - why a range could not be registered or mapped
 * @PINMAP_FAIL_NONE: nothing to add to the errno
 * @PINMAP_FAIL_HOLE: nothing is mapped at ``addr`` (EFAULT)
 * @PINMAP_FAIL_PERMISSION: the process itself may not write the memory at
 *                          ``addr`` that the device is to write, or may not
 *                          read what it is only to read (EFAULT)
 * @PINMAP_FAIL_FILE: a shared mapping of a file that cannot be pinned for
 *                    writing; register it read-only (EFAULT)
 * @PINMAP_FAIL_SECRET: memfd_secret() memory (EFAULT)
 * @PINMAP_FAIL_DEVICE: device memory or a raw PFN mapping (EFAULT)
 * @PINMAP_FAIL_FAULT: the page at ``addr`` cannot be had: behind the end of
 *                     its file, fenced by a guard, poisoned, or an error of
 *                     its pager (EFAULT)
 * @PINMAP_FAIL_MEMLOCK: over RLIMIT_MEMLOCK; ``needed`` and ``allowed`` are
 *                       bytes, counting what the user has locked already
 *                       (ENOMEM)
 * @PINMAP_FAIL_MEMORY: the kernel is out of memory (ENOMEM)
 * @PINMAP_FAIL_OVERLAP: ``addr`` is the start of the live registration or
 *                       mapping in the way (EEXIST)
 * @PINMAP_FAIL_APERTURE: the demanded device addresses lie outside of what
 *                        the IOMMU translates or ``address_bits`` allow;
 *                        ``allowed`` is the highest usable address (ENOSPC)
 * @PINMAP_FAIL_RESERVED: the demanded device addresses touch a reserved
 *                        range; ``addr`` is its start (ENOSPC)
 * @PINMAP_FAIL_FULL: no free range of device addresses is large enough
 *                    (ENOSPC)
 * @PINMAP_FAIL_OBJECTS: too many registrations or mappings; ``needed`` and
 *                       ``allowed`` are numbers of them (ENOSPC)
 * @PINMAP_FAIL_STALE: the memory at ``addr`` was unmapped or replaced while
 *                     it was being registered (ESTALE)
 */
enum pinmap_fail_reason {
	PINMAP_FAIL_NONE = 0,
	PINMAP_FAIL_HOLE = 1,
	PINMAP_FAIL_PERMISSION = 2,
	PINMAP_FAIL_FILE = 3,
	PINMAP_FAIL_SECRET = 4,
	PINMAP_FAIL_DEVICE = 5,
	PINMAP_FAIL_FAULT = 6,
	PINMAP_FAIL_MEMLOCK = 7,
	PINMAP_FAIL_MEMORY = 8,
	PINMAP_FAIL_OVERLAP = 9,
	PINMAP_FAIL_APERTURE = 10,
	PINMAP_FAIL_RESERVED = 11,
	PINMAP_FAIL_FULL = 12,
	PINMAP_FAIL_OBJECTS = 13,
	PINMAP_FAIL_STALE = 14,
};

/**
 * struct pinmap_fail - what exactly failed
 * @reason: enum pinmap_fail_reason
 * @__reserved: 0
 * @addr: the first address for which it failed, if the reason has one
 * @needed: what would have been needed, if the reason is a limit
 * @allowed: what is allowed, if the reason is a limit
 *
 * Written when the call fails with an errno that the reasons above name; all
 * zero when it succeeds. Its content on input does not matter.
 */
struct pinmap_fail {
	__u32 reason;
	__u32 __reserved;
	__aligned_u64 addr;
	__aligned_u64 needed;
	__aligned_u64 allowed;
};

/**
 * enum pinmap_register_flags - how to register
 * @PINMAP_REGISTER_WRITE: the device may write; without it any write by the
 *                         device is stopped by the IOMMU
 * @PINMAP_REGISTER_NO_MAP: pin only; map later with %PINMAP_MAP
 * @PINMAP_REGISTER_FIXED: map at exactly @device_addr or fail
 * @PINMAP_REGISTER_IDENTITY: map at exactly @addr or fail
 * @PINMAP_REGISTER_PORTABLE: for every device that the process has open, see
 *                            below
 * @PINMAP_REGISTER_INTERRUPTIBLE: any signal that the process handles ends the
 *                                 call (``EINTR``), not only a fatal one
 *
 * At most one of NO_MAP, FIXED and IDENTITY, and not NO_MAP with PORTABLE
 * (``EINVAL``).
 *
 * Portable memory is mapped in every context that this address space has open,
 * of all devices, and in those that it opens later, each time as demanded: the same
 * flags, @device_addr and @address_bits hold. A file counts as open from its first
 * ioctl() on. If one of them cannot have it, the registration fails, for its reason;
 * or, later, that first ioctl() does, whichever it is, with its errno and without
 * details, and so does every ioctl() until the device can have it.
 * It is pinned and charged once. Each context names it by a handle of its own,
 * which %PINMAP_QUERY of an address tells; %PINMAP_MAP, %PINMAP_UNMAP and
 * %PINMAP_RELEASE with that concern that context only. When its memory goes away, it
 * is stale in all of them, and a %PINMAP_EVENT_STALE with the handle there is queued in
 * each. Released in the context that registered it, it is gone from all of
 * them, at once and without an event. It does not outlive that context: when that is
 * closed, or its device is gone, it goes stale in the others, as if its memory had gone
 * (who wants it longer than any device registers it by a file that stays open).
 *
 * A device without an MMU gets it by
 * the context that owns it, and by the first one if none does, which is the owner
 * then; if another process owns it, that is a failure (``EBUSY``). The owner may
 * release it, and then that device does not have it. When the owner is closed, the
 * next context of the process that has the device open becomes the owner, and has what
 * is portable; if another process is quicker, none of them has the device, and
 * whatever needs it fails (``EBUSY``). Devices that are gone do not count.
 */
enum pinmap_register_flags {
	PINMAP_REGISTER_WRITE = 1 << 0,
	PINMAP_REGISTER_NO_MAP = 1 << 1,
	PINMAP_REGISTER_FIXED = 1 << 2,
	PINMAP_REGISTER_IDENTITY = 1 << 3,
	PINMAP_REGISTER_PORTABLE = 1 << 4,
	PINMAP_REGISTER_INTERRUPTIBLE = 1 << 5,
};

/**
 * struct pinmap_register - ioctl(PINMAP_REGISTER)
 * @size: sizeof(struct pinmap_register)
 * @flags: enum pinmap_register_flags
 * @addr: user address of the memory; on a page boundary
 * @length: bytes; whole pages
 * @device_addr: with %PINMAP_REGISTER_FIXED, in: the device address wanted, on
 *               a page boundary. Otherwise must be 0. Out: the device address
 *               of @addr; 0 with %PINMAP_REGISTER_NO_MAP
 * @address_bits: the device can drive only so many address bits (12 to 64);
 *                0: as many as the IOMMU
 * @__reserved: must be 0
 * @out_handle: what to name the registration by; never 0, never used again
 * @out_generation: see &struct pinmap_query.out_generation
 * @fail: out: what failed
 *
 * Pins the pages of ``[addr, addr + length)``, charges them to the user
 * (RLIMIT_MEMLOCK, as iommufd does) and maps them for the device. Whole pages
 * only, since a device that reaches a byte reaches its page.
 *
 * The device address equals @addr whenever the IOMMU's aperture, the reserved
 * ranges, the mappings there and @address_bits allow. Otherwise it is
 * congruent to @addr modulo 2 MiB, or modulo 1 GiB for lengths from there on,
 * so that huge pages stay huge (where such addresses are scarce, a length below
 * 2 MiB takes any); or the call fails, if it was told an exact address. The
 * page at device address 0 is given only to who demands it.
 *
 * Anonymous, memfd, tmpfs, hugetlb and private file memory can be registered
 * for reading and writing; shared mappings of files on disk only read-only.
 * A range that touches a live registration of the same context, or host memory
 * that the driver allocated for it, is refused (``EEXIST``); one that touches only
 * stale ones is not.
 *
 * Registered memory goes *stale* when it leaves the address space or its
 * file: munmap(), mremap(), MADV_DONTNEED of private memory, truncation, hole
 * punching, exit, exec. Then the whole registration is unmapped from the
 * device: before munmap() returns in the first two cases and at exit, very soon
 * after in the others. (As long as somebody holds the lock of its file or of the
 * address space, whether it left is not known, and it stays registered.)
 * Its pages are unpinned a little later, a %PINMAP_EVENT_STALE is queued, and
 * the handle answers ``ESTALE`` until it is released. Changes that leave the
 * pages where they are (fork(), mprotect(), MADV_FREE, KSM, compaction,
 * swapping, a huge page split) have no effect.
 *
 * Memory of which the hardware has lost a page (poisoned, by an uncorrectable
 * error or MADV_HWPOISON) goes stale, too: the kernel takes that page out of the
 * page tables. Who registers it again without that page has the rest.
 *
 * Some file systems take pages out of a file without clearing the page tables that
 * map them (direct writes and revalidation by network file systems do). The
 * registration then stays live and keeps the pages as they were.
 *
 * ``EOPNOTSUPP``, ``EBUSY``: the memory cannot be pinned for long (a file on
 * persistent memory, a page that somebody else keeps).
 *
 * It may take long: it reads what is swapped out, and zeroes what was never
 * touched. Meanwhile %PINMAP_QUERY of any of its addresses tells how far it is, and
 * nobody else waits for it. A fatal signal ends it, with
 * %PINMAP_REGISTER_INTERRUPTIBLE any (within some megabytes, but not while it
 * waits for one page); nothing of it is left then.
 */
struct pinmap_register {
	__u32 size;
	__u32 flags;
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 device_addr;
	__u32 address_bits;
	__u32 __reserved;
	__aligned_u64 out_handle;
	__aligned_u64 out_generation;
	struct pinmap_fail fail;
};
#define PINMAP_REGISTER _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_REGISTER)

/**
 * struct pinmap_register_fd - ioctl(PINMAP_REGISTER_FD)
 * @size: sizeof(struct pinmap_register_fd)
 * @flags: enum pinmap_register_flags, without %PINMAP_REGISTER_IDENTITY
 * @fd: a memfd, or a file of tmpfs or hugetlbfs (``EINVAL``; ``EBADF``), open for
 *      reading, and for writing with %PINMAP_REGISTER_WRITE (``EACCES``)
 * @address_bits: as in &struct pinmap_register
 * @offset: of the first byte in the file; on a page boundary
 * @length: bytes; whole pages
 * @device_addr: as in &struct pinmap_register; without %PINMAP_REGISTER_FIXED it
 *               is near @offset and congruent to that, for there is no user
 *               address
 * @out_handle: what to name the registration by
 * @out_generation: see &struct pinmap_query.out_generation
 * @fail: out: what failed; an ``addr`` is an offset in the file, except for
 *        device addresses
 *
 * Registers a part of a file that need not be mapped anywhere. Pages that the
 * file does not have yet are made, and what nobody has written yet is zero, as
 * for who reads it, also where fallocate() has put pages. Pages behind its end,
 * and pages that the memory has lost (poisoned): ``EFAULT`` (%PINMAP_FAIL_FAULT).
 *
 * What is registered so belongs to no address space, and never goes stale: it is
 * there until it is released, also after the process's memory is gone. There is
 * nobody to tell a driver that pages leave a file unless they are mapped. So after
 * truncation or hole punching the device keeps the pages that the file had, and
 * the file has others, or none; and a page that is poisoned later stays with the
 * device. Who cannot rule out that pages leave the file seals it
 * (``F_SEAL_SHRINK`` against truncation, ``F_SEAL_WRITE`` of a file that is
 * registered for reading against punching, too), or maps it and registers the
 * mapping. Registered for writing, the file counts as mapped for writing: it
 * cannot be sealed against that (``EBUSY``), and a file that is sealed against
 * writing cannot be registered so (``EPERM``). While any of it is pinned, for
 * reading too, the kernel may refuse to seal the file against writing (``EBUSY``).
 *
 * With %PINMAP_REGISTER_PORTABLE it has the same device address in all contexts, that
 * of this one, or fails. There is no user address by which the others could ask for
 * their handle of it; they learn it when it goes stale with this context.
 *
 * Charged and limited like %PINMAP_REGISTER. Overlaps are no matter: the same
 * pages can be registered again. %PINMAP_QUERY finds it by its handle only.
 */
struct pinmap_register_fd {
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 address_bits;
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 device_addr;
	__aligned_u64 out_handle;
	__aligned_u64 out_generation;
	struct pinmap_fail fail;
};
#define PINMAP_REGISTER_FD _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_REGISTER_FD)

/**
 * struct pinmap_preflight - ioctl(PINMAP_PREFLIGHT)
 * @size: sizeof(struct pinmap_preflight)
 * @flags: as in &struct pinmap_register
 * @addr: as in &struct pinmap_register
 * @length: as in &struct pinmap_register
 * @device_addr: as in &struct pinmap_register, in only
 * @address_bits: as in &struct pinmap_register
 * @__reserved: must be 0
 * @out_memlock_needed: bytes that the user would have locked then
 * @out_memlock_allowed: bytes that may be; ~0: no limit
 * @out_objects_needed: registrations that the context would have then
 * @out_objects_allowed: registrations that it may have
 * @fail: out: what would fail
 *
 * What %PINMAP_REGISTER with these arguments would answer now, without pinning
 * anything: the same errno, in the same order, for the same reason. It touches no
 * page, so it does not find out that there is no memory, or that a page cannot
 * be had (%PINMAP_FAIL_FAULT); nor does it ask other devices about portable
 * memory, or count what page tables in a paged device will take. The numbers are filled in also when it fails with
 * an errno that has a reason. Nothing is kept: another thread may be quicker.
 *
 * @out_memlock_needed counts what this user has locked by all devices and all drivers that
 * charge the user, for that is what the limit is compared with. A memory cgroup is
 * not in the numbers. Pages that exist already were charged to it when they were
 * first touched, and pinning charges nothing; for pages that do not exist yet there is
 * no number to compare: what a cgroup may still have depends on what can be reclaimed
 * from it then, and on the limits of all cgroups above it. Who goes over it while
 * pages are made meets the OOM killer or ``ENOMEM``, as by touching them. Page tables
 * that would be charged (see &struct pinmap_map) are in it if all else is in order.
 */
struct pinmap_preflight {
	__u32 size;
	__u32 flags;
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 device_addr;
	__u32 address_bits;
	__u32 __reserved;
	__aligned_u64 out_memlock_needed;
	__aligned_u64 out_memlock_allowed;
	__aligned_u64 out_objects_needed;
	__aligned_u64 out_objects_allowed;
	struct pinmap_fail fail;
};
#define PINMAP_PREFLIGHT _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_PREFLIGHT)

/**
 * struct pinmap_generations - ioctl(PINMAP_GENERATIONS)
 * @size: sizeof(struct pinmap_generations)
 * @flags: must be 0
 * @out_offset: what to pass to mmap(), with PROT_READ and MAP_SHARED
 * @out_length: bytes of it
 *
 * Shows numbers of 64 bits that tell without a system call whether a registration
 * may have gone stale: the one of a registration is at its handle modulo how many
 * there are. It grows whenever memory of one of the registrations that share it
 * may have gone away: before munmap(), mremap(), madvise(), ftruncate() or
 * fallocate() returns; and when the device is gone. Then %PINMAP_QUERY knows which.
 *
 * So a cache of registrations keeps with each the number, read before the
 * registration was last known to be live. A lookup that finds the number as it was
 * has found a registration that is live, if nobody frees the memory while it is
 * looked up: that is the caller's to see to, as with any use of memory. Who has to
 * know that it stayed so reads the number again afterwards.
 *
 * The page is made by the first call, and charged like registered memory. It is
 * mapped as what %PINMAP_ALLOC makes, but cannot be mapped for writing
 * (``EACCES``). Before the page is there nothing counts, so it comes first.
 */
struct pinmap_generations {
	__u32 size;
	__u32 flags;
	__aligned_u64 out_offset;
	__aligned_u64 out_length;
};
#define PINMAP_GENERATIONS _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GENERATIONS)

/**
 * struct pinmap_release - ioctl(PINMAP_RELEASE)
 * @size: sizeof(struct pinmap_release)
 * @flags: must be 0
 * @handle: a registration of this context
 *
 * Unmaps all its mappings, flushes the IOMMU, then unpins the pages and gives
 * back the charge. When it returns, the device cannot reach the memory. Also
 * for stale registrations. ``ENOENT``: never was a handle of this context;
 * ``ESTALE``: released before. Also after ``ESTALE`` (if that was by another
 * thread: once its call has returned) and ``ENODEV`` (the device is gone) the
 * device cannot reach the memory. ``EIO``, one of two things, after which the
 * handle is gone and the device will be gone soon:
 *
 * - the IOMMU's page table was not as the driver left it: the pages stay pinned
 *   for ever;
 * - a paged device did not confirm in time that it has forgotten the addresses:
 *   the pages were unpinned after it was cut off.
 *
 * In both cases the device was cut off from all memory before the call returned:
 * it cannot reach this memory, or any other. The same holds where another call
 * undoes what it did, because it failed, and cannot.
 */
struct pinmap_release {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
};
#define PINMAP_RELEASE _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_RELEASE)

/**
 * enum pinmap_buffer_kind - where the pages of a buffer come from
 * @PINMAP_BUFFER_USER: registered user memory
 * @PINMAP_BUFFER_HOST: host memory that the driver allocated
 * @PINMAP_BUFFER_VRAM: memory of the device
 * @PINMAP_BUFFER_FILE: a part of a file (%PINMAP_REGISTER_FD)
 * @PINMAP_BUFFER_IMPORT: memory of another buffer, by %PINMAP_IMPORT
 */
enum pinmap_buffer_kind {
	PINMAP_BUFFER_USER = 1,
	PINMAP_BUFFER_HOST = 2,
	PINMAP_BUFFER_VRAM = 3,
	PINMAP_BUFFER_FILE = 5,
	PINMAP_BUFFER_IMPORT = 6,
};

/**
 * enum pinmap_buffer_state - whether a buffer can be used
 * @PINMAP_STATE_LIVE: pinned; mapped if it has mappings
 * @PINMAP_STATE_STALE: its memory went away; only %PINMAP_RELEASE is left
 * @PINMAP_STATE_BUILDING: %PINMAP_REGISTER has not returned yet
 */
enum pinmap_buffer_state {
	PINMAP_STATE_LIVE = 1,
	PINMAP_STATE_STALE = 2,
	PINMAP_STATE_BUILDING = 3,
};

/**
 * struct pinmap_query - ioctl(PINMAP_QUERY)
 * @size: sizeof(struct pinmap_query)
 * @flags: must be 0
 * @handle: in: the registration or allocation to ask about, or 0 to ask by @addr.
 *          Out: its handle; 0 while it is being registered
 * @addr: in, if @handle is 0: any user address inside of the registration, or of
 *        a mapping of memory that the driver allocated for this context
 * @out_base: user address of its first byte; of an allocation, as far as @addr
 *            tells; 0 if it has none
 * @out_length: bytes
 * @out_device_addr: device address of @addr, or of @out_base when asked by
 *                   handle, in its first mapping; 0 if there is none
 * @out_flags: %PINMAP_REGISTER_WRITE and %PINMAP_REGISTER_PORTABLE, if it was
 *             registered so
 * @out_kind: enum pinmap_buffer_kind
 * @out_state: enum pinmap_buffer_state
 * @out_nr_mappings: mappings it has now
 * @out_generation: 1 when registered, 2 when it has gone stale
 * @out_offset: of an allocation of this file: what to pass to mmap() for its first
 *              byte; of a part of a file: where in the file it begins; otherwise 0
 * @out_pinned: bytes of it that are pinned: less than @out_length while it is being
 *              registered, 0 when it is stale
 *
 * If what happened to its memory before the call is still being looked into, the
 * answer waits for that: as long as somebody holds the lock of its file or of the
 * address space. A fatal signal ends it.
 *
 * By address, a stale registration is found until some of its addresses are
 * registered again; by handle, until it is released. ``ENOENT``: no
 * registration or allocation there; ``ESTALE``: the handle was released.
 */
struct pinmap_query {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
	__aligned_u64 addr;
	__aligned_u64 out_base;
	__aligned_u64 out_length;
	__aligned_u64 out_device_addr;
	__u32 out_flags;
	__u32 out_kind;
	__u32 out_state;
	__u32 out_nr_mappings;
	__aligned_u64 out_generation;
	__aligned_u64 out_offset;
	__aligned_u64 out_pinned;
};
#define PINMAP_QUERY _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUERY)

/**
 * enum pinmap_map_flags - how to map
 * @PINMAP_MAP_WRITE: the device may write; the buffer must have been
 *                    registered with %PINMAP_REGISTER_WRITE (``EACCES``)
 * @PINMAP_MAP_FIXED: at exactly @device_addr or fail
 */
enum pinmap_map_flags {
	PINMAP_MAP_WRITE = 1 << 0,
	PINMAP_MAP_FIXED = 1 << 1,
};

/**
 * struct pinmap_map - ioctl(PINMAP_MAP)
 * @size: sizeof(struct pinmap_map)
 * @flags: enum pinmap_map_flags
 * @handle: the registration to map
 * @device_addr: with %PINMAP_MAP_FIXED, in: the device address wanted, on a
 *               page boundary. Otherwise must be 0. Out: where it is mapped
 * @address_bits: as in &struct pinmap_register
 * @__reserved: must be 0
 * @fail: out: what failed
 *
 * Maps the whole buffer, once more if it is mapped already (then at another
 * address: the preferred one is chosen as for %PINMAP_REGISTER). At most 64
 * mappings a buffer. If its memory goes away meanwhile it fails with ``ESTALE``;
 * until then the device may reach the pages, which stay pinned for that long, at
 * the address that was asked for, also after munmap() has returned. ``EOVERFLOW``, as it depends on the buffer's length, comes
 * behind ``ENOENT`` and ``ESTALE``.
 *
 * The IOMMU needs a page of its own for each block of 2 MiB, of device addresses,
 * in which a mapping begins or ends, and keeps it until the owner of the device
 * closes it; besides, one for each GiB. Of these 1024 cost nothing. For more, which
 * takes mappings all over the address space, RLIMIT_MEMLOCK is charged
 * (%PINMAP_FAIL_MEMLOCK) until then. A device with an MMU has no such charge here:
 * tables of its own are charged instead, as long as something is mapped by them.
 */
struct pinmap_map {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
	__aligned_u64 device_addr;
	__u32 address_bits;
	__u32 __reserved;
	struct pinmap_fail fail;
};
#define PINMAP_MAP _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_MAP)

/**
 * struct pinmap_unmap - ioctl(PINMAP_UNMAP)
 * @size: sizeof(struct pinmap_unmap)
 * @flags: must be 0
 * @handle: the registration
 * @device_addr: the address at which it is mapped, as %PINMAP_MAP or
 *               %PINMAP_REGISTER returned it
 *
 * Removes one mapping and flushes the IOMMU; the pages stay pinned. When it
 * returns, the device cannot reach the memory at that address. A part of a
 * mapping cannot be removed (``ENOENT``). ``EIO``: as for %PINMAP_RELEASE, also
 * in that the device was cut off from all memory before.
 */
struct pinmap_unmap {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
	__aligned_u64 device_addr;
};
#define PINMAP_UNMAP _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_UNMAP)

/**
 * enum pinmap_eventfd_source - what signals an eventfd
 * @PINMAP_SOURCE_VECTOR: interrupt vector @index of the function (MSI-X if it
 *                        has that, otherwise MSI; INTx is not offered)
 * @PINMAP_SOURCE_EVENTS: something to read() from this file; @index must be 0
 */
enum pinmap_eventfd_source {
	PINMAP_SOURCE_VECTOR = 1,
	PINMAP_SOURCE_EVENTS = 2,
};

/**
 * struct pinmap_set_eventfd - ioctl(PINMAP_SET_EVENTFD)
 * @size: sizeof(struct pinmap_set_eventfd)
 * @flags: must be 0
 * @source: enum pinmap_eventfd_source (``EOPNOTSUPP`` if unknown)
 * @index: the vector, below &struct pinmap_info.out_nr_vectors (``ENOENT``)
 * @fd: an eventfd (``EBADF``, ``EINVAL``), or -1 to take the eventfd away
 * @__reserved: must be 0
 *
 * Each interrupt adds 1 to the eventfd's counter. A new eventfd replaces the
 * old one of the same source. When the call that takes it away returns, it is
 * signalled no more. Taking away does not make the caller the owner.
 */
struct pinmap_set_eventfd {
	__u32 size;
	__u32 flags;
	__u32 source;
	__u32 index;
	__s32 fd;
	__u32 __reserved;
};
#define PINMAP_SET_EVENTFD _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_SET_EVENTFD)

/**
 * struct pinmap_reset - ioctl(PINMAP_RESET)
 * @size: sizeof(struct pinmap_reset)
 * @flags: must be 0
 *
 * Resets the function. Mappings, interrupts and their eventfds stay as they
 * are. ``EOPNOTSUPP``: the function has no reset (see %PINMAP_INFO_RESET);
 * ``EAGAIN``: the device is being bound, unbound or reset by someone else.
 */
struct pinmap_reset {
	__u32 size;
	__u32 flags;
};
#define PINMAP_RESET _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_RESET)

/**
 * enum pinmap_event_type - what happened
 * @PINMAP_EVENT_STALE: the registration @handle went stale
 * @PINMAP_EVENT_GONE: the device is gone, and everything with it; comes last
 * @PINMAP_EVENT_FAULT: the queue @handle stopped; &struct pinmap_queue_query
 *                      tells why
 */
enum pinmap_event_type {
	PINMAP_EVENT_STALE = 1,
	PINMAP_EVENT_GONE = 2,
	PINMAP_EVENT_FAULT = 3,
};

/**
 * struct pinmap_event - what read() returns
 * @type: enum pinmap_event_type
 * @access: for a fault, what the queue wanted to do: enum pinmap_access; or 0
 * @handle: the registration, or the queue, or 0
 * @addr: user address of the registration's first byte; for a fault, the device
 *        address that could not be accessed; or 0
 * @length: the registration's length in bytes; for a fault, the index of the
 *          packet; or 0
 *
 * read() returns as many whole events as there are and as fit. It waits for
 * the first one, or fails with ``EAGAIN`` if the file is O_NONBLOCK; ``EINVAL``
 * if not even one event fits. No event is lost: each registration and each
 * queue has at most one, and room for it is set aside when it is made. Releasing
 * or destroying it withdraws its event if it was not read yet. Once the device is
 * gone and %PINMAP_EVENT_GONE was read, read() returns 0.
 *
 * poll() reports POLLIN when there is something to read, and POLLHUP when the
 * device is gone.
 */
struct pinmap_event {
	__u32 type;
	__u32 access;
	__aligned_u64 handle;
	__aligned_u64 addr;
	__aligned_u64 length;
};

/**
 * enum pinmap_alloc_flags - what memory
 * @PINMAP_ALLOC_VRAM: memory of a paged device (%PINMAP_KIND_PAGED); without it:
 *                     host memory, pinned, of whatever device
 * @PINMAP_ALLOC_WRITE_COMBINED: the CPU writes it past its caches, and fast; it
 *                               reads it slowly
 * @PINMAP_ALLOC_NODE: of the NUMA node @node, and of no other
 * @PINMAP_ALLOC_PORTABLE: as %PINMAP_REGISTER_PORTABLE: the first %PINMAP_MAP of it
 *                         in this context maps it in all others as well, as
 *                         demanded there, or fails
 *
 * The last three go together in every combination, with huge pages where there are any;
 * none of them goes with the first (``EINVAL``).
 */
enum pinmap_alloc_flags {
	PINMAP_ALLOC_VRAM = 1 << 0,
	PINMAP_ALLOC_WRITE_COMBINED = 1 << 1,
	PINMAP_ALLOC_NODE = 1 << 2,
	PINMAP_ALLOC_PORTABLE = 1 << 3,
};

/**
 * struct pinmap_alloc - ioctl(PINMAP_ALLOC)
 * @size: sizeof(struct pinmap_alloc)
 * @flags: enum pinmap_alloc_flags
 * @length: bytes; whole pages
 * @out_handle: what to name the buffer by, as for a registration
 * @out_offset: what to pass to mmap() for its first byte
 * @fail: out: what failed
 * @node: with %PINMAP_ALLOC_NODE: a node that has memory (``EINVAL``). Otherwise
 *        must be 0
 * @__reserved: must be 0
 *
 * Allocates memory, zeroed, readable and writable by CPU and device. Host memory
 * comes in huge pages where there are any, in smaller ones where there are not. It
 * is charged like registered memory, and to the caller's memory cgroup. Nothing is
 * mapped, since its user address, which is to be its device address, is not known
 * yet: mmap() shows it to the CPU, %PINMAP_MAP with
 * %PINMAP_MAP_FIXED at the address that mmap() returned shows it to the device.
 * %PINMAP_MAP without it takes the buffer's user address for 0. %PINMAP_QUERY finds
 * it by any address at which it is mapped.
 *
 * Without %PINMAP_ALLOC_NODE, the caller's memory policy (set_mempolicy()) says which
 * nodes it comes from. With it the call fails when that node has not enough.
 *
 * %PINMAP_RELEASE unmaps it from the device and gives up the handle. The memory
 * is freed when the last mmap() and the last dma-buf (%PINMAP_EXPORT) of it are
 * gone, too.
 *
 * mmap() takes any whole pages of it, MAP_SHARED, without PROT_EXEC, until it is
 * released; only in the process that opened the file (``EPERM``). The mapping is
 * not inherited by fork() and cannot be moved or grown. VRAM is mapped
 * write-combined. Once the device is gone touching VRAM raises SIGBUS; host
 * memory stays.
 *
 * Host memory that is mapped so consists of ordinary pages: it can be used for
 * O_DIRECT, as io_uring's registered buffers, by other drivers that pin memory. But
 * they belong to no file: a futex there is one of this process (FUTEX_PRIVATE_FLAG); one
 * that processes share is refused by the kernel (``EFAULT``), and so are mutexes,
 * condition variables and semaphores of that kind.
 *
 * Write-combined memory is so for every CPU: also in the kernel's own mapping of
 * it, until it is freed. A device sees what was written once the CPU's buffers are
 * drained; a store fence (SFENCE) or any locked instruction does that.
 *
 * VRAM is not charged: who comes first has it, but for a 16th of it, which is kept
 * for page tables.
 *
 * ``EOPNOTSUPP``: %PINMAP_ALLOC_VRAM on a flat device, or
 * %PINMAP_ALLOC_WRITE_COMBINED on another architecture than x86. ``ENOSPC``: no VRAM
 * of that length is free (%PINMAP_FAIL_FULL; VRAM is given out in one piece).
 * ``ENOMEM``: over RLIMIT_MEMLOCK (%PINMAP_FAIL_MEMLOCK), or the machine, the node or
 * the memory cgroup has not so much (%PINMAP_FAIL_MEMORY).
 */
struct pinmap_alloc {
	__u32 size;
	__u32 flags;
	__aligned_u64 length;
	__aligned_u64 out_handle;
	__aligned_u64 out_offset;
	struct pinmap_fail fail;
	__u32 node;
	__u32 __reserved;
};
#define PINMAP_ALLOC _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_ALLOC)

/**
 * enum pinmap_export_flags - what others may do with it
 * @PINMAP_EXPORT_WRITE: write to it; the buffer must be writable (``EACCES``)
 */
enum pinmap_export_flags {
	PINMAP_EXPORT_WRITE = 1 << 0,
};

/**
 * struct pinmap_export - ioctl(PINMAP_EXPORT)
 * @size: sizeof(struct pinmap_export)
 * @flags: enum pinmap_export_flags
 * @handle: the buffer
 * @out_fd: a descriptor of a new dma-buf, closed by exec(); all of the buffer
 * @__reserved: must be 0
 *
 * Whoever has the descriptor has the memory: it can be sent to another process,
 * given to %PINMAP_IMPORT of any device of this driver, and to other drivers that
 * import dma-bufs. Without %PINMAP_EXPORT_WRITE it is open for reading only, and an
 * importer that wants its device to write is refused (``EACCES``). A new dma-buf
 * each time; nothing is pinned or charged again. Only by the process that opened
 * the file (``EPERM``).
 *
 * Memory of %PINMAP_ALLOC: the dma-buf can be mapped with mmap(), MAP_SHARED, without
 * PROT_EXEC, as %PINMAP_ALLOC says; DMA_BUF_IOCTL_SYNC, which importers without
 * coherent DMA need, works as for any dma-buf. It keeps the memory, and the charge
 * for it, whatever becomes of the handle, the context and the device.
 *
 * A part of a file (%PINMAP_REGISTER_FD): the same, and its pages stay pinned until the
 * last dma-buf and the last mmap() of it are gone. What mmap() shows are the pages that
 * the device has, whatever becomes of the file meanwhile (see there). It cannot be mapped
 * for writing if it was registered or exported for reading (``EACCES``), or if the file
 * has been sealed against writing, or against writing in future, since (``EPERM``). The
 * file does not know of such a mapping, so the pages cannot be pinned by way of it
 * (``EFAULT`` from O_DIRECT, io_uring and %PINMAP_REGISTER): map the file for that.
 *
 * Registered memory, which can go stale: only importers that can be revoked
 * (those with a callback for that; others are refused with ``EOPNOTSUPP`` when
 * they attach), and no mmap() (``EINVAL``; who has the memory has it mapped). When
 * the memory goes stale or is released, every importer is told to let go of it, and
 * gets it no more (``ENODEV``); the pages stay pinned until the last one has.
 * Imports by this driver are unmapped from their devices then: before
 * %PINMAP_RELEASE returns, or very soon after the memory went away. What was imported,
 * exported again and imported from that is, too, in both cases very soon after.
 *
 * ``EOPNOTSUPP``: VRAM, which other devices cannot reach.
 */
struct pinmap_export {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
	__s32 out_fd;
	__u32 __reserved;
};
#define PINMAP_EXPORT _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_EXPORT)

/**
 * struct pinmap_import - ioctl(PINMAP_IMPORT)
 * @size: sizeof(struct pinmap_import)
 * @flags: must be 0
 * @fd: a dma-buf of %PINMAP_EXPORT, of whatever context, device and process
 *      (``EBADF``: no descriptor; ``EINVAL``: no dma-buf)
 * @out_flags: %PINMAP_EXPORT_WRITE if it was exported so; otherwise it can be mapped
 *             for reading only
 * @out_handle: what to name the buffer by
 * @out_length: bytes of it
 *
 * Makes a buffer of the same pages, pinned once and charged once, to who pinned
 * them. It is released by %PINMAP_RELEASE; the descriptor may be closed before.
 * Nothing is mapped: mmap() of the descriptor shows the memory to the CPU,
 * %PINMAP_MAP to the device. %PINMAP_MAP without %PINMAP_MAP_FIXED, %PINMAP_QUERY
 * and events take the buffer's user address for 0. Only in the process that opened the file
 * (``EPERM``).
 *
 * If it is of registered memory that goes stale or is released, this goes stale,
 * too (%PINMAP_EVENT_STALE). ``ESTALE``: it has already.
 *
 * ``EOPNOTSUPP``: a dma-buf of another driver. Such memory is mapped by its exporter,
 * for the device that the importer names, by the kernel's DMA API, and that means
 * in the default domain of the device. This driver has attached a domain of
 * its own instead, in which the addresses that the exporter returns mean nothing.
 * (Memory for both: export it here and import it there; or make a memfd, and give it
 * to udmabuf and to %PINMAP_REGISTER.)
 */
struct pinmap_import {
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 out_flags;
	__aligned_u64 out_handle;
	__aligned_u64 out_length;
};
#define PINMAP_IMPORT _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_IMPORT)

/**
 * enum pinmap_sync_flags - who is next
 * @PINMAP_SYNC_FOR_DEVICE: the device will read what the CPU wrote
 * @PINMAP_SYNC_FOR_CPU: the CPU will read what the device wrote
 * @PINMAP_SYNC_NO_SNOOP: also if DMA is coherent: for a device that asks for its
 *                        transfers not to be snooped, where the IOMMU lets it
 *
 * At least one of the first two (``EINVAL``).
 */
enum pinmap_sync_flags {
	PINMAP_SYNC_FOR_DEVICE = 1 << 0,
	PINMAP_SYNC_FOR_CPU = 1 << 1,
	PINMAP_SYNC_NO_SNOOP = 1 << 2,
};

/**
 * struct pinmap_sync - ioctl(PINMAP_SYNC)
 * @size: sizeof(struct pinmap_sync)
 * @flags: enum pinmap_sync_flags
 * @handle: the buffer
 * @offset: first byte of it
 * @length: bytes, at least 1
 *
 * Writes back and drops what the CPU's caches hold of a part of a buffer. Needed
 * where %PINMAP_INFO_COHERENT is not set: for the device after the CPU has
 * written and before the device reads; for the CPU after the device has written
 * and before the CPU reads. Nothing beside the part must be in use by the other one
 * in the same cache lines. Where DMA is coherent it does nothing, at once; also for
 * VRAM and write-combined memory, which no cache holds.
 *
 * ``EINVAL``: the part leaves the buffer. ``EOPNOTSUPP``: there is something to do,
 * and the architecture is not x86. A fatal signal interrupts it.
 */
struct pinmap_sync {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
	__aligned_u64 offset;
	__aligned_u64 length;
};
#define PINMAP_SYNC _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_SYNC)

/** define PINMAP_MAX_ENGINES - engines that struct pinmap_gpu_counters knows */
#define PINMAP_MAX_ENGINES 8

/**
 * struct pinmap_gpu_info - ioctl(PINMAP_GPU_INFO)
 * @size: sizeof(struct pinmap_gpu_info)
 * @flags: must be 0
 * @out_nr_queues: queues that the device has, for all contexts
 * @out_nr_vmids: address spaces that can be in the device at once
 * @out_nr_slots: queues that can be in the device at once
 * @out_nr_copy_engines: copy engines
 * @out_nr_compute_slots: kernels that run at once
 * @out_max_priority: highest priority of a queue; the lowest is 0
 * @out_vram_length: bytes of VRAM, all of it
 * @out_vram_free: bytes of it that are free now
 * @out_max_transfer: bytes that one copy or fill packet may move
 * @out_max_run_ns: how long a packet may run
 * @out_link_bandwidth: modelled bytes per second between the device and host
 *                      memory, in each direction; 0: no limit
 * @out_link_latency_ns: modelled latency of an access to host memory
 * @out_vram_bandwidth: modelled bytes per second of VRAM; 0: no limit
 * @out_vram_latency_ns: modelled latency of an access to VRAM
 * @out_time_ns: the device's clock, which timestamp packets store
 *
 * ``EOPNOTSUPP``: not a paged device.
 */
struct pinmap_gpu_info {
	__u32 size;
	__u32 flags;
	__u32 out_nr_queues;
	__u32 out_nr_vmids;
	__u32 out_nr_slots;
	__u32 out_nr_copy_engines;
	__u32 out_nr_compute_slots;
	__u32 out_max_priority;
	__aligned_u64 out_vram_length;
	__aligned_u64 out_vram_free;
	__aligned_u64 out_max_transfer;
	__aligned_u64 out_max_run_ns;
	__aligned_u64 out_link_bandwidth;
	__aligned_u64 out_link_latency_ns;
	__aligned_u64 out_vram_bandwidth;
	__aligned_u64 out_vram_latency_ns;
	__aligned_u64 out_time_ns;
};
#define PINMAP_GPU_INFO _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GPU_INFO)

/**
 * struct pinmap_engine_counters - what one engine has done, for all contexts
 * @host_read: bytes of operands read from host memory
 * @host_written: bytes written to it
 * @vram_read: bytes read from VRAM
 * @vram_written: bytes written to it
 * @packets: packets completed
 * @busy_ns: time during which it held a packet
 */
struct pinmap_engine_counters {
	__aligned_u64 host_read;
	__aligned_u64 host_written;
	__aligned_u64 vram_read;
	__aligned_u64 vram_written;
	__aligned_u64 packets;
	__aligned_u64 busy_ns;
};

/**
 * struct pinmap_gpu_counters - ioctl(PINMAP_GPU_COUNTERS)
 * @size: sizeof(struct pinmap_gpu_counters)
 * @flags: must be 0
 * @out_nr_engines: of @out_engines
 * @__reserved: must be 0
 * @out_tlb_hits: translations that the device's TLB had
 * @out_tlb_misses: those that took a walk
 * @out_faults: times that a queue stopped
 * @out_binds: times that a queue was put into a slot
 * @out_vmid_binds: times that a context was given a VMID
 * @out_invalidates: invalidations of the TLB
 * @out_engines: the copy engines first, then the slots of the compute engine
 *
 * All count from when the device was bound, for all contexts together.
 * ``EOPNOTSUPP``: not a paged device.
 */
struct pinmap_gpu_counters {
	__u32 size;
	__u32 flags;
	__u32 out_nr_engines;
	__u32 __reserved;
	__aligned_u64 out_tlb_hits;
	__aligned_u64 out_tlb_misses;
	__aligned_u64 out_faults;
	__aligned_u64 out_binds;
	__aligned_u64 out_vmid_binds;
	__aligned_u64 out_invalidates;
	struct pinmap_engine_counters out_engines[PINMAP_MAX_ENGINES];
};
#define PINMAP_GPU_COUNTERS _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GPU_COUNTERS)

/**
 * enum pinmap_walk_flags - what a device's page table says of an address
 * @PINMAP_WALK_READ: may be read
 * @PINMAP_WALK_WRITE: may be written
 * @PINMAP_WALK_FETCH: packets may be fetched from it
 * @PINMAP_WALK_HOST: is in host memory; without it: in VRAM
 * @PINMAP_WALK_SNOOP: accesses snoop the CPU's caches
 */
enum pinmap_walk_flags {
	PINMAP_WALK_READ = 1 << 0,
	PINMAP_WALK_WRITE = 1 << 1,
	PINMAP_WALK_FETCH = 1 << 2,
	PINMAP_WALK_HOST = 1 << 3,
	PINMAP_WALK_SNOOP = 1 << 4,
};

/**
 * struct pinmap_gpu_walk - ioctl(PINMAP_GPU_WALK)
 * @size: sizeof(struct pinmap_gpu_walk)
 * @flags: must be 0
 * @addr: a device address
 * @out_flags: enum pinmap_walk_flags
 * @out_levels: tables that were read on the way
 * @out_target: where @addr leads: the I/O virtual address that the IOMMU
 *              translates, or the offset in VRAM
 * @out_leaf_length: bytes that the entry covers: 4096, or 2097152
 *
 * Walks the context's page table in the device's memory, as the device does when
 * its TLB has nothing. To look at, and to test with: an address may lead
 * elsewhere a moment later. ``ENOENT``: an entry on the way is not valid.
 * ``EINVAL``: beyond what the tables can translate. ``EOPNOTSUPP``: not a paged
 * device.
 */
struct pinmap_gpu_walk {
	__u32 size;
	__u32 flags;
	__aligned_u64 addr;
	__u32 out_flags;
	__u32 out_levels;
	__aligned_u64 out_target;
	__aligned_u64 out_leaf_length;
};
#define PINMAP_GPU_WALK _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GPU_WALK)

/**
 * enum pinmap_queue_flags - what a queue is for
 * @PINMAP_QUEUE_COPY: packets for the copy engines
 * @PINMAP_QUEUE_COMPUTE: kernels
 *
 * At least one of them.
 */
enum pinmap_queue_flags {
	PINMAP_QUEUE_COPY = 1 << 0,
	PINMAP_QUEUE_COMPUTE = 1 << 1,
};

/**
 * struct pinmap_queue_create - ioctl(PINMAP_QUEUE_CREATE)
 * @size: sizeof(struct pinmap_queue_create)
 * @flags: enum pinmap_queue_flags
 * @priority: 0 to &struct pinmap_gpu_info.out_max_priority, the highest
 * @packets: packets that the ring holds; a power of two, 64 to 65536
 * @out_queue: what to name the queue by; never 0, never used again
 * @out_ring_offset: what to pass to mmap() for the ring
 * @out_ring_length: bytes of it
 * @out_doorbell_offset: what to pass to mmap() for the doorbell: one page
 * @out_fence_offset: what to pass to mmap() for the fences: one page
 * @out_fence_addr: device address of the fences, 512 numbers of 8 bytes, for
 *                  fence packets; all 0 at first
 *
 * A queue executes packets of 64 bytes, in order; their format is the device's.
 * Packet i is at i modulo @packets. To submit, write packets to the ring, then
 * store the number of packets written since the beginning (64 bits) to the first
 * bytes of the doorbell: no system call. Not more than @packets may be there that
 * were not executed. The ring and the fences are memory that only this context
 * can reach; they are charged to it, as is a page for the queue's id, until the
 * queue is destroyed and its doorbell is mapped no more.
 *
 * There may be many more contexts and queues with work than the device can hold:
 * contexts take turns, and share the room that there is, whatever their queues'
 * number and priorities. Who has one short packet to execute does not wait for the
 * long ones of others, if an engine is free for it. Priorities count among the
 * queues of one context: the highest goes first, at packet boundaries; equal ones
 * take turns. However many queues wait for fences, at whatever priorities, those
 * that do not wait get on.
 *
 * Once the device is gone the doorbell can still be stored to, without effect: what
 * is submitted is never executed, which %PINMAP_QUEUE_WAIT and %PINMAP_QUEUE_NOTIFY
 * tell. (A mapping of VRAM raises SIGBUS then, see %PINMAP_ALLOC.)
 *
 * ``ENOSPC``: the device has no queue left for this context. One that has 256,
 * those counted that were destroyed and whose doorbell is still mapped, leaves the
 * last 20 to others; and a user that has 256 in all contexts together the last 4 to
 * other users.
 */
struct pinmap_queue_create {
	__u32 size;
	__u32 flags;
	__u32 priority;
	__u32 packets;
	__aligned_u64 out_queue;
	__aligned_u64 out_ring_offset;
	__aligned_u64 out_ring_length;
	__aligned_u64 out_doorbell_offset;
	__aligned_u64 out_fence_offset;
	__aligned_u64 out_fence_addr;
};
#define PINMAP_QUEUE_CREATE _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUEUE_CREATE)

/**
 * struct pinmap_queue_destroy - ioctl(PINMAP_QUEUE_DESTROY)
 * @size: sizeof(struct pinmap_queue_destroy)
 * @flags: must be 0
 * @queue: the queue
 *
 * Stops the queue, behind the packet that runs, and gives it up; what was not
 * executed never will be. When it returns the device does nothing for it any
 * more; that takes as long as the packet, or, if that is stuck, as the reset of its
 * engine: no signal shortens it, since the context could not be closed earlier
 * either. Its doorbell can then be touched, to no effect.
 */
struct pinmap_queue_destroy {
	__u32 size;
	__u32 flags;
	__aligned_u64 queue;
};
#define PINMAP_QUEUE_DESTROY _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUEUE_DESTROY)

/**
 * struct pinmap_queue_wait - ioctl(PINMAP_QUEUE_WAIT)
 * @size: sizeof(struct pinmap_queue_wait)
 * @flags: must be 0
 * @queue: the queue
 * @fence: index of the fence, 0 to 511
 * @__reserved: must be 0
 * @value: wait until the fence is at least this
 * @timeout_ns: how long to wait at most, relative; ~0: for ever. Out: what is
 *              left of it
 * @out_value: what the fence was last
 *
 * Sleeps until an interrupt packet of the queue finds the fence high enough:
 * write the fence, then interrupt. An interrupt that gets lost delays it by as long as
 * it has waited, or by half a second. ``ETIMEDOUT``: not in time. ``EIO``: the queue
 * has stopped and will never get there. ``EINTR``: a signal came; the call is
 * restarted with the time that is left where the program asked for that.
 */
struct pinmap_queue_wait {
	__u32 size;
	__u32 flags;
	__aligned_u64 queue;
	__u32 fence;
	__u32 __reserved;
	__aligned_u64 value;
	__aligned_u64 timeout_ns;
	__aligned_u64 out_value;
};
#define PINMAP_QUEUE_WAIT _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUEUE_WAIT)

/**
 * enum pinmap_queue_state - what a queue is doing
 * @PINMAP_QUEUE_READY: executes what is submitted
 * @PINMAP_QUEUE_FAULTED: an access was outside of the context's mappings, or not
 *                        permitted
 * @PINMAP_QUEUE_ERROR: a packet that makes no sense, that ran for too long, or
 *                      whose engine was reset
 */
enum pinmap_queue_state {
	PINMAP_QUEUE_READY = 1,
	PINMAP_QUEUE_FAULTED = 2,
	PINMAP_QUEUE_ERROR = 3,
};

/**
 * enum pinmap_access - what a queue wanted to do
 * @PINMAP_ACCESS_READ: read
 * @PINMAP_ACCESS_WRITE: write
 * @PINMAP_ACCESS_FETCH: fetch a packet
 */
enum pinmap_access {
	PINMAP_ACCESS_READ = 0,
	PINMAP_ACCESS_WRITE = 1,
	PINMAP_ACCESS_FETCH = 2,
};

/**
 * struct pinmap_queue_query - ioctl(PINMAP_QUEUE_QUERY)
 * @size: sizeof(struct pinmap_queue_query)
 * @flags: must be 0
 * @queue: the queue
 * @out_state: enum pinmap_queue_state
 * @out_code: if it has stopped, why: a code of the device's manual
 * @out_access: enum pinmap_access, if it has faulted
 * @__reserved: must be 0
 * @out_addr: the device address that could not be accessed, or 0
 * @out_index: packets executed; if it has stopped, the one that stopped it
 *
 * A queue that has stopped executes nothing any more; only
 * %PINMAP_QUEUE_DESTROY is left. Other queues go on.
 */
struct pinmap_queue_query {
	__u32 size;
	__u32 flags;
	__aligned_u64 queue;
	__u32 out_state;
	__u32 out_code;
	__u32 out_access;
	__u32 __reserved;
	__aligned_u64 out_addr;
	__aligned_u64 out_index;
};
#define PINMAP_QUEUE_QUERY _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUEUE_QUERY)

/**
 * struct pinmap_queue_submit - ioctl(PINMAP_QUEUE_SUBMIT)
 * @size: sizeof(struct pinmap_queue_submit)
 * @flags: must be 0
 * @queue: the queue
 * @packets: user address of the packets
 * @count: how many of 64 bytes; 1 to the size of the ring
 * @__reserved: must be 0
 * @out_index: packets submitted since the beginning
 *
 * Does what a program does with ring and doorbell, for one that has not mapped
 * them. Must not be mixed with that. ``EAGAIN``: the ring has no room.
 */
struct pinmap_queue_submit {
	__u32 size;
	__u32 flags;
	__aligned_u64 queue;
	__aligned_u64 packets;
	__u32 count;
	__u32 __reserved;
	__aligned_u64 out_index;
};
#define PINMAP_QUEUE_SUBMIT _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUEUE_SUBMIT)

/**
 * struct pinmap_queue_notify - ioctl(PINMAP_QUEUE_NOTIFY)
 * @size: sizeof(struct pinmap_queue_notify)
 * @flags: must be 0
 * @queue: the queue
 * @fence: index of the fence, 0 to 511
 * @fd: an eventfd
 * @value: what the fence must be at least
 *
 * Has the eventfd signalled, once, when an interrupt packet of the queue finds
 * the fence high enough, or when it will never be: the queue has stopped, was
 * destroyed, or the device is gone. So that one thread can wait for many queues.
 * If that is so already, it is signalled at once. Several may be asked for; the
 * driver holds each eventfd until it was signalled, also if it was closed.
 *
 * ``EBADF``, ``EINVAL``: @fd is no eventfd; ``EINVAL``: there is no such fence.
 * ``ENOSPC``: 64 notices of the queue are outstanding. ``ENODEV``: the device was
 * gone before.
 */
struct pinmap_queue_notify {
	__u32 size;
	__u32 flags;
	__aligned_u64 queue;
	__u32 fence;
	__s32 fd;
	__aligned_u64 value;
};
#define PINMAP_QUEUE_NOTIFY _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUEUE_NOTIFY)

/**
 * DOC: Mapping device memory
 *
 * mmap() of a BAR of a flat device: the offset is &struct pinmap_bar.offset plus a whole number
 * of pages into it. ``EINVAL``: an offset that was not handed out, a length
 * that leaves the BAR or touches its hole, MAP_PRIVATE. ``EACCES``: PROT_EXEC.
 * ``EOPNOTSUPP``: a BAR without %PINMAP_BAR_MMAP. ``EBUSY``: another context
 * owns the device. (If the kernel then finds no memory for the mapping, the caller
 * stays the owner.) The mapping is not inherited by fork(), cannot be moved or
 * grown by mremap(), and cannot be registered. Touching it once the device is
 * gone raises SIGBUS.
 */

#endif /* _UAPI_LINUX_PINMAP_H */
