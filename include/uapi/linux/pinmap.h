/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * pinmap: user memory for PCI accelerators, without a copy.
 *
 * This file is the ABI and its manual. A program may rely on everything that
 * is said here. Anything else may change.
 */
#ifndef _UAPI_LINUX_PINMAP_H
#define _UAPI_LINUX_PINMAP_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * DOC: Overview
 *
 * A PCI function that is bound to the driver is one character device,
 * ``/dev/pinmapN``. Opening it makes a *context*: a device address space with
 * its buffers, its accounting and its events. A context ends with the last
 * reference to the open file, in this order: the device stops being a bus
 * master, the IOMMU mappings are removed and flushed, the pages are unpinned,
 * the charges are given back.
 *
 * A context belongs to the address space (the ``mm``) and to the user that
 * opened the file. Memory can be registered only from that address space
 * (``EPERM``). When the address space ends, by exit or by exec, all registered
 * memory goes stale, even if the file lives on in another process.
 *
 * A *buffer* is a range of pinned pages with permissions. A *mapping* is a
 * buffer at an address of the device. Device addresses are I/O virtual
 * addresses in an IOMMU domain that belongs to the driver alone. The device
 * cannot reach anything that is not mapped there. What is mapped there is a
 * buffer, or belongs to a managed range (%PINMAP_MANAGE) and is unmapped before
 * the program's memory changes.
 *
 * A *flat* device (%PINMAP_KIND_FLAT) has no MMU of its own, so it cannot tell
 * two users apart. One context owns it: the first one that maps memory, maps a
 * BAR, takes an interrupt or resets the function. That context stays the owner
 * until its file is closed. Until then such calls fail with ``EBUSY`` in other
 * contexts. These work whoever owns the device: opening it, asking
 * (%PINMAP_GET_INFO, %PINMAP_GET_RESERVED, %PINMAP_QUERY), and pinning without
 * mapping (%PINMAP_REGISTER_NO_MAP). The function is a bus master only while
 * it is owned. When the owner goes, the function is reset if it can be. A user
 * can have 1024 contexts of the device (``ENOSPC`` from open()).
 *
 * A *paged* device (%PINMAP_KIND_PAGED) has an MMU of its own, and each
 * context has a page table in it. Device addresses are then virtual addresses
 * of that context and equal user addresses. The device's MMU translates them
 * to I/O virtual addresses of the driver's choice, and the IOMMU translates
 * those to memory. Many contexts use the device at once, through *queues*, and
 * none reaches what another one has mapped. On such a device:
 *
 *  - Each page table is charged to its context as a locked page, but for the
 *    first one: opening the device is never refused for RLIMIT_MEMLOCK.
 *  - Some memory of the device is set aside for the page tables of each
 *    context. No user can have so many contexts that another user could not
 *    have one (``ENOSPC`` from open()).
 *  - A program can have ranges of its memory *managed* (%PINMAP_MANAGE). The
 *    device then reaches them without registration, as far as the program
 *    itself could at that moment.
 *  - DMA must snoop the CPU's caches. On a platform where it does not, the
 *    function cannot be bound (``EOPNOTSUPP``).
 *  - BARs, vectors and the reset belong to the driver (``EOPNOTSUPP``).
 *  - A reset by somebody else, through sysfs, takes every context's queues and
 *    device memory. For those contexts the device is gone until the function
 *    is bound again.
 */

/**
 * DOC: General ioctl format
 *
 * Every ioctl takes a pointer to a struct that begins with its own size. The
 * number of an ioctl does not contain the size, so that a struct can grow:
 *
 *  - A struct that is shorter than in this header is refused (``EINVAL``). A
 *    kernel with a longer one will take the fields that a caller's struct lacks
 *    as zero, and not write them back.
 *  - A caller built against a newer header passes a longer struct. That works
 *    if everything behind what the kernel knows is zero, and fails with
 *    ``E2BIG`` otherwise. The kernel does not write there.
 *
 * Unused fields (``__reserved``) must be zero. A call that fails changes
 * nothing, keeps nothing and makes no handle. Calls with a ``fail`` struct
 * write that struct even when they fail; %PINMAP_QUEUE_WAIT writes how long it
 * waited.
 *
 * The checks are made in this order, so that each error has one meaning:
 *
 *  ================ ======================================================
 *  errno            meaning
 *  ================ ======================================================
 *  ``ENOTTY``       the ioctl number is unknown
 *  ``EFAULT``       the struct cannot be read or written
 *  ``EINVAL``       ``size`` is smaller than the struct
 *  ``E2BIG``        ``size`` is larger than known and the rest is not zero,
 *                   or it is larger than a page
 *  ``EOPNOTSUPP``   an unknown bit in ``flags``, a non-zero ``__reserved``,
 *                   or something that this device or IOMMU cannot do
 *  ``EOVERFLOW``    an address plus a length leaves the 64-bit range
 *  ``EINVAL``       a value that makes no sense: length 0, not whole pages,
 *                   an address outside user space, ...
 *  ``ENODEV``       the device is gone (unbound, removed or switched off);
 *                   when a call returns this, the device does nothing any
 *                   more and reaches no memory
 *  ``EPERM``        memory of another address space than the opener's
 *  ``EACCES``       mapping for writing what was registered for reading
 *  ``ENOENT``       no such handle, address, vector or range
 *  ``ESTALE``       the handle was released, or its memory went away
 *  ``EBUSY``        another context owns the device
 *  ``EEXIST``       overlaps a live registration or a window of this context,
 *                   or the demanded device address is taken
 *  ``ENOSPC``       no room left in the device's address space, or too many
 *                   objects in this context
 *  ``ENOMEM``       over RLIMIT_MEMLOCK, or the kernel is out of memory;
 *                   ``fail`` says which
 *  ``EDQUOT``       the control group may not have so much of the device's
 *                   memory
 *  ``EIO``          the IOMMU did not unmap what it was told to, the device
 *                   did not confirm that it has forgotten it, or a queue has
 *                   stopped
 *  ``EINTR``        a fatal signal arrived during the call, or any signal
 *                   where the caller asked for that
 *  ================ ======================================================
 *
 * A call that has an errno of its own, or gives one of these another meaning,
 * says so below: ``EAGAIN``, ``EBADF``, ``ETIMEDOUT``.
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
	PINMAP_CMD_MANAGE = 0x17,
	PINMAP_CMD_PREFETCH = 0x18,
	PINMAP_CMD_GET_TOTALS = 0x19,
	PINMAP_CMD_ADVISE = 0x1a,
	PINMAP_CMD_RESIDENCY = 0x1b,
	PINMAP_CMD_QUEUE_NOTIFY = 0x1c,
	PINMAP_CMD_STATISTICS = 0x1d,
	PINMAP_CMD_BUDGET = 0x1e,
	PINMAP_CMD_REGISTER_BUFFERS = 0x1f,
	PINMAP_CMD_GPU_WALK = 0x20,
	PINMAP_CMD_RELEASE_BUFFERS = 0x21,
	PINMAP_CMD_STAY_AWAKE = 0x22,
};

/**
 * define PINMAP_NR_BARS - base address registers that a function can have
 */
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
 * enum pinmap_bar_flags - properties of a base address register
 * @PINMAP_BAR_MMAP: can be mapped with mmap(). Not set for I/O ports and for
 *                   BARs that are smaller than a page
 * @PINMAP_BAR_PREFETCHABLE: mapped write-combined; without it, uncached
 * @PINMAP_BAR_64BIT: takes up two registers
 */
enum pinmap_bar_flags {
	PINMAP_BAR_MMAP = 1 << 0,
	PINMAP_BAR_PREFETCHABLE = 1 << 1,
	PINMAP_BAR_64BIT = 1 << 2,
};

/**
 * struct pinmap_bar - one base address register
 * @offset: offset for mmap() of the BAR's first byte
 * @length: bytes; 0: the function does not have this register
 * @hole_offset: where the hole begins, in bytes from the start of the BAR. The
 *               hole is the pages with the MSI-X table and its pending bits,
 *               which cannot be mapped
 * @hole_length: bytes of the hole, whole pages; 0: there is none
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
 * @PINMAP_INFO_OWNED: a context owns the device now
 * @PINMAP_INFO_OWNER: this context owns the device now
 * @PINMAP_INFO_GONE: the device is gone, and reaches no memory of any context;
 *                    the other fields are as they were
 * @PINMAP_INFO_MANAGED: %PINMAP_MANAGE works
 * @PINMAP_INFO_INTEGRATED: a paged device whose memory is a part of the host's:
 *                          managed memory does not move, and what is allocated
 *                          with %PINMAP_ALLOC_VRAM is host memory
 * @PINMAP_INFO_PROGRAMS: a paged device that executes programs:
 *                        %PINMAP_MAP_EXECUTE works
 */
enum pinmap_info_flags {
	PINMAP_INFO_COHERENT = 1 << 0,
	PINMAP_INFO_RESET = 1 << 1,
	PINMAP_INFO_OWNED = 1 << 2,
	PINMAP_INFO_OWNER = 1 << 3,
	PINMAP_INFO_GONE = 1 << 4,
	PINMAP_INFO_MANAGED = 1 << 5,
	PINMAP_INFO_INTEGRATED = 1 << 6,
	PINMAP_INFO_PROGRAMS = 1 << 7,
};

/**
 * struct pinmap_info - ioctl(PINMAP_GET_INFO)
 * @size: sizeof(struct pinmap_info)
 * @flags: must be 0
 * @out_kind: enum pinmap_kind
 * @out_flags: enum pinmap_info_flags
 * @out_aperture_start: lowest device address that can be mapped
 * @out_aperture_last: highest device address that can be mapped, inclusive
 * @out_page_sizes: bitmap of the IOMMU's page sizes: bit n is 1 << n bytes
 * @out_memlock_limit: bytes that this process may have locked
 *                     (RLIMIT_MEMLOCK); ~0: no limit, also for a caller with
 *                     CAP_IPC_LOCK
 * @out_memlock_used: bytes already charged to this user by all drivers that
 *                    charge the user (io_uring, iommufd, pinmap, ...)
 * @out_max_registrations: registrations that this context may have at once
 * @out_registrations: registrations that this context has now
 * @out_nr_reserved: number of ranges that %PINMAP_GET_RESERVED returns
 * @out_nr_vectors: interrupt vectors for %PINMAP_SET_EVENTFD
 * @out_vendor: PCI vendor id
 * @out_device: PCI device id
 * @out_subsystem_vendor: PCI subsystem vendor id
 * @out_subsystem_device: PCI subsystem id
 * @out_class: PCI class code, 24 bits
 * @out_pci_domain: PCI segment of the function
 * @out_pci_bus: PCI bus of the function
 * @out_pci_devfn: PCI device (high 5 bits) and function (low 3 bits) numbers
 * @out_iommu_group: number of the function's IOMMU group
 * @__reserved: 0
 * @out_bars: the base address registers, by number
 *
 * Never fails for a well-formed struct, whoever owns the device, even when the
 * device is gone.
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
 * @PINMAP_RESERVED_MSI: writes to the range are interrupts
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
 * @index: which range, counted from 0 in the order of the addresses
 * @out_kind: enum pinmap_reserved_kind
 * @out_start: first device address of the range
 * @out_last: last device address of the range, inclusive
 *
 * Reads one range of device addresses that no mapping can take.
 *
 * ``ENOENT``: @index is behind the last range. ``ENODEV``: the device is gone.
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
 * @PINMAP_TOTALS_CONTEXT: those of this context alone; without it, those of
 *                         all contexts of the device
 */
enum pinmap_totals_flags {
	PINMAP_TOTALS_CONTEXT = 1 << 0,
};

/**
 * struct pinmap_total - how much there is of something
 * @number: number of buffers, or of mappings
 * @bytes: bytes of all of them; memory that is mapped twice counts twice
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
 * @out_pinned: registered user memory and parts of files, as long as they are
 *              pinned. Portable memory counts in the context that registered
 *              or allocated it. Its mappings, and its staleness, count in each
 *              context that has it
 * @out_allocated: host memory that the driver allocated
 * @out_vram: device memory that is in use
 * @out_shared: imported memory, which belongs to somebody else
 * @out_mapped: memory that devices can reach
 * @out_stale: buffers whose memory went away and that were not released yet
 * @out_managed: managed ranges, and their bytes; a context that manages all
 *               addresses counts all that the device can translate. A window in
 *               another range counts, too
 * @out_faults_served: faults of queues on managed memory that were served
 * @out_faults_failed: faults that stopped a queue, on any memory
 * @out_fault_pages: pages of 4096 bytes that the device was given by faults
 * @out_fault_ns: how long queues waited for the service of faults, in all
 *
 * While other calls are under way the numbers may be of different moments. The
 * rings and fences of queues are not counted.
 *
 * ``/proc/PID/fdinfo/FD`` says the same of each open file:
 *
 *  ======================== ===================================================
 *  key                      value
 *  ======================== ===================================================
 *  ``pinmap-pdev``          the PCI function
 *  ``pinmap-client-id``     a number for the context, unique for the function
 *  ``pinmap-objects``       buffers that have a handle
 *  ``pinmap-objects-limit`` buffers that may have a handle
 *  ``pinmap-pinned``        bytes, as @out_pinned, in KiB; likewise
 *                           ``pinmap-allocated``, ``pinmap-vram``,
 *                           ``pinmap-shared`` and ``pinmap-mapped``
 *  ``pinmap-mappings``      number of mappings
 *  ``pinmap-stale``         number of stale buffers
 *  ``pinmap-managed``       bytes of managed ranges, in KiB
 *  ``pinmap-faults-served`` number of faults, as @out_faults_served; likewise
 *                           ``pinmap-faults-failed``
 *  ``pinmap-locked``        memory that the opener's user has locked, by all
 *                           drivers, in KiB
 *  ``pinmap-limit``         RLIMIT_MEMLOCK of the process that opened the file,
 *                           in KiB; missing: no limit, or the process has ended
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
	struct pinmap_total out_managed;
	__aligned_u64 out_faults_served;
	__aligned_u64 out_faults_failed;
	__aligned_u64 out_fault_pages;
	__aligned_u64 out_fault_ns;
};
#define PINMAP_GET_TOTALS _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GET_TOTALS)

/**
 * enum pinmap_fail_reason - why a range could not be registered or mapped
 * @PINMAP_FAIL_NONE: there is nothing to add to the errno
 * @PINMAP_FAIL_HOLE: nothing is mapped at ``addr`` (EFAULT)
 * @PINMAP_FAIL_PERMISSION: the process itself may not write the memory at
 *                          ``addr``, which the device is to write; or may not
 *                          read it, where the device is only to read (EFAULT)
 * @PINMAP_FAIL_FILE: a shared mapping of a file that cannot be pinned for
 *                    writing; register it read-only (EFAULT)
 * @PINMAP_FAIL_SECRET: memfd_secret() memory (EFAULT)
 * @PINMAP_FAIL_DEVICE: device memory or a raw PFN mapping (EFAULT); that of
 *                      another device of this driver can be registered
 * @PINMAP_FAIL_FAULT: the page at ``addr`` cannot be faulted in: it is behind
 *                     the end of its file, fenced by a guard or poisoned, or
 *                     reading it failed (EFAULT)
 * @PINMAP_FAIL_MEMLOCK: over RLIMIT_MEMLOCK; ``needed`` and ``allowed`` are
 *                       bytes and include what the user has locked already
 *                       (ENOMEM)
 * @PINMAP_FAIL_MEMORY: the kernel is out of memory (ENOMEM)
 * @PINMAP_FAIL_OVERLAP: a live registration or mapping is in the way; ``addr``
 *                       is its start (EEXIST)
 * @PINMAP_FAIL_APERTURE: the demanded device addresses are outside of what
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
 * @PINMAP_FAIL_WINDOW: a window (%PINMAP_MANAGE_WINDOW) of this context is in
 *                      the way; ``addr`` is its start (EEXIST)
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
	PINMAP_FAIL_WINDOW = 15,
};

/**
 * struct pinmap_fail - what exactly failed
 * @reason: enum pinmap_fail_reason
 * @__reserved: 0
 * @addr: the first address for which the call failed, if the reason has one
 * @needed: how much would have been needed, if the reason is a limit
 * @allowed: how much is allowed, if the reason is a limit
 *
 * Written when the call fails with an errno that a reason names; all zero when
 * the call succeeds. The content on input does not matter.
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
 * @PINMAP_REGISTER_WRITE: the device may write; without it, the IOMMU stops
 *                         any write by the device
 * @PINMAP_REGISTER_NO_MAP: pin only; map later with %PINMAP_MAP
 * @PINMAP_REGISTER_FIXED: map at exactly @device_addr or fail
 * @PINMAP_REGISTER_IDENTITY: map at exactly @addr or fail
 * @PINMAP_REGISTER_PORTABLE: register for every device that the process has
 *                            open, see below
 * @PINMAP_REGISTER_INTERRUPTIBLE: any signal that the process handles ends the
 *                                 call (``EINTR``), not only a fatal one
 *
 * At most one of NO_MAP, FIXED and IDENTITY can be given, and NO_MAP not with
 * PORTABLE (``EINVAL``).
 *
 * *Portable memory* is mapped in every context that this address space has
 * open, of all devices, and in those that it opens later. It is pinned and
 * charged once. In each context it is mapped as demanded: @flags, @device_addr
 * and @address_bits hold there too. A file counts as open from its first
 * ioctl() on. If a context that is open cannot map the memory, the
 * registration fails, for that context's reason. If a context that is opened
 * later cannot, its first ioctl() fails with that errno, whichever ioctl it is
 * and without details, and so does every further one until the memory can be
 * mapped.
 *
 * Each context has its own handle for the memory; %PINMAP_QUERY of an address
 * returns it. %PINMAP_MAP, %PINMAP_UNMAP and %PINMAP_RELEASE with that handle
 * concern that context only. Releasing the memory in the context that
 * registered it removes it from all contexts, at once and without an event.
 *
 * When portable memory goes away, it is stale in all contexts, and each gets a
 * %PINMAP_EVENT_STALE with its own handle. The memory does not outlive the
 * context that registered it: when that context is closed, or its device is
 * gone, the memory goes stale in the others. To keep memory longer than any
 * device, register it by a file that stays open.
 *
 * On a flat device, portable memory is mapped in the context that owns the
 * device. If none does, the first context becomes the owner. If another
 * process owns the device, that is a failure (``EBUSY``). The owner may
 * release the memory; then that device does not have it. When the owner is
 * closed, the next context of the process that has the device open becomes the
 * owner and gets the portable memory. If another process is quicker, none of
 * them has the device, and calls that need it fail (``EBUSY``). Devices that
 * are gone do not count.
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
 * @device_addr: in, with %PINMAP_REGISTER_FIXED: the demanded device address,
 *               on a page boundary; must be 0 otherwise. Out: the device
 *               address of @addr; 0 with %PINMAP_REGISTER_NO_MAP
 * @address_bits: number of address bits that the device can drive (12 to 64);
 *                0: as many as the IOMMU translates
 * @__reserved: must be 0
 * @out_handle: handle of the registration; never 0, never used again
 * @out_generation: see &struct pinmap_query.out_generation
 * @fail: out: what failed
 *
 * Pins the pages of ``[addr, addr + length)``, charges them to the user
 * (RLIMIT_MEMLOCK, as iommufd does) and maps them for the device. Only whole
 * pages can be registered, because a device that reaches a byte reaches its
 * page.
 *
 * The device address equals @addr whenever the IOMMU's aperture, the reserved
 * ranges, the existing mappings and @address_bits allow. If they do not and an
 * exact address was demanded, the call fails. Otherwise the driver chooses an
 * address that is congruent to @addr modulo 2 MiB, or modulo 1 GiB for lengths
 * of 1 GiB and more, so that huge pages stay huge. Where such addresses are
 * scarce, a length below 2 MiB gets any address. The page at device address 0
 * is used only on demand.
 *
 * Anonymous, memfd, tmpfs, hugetlb and private file memory can be registered
 * for reading and writing, shared mappings of files on disk only for reading.
 * A range that touches a live registration of the same context, one of its
 * windows (%PINMAP_MANAGE_WINDOW), or host memory that the driver allocated for
 * it, is refused (``EEXIST``). Stale registrations are not in the way.
 *
 * Registered memory goes *stale* when it leaves the address space or its file:
 * by munmap(), mremap(), MADV_DONTNEED of private memory, truncation, hole
 * punching, exit or exec. The whole registration is then unmapped from the
 * device: for munmap(), mremap() and exit before they are complete, for the
 * others very soon after. (As long as somebody holds the lock of the file or
 * of the address space, the driver cannot tell whether memory has left it, and
 * the memory stays registered.) The pages are unpinned a little later, a
 * %PINMAP_EVENT_STALE is queued, and the handle answers ``ESTALE`` until it is
 * released. Changes that leave the pages where they are have no effect:
 * fork(), mprotect(), MADV_FREE, KSM, compaction, swapping, the split of a
 * huge page.
 *
 * *Memory of another device* of this driver, a BAR or VRAM, is registered by
 * addresses at which the program has mapped it, in one piece. This device then
 * reaches it on the bus, if the bus lets it (``EREMOTEIO``); nothing is pinned
 * or charged. %PINMAP_QUERY finds such a registration by its handle only, and
 * it may overlap others. munmap() does not end it: it goes stale when the other
 * device takes the memory back, as %PINMAP_EXPORT says. It cannot be portable
 * (``EOPNOTSUPP``), and %PINMAP_REGISTER_BUFFERS does not take it. ``ESTALE``:
 * the other device is gone, or not the program's any more. ``EAGAIN``: it is
 * being reset.
 *
 * Memory also goes stale when the hardware loses one of its pages (poisoned,
 * by an uncorrectable error or MADV_HWPOISON), because the kernel takes that
 * page out of the page tables. The rest can be registered again without that
 * page.
 *
 * Some file systems take pages out of a file without clearing the page tables
 * that map them, as direct writes and the revalidation of network file systems
 * do. The registration then stays live and keeps the old pages.
 *
 * The call may take long: it reads pages that are swapped out and zeroes pages
 * that were never touched. During that time %PINMAP_QUERY of any of the
 * addresses returns the progress, and no other call waits for this one. A
 * fatal signal ends it; with %PINMAP_REGISTER_INTERRUPTIBLE any signal does.
 * That takes up to the time for some megabytes, and the wait for a single page
 * is not interrupted. Nothing is left of the registration then.
 *
 * ``EFAULT``, ``EEXIST``, ``ENOSPC``, ``ENOMEM``, ``ESTALE``: see
 * enum pinmap_fail_reason. ``EPERM``: the caller has another address space
 * than the opener's. ``EBUSY``: another context owns the device.
 * ``EOPNOTSUPP``, ``EBUSY``: the memory cannot be pinned for long, such as a
 * file on persistent memory or a page that somebody else keeps. ``EINTR``: a
 * signal, as said above.
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
 * define PINMAP_MAX_BUFFERS - buffers that one call registers or releases
 */
#define PINMAP_MAX_BUFFERS 1024

/**
 * struct pinmap_registration - one of the buffers of PINMAP_REGISTER_BUFFERS
 * @addr: as in &struct pinmap_register
 * @length: as in &struct pinmap_register
 * @device_addr: as in &struct pinmap_register
 * @out_handle: as in &struct pinmap_register
 */
struct pinmap_registration {
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 device_addr;
	__aligned_u64 out_handle;
};

/**
 * struct pinmap_register_buffers - ioctl(PINMAP_REGISTER_BUFFERS)
 * @size: sizeof(struct pinmap_register_buffers)
 * @flags: enum pinmap_register_flags, for all of the buffers
 * @buffers: in and out: pointer to an array of &struct pinmap_registration
 * @count: number of buffers, from 1 to %PINMAP_MAX_BUFFERS
 * @address_bits: as in &struct pinmap_register
 * @out_failed: out, after a failure: index of the buffer that failed; @count
 *              if no single one did
 * @__reserved: must be 0
 * @fail: out: what failed
 *
 * Registers several buffers, as %PINMAP_REGISTER does each of them, with less
 * work for each. All are registered or none: where one cannot be, those before
 * it are released again before the call returns. No handle can be used before
 * all of them can. Each buffer is released, mapped and queried by its own
 * handle, as if a call of its own had registered it.
 *
 * The arguments of all buffers are checked before the first one is pinned, and
 * the addresses of some are taken by then: who registers them meanwhile gets
 * ``EEXIST``, also if the call fails in the end.
 * ``EINVAL``: @count is 0 or too large. ``EFAULT`` with a @fail of 0: @buffers
 * cannot be read or written. Everything else is as for %PINMAP_REGISTER; two
 * of the buffers that overlap are refused as if the first was registered
 * before (``EEXIST``).
 */
struct pinmap_register_buffers {
	__u32 size;
	__u32 flags;
	__aligned_u64 buffers;
	__u32 count;
	__u32 address_bits;
	__u32 out_failed;
	__u32 __reserved;
	struct pinmap_fail fail;
};
#define PINMAP_REGISTER_BUFFERS _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_REGISTER_BUFFERS)

/**
 * struct pinmap_register_fd - ioctl(PINMAP_REGISTER_FD)
 * @size: sizeof(struct pinmap_register_fd)
 * @flags: enum pinmap_register_flags, without %PINMAP_REGISTER_IDENTITY
 * @fd: a memfd, or a file of tmpfs or hugetlbfs. Open for reading, and with
 *      %PINMAP_REGISTER_WRITE also for writing
 * @address_bits: as in &struct pinmap_register
 * @offset: where in the file the part begins; on a page boundary
 * @length: bytes; whole pages
 * @device_addr: as in &struct pinmap_register, except that without
 *               %PINMAP_REGISTER_FIXED it is near @offset and congruent to it,
 *               because there is no user address
 * @out_handle: handle of the registration
 * @out_generation: see &struct pinmap_query.out_generation
 * @fail: out: what failed; an ``addr`` is an offset in the file, except for
 *        device addresses
 *
 * Registers a part of a file that need not be mapped anywhere. Pages that the
 * file does not have yet are made. Bytes that nobody has written yet are zero,
 * as for read(), also in pages that fallocate() has made.
 *
 * Such a registration belongs to no address space and never goes stale. It
 * stays until it is released, even after the process's memory is gone. The
 * kernel does not tell a driver when pages leave a file, unless they are
 * mapped. So after truncation or hole punching the device keeps the pages that
 * the file had, and the file has other ones or none. A page that is poisoned
 * later stays with the device. A program that cannot rule this out can seal the
 * file: ``F_SEAL_SHRINK`` against truncation and, for a file that is
 * registered for reading, ``F_SEAL_WRITE`` also against hole punching. Or it
 * can map the file and register the mapping.
 *
 * A file that is registered for writing counts as mapped for writing: sealing
 * it against writing fails with ``EBUSY``. While any part of a file is pinned,
 * for reading too, the kernel may refuse to seal it against writing
 * (``EBUSY``).
 *
 * With %PINMAP_REGISTER_PORTABLE the part has the device address of this
 * context in all contexts, or the call fails. There is no user address by
 * which the other contexts could ask for their handle. They learn it from the
 * event when the part goes stale with this context.
 *
 * Charged and limited like %PINMAP_REGISTER. Parts may overlap: the same pages
 * can be registered again. %PINMAP_QUERY finds the part by its handle only.
 *
 * ``EBADF``: @fd is not open. ``EINVAL``: not such a file. ``EACCES``: @fd is
 * not open for that access. ``EPERM``: for writing, of a file that is sealed
 * against it or can only be appended to. ``EFAULT`` (%PINMAP_FAIL_FAULT): the
 * part reaches behind the end of the file, or has a poisoned page.
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
 * @out_memlock_needed: bytes that the user would have locked after registering
 * @out_memlock_allowed: bytes that the user may have locked; ~0: no limit
 * @out_objects_needed: registrations that the context would then have
 * @out_objects_allowed: registrations that the context may have
 * @fail: out: what would fail
 *
 * Answers what %PINMAP_REGISTER with these arguments would answer now, without
 * pinning anything: the same errno, in the same order of checks, for the same
 * reason. Nothing is kept, so another thread may be quicker.
 *
 * The call touches no page. So it does not find out that there is not enough
 * memory, or that a page cannot be faulted in (%PINMAP_FAIL_FAULT). It does
 * not ask other devices, or other contexts of a paged device, about portable
 * memory. The numbers are written also when the call fails with an errno that
 * has a reason.
 *
 * @out_memlock_needed counts all that this user has locked, by all devices and
 * all drivers that charge the user, because the limit is compared with that.
 * Page tables that would be charged are included if nothing else fails: those
 * of the IOMMU (see &struct pinmap_map), or those of a paged device.
 *
 * A memory cgroup is not in the numbers. Pages that exist were charged to it
 * when they were first touched, and pinning charges nothing. For pages that do
 * not exist yet there is no number to compare with: how much a cgroup may
 * still have depends on what can be reclaimed from it, and on the limits of
 * all cgroups above it. A process that goes over such a limit while pages are
 * made meets the OOM killer or ``ENOMEM``, as it would by touching them.
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
 * @out_offset: offset for mmap(), with PROT_READ and MAP_SHARED
 * @out_length: bytes to map
 *
 * Makes a page of counters by which a program sees, without a system call,
 * whether a registration may have gone stale. The counters are 64 bits wide.
 * That of a registration is at the index handle modulo the number of counters;
 * registrations may share one. It grows whenever memory of a registration that
 * uses it may have gone away: before munmap(), mremap(), madvise(),
 * ftruncate() or fallocate() returns, and when the device is gone. Then
 * %PINMAP_QUERY says which registration it was, if any.
 *
 * A cache of registrations keeps, with each registration, the counter as it was
 * before the registration was last known to be live. If a lookup finds the
 * counter unchanged, the registration is live, provided that nobody frees the
 * memory during the lookup. That is the caller's to ensure, as with any use of
 * memory. A caller that has to know that the registration stayed live reads
 * the counter again afterwards.
 *
 * The first call makes the page and charges it like registered memory. It must
 * come before anything that is to be counted. The page is mapped like memory
 * of %PINMAP_ALLOC, but not for writing (``EACCES``).
 */
struct pinmap_generations {
	__u32 size;
	__u32 flags;
	__aligned_u64 out_offset;
	__aligned_u64 out_length;
};
#define PINMAP_GENERATIONS _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_GENERATIONS)

/**
 * enum pinmap_manage_flags - what to manage
 * @PINMAP_MANAGE_ALL: every address of the program that the device can
 *                     translate; @addr and @length of &struct pinmap_manage
 *                     must be 0 then
 * @PINMAP_MANAGE_HOST: memory stays where it is when the device touches it, as
 *                      by %PINMAP_ADVICE_PREFER_HOST, where nothing else is
 *                      advised
 * @PINMAP_MANAGE_WINDOW: make a window, see below; not with
 *                        %PINMAP_MANAGE_ALL (``EINVAL``)
 */
enum pinmap_manage_flags {
	PINMAP_MANAGE_ALL = 1 << 0,
	PINMAP_MANAGE_HOST = 1 << 1,
	PINMAP_MANAGE_WINDOW = 1 << 2,
};

/**
 * struct pinmap_manage - ioctl(PINMAP_MANAGE)
 * @size: sizeof(struct pinmap_manage)
 * @flags: enum pinmap_manage_flags
 * @addr: user address of the range; on a page boundary
 * @length: bytes; whole pages
 * @out_handle: handle of the managed range; never 0, never used again
 * @fail: out: what failed
 *
 * Lets the queues of this context use a range of the program's addresses, which
 * are device addresses too, with no registration. A queue that touches a page
 * there which the device does not have yet *faults*: it waits, the page is
 * faulted in as if the program had touched it, and the queue goes on where it
 * stopped. The page is not pinned and nothing is charged to RLIMIT_MEMLOCK.
 *
 * What is at the address at that moment counts, not what was there when the
 * range was managed: heap, stack, memfd, tmpfs, hugetlb, files mapped private
 * or shared, swapped out or not touched yet. The device may do what the program
 * may do: it reads where the program may read, and writes where it may write.
 * What the program changes holds for the device as well: when munmap(),
 * mremap(), mprotect(), madvise() or fork() returns, the device makes no access
 * by the old rights any more. After fork() the device sees what the parent
 * sees. Pages of files that the device has written reach the file.
 *
 * Private anonymous memory *moves*: what the device touches goes to the
 * device's memory, and comes back when the CPU touches it. Where it goes is
 * decided by enum pinmap_rule, from what the program has advised
 * (%PINMAP_ADVISE), what happened before, and the room there is. All other
 * memory is used where it is. An atomic access of the device is made only in
 * the device's memory, so that it loses nothing that the CPU adds to the same
 * word: memory that cannot be there refuses it (%PINMAP_FAULT_ATOMIC).
 *
 * What cannot be served stops the queue, as any other fault does, and no other
 * queue: enum pinmap_fault_reason says why. That some addresses of the range
 * are not mapped is no error of this call.
 *
 * Registrations and allocations inside of the range are made, used and released
 * as ever. While they are there the device reaches them and not what the range
 * would lead to.
 *
 * %PINMAP_RELEASE of the handle ends it: when that returns, no access of the
 * device to the range is under way, and the next one is a fault that stops the
 * queue. %PINMAP_QUERY by the handle tells the range, with
 * %PINMAP_BUFFER_MANAGED. The range ends with the context, and has no effect
 * once the address space has ended. It is not moved by mremap().
 *
 * A *window* (%PINMAP_MANAGE_WINDOW) is a managed range that has its addresses
 * to itself, in the program and on the device. @addr and @length are multiples
 * of 2 MiB (``EINVAL``), and the program has something mapped at every address
 * when the call is made. The window differs from another range in this:
 *
 *  - The device's page tables for all of it are made by the call, so no fault
 *    in it fails for want of them later. They stay until the window is
 *    released, also where the program has unmapped its memory, and are charged
 *    as locked pages: one for each 2 MiB, and one for each GiB and each 512 GiB
 *    that the window touches, unless the context has that table already. What
 *    runs short elsewhere is not taken from a window.
 *  - Nothing else is made there: %PINMAP_REGISTER of the memory,
 *    %PINMAP_PREFLIGHT of that, and mappings at these device addresses, of
 *    portable and imported memory too, are refused with ``EEXIST``
 *    (%PINMAP_FAIL_WINDOW). Where the driver chooses an address, it is not in a
 *    window.
 *
 * The call fails, and nothing changes, if the device has something at these
 * addresses already: with ``EEXIST``, for %PINMAP_FAIL_WINDOW if that is a
 * window, and for %PINMAP_FAIL_OVERLAP if it is a live registration or a
 * mapping. Other managed ranges do not matter; where they overlap, the window
 * counts what happens. The memory itself must be mapped before the call. To
 * choose addresses that are free, map it with MAP_FIXED_NOREPLACE. Afterwards
 * the program may unmap parts of it, map others in their place, mprotect()
 * them, and fork(). In a child, the addresses are as in the parent, and its
 * memory is its own; it may open the device and make the same window there.
 *
 * A program whose queues stop by faults again and again may be held off: for a
 * while none of its context's queues is given a turn. The administrator sets
 * how often is too often, by attributes of the device in sysfs.
 *
 * ``EOPNOTSUPP``: a flat device, or a kernel that lets no driver follow the
 * memory of programs (see %PINMAP_INFO_MANAGED). ``EINVAL``: not whole pages,
 * length 0, or addresses outside of the program's or of the device's.
 * ``EEXIST`` (%PINMAP_FAIL_OVERLAP): touches a managed range of this context;
 * for windows see above.
 * ``EPERM``: the caller has another address space than the opener's.
 * ``ENOSPC`` (%PINMAP_FAIL_OBJECTS): too many objects. ``ENOMEM``
 * (%PINMAP_FAIL_MEMORY): the kernel is out of memory. For a window also:
 * ``EFAULT`` (%PINMAP_FAIL_HOLE): nothing is mapped at an address of it.
 * ``ENOMEM`` (%PINMAP_FAIL_MEMLOCK): over the limit for its page tables.
 * ``ENOSPC`` (no reason): the device has no room for its page tables.
 * ``EINTR``: a fatal signal arrived.
 */
struct pinmap_manage {
	__u32 size;
	__u32 flags;
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 out_handle;
	struct pinmap_fail fail;
};
#define PINMAP_MANAGE _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_MANAGE)

/**
 * enum pinmap_prefetch_flags - where memory is to go
 * @PINMAP_PREFETCH_HOST: to the host's memory, and not to the device's
 * @PINMAP_PREFETCH_PREFLIGHT: nothing moves; the call only tells what would
 */
enum pinmap_prefetch_flags {
	PINMAP_PREFETCH_HOST = 1 << 0,
	PINMAP_PREFETCH_PREFLIGHT = 1 << 1,
};

/**
 * struct pinmap_prefetch - ioctl(PINMAP_PREFETCH)
 * @size: sizeof(struct pinmap_prefetch)
 * @flags: enum pinmap_prefetch_flags; 0: to the device
 * @addr: user address of the range; on a page boundary
 * @length: bytes; whole pages
 * @out_moved: bytes that moved
 * @out_there: bytes that were there already
 * @out_no_room: bytes for which there was no room: not in VRAM, or not in the
 *               host's memory
 * @out_busy: bytes that stay where they are because somebody has the pages
 *            pinned, shares them since fork(), or is using them at this moment
 * @out_fixed: bytes that never move: what is no private anonymous memory, is
 *             locked (mlock()), may be merged (MADV_MERGEABLE) or is watched
 *             for each access (UFFDIO_REGISTER_MODE_RWP), and addresses where
 *             nothing is mapped
 * @fail: out: what failed
 *
 * Moves managed memory (%PINMAP_MANAGE) of the program to the memory of the
 * device, or back. The addresses stay the same. Each byte of the range is
 * counted once, in one of the five numbers.
 *
 * What is on the device is reached there by its queues, at the speed of VRAM,
 * in each context that manages the memory, of any program. When the
 * CPU touches a page that is there, or somebody pins it, it comes home first,
 * with some of its neighbours. Pages that go to the device and that nobody has
 * touched yet are made there, filled with zeros; coming home, pages that do not
 * exist are not made and count as being there.
 *
 * With %PINMAP_PREFETCH_PREFLIGHT the numbers are those of a call that would
 * move the range now, except that @out_busy is 0: whether a page is in use is
 * known only when it is to move. Then @out_moved and @out_no_room together are
 * what the range needs of the device's memory beyond what it has there, and
 * @out_no_room what it cannot have: for want of VRAM, even if all that other
 * ranges have there went home, or for the budget of the context
 * (%PINMAP_BUDGET). Nothing is reserved, so another program may be quicker.
 *
 * What is swapped out reaches this device by way of the host's memory, and so
 * does what is on another device, unless the two reach each other's memory on
 * the bus: then it moves directly. %PINMAP_PREFETCH_HOST does not move it.
 *
 * Only private anonymous memory moves: heap, stack, MAP_PRIVATE. Memory of
 * files, shared memory and hugetlb is used where it is. Pages on the device are
 * charged to the program's memory cgroup as they were before; reclaim does not
 * reach them.
 *
 * The memory belongs to the program and not to the context: it stays on the
 * device when the context is closed. Before the device goes away, by unbinding,
 * reset or removal, all of it comes home.
 *
 * The device may be at work meanwhile: a queue that touches a page on its way
 * waits for it. A fatal signal ends the call; what has moved by then stays
 * where it is.
 *
 * ``ENOENT``: some of the range is not managed by this context. ``EINVAL``: not
 * whole pages, length 0, or addresses outside of the program's. ``EOPNOTSUPP``:
 * as for %PINMAP_MANAGE. ``EPERM``: the caller has another address space than
 * the opener's. ``EIO``: the device did not copy the pages, which stay where
 * they were. ``ENODEV``: the device is gone. ``EINTR``: see above.
 */
struct pinmap_prefetch {
	__u32 size;
	__u32 flags;
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 out_moved;
	__aligned_u64 out_there;
	__aligned_u64 out_no_room;
	__aligned_u64 out_busy;
	__aligned_u64 out_fixed;
	struct pinmap_fail fail;
};
#define PINMAP_PREFETCH _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_PREFETCH)

/**
 * enum pinmap_advice - what is known about how memory will be used
 * @PINMAP_ADVICE_PREFER_HOST: the host's memory is the preferred location: the
 *                             device reaches it there, over the bus
 * @PINMAP_ADVICE_PREFER_DEVICE: the device's memory is the preferred location:
 *                               it goes there whenever the device touches it,
 *                               however often the CPU took it back
 * @PINMAP_ADVICE_ACCESSED_BY: the device is to reach it where it is; a fault
 *                             does not move it
 * @PINMAP_ADVICE_READ_MOSTLY: both sides read it, and seldom write: a read by
 *                             the device does not move it, a write does what
 *                             it does without this advice
 *
 * The two preferred locations exclude each other. With PREFER_DEVICE,
 * ACCESSED_BY has no effect. The kernel has no means to keep one page in two
 * memories, so READ_MOSTLY makes no second copy.
 */
enum pinmap_advice {
	PINMAP_ADVICE_PREFER_HOST = 1 << 0,
	PINMAP_ADVICE_PREFER_DEVICE = 1 << 1,
	PINMAP_ADVICE_ACCESSED_BY = 1 << 2,
	PINMAP_ADVICE_READ_MOSTLY = 1 << 3,
};

/**
 * struct pinmap_advise - ioctl(PINMAP_ADVISE)
 * @size: sizeof(struct pinmap_advise)
 * @flags: must be 0
 * @addr: user address of the range; on a page boundary
 * @length: bytes; whole pages
 * @advice: enum pinmap_advice; 0: none
 * @__reserved: must be 0
 * @fail: out: what failed
 *
 * Advises how managed memory (%PINMAP_MANAGE) will be used. It replaces what
 * was advised for these addresses before. The call itself moves nothing: advice
 * counts when the device faults there next. Pages that it reaches without a
 * fault (see enum pinmap_run_access) stay where they are until then. The call
 * takes no longer for a large range than for a small one, unless parts of it
 * were moved by mremap(), and waits for no work of the device. %PINMAP_PREFETCH
 * moves memory whatever is advised.
 *
 * Advice belongs to the memory, and ends with it (munmap()) or with the
 * context. mremap() takes it along, with two exceptions: memory that nobody has
 * touched yet, and memory that is moved back to where it was before.
 *
 * ``ENOENT``: some of the range is not managed by this context. ``EINVAL``: not
 * whole pages, length 0, addresses outside of the program's, or two preferred
 * locations. ``EOPNOTSUPP``: as for %PINMAP_MANAGE, or unknown advice.
 * ``EPERM``: the caller has another address space than the opener's.
 * ``ENOMEM``: the kernel is out of memory. ``ENOSPC``: the context has 65536
 * ranges with advice; neighbours that are advised alike are one.
 */
struct pinmap_advise {
	__u32 size;
	__u32 flags;
	__aligned_u64 addr;
	__aligned_u64 length;
	__u32 advice;
	__u32 __reserved;
	struct pinmap_fail fail;
};
#define PINMAP_ADVISE _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_ADVISE)

/**
 * enum pinmap_rule - why memory is where it is
 * @PINMAP_RULE_NONE: nothing was decided: neither the device nor a call has
 *                    asked for it yet
 * @PINMAP_RULE_FIXED: it cannot move: no private anonymous memory, locked,
 *                     mergeable, pinned, shared since fork(), or in use at that
 *                     moment; or the device is integrated
 * @PINMAP_RULE_ADVISED: it stays on the host by advice
 * @PINMAP_RULE_THRASHING: it stays on the host because CPU and device, or two
 *                         devices, have taken it from each other again and
 *                         again
 * @PINMAP_RULE_NO_ROOM: it stays on the host because there was no room in the
 *                       device's memory
 * @PINMAP_RULE_PREFERRED: the device has touched it, and the device's memory is
 *                         its preferred location
 * @PINMAP_RULE_TOUCHED: the device has touched it, and nothing spoke against
 *                       its moving there
 * @PINMAP_RULE_PREFETCHED: %PINMAP_PREFETCH has moved it
 * @PINMAP_RULE_HOME: the CPU or another device has touched it, or somebody has
 *                    pinned it
 * @PINMAP_RULE_EVICTED: it had to make room for other memory
 * @PINMAP_RULE_CROWDED: it stays on the host because it had to make room again
 *                       and again
 * @PINMAP_RULE_ATOMIC: the device has accessed it atomically, which it does
 *                      only where the CPU cannot come between
 *
 * When the device touches memory, the first of these that applies decides:
 * FIXED; ATOMIC, if there is room; ADVISED; CROWDED; THRASHING; NO_ROOM;
 * PREFERRED; TOUCHED. A block of 2 MiB is THRASHING (CROWDED) if it went to the
 * device, and was taken back by the CPU or another device (was evicted), 4
 * times while 1,024 faults of the context were served. It then stays on the
 * host until 1,024 more were served. If the device's memory is the preferred
 * location, only what other devices took counts as thrashing. The same history
 * gives the same decision, however long it took.
 */
enum pinmap_rule {
	PINMAP_RULE_NONE = 0,
	PINMAP_RULE_FIXED = 1,
	PINMAP_RULE_ADVISED = 2,
	PINMAP_RULE_THRASHING = 3,
	PINMAP_RULE_NO_ROOM = 4,
	PINMAP_RULE_PREFERRED = 5,
	PINMAP_RULE_TOUCHED = 6,
	PINMAP_RULE_PREFETCHED = 7,
	PINMAP_RULE_HOME = 8,
	PINMAP_RULE_EVICTED = 9,
	PINMAP_RULE_CROWDED = 10,
	PINMAP_RULE_ATOMIC = 11,
};

/**
 * enum pinmap_place - where memory is
 * @PINMAP_PLACE_ABSENT: nowhere yet, swapped out, on another device, or nothing
 *                       is mapped at the address
 * @PINMAP_PLACE_HOST: in the host's memory
 * @PINMAP_PLACE_DEVICE: in the device's memory
 */
enum pinmap_place {
	PINMAP_PLACE_ABSENT = 0,
	PINMAP_PLACE_HOST = 1,
	PINMAP_PLACE_DEVICE = 2,
};

/**
 * struct pinmap_run - neighbouring pages that are alike
 * @addr: address of the first page
 * @length: bytes
 * @place: enum pinmap_place
 * @access: what the device can do there without a fault: enum
 *          pinmap_run_access
 * @advice: enum pinmap_advice
 * @rule: enum pinmap_rule
 */
struct pinmap_run {
	__aligned_u64 addr;
	__aligned_u64 length;
	__u32 place;
	__u32 access;
	__u32 advice;
	__u32 rule;
};

/**
 * enum pinmap_run_access - what the device can do without a fault
 * @PINMAP_RUN_READ: read
 * @PINMAP_RUN_WRITE: write
 */
enum pinmap_run_access {
	PINMAP_RUN_READ = 1 << 0,
	PINMAP_RUN_WRITE = 1 << 1,
};

/**
 * struct pinmap_residency - ioctl(PINMAP_RESIDENCY)
 * @size: sizeof(struct pinmap_residency)
 * @flags: must be 0
 * @addr: user address of the range; on a page boundary
 * @length: bytes; whole pages
 * @runs: user address of an array of &struct pinmap_run; on an 8-byte boundary
 * @capacity: number of entries of the array; 0: only the sums are wanted
 * @out_count: entries that were written
 * @out_end: the address behind the last one that is told of; @addr + @length
 *           if all is told, and before if the array is full
 * @out_absent: bytes up to @out_end that are %PINMAP_PLACE_ABSENT
 * @out_host: bytes up to @out_end that are %PINMAP_PLACE_HOST
 * @out_device: bytes up to @out_end that are %PINMAP_PLACE_DEVICE
 * @fail: out: what failed
 *
 * Tells where managed memory is, in runs by rising addresses, without holes and
 * without overlaps. Nothing is faulted in and nothing waits for the device. The
 * answer is of one moment for each 2 MiB, and may have changed since.
 *
 * With @capacity 0 all of the range is told of by the sums.
 *
 * ``ENOENT``, ``EINVAL``, ``EOPNOTSUPP``, ``EPERM``: as for %PINMAP_PREFETCH.
 * ``EINVAL`` also: @runs is not on an 8-byte boundary. ``EFAULT``: @runs cannot
 * be written. ``EINTR``: a fatal signal arrived.
 */
struct pinmap_residency {
	__u32 size;
	__u32 flags;
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 runs;
	__u32 capacity;
	__u32 out_count;
	__aligned_u64 out_end;
	__aligned_u64 out_absent;
	__aligned_u64 out_host;
	__aligned_u64 out_device;
	struct pinmap_fail fail;
};
#define PINMAP_RESIDENCY _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_RESIDENCY)

/**
 * struct pinmap_statistics - ioctl(PINMAP_STATISTICS)
 * @size: sizeof(struct pinmap_statistics)
 * @flags: must be 0
 * @handle: the managed range
 * @out_device_faults: faults of the device that were served
 * @out_host_faults: faults of the CPU that brought memory home; pins, and
 *                   faults of devices that take it by way of the host, count
 *                   too
 * @out_in_touched: bytes that moved to the device because it touched them
 * @out_in_prefetched: bytes that moved to the device by %PINMAP_PREFETCH
 * @out_home_touched: bytes that came home because of faults of the CPU
 * @out_home_prefetched: bytes that came home by %PINMAP_PREFETCH
 * @out_home_evicted: bytes that came home to make room, or because the device
 *                    was about to go away
 * @out_refaults: bytes of @out_in_touched in blocks of 2 MiB that had been
 *                evicted before
 * @out_thrashing: blocks of 2 MiB that began to thrash, each time that they did
 * @out_device_ns: how long queues waited for the service of faults
 * @out_host_ns: how long CPU faults took
 * @out_refused: faults of the device that were not served, each of which
 *               stopped a queue
 * @out_last_addr: the address of the last of them
 * @out_last_access: its kind of access: enum pinmap_access; 0: there was none
 * @out_last_reason: why it was not served: enum pinmap_fault_reason
 * @out_from_peers: bytes of @out_in_touched and @out_in_prefetched that came
 *                  from the memory of another device, without the host's
 * @out_to_peers: bytes that left the device for the memory of another one,
 *                without the host's
 *
 * Tells what happened to a managed range since it was managed. What forked
 * children touch is not counted, nor is what happened before. The file
 * ``ranges`` of the device's directory in debugfs tells the most important of
 * it for all ranges of all programs.
 *
 * ``ENOENT``: no such handle, or not that of a managed range. ``EOPNOTSUPP``:
 * as for %PINMAP_MANAGE.
 */
struct pinmap_statistics {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
	__aligned_u64 out_device_faults;
	__aligned_u64 out_host_faults;
	__aligned_u64 out_in_touched;
	__aligned_u64 out_in_prefetched;
	__aligned_u64 out_home_touched;
	__aligned_u64 out_home_prefetched;
	__aligned_u64 out_home_evicted;
	__aligned_u64 out_refaults;
	__aligned_u64 out_thrashing;
	__aligned_u64 out_device_ns;
	__aligned_u64 out_host_ns;
	__aligned_u64 out_refused;
	__aligned_u64 out_last_addr;
	__u32 out_last_access;
	__u32 out_last_reason;
	__aligned_u64 out_from_peers;
	__aligned_u64 out_to_peers;
};
#define PINMAP_STATISTICS _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_STATISTICS)

/**
 * enum pinmap_budget_flags - what to do with the budget
 * @PINMAP_BUDGET_SET: sets it to @bytes; without it, @bytes must be 0
 */
enum pinmap_budget_flags {
	PINMAP_BUDGET_SET = 1 << 0,
};

/**
 * struct pinmap_budget - ioctl(PINMAP_BUDGET)
 * @size: sizeof(struct pinmap_budget)
 * @flags: enum pinmap_budget_flags
 * @bytes: bytes of the device's memory that this context's managed memory may
 *         take; all bits set: there is no limit, as at first
 * @out_bytes: the budget
 * @out_used: bytes of the device's memory that hold pages which this context
 *            moved there and which have not been freed. If the user has very
 *            many contexts, some of them count together; 0 if very many users
 *            have
 * @out_room: how many more bytes can move there now, within the budget: what is
 *            free, and what could be evicted
 *
 * Limits, and tells, how much of the device's memory the context takes for
 * managed memory. What is there when the budget is made smaller stays. Memory
 * beyond the budget stays on the host (%PINMAP_RULE_NO_ROOM), where the device
 * reaches it. %PINMAP_PREFETCH_PREFLIGHT tells how much room a range needs.
 *
 * Memory on the device stays charged to the program's memory cgroup, but
 * nothing can reclaim it there. So the room of each context is also limited to
 * half of what the cgroup, and those above it, may have (memory.max).
 *
 * ``ENOENT``: the context manages nothing. ``EINVAL``: @bytes without
 * %PINMAP_BUDGET_SET. ``EOPNOTSUPP``: as for %PINMAP_MANAGE. ``EPERM``: the
 * caller has another address space than the opener's.
 */
struct pinmap_budget {
	__u32 size;
	__u32 flags;
	__aligned_u64 bytes;
	__aligned_u64 out_bytes;
	__aligned_u64 out_used;
	__aligned_u64 out_room;
};
#define PINMAP_BUDGET _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_BUDGET)

/**
 * struct pinmap_release - ioctl(PINMAP_RELEASE)
 * @size: sizeof(struct pinmap_release)
 * @flags: must be 0
 * @handle: a buffer of this context, or a managed range
 *
 * Removes all mappings of the buffer, flushes the IOMMU, then unpins the pages
 * and gives back the charge. Stale registrations are released in the same way.
 * A managed range is not managed any more: everything that the device was given
 * by faults is taken away.
 *
 * When the call returns with 0, ``EIO`` or ``ENODEV``, the device cannot reach
 * the memory. The same is true after ``ESTALE``; if another thread released
 * the handle, from when that thread's call has returned.
 *
 * ``ENOENT``: the handle was never one of this context. ``ESTALE``: it was
 * released before. ``ENODEV``: the device is gone. ``EIO`` means one of two
 * things; the handle is gone then, and the device will be gone soon:
 *
 * - The IOMMU's page table was not as the driver left it. The pages stay
 *   pinned until the machine is restarted.
 * - A paged device did not confirm in time that it has forgotten the
 *   addresses. The pages were unpinned after the device was cut off.
 *
 * In both cases the device is cut off from all memory before the call returns.
 * The same happens where another call fails and cannot undo what it did.
 */
struct pinmap_release {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
};
#define PINMAP_RELEASE _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_RELEASE)

/**
 * struct pinmap_release_buffers - ioctl(PINMAP_RELEASE_BUFFERS)
 * @size: sizeof(struct pinmap_release_buffers)
 * @flags: must be 0
 * @handles: pointer to an array of handles (__u64) of buffers of this context
 * @count: number of handles, from 1 to %PINMAP_MAX_BUFFERS
 * @out_failed: out, after a failure: index of the handle that failed; @count
 *              if no single one did
 *
 * Releases several buffers, as %PINMAP_RELEASE does each of them, with one
 * flush of the IOMMU for all that are mapped in it only. The handles are
 * checked first: if one of them cannot be released, none is.
 *
 * ``EINVAL``: @count is 0 or too large, a handle is there twice, or one is
 * that of a managed range. ``EFAULT``: @handles cannot be read. ``ENOENT``,
 * ``ESTALE``, ``ENODEV``: as for %PINMAP_RELEASE. After ``EIO``, which has the
 * meaning that it has there, all handles are gone.
 */
struct pinmap_release_buffers {
	__u32 size;
	__u32 flags;
	__aligned_u64 handles;
	__u32 count;
	__u32 out_failed;
};
#define PINMAP_RELEASE_BUFFERS _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_RELEASE_BUFFERS)

/**
 * enum pinmap_buffer_kind - where the pages of a buffer come from
 * @PINMAP_BUFFER_USER: registered user memory
 * @PINMAP_BUFFER_HOST: host memory that the driver allocated
 * @PINMAP_BUFFER_VRAM: memory of the device
 * @PINMAP_BUFFER_FILE: a part of a file (%PINMAP_REGISTER_FD)
 * @PINMAP_BUFFER_IMPORT: memory of another buffer, by %PINMAP_IMPORT
 * @PINMAP_BUFFER_MANAGED: none of its own: a managed range (%PINMAP_MANAGE)
 */
enum pinmap_buffer_kind {
	PINMAP_BUFFER_USER = 1,
	PINMAP_BUFFER_HOST = 2,
	PINMAP_BUFFER_VRAM = 3,
	PINMAP_BUFFER_FILE = 5,
	PINMAP_BUFFER_IMPORT = 6,
	PINMAP_BUFFER_MANAGED = 7,
};

/**
 * enum pinmap_buffer_state - whether a buffer can be used
 * @PINMAP_STATE_LIVE: pinned, and mapped if it has mappings
 * @PINMAP_STATE_STALE: its memory went away; it can only be released
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
 * @handle: in: the buffer to ask about, or 0 to ask by @addr. Out: its handle;
 *          0 while it is being registered
 * @addr: in, if @handle is 0: any user address inside of a registration, or of
 *        a mapping of memory that the driver allocated for this context
 * @out_base: user address of the buffer's first byte; for an allocation, as
 *            computed from @addr; 0 if it has none
 * @out_length: bytes of the buffer
 * @out_device_addr: device address in the buffer's first mapping: of @addr, or
 *                   of @out_base when asked by handle; 0 if there is no mapping
 * @out_flags: %PINMAP_REGISTER_WRITE and %PINMAP_REGISTER_PORTABLE, as
 *             registered
 * @out_kind: enum pinmap_buffer_kind
 * @out_state: enum pinmap_buffer_state
 * @out_nr_mappings: mappings that the buffer has now
 * @out_generation: 1 when registered, 2 when gone stale
 * @out_offset: for an allocation of this file: offset for mmap() of its first
 *              byte; for a part of a file: where in the file it begins; 0
 *              otherwise
 * @out_pinned: bytes of the buffer that are pinned: less than @out_length
 *              while it is being registered, 0 when it is stale
 *
 * If the driver is still checking whether a change before the call took the
 * buffer's memory away, the call waits for the result. That takes as long as
 * somebody holds the lock of the file or of the address space. A fatal signal
 * ends the wait (``EINTR``).
 *
 * A managed range is found by its handle only. @out_base, @out_length and
 * @out_device_addr tell its addresses, and nothing of it is pinned.
 *
 * By address, a stale registration is found until some of its addresses are
 * registered again; by handle, until it is released.
 *
 * ``ENOENT``: there is no registration or allocation at @addr, or @handle was
 * never a handle of this context. ``ESTALE``: the handle was released.
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
 * @PINMAP_MAP_FIXED: map at exactly @device_addr or fail
 * @PINMAP_MAP_EXECUTE: the device may fetch instructions of programs from
 *                      there, if it has %PINMAP_INFO_PROGRAMS
 *                      (``EOPNOTSUPP``). Not with %PINMAP_MAP_WRITE
 *                      (``EINVAL``)
 */
enum pinmap_map_flags {
	PINMAP_MAP_WRITE = 1 << 0,
	PINMAP_MAP_FIXED = 1 << 1,
	PINMAP_MAP_EXECUTE = 1 << 2,
};

/**
 * struct pinmap_map - ioctl(PINMAP_MAP)
 * @size: sizeof(struct pinmap_map)
 * @flags: enum pinmap_map_flags
 * @handle: the buffer to map
 * @device_addr: in, with %PINMAP_MAP_FIXED: the demanded device address, on a
 *               page boundary; must be 0 otherwise. Out: the device address of
 *               the mapping
 * @address_bits: as in &struct pinmap_register
 * @__reserved: must be 0
 * @fail: out: what failed
 *
 * Maps the whole buffer. A buffer that is mapped already is mapped once more,
 * at another address, which is chosen as for %PINMAP_REGISTER. A buffer has at
 * most 64 mappings (``ENOSPC``).
 *
 * If the memory goes away during the call, the call fails with ``ESTALE``.
 * Until it has failed, the device may reach the pages at the demanded address,
 * even after munmap() has returned. The pages stay pinned for that long.
 *
 * ``EOVERFLOW`` depends on the buffer's length, so here it comes behind
 * ``ENOENT`` and ``ESTALE``.
 *
 * *IOMMU page tables.* The IOMMU needs a page table for each block of 2 MiB of
 * device addresses in which a mapping begins or ends, and one for each GiB. It
 * keeps them until the owner of the device closes it. 1024 of them cost
 * nothing. More are needed only by mappings all over the address space, and
 * are charged to RLIMIT_MEMLOCK until then (%PINMAP_FAIL_MEMLOCK). On a paged
 * device nothing is charged for them; the tables of the device itself are
 * charged instead, as long as something is mapped by them.
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
 * @handle: the buffer
 * @device_addr: the address of the mapping, as %PINMAP_MAP or
 *               %PINMAP_REGISTER returned it
 *
 * Removes one mapping and flushes the IOMMU. The pages stay pinned. When the
 * call returns, the device cannot reach the memory at that address.
 *
 * ``ENOENT``: there is no mapping of the buffer that begins at @device_addr; a
 * part of a mapping cannot be removed. ``EIO``: as for %PINMAP_RELEASE.
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
 * @PINMAP_SOURCE_EVENTS: an event to read() from this file; @index must be 0
 */
enum pinmap_eventfd_source {
	PINMAP_SOURCE_VECTOR = 1,
	PINMAP_SOURCE_EVENTS = 2,
};

/**
 * struct pinmap_set_eventfd - ioctl(PINMAP_SET_EVENTFD)
 * @size: sizeof(struct pinmap_set_eventfd)
 * @flags: must be 0
 * @source: enum pinmap_eventfd_source
 * @index: the vector, below &struct pinmap_info.out_nr_vectors
 * @fd: an eventfd, or -1 to remove the present one
 * @__reserved: must be 0
 *
 * Sets the eventfd of a source; each interrupt or event adds 1 to its counter.
 * A new eventfd replaces the old one of the same source. Once the call that
 * removes an eventfd has returned, it is not signalled any more. Setting a
 * vector makes the caller the owner of a flat device; removing one does not.
 *
 * ``EOPNOTSUPP``: unknown @source, or a vector of a device that offers none.
 * ``EINVAL``: @fd is no eventfd, or @index is not 0 for events. ``EBADF``: @fd
 * is not open. ``ENOENT``: there is no such vector. ``EBUSY``: another context
 * owns the device.
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
 * Resets the function, and makes the caller its owner. Mappings, interrupts
 * and their eventfds stay as they are.
 *
 * ``EOPNOTSUPP``: the function has no reset (see %PINMAP_INFO_RESET).
 * ``EBUSY``: another context owns the device. ``EAGAIN``: the device is being
 * bound, unbound or reset by somebody else.
 */
struct pinmap_reset {
	__u32 size;
	__u32 flags;
};
#define PINMAP_RESET _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_RESET)

/**
 * enum pinmap_stay_awake_flags - whether system and device may sleep
 * @PINMAP_STAY_AWAKE_ON: they may not
 */
enum pinmap_stay_awake_flags {
	PINMAP_STAY_AWAKE_ON = 1 << 0,
};

/**
 * struct pinmap_stay_awake - ioctl(PINMAP_STAY_AWAKE)
 * @size: sizeof(struct pinmap_stay_awake)
 * @flags: enum pinmap_stay_awake_flags
 *
 * Says whether the system may be suspended or hibernated while this context has
 * the device: it may, until this says otherwise. With %PINMAP_STAY_AWAKE_ON
 * suspending fails with ``EBUSY``, and the kernel's log names the process that
 * opened the file. A paged device does not sleep by itself then either, as it
 * does where runtime power management is allowed and nobody uses it. It lasts
 * until it is taken back or the file is closed. On a flat device it counts for
 * the owner only. ``EPERM``: the caller lacks CAP_BLOCK_SUSPEND.
 *
 * When the system sleeps, registrations, mappings and IOMMU stay. A paged device
 * keeps what it has: queues stop after the packet that runs, and go on later;
 * managed memory comes home. Its clock may begin anew. A flat device loses its
 * state, exports of its BARs are revoked, and its owner is told
 * (%PINMAP_EVENT_RESUMED).
 */
struct pinmap_stay_awake {
	__u32 size;
	__u32 flags;
};
#define PINMAP_STAY_AWAKE _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_STAY_AWAKE)

/**
 * enum pinmap_event_type - what happened
 * @PINMAP_EVENT_STALE: the registration @handle went stale
 * @PINMAP_EVENT_GONE: the device is gone, and everything with it; always last
 * @PINMAP_EVENT_FAULT: the queue @handle stopped; &struct pinmap_queue_query
 *                      tells why
 * @PINMAP_EVENT_THRASHING: CPU and device, or two devices, take memory of the
 *                          managed range @handle from each other again and
 *                          again, so that it stays on the host; told once for
 *                          each range
 * @PINMAP_EVENT_RESUMED: the system has slept, or was about to; the flat device
 *                        that this context owns was cut off, and may have lost
 *                        the state of its registers
 */
enum pinmap_event_type {
	PINMAP_EVENT_STALE = 1,
	PINMAP_EVENT_GONE = 2,
	PINMAP_EVENT_FAULT = 3,
	PINMAP_EVENT_THRASHING = 4,
	PINMAP_EVENT_RESUMED = 5,
};

/**
 * struct pinmap_event - what read() returns
 * @type: enum pinmap_event_type
 * @access: for a fault, the kind of access: enum pinmap_access; otherwise 0
 * @handle: the registration, the queue or the managed range; otherwise 0
 * @addr: user address of the registration's first byte; for a fault, the
 *        device address that could not be accessed; of the block of 2 MiB that
 *        thrashes; otherwise 0
 * @length: bytes of the registration; for a fault, the index of the packet;
 *          bytes of the block; otherwise 0
 *
 * read() returns as many whole events as there are and as fit. If there is
 * none, it waits for one, or fails with ``EAGAIN`` if the file is O_NONBLOCK.
 * Once the device is gone and %PINMAP_EVENT_GONE was read, it returns 0.
 * ``EINVAL``: not even one event fits.
 *
 * No event is lost: each registration, each queue and each managed range has at
 * most one, and room for it is set aside when it is made; for
 * %PINMAP_EVENT_RESUMED it is before the system sleeps. Releasing or destroying
 * the object withdraws an event that was not read yet.
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
 * enum pinmap_alloc_flags - which memory to allocate
 * @PINMAP_ALLOC_VRAM: memory of a paged device (%PINMAP_KIND_PAGED); without
 *                     it, pinned host memory
 * @PINMAP_ALLOC_WRITE_COMBINED: the CPU's writes bypass its caches and are
 *                               fast; its reads are slow
 * @PINMAP_ALLOC_NODE: memory of the NUMA node @node and of no other one
 * @PINMAP_ALLOC_PORTABLE: as %PINMAP_REGISTER_PORTABLE; the first %PINMAP_MAP
 *                         in this context maps the memory in all other
 *                         contexts too, in the demanded way, or fails
 * @PINMAP_ALLOC_P2PDMA: with %PINMAP_ALLOC_VRAM: mmap() shows pages that
 *                       O_DIRECT and io_uring take
 *
 * %PINMAP_ALLOC_WRITE_COMBINED, %PINMAP_ALLOC_NODE and %PINMAP_ALLOC_PORTABLE
 * can be combined freely, and use huge pages where there are any. None of them
 * can be combined with %PINMAP_ALLOC_VRAM (``EINVAL``).
 */
enum pinmap_alloc_flags {
	PINMAP_ALLOC_VRAM = 1 << 0,
	PINMAP_ALLOC_WRITE_COMBINED = 1 << 1,
	PINMAP_ALLOC_NODE = 1 << 2,
	PINMAP_ALLOC_PORTABLE = 1 << 3,
	PINMAP_ALLOC_P2PDMA = 1 << 4,
};

/**
 * struct pinmap_alloc - ioctl(PINMAP_ALLOC)
 * @size: sizeof(struct pinmap_alloc)
 * @flags: enum pinmap_alloc_flags
 * @length: bytes; whole pages
 * @out_handle: handle of the buffer
 * @out_offset: offset for mmap() of the buffer's first byte
 * @fail: out: what failed
 * @node: with %PINMAP_ALLOC_NODE: a node that has memory; must be 0 otherwise
 * @__reserved: must be 0
 *
 * Allocates zeroed memory that CPU and device may read and write. Host memory
 * comes in huge pages where there are any, and in smaller ones otherwise. It
 * is charged like registered memory, and to the caller's memory cgroup.
 * Without %PINMAP_ALLOC_NODE the caller's memory policy (set_mempolicy())
 * chooses the nodes.
 *
 * The call maps nothing, because the user address, which is to be the device
 * address, is not known yet. mmap() shows the memory to the CPU. %PINMAP_MAP
 * with %PINMAP_MAP_FIXED, at the address that mmap() returned, shows it to the
 * device. Without %PINMAP_MAP_FIXED, %PINMAP_MAP takes the user address of the
 * buffer for 0. %PINMAP_QUERY finds the buffer by any address at which it is
 * mapped.
 *
 * %PINMAP_RELEASE unmaps the buffer from the device and gives up the handle.
 * The memory is freed when its last mmap() and its last dma-buf
 * (%PINMAP_EXPORT) are gone too.
 *
 * *mmap()* takes any whole pages of the buffer until it is released, with
 * MAP_SHARED and without PROT_EXEC, and only in the process that opened the
 * file (``EPERM``). The mapping is not inherited by fork() and cannot be moved
 * or grown. VRAM is mapped write-combined. Once the device is gone, touching
 * VRAM raises SIGBUS; host memory stays.
 *
 * *Host memory* that is mapped in this way consists of ordinary pages. It can
 * be used for O_DIRECT, as registered buffers of io_uring, and by other
 * drivers that pin memory. But the pages belong to no file. So a futex in them
 * must be private to the process (FUTEX_PRIVATE_FLAG). The kernel refuses
 * shared ones (``EFAULT``), and with them process-shared mutexes, condition
 * variables and semaphores.
 *
 * *Write-combined memory* is write-combined for every CPU, also in the
 * kernel's own mapping, until it is freed. A device sees what was written once
 * the CPU's buffers are drained; a store fence (SFENCE) or any locked
 * instruction does that.
 *
 * *VRAM* is not charged. It is given out in one piece, first come, first
 * served, except for a 16th that is kept for page tables.
 *
 * *VRAM with %PINMAP_ALLOC_P2PDMA* can be given to read() and write() of a file
 * that is open with O_DIRECT, if its disk takes P2PDMA pages, as those of the
 * kernel's driver for NVMe do. The disk then reads and writes VRAM by itself,
 * if the buses between the two allow it; otherwise the call fails with
 * ``EINVAL`` or ``EREMOTEIO``. Other calls that take references of pages fail
 * (``EFAULT``, ``EREMOTEIO``), and so do long-term pins: registered buffers of
 * io_uring and %PINMAP_REGISTER. The CPU's accesses are as to other VRAM. What
 * is freed while a disk has it can be allocated again when the disk has done
 * its work. A device that is unbound, reset or removed waits for the disk. The
 * first such buffer in each 128 MiB of VRAM takes 2 MiB of the system's memory,
 * until the device is unbound.
 *
 * ``EOPNOTSUPP``: %PINMAP_ALLOC_VRAM on a flat device,
 * %PINMAP_ALLOC_WRITE_COMBINED on an architecture other than x86, or
 * %PINMAP_ALLOC_P2PDMA if the kernel has no CONFIG_PCI_P2PDMA or cannot have
 * pages of the BAR with the VRAM, for instance since it is no multiple of
 * 2 MiB. ``EBUSY``: with %PINMAP_ALLOC_P2PDMA, somebody else had a page before
 * the driver (``p2pmem/allocate`` in sysfs), which stays so until the device is
 * unbound. ``EINVAL``: @node has no memory. ``ENOSPC``: no VRAM of that length is free
 * (%PINMAP_FAIL_FULL), or too many objects. ``ENOMEM``: over RLIMIT_MEMLOCK
 * (%PINMAP_FAIL_MEMLOCK), or the machine, the node or the memory cgroup has
 * not enough memory (%PINMAP_FAIL_MEMORY). ``EDQUOT``: over the ``dmem.max`` of
 * the control group, or of one above it, for ``pinmap/BDF/vram``.
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
 * enum pinmap_export_flags - what to export, and what importers may do
 * @PINMAP_EXPORT_WRITE: write to the memory; the buffer must be writable
 *                       (``EACCES``)
 * @PINMAP_EXPORT_BAR: a part of a BAR and not a buffer
 */
enum pinmap_export_flags {
	PINMAP_EXPORT_WRITE = 1 << 0,
	PINMAP_EXPORT_BAR = 1 << 1,
};

/**
 * struct pinmap_export - ioctl(PINMAP_EXPORT)
 * @size: sizeof(struct pinmap_export)
 * @flags: enum pinmap_export_flags
 * @handle: the buffer; with %PINMAP_EXPORT_BAR the offset for mmap() of the
 *          part's first page (&struct pinmap_bar.offset and the pages before)
 * @length: with %PINMAP_EXPORT_BAR, bytes of the part, whole pages; otherwise
 *          0
 * @out_fd: descriptor of a new dma-buf of the whole buffer or part, closed by
 *          exec()
 * @__reserved: must be 0
 *
 * Makes a dma-buf, a new one each time. Nothing is pinned or charged again.
 * Whoever has the descriptor has the memory: it can be sent to another
 * process, given to %PINMAP_IMPORT of any device of this driver, and given to
 * other drivers that import dma-bufs. Without %PINMAP_EXPORT_WRITE it is open
 * for reading only, and an importer that wants its device to write is refused
 * (``EACCES``).
 *
 * *Memory of %PINMAP_ALLOC.* The dma-buf can be mapped with mmap(), with
 * MAP_SHARED and without PROT_EXEC. DMA_BUF_IOCTL_SYNC, which importers
 * without coherent DMA need, works as for any dma-buf. The dma-buf keeps the
 * memory and its charge, even after the handle, the context and the device are
 * gone.
 *
 * *A part of a file* (%PINMAP_REGISTER_FD). As above; and the pages stay pinned
 * until the last dma-buf and the last mmap() of them are gone. mmap() shows the
 * pages that the device has, which after a truncation are not those of the
 * file. It is refused for writing if the part was registered or exported for
 * reading (``EACCES``), or if the file has been sealed since against writing or
 * against future writing (``EPERM``). The file does not know of such a mapping,
 * so the pages cannot be pinned through it (``EFAULT`` from O_DIRECT, io_uring
 * and %PINMAP_REGISTER). Map the file for that.
 *
 * *Registered memory* can go stale. So only importers that can be revoked are
 * accepted; others are refused when they attach (``EOPNOTSUPP``). mmap() is
 * refused (``EINVAL``), since the owner has the memory mapped already. When the
 * memory goes stale or is released, every importer is told to let go of it and
 * cannot get it again (``ENODEV``). The pages stay pinned until the last
 * importer has let go. Imports by this driver are unmapped from their devices:
 * before %PINMAP_RELEASE returns, or very soon after the memory went away. What
 * was exported again from such an import is revoked very soon after in both
 * cases.
 *
 * *VRAM and BARs.* Other devices reach them on the bus, where the bus lets
 * them, and nothing goes by the host's memory. Only importers that can be
 * revoked and that take memory of devices are accepted (``EOPNOTSUPP``).
 * mmap() is refused (``EINVAL``). VRAM is taken back from all importers when it
 * is released, and a part of a BAR when its owner closes the device or the
 * function is reset; both when the device is gone. Those calls wait until no
 * importer reaches the memory any more. VRAM that was imported by another
 * context of its own device is reached there as VRAM.
 *
 * ``EPERM``: the caller is not the process that opened the file. ``EMFILE``:
 * the process has no free descriptor. ``EOPNOTSUPP``: memory that was imported
 * from another driver or from a device, which export it themselves; or a BAR of
 * a paged device.
 * For a BAR also: ``EINVAL``: not whole pages, or they leave the BAR or touch
 * its hole. ``EOPNOTSUPP``: the BAR lacks %PINMAP_BAR_MMAP. ``EBUSY``: another
 * context owns the device; the caller becomes the owner. ``EAGAIN``: the
 * function is being reset.
 */
struct pinmap_export {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
	__aligned_u64 length;
	__s32 out_fd;
	__u32 __reserved;
};
#define PINMAP_EXPORT _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_EXPORT)

/**
 * struct pinmap_import - ioctl(PINMAP_IMPORT)
 * @size: sizeof(struct pinmap_import)
 * @flags: must be 0
 * @fd: a dma-buf: of %PINMAP_EXPORT, of any context, device and process; or of
 *      another driver
 * @out_flags: %PINMAP_EXPORT_WRITE if it was exported so; otherwise it can be
 *             mapped for reading only
 * @out_handle: handle of the buffer
 * @out_length: bytes of the buffer
 * @out_offset: offset for mmap() of the file, if it is VRAM of this device; too
 *              large for programs of 32 bits; otherwise 0
 * @fail: written if the call fails
 *
 * Makes a buffer of the pages of a dma-buf. They stay pinned once, and charged
 * once, to whoever pinned them. The buffer is released by %PINMAP_RELEASE; the
 * descriptor may be closed before. The call maps nothing: mmap() of the
 * descriptor shows the memory to the CPU, %PINMAP_MAP to the device. VRAM of
 * this device is shown by mmap() of the device's own file, at @out_offset,
 * until it is taken back or released: from then on touching it is a SIGBUS.
 * %PINMAP_MAP without %PINMAP_MAP_FIXED, %PINMAP_QUERY and events take the
 * buffer's user address for 0.
 *
 * An import goes stale (%PINMAP_EVENT_STALE) when its exporter takes the memory
 * back: registered memory when it goes stale or is released, memory of a device
 * as %PINMAP_EXPORT says. Its device addresses stay taken until it is released.
 *
 * Of other drivers, dma-bufs are accepted whose memory stays where it is while
 * it is imported: those of udmabuf and of the heaps, and BARs that VFIO exports
 * (which need importers that can be revoked, as this one can). Memory that its
 * exporter may move at any time, as drivers of GPUs do, is refused, and so is
 * everything on a machine that encrypts memory or copies it for DMA. Who pays
 * for the pages is the exporter's affair. What the kernel keeps for the import
 * is charged: one locked page for 64 that are imported.
 *
 * ``EBADF``: @fd is not open. ``EINVAL``: @fd is no dma-buf, or a BAR of this
 * function. ``EPERM``: the caller is not the process that opened the file.
 * ``ESTALE``: the memory is stale already. ``EREMOTEIO``: memory of a device
 * that the bus does not let this one reach. ``EOPNOTSUPP``: a dma-buf of
 * another driver that may move, or that this driver cannot find in memory.
 * ``EINTR``: a signal arrived while the exporter finished what it had to do.
 * ``EAGAIN``: it has begun something else since. ``ENOMEM``: over
 * RLIMIT_MEMLOCK (%PINMAP_FAIL_MEMLOCK), or the kernel is out of memory.
 * Any other errno is the exporter's.
 */
struct pinmap_import {
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 out_flags;
	__aligned_u64 out_handle;
	__aligned_u64 out_length;
	__aligned_u64 out_offset;
	struct pinmap_fail fail;
};
#define PINMAP_IMPORT _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_IMPORT)

/**
 * enum pinmap_sync_flags - direction of a synchronisation
 * @PINMAP_SYNC_FOR_DEVICE: the device will read what the CPU wrote
 * @PINMAP_SYNC_FOR_CPU: the CPU will read what the device wrote
 * @PINMAP_SYNC_NO_SNOOP: synchronise even if DMA is coherent: for a device
 *                        that asks for its transfers not to be snooped, where
 *                        the IOMMU lets it
 *
 * At least one of the first two must be given (``EINVAL``).
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
 * @offset: first byte to synchronise, counted from the buffer's first byte
 * @length: bytes, at least 1
 *
 * Writes back and drops what the CPU's caches hold of a part of a buffer. This
 * is needed where %PINMAP_INFO_COHERENT is not set: for the device after the
 * CPU has written and before the device reads, for the CPU after the device
 * has written and before the CPU reads. While one side uses the part, the
 * other must not use the cache lines at its ends.
 *
 * Where DMA is coherent, the call does nothing and returns at once. The same
 * is true for memory of devices and write-combined memory, which no cache
 * holds.
 *
 * ``EINVAL``: the part leaves the buffer. ``EOPNOTSUPP``: there is something to
 * do, and the architecture is neither x86 nor arm64, or the memory is another
 * driver's, whose dma-buf has DMA_BUF_IOCTL_SYNC for that. ``EINTR``: a fatal
 * signal.
 */
struct pinmap_sync {
	__u32 size;
	__u32 flags;
	__aligned_u64 handle;
	__aligned_u64 offset;
	__aligned_u64 length;
};
#define PINMAP_SYNC _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_SYNC)

/**
 * define PINMAP_MAX_ENGINES - engines that struct pinmap_gpu_counters can hold
 */
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
 * @out_vram_length: bytes of VRAM in all
 * @out_vram_free: bytes of VRAM that are free now
 * @out_max_transfer: bytes that one copy or fill packet may move
 * @out_max_run_ns: how long a packet may run
 * @out_link_bandwidth: modelled bytes per second between the device and host
 *                      memory, in each direction; 0: no limit
 * @out_link_latency_ns: modelled latency of an access to host memory
 * @out_vram_bandwidth: modelled bytes per second of VRAM; 0: no limit
 * @out_vram_latency_ns: modelled latency of an access to VRAM
 * @out_time_ns: the device's clock, which timestamp packets store
 *
 * Describes a paged device. ``EOPNOTSUPP``: a flat device.
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
 * struct pinmap_engine_counters - work of one engine, for all contexts
 * @host_read: bytes of operands read from host memory
 * @host_written: bytes of operands written to host memory
 * @vram_read: bytes of operands read from VRAM
 * @vram_written: bytes of operands written to VRAM
 * @packets: packets completed
 * @busy_ns: time during which the engine held a packet
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
 * @out_nr_engines: number of entries in @out_engines
 * @__reserved: must be 0
 * @out_tlb_hits: translations that were in the device's TLB
 * @out_tlb_misses: translations that took a walk of the page table
 * @out_faults: faults and errors of queues, also those that were served
 * @out_binds: times that a queue was put into a slot
 * @out_vmid_binds: times that a context was given a VMID
 * @out_invalidates: invalidations of the TLB
 * @out_engines: the copy engines first, then the slots of the compute engine
 *
 * Reads the counters of a paged device. They count for all contexts together,
 * from when the device was bound. ``EOPNOTSUPP``: a flat device.
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
 * enum pinmap_walk_flags - what a device's page table says about an address
 * @PINMAP_WALK_READ: may be read
 * @PINMAP_WALK_WRITE: may be written
 * @PINMAP_WALK_FETCH: packets may be fetched from there
 * @PINMAP_WALK_HOST: in host memory; without it, in VRAM
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
 * @out_levels: number of tables that were read on the way
 * @out_target: where @addr leads: the I/O virtual address that the IOMMU
 *              translates, or the offset in VRAM
 * @out_leaf_length: bytes that the entry covers: 4096, 2097152, or 1073741824
 *
 * Walks the context's page table in the device's memory, as the device does
 * when its TLB has no entry. Meant for inspection and tests: a moment later the
 * address may lead elsewhere.
 *
 * ``ENOENT``: an entry on the way is not valid. ``EINVAL``: @addr is beyond
 * what the tables can translate. ``EOPNOTSUPP``: a flat device.
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
 * enum pinmap_queue_flags - which packets a queue is for
 * @PINMAP_QUEUE_COPY: packets for the copy engines
 * @PINMAP_QUEUE_COMPUTE: kernels
 *
 * At least one of them must be given (``EINVAL``).
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
 * @out_queue: handle of the queue; never 0, never used again
 * @out_ring_offset: offset for mmap() of the ring
 * @out_ring_length: bytes of the ring
 * @out_doorbell_offset: offset for mmap() of the doorbell, one page
 * @out_fence_offset: offset for mmap() of the fences, one page
 * @out_fence_addr: device address of the fences, for fence packets: 512
 *                  numbers of 8 bytes, all 0 at first
 * @fail: written if the call fails
 *
 * Makes a queue, which executes packets of 64 bytes in order. The device
 * defines the format of the packets. Packet i is in the ring at i modulo
 * @packets.
 *
 * To submit, write packets to the ring. Then store, to the first 8 bytes of the
 * doorbell, how many packets were written since the queue was made. That takes
 * no system call. At most @packets may be in the ring that were not executed.
 *
 * Only this context can reach the ring and the fences. They are charged to it
 * until the queue is destroyed, and a page for the queue's id until its
 * doorbell is unmapped too.
 *
 * *Sharing the device.* There may be many more contexts and queues with work
 * than the device can hold. Contexts take turns and share the room that there
 * is, however many queues they have and whatever priorities these have. A
 * context with one short packet does not wait for the long packets of others,
 * if an engine is free for it. Priorities count among the queues of one
 * context: the highest goes first, at packet boundaries, and equal ones take
 * turns. Queues that wait for fences, however many and at whatever priorities,
 * do not keep the others from running.
 *
 * Once the device is gone, the doorbell can still be stored to, without effect.
 * What is submitted then is never executed; %PINMAP_QUEUE_WAIT and
 * %PINMAP_QUEUE_NOTIFY tell. (A mapping of VRAM raises SIGBUS, see
 * &struct pinmap_alloc.)
 *
 * ``EINVAL``: @priority or @packets is out of range. ``ENOMEM``: over
 * RLIMIT_MEMLOCK (%PINMAP_FAIL_MEMLOCK), or out of memory. ``ENOSPC``: the
 * device has no queue left for this context: one that has 256 leaves the last
 * 20 to other contexts, and a user that has 256 in all contexts leaves the last
 * 4 to other users. A queue that was destroyed counts while its doorbell is
 * mapped.
 * ``EOPNOTSUPP``: a flat device.
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
	struct pinmap_fail fail;
};
#define PINMAP_QUEUE_CREATE _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUEUE_CREATE)

/**
 * struct pinmap_queue_destroy - ioctl(PINMAP_QUEUE_DESTROY)
 * @size: sizeof(struct pinmap_queue_destroy)
 * @flags: must be 0
 * @queue: the queue
 *
 * Stops the queue behind the packet that runs, and gives it up. Packets that
 * were not executed never will be. When the call returns, the device does
 * nothing for the queue any more. That takes as long as the running packet or,
 * if the packet is stuck, as the reset of its engine. No signal shortens it,
 * because closing the file would take as long. The doorbell can then still be
 * stored to, without effect.
 *
 * ``ENOENT``: @queue was never a queue of this context. ``ESTALE``: it was
 * destroyed before.
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
 * @timeout_ns: in: how long to wait at most, relative; ~0: without limit. Out:
 *              how much of it is left
 * @out_value: the last value that the fence was seen to have
 *
 * Sleeps until an interrupt packet of the queue finds the fence high enough. So
 * write the fence first, then interrupt. If an interrupt is lost, the call
 * returns late: by as long as it has waited, and by at most half a second.
 *
 * ``ETIMEDOUT``: the fence did not get there in time. ``EIO``: the queue has
 * stopped and will never get there. ``EINVAL``: there is no such fence.
 * ``EINTR``: a signal came. Where the program asked for that (SA_RESTART), the
 * call is restarted with the time that is left.
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
 * @PINMAP_QUEUE_READY: executes what is submitted, or waits for a fault to be
 *                      served
 * @PINMAP_QUEUE_FAULTED: stopped: an access was outside of the context's
 *                        mappings and managed ranges, was not permitted, or
 *                        could not be served
 * @PINMAP_QUEUE_ERROR: stopped: a packet was malformed, ran for too long, or
 *                      lost its engine to a reset
 */
enum pinmap_queue_state {
	PINMAP_QUEUE_READY = 1,
	PINMAP_QUEUE_FAULTED = 2,
	PINMAP_QUEUE_ERROR = 3,
};

/**
 * enum pinmap_access - kind of an access by a queue
 * @PINMAP_ACCESS_READ: read
 * @PINMAP_ACCESS_WRITE: write
 * @PINMAP_ACCESS_FETCH: fetch of a packet
 * @PINMAP_ACCESS_ATOMIC: atomic operation, which reads and writes
 */
enum pinmap_access {
	PINMAP_ACCESS_READ = 0,
	PINMAP_ACCESS_WRITE = 1,
	PINMAP_ACCESS_FETCH = 2,
	PINMAP_ACCESS_ATOMIC = 3,
};

/**
 * enum pinmap_fault_reason - why a fault stopped a queue
 * @PINMAP_FAULT_NONE: no fault stopped the queue
 * @PINMAP_FAULT_UNMAPPED: the address is in no mapping of the context, or in
 *                         one that does not permit the access, and is not
 *                         managed
 * @PINMAP_FAULT_HOLE: managed, but nothing is mapped at the address
 * @PINMAP_FAULT_PERMISSION: the program itself may not access the address so
 * @PINMAP_FAULT_DEVICE: device memory or a raw PFN mapping
 * @PINMAP_FAULT_SECRET: memfd_secret() memory
 * @PINMAP_FAULT_GUARD: a guard that madvise() made
 * @PINMAP_FAULT_FILE: behind the end of the file, or it could not be read;
 *                     the program would get SIGBUS
 * @PINMAP_FAULT_POISON: the hardware has lost the page
 * @PINMAP_FAULT_MEMORY: the kernel is out of memory, or the memory cgroup is
 *                       at its limit
 * @PINMAP_FAULT_USERFAULTFD: userfaultfd is to serve the page, but not for a
 *                            device (UFFD_USER_MODE_ONLY, UFFD_FEATURE_SIGBUS)
 * @PINMAP_FAULT_EXITED: the program's address space has ended
 * @PINMAP_FAULT_ATOMIC: an atomic access to managed memory that cannot be in
 *                       the device's memory, where no access of the CPU could
 *                       come between: it cannot move, or there is no room
 */
enum pinmap_fault_reason {
	PINMAP_FAULT_NONE = 0,
	PINMAP_FAULT_UNMAPPED = 1,
	PINMAP_FAULT_HOLE = 2,
	PINMAP_FAULT_PERMISSION = 3,
	PINMAP_FAULT_DEVICE = 4,
	PINMAP_FAULT_SECRET = 5,
	PINMAP_FAULT_GUARD = 6,
	PINMAP_FAULT_FILE = 7,
	PINMAP_FAULT_POISON = 8,
	PINMAP_FAULT_MEMORY = 9,
	PINMAP_FAULT_USERFAULTFD = 10,
	PINMAP_FAULT_EXITED = 11,
	PINMAP_FAULT_ATOMIC = 12,
};

/**
 * enum pinmap_vma_flags - what a program may do with a part of its memory
 * @PINMAP_VMA_READ: read (PROT_READ)
 * @PINMAP_VMA_WRITE: write (PROT_WRITE)
 * @PINMAP_VMA_EXEC: execute (PROT_EXEC)
 * @PINMAP_VMA_SHARED: it is shared (MAP_SHARED)
 */
enum pinmap_vma_flags {
	PINMAP_VMA_READ = 1 << 0,
	PINMAP_VMA_WRITE = 1 << 1,
	PINMAP_VMA_EXEC = 1 << 2,
	PINMAP_VMA_SHARED = 1 << 3,
};

/**
 * struct pinmap_queue_query - ioctl(PINMAP_QUEUE_QUERY)
 * @size: sizeof(struct pinmap_queue_query)
 * @flags: must be 0
 * @queue: the queue
 * @out_state: enum pinmap_queue_state
 * @out_code: if the queue has stopped, why: a code of the device's manual
 * @out_access: enum pinmap_access, if the queue has faulted
 * @out_reason: enum pinmap_fault_reason
 * @out_addr: the device address that could not be accessed, or 0
 * @out_index: packets executed; if the queue has stopped, the index of the
 *             packet that stopped it
 * @out_vma_start: if the fault was on managed memory: user address of the
 *                 first byte of the memory area around @out_addr, as in
 *                 ``/proc/PID/maps``
 * @out_vma_end: user address behind its last byte; 0: there was no such area
 * @out_vma_flags: enum pinmap_vma_flags of the area
 * @__reserved: must be 0
 *
 * Tells how far a queue has come. A queue that has stopped executes nothing any
 * more and can only be destroyed. Other queues go on. The area is the one that
 * was there when the fault could not be served.
 */
struct pinmap_queue_query {
	__u32 size;
	__u32 flags;
	__aligned_u64 queue;
	__u32 out_state;
	__u32 out_code;
	__u32 out_access;
	__u32 out_reason;
	__aligned_u64 out_addr;
	__aligned_u64 out_index;
	__aligned_u64 out_vma_start;
	__aligned_u64 out_vma_end;
	__u32 out_vma_flags;
	__u32 __reserved;
};
#define PINMAP_QUEUE_QUERY _IO(PINMAP_IOCTL_TYPE, PINMAP_CMD_QUEUE_QUERY)

/**
 * struct pinmap_queue_submit - ioctl(PINMAP_QUEUE_SUBMIT)
 * @size: sizeof(struct pinmap_queue_submit)
 * @flags: must be 0
 * @queue: the queue
 * @packets: user address of the packets
 * @count: number of packets of 64 bytes; 1 to the size of the ring
 * @__reserved: must be 0
 * @out_index: packets submitted since the queue was made
 *
 * Writes packets to the ring and rings the doorbell, for a program that has not
 * mapped them. A program must not do both.
 *
 * ``EAGAIN``: the ring has no room. ``EINVAL``: @count is out of range.
 * ``EFAULT``: the packets cannot be read. ``EIO``: the queue has stopped.
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
 * @value: value that the fence is to reach
 *
 * Signals the eventfd once, when an interrupt packet of the queue finds that
 * the fence is at least @value, or when it never will be: the queue has
 * stopped or was destroyed, or the device is gone. If that is so already, the
 * eventfd is signalled at once. So one thread can wait for many queues. A
 * queue can owe up to 64 notices. The driver keeps each eventfd until it has
 * signalled it, even if the program closes it.
 *
 * ``EBADF``: @fd is not open. ``EINVAL``: @fd is no eventfd, or there is no
 * such fence. ``ENOSPC``: the queue owes 64 notices. ``ENODEV``: the device was
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
 * mmap() maps a BAR of a flat device. The offset is &struct pinmap_bar.offset
 * plus a whole number of pages into the BAR. The mapping is not inherited by
 * fork(), cannot be moved or grown by mremap(), and can be registered for other
 * devices only (%PINMAP_REGISTER). Once the device is gone, touching it raises
 * SIGBUS.
 *
 * ``EINVAL``: an offset that the driver did not return, a length that leaves
 * the BAR or touches its hole, or MAP_PRIVATE. ``EACCES``: PROT_EXEC.
 * ``EOPNOTSUPP``: a BAR without %PINMAP_BAR_MMAP. ``EBUSY``: another context
 * owns the device; or the reset failed when the last owner went, and this was
 * not made up for yet, which the first ioctl of a context tries, and each that
 * needs the device. If the kernel then has no memory for the mapping, the
 * caller stays the owner.
 */

#endif /* _UAPI_LINUX_PINMAP_H */
