/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Made by scripts/capi-header of the sources in capi/src; not to be edited. */
/**
 * libpinmap: a program hands its own memory to a PCI device, without a copy.
 *
 *     struct pinmap_device *device = pinmap_open(NULL);
 *     struct pinmap_memory *memory =
 *             pinmap_register(device, buffer, length, NULL);
 *     uint64_t address;
 *
 *     if (!memory || pinmap_device_address(memory, 0, &address))
 *             errx(1, "%s", pinmap_last_error());
 *     // ... the device works on the buffer, at that address ...
 *     pinmap_release(memory);
 *     pinmap_close(device);
 *
 * Handles. A function that makes something returns a pointer to it, or NULL if
 * it fails. Each has a function that ends it, which takes NULL as well. What
 * was made from a device keeps it open.
 *
 * Errors. A function that returns an int returns -1 if it fails. Then errno
 * says what, pinmap_last_error() says it in words, and pinmap_last_hint() may
 * say what to do. A NULL where something must be is EINVAL. The errors that a
 * function lists are those a program may act on.
 *
 * Threads. Every function can be called by every thread, also on the same
 * handle. What ends a handle must be the last call with it.
 *
 * Structures. Those that a program hands over begin with their size; those that
 * it gets are asked for with their size. So they can grow, and a program that
 * was compiled before works with a newer library.
 *
 * fork(). The child has none of what the parent opened: it must open the device
 * itself.
 */

#ifndef PINMAP_H
#define PINMAP_H

#include <stddef.h>
#include <stdint.h>

/**
 * The device has no MMU of its own: one program at a time uses it.
 */
#define PINMAP_DEVICE_FLAT 0

/**
 * The device has an MMU of its own: many programs use it at once, by streams.
 */
#define PINMAP_DEVICE_PAGED 1

/**
 * A kind of device that this library does not know.
 */
#define PINMAP_DEVICE_OTHER 2

/**
 * The device sees what is in the CPU's caches.
 */
#define PINMAP_DEVICE_INFO_COHERENT (1 << 0)

/**
 * The function can be reset.
 */
#define PINMAP_DEVICE_INFO_CAN_RESET (1 << 1)

/**
 * Some program owns the device.
 */
#define PINMAP_DEVICE_INFO_OWNED (1 << 2)

/**
 * This program owns it.
 */
#define PINMAP_DEVICE_INFO_OWNER (1 << 3)

/**
 * The device is gone.
 */
#define PINMAP_DEVICE_INFO_GONE (1 << 4)

/**
 * The device can have managed memory.
 */
#define PINMAP_DEVICE_INFO_MANAGED (1 << 5)

/**
 * How many BARs a function can have.
 */
#define PINMAP_BARS 6

/**
 * Registered memory left the address space of the program, and the device cannot reach it any
 * more: `id` of the memory, `address`, `length`.
 */
#define PINMAP_EVENT_TYPE_STALE 1

/**
 * A stream has stopped: `id` of its queue, `address` of the access that was refused, or 0, and the
 * number of the `packet`.
 */
#define PINMAP_EVENT_TYPE_FAULT 2

/**
 * Managed memory goes to and fro: `id` of the memory, `address`, `length`.
 */
#define PINMAP_EVENT_TYPE_THRASHING 3

/**
 * The device is gone. This is the last event.
 */
#define PINMAP_EVENT_TYPE_GONE 4

/**
 * An event that this library does not know, with the driver's number as `id`.
 */
#define PINMAP_EVENT_TYPE_OTHER 5

/**
 * To the memory of the host, as pinmap_prefetch() takes it.
 */
#define PINMAP_TO_HOST 0

/**
 * To the memory of the device.
 */
#define PINMAP_TO_VRAM 1

/**
 * The memory is to be on the host.
 */
#define PINMAP_PREFER_HOST (1 << 0)

/**
 * The memory is to be with the device.
 */
#define PINMAP_PREFER_VRAM (1 << 1)

/**
 * The device reaches the memory where it is, rather than have it moved.
 */
#define PINMAP_ACCESSED_BY_DEVICE (1 << 2)

/**
 * The memory is mostly read.
 */
#define PINMAP_READ_MOSTLY (1 << 3)

/**
 * The device may only read the memory.
 */
#define PINMAP_READ_ONLY (1 << 0)

/**
 * Takes the whole pages around the range. What else lies in the first and in the last page is then
 * in the device's reach, too. Without it the range must be whole pages.
 */
#define PINMAP_ROUND_OUTWARDS (1 << 1)

/**
 * All devices of this driver that the process has open reach the memory.
 */
#define PINMAP_PORTABLE (1 << 2)

/**
 * The CPU writes the memory write-combined: fast to write, slow to read.
 */
#define PINMAP_WRITE_COMBINED (1 << 3)

/**
 * Fails if the device cannot have the memory at the address that it has for the CPU.
 */
#define PINMAP_SAME_ADDRESS (1 << 4)

/**
 * The device gets the memory at device_address, or not at all.
 */
#define PINMAP_AT_ADDRESS (1 << 5)

/**
 * The memory is allocated on the NUMA node that is named.
 */
#define PINMAP_ON_NODE (1 << 6)

/**
 * What kind of error the last one of this thread was.
 */
enum pinmap_error_kind {
  /**
   * There was no error yet.
   */
  PINMAP_ERROR_KIND_NONE,
  /**
   * There is no such thing, or the driver is not bound to the function.
   */
  PINMAP_ERROR_KIND_NOT_FOUND,
  /**
   * The user may not do this, or the memory may not be accessed so.
   */
  PINMAP_ERROR_KIND_PERMISSION_DENIED,
  /**
   * Another context owns the device, or somebody else uses the memory.
   */
  PINMAP_ERROR_KIND_BUSY,
  /**
   * The device is gone.
   */
  PINMAP_ERROR_KIND_GONE,
  /**
   * Memory that went away is named.
   */
  PINMAP_ERROR_KIND_STALE,
  /**
   * An argument makes no sense.
   */
  PINMAP_ERROR_KIND_INVALID_INPUT,
  /**
   * The address names no memory that can be used so.
   */
  PINMAP_ERROR_KIND_BAD_ADDRESS,
  /**
   * It is there already: a registration, a device address.
   */
  PINMAP_ERROR_KIND_ALREADY_EXISTS,
  /**
   * Out of memory, or over a limit such as RLIMIT_MEMLOCK.
   */
  PINMAP_ERROR_KIND_OUT_OF_MEMORY,
  /**
   * No room: device addresses, the device's memory, queues, handles.
   */
  PINMAP_ERROR_KIND_NO_SPACE,
  /**
   * The device, the driver or the kernel cannot do this.
   */
  PINMAP_ERROR_KIND_UNSUPPORTED,
  /**
   * It would have to wait, and must not.
   */
  PINMAP_ERROR_KIND_WOULD_BLOCK,
  /**
   * The time was up.
   */
  PINMAP_ERROR_KIND_TIMED_OUT,
  /**
   * A signal came first.
   */
  PINMAP_ERROR_KIND_INTERRUPTED,
  /**
   * A host function must not do this, because a stream waits for it.
   */
  PINMAP_ERROR_KIND_DEADLOCK,
  /**
   * The device refused a piece of work; the words of the error say why.
   */
  PINMAP_ERROR_KIND_FAULT,
  /**
   * The hardware failed, or a queue was given up.
   */
  PINMAP_ERROR_KIND_IO,
  /**
   * Something else; see errno.
   */
  PINMAP_ERROR_KIND_OTHER,
};

/**
 * A BAR that is mapped.
 */
struct pinmap_mapped_bar;

/**
 * An open device. All that is made from it keeps it open.
 */
struct pinmap_device;

/**
 * An interrupt vector that is enabled.
 */
struct pinmap_interrupt;

/**
 * Memory that a device can reach, which work in flight shares.
 */
struct pinmap_memory;

/**
 * A device address that memory has besides its first one.
 */
struct pinmap_mapping;

/**
 * A stream: a queue of work that the device does in order, while the program does something else.
 */
struct pinmap_stream;

/**
 * A point in a stream, as a file descriptor.
 */
struct pinmap_completion;

/**
 * A point in a stream.
 */
struct pinmap_stream_event;

/**
 * A device of this driver, as pinmap_list() tells it.
 */
struct pinmap_node {
  /**
   * The file to open, such as "/dev/pinmap0".
   */
  char path[64];
  /**
   * The function's address, such as "0000:01:00.0".
   */
  char pci[16];
  /**
   * The PCI ids.
   */
  uint16_t vendor;
  /**
   * The PCI ids.
   */
  uint16_t device;
};

/**
 * The properties of a device.
 */
struct pinmap_device_info {
  /**
   * PINMAP_DEVICE_FLAT or another.
   */
  uint32_t kind;
  /**
   * PINMAP_DEVICE_INFO_COHERENT and others.
   */
  uint32_t flags;
  /**
   * The first address that the device can be given.
   */
  uint64_t aperture_first;
  /**
   * The last one.
   */
  uint64_t aperture_last;
  /**
   * The sizes of the pages of the IOMMU, added up.
   */
  uint64_t page_sizes;
  /**
   * How many bytes this user may have locked; UINT64_MAX: any number.
   */
  uint64_t memlock_limit;
  /**
   * How many bytes of these are.
   */
  uint64_t memlock_used;
  /**
   * How many pieces of memory a program may have registered and allocated.
   */
  uint32_t max_registrations;
  /**
   * How many it has.
   */
  uint32_t registrations;
  /**
   * Interrupt vectors of the function.
   */
  uint32_t vectors;
  /**
   * The group of the IOMMU.
   */
  uint32_t iommu_group;
  /**
   * The PCI class: base class, sub-class and interface, a byte each.
   */
  uint32_t pci_class;
  /**
   * The PCI ids.
   */
  uint16_t vendor;
  /**
   * The PCI ids.
   */
  uint16_t device;
  /**
   * The PCI ids.
   */
  uint16_t subsystem_vendor;
  /**
   * The PCI ids.
   */
  uint16_t subsystem_device;
  /**
   * 0
   */
  uint32_t reserved;
  /**
   * The lengths of the BARs in bytes; 0: there is none.
   */
  uint64_t bar_lengths[PINMAP_BARS];
  /**
   * The function's address, such as "0000:01:00.0".
   */
  char pci[16];
};

/**
 * An event of a device. What the type does not name is 0.
 */
struct pinmap_device_event {
  /**
   * PINMAP_EVENT_TYPE_STALE or another.
   */
  uint32_t event_type;
  /**
   * 0
   */
  uint32_t reserved;
  /**
   * What it is about.
   */
  uint64_t id;
  /**
   * An address in this program, or of the device.
   */
  uint64_t address;
  /**
   * A length in bytes.
   */
  uint64_t length;
  /**
   * The number of a packet.
   */
  uint64_t packet;
};

/**
 * What became of memory that was to move, in bytes.
 */
struct pinmap_prefetched {
  /**
   * It moved.
   */
  uint64_t moved;
  /**
   * It was there already.
   */
  uint64_t there;
  /**
   * There was no room for it.
   */
  uint64_t no_room;
  /**
   * It stays, because somebody has it pinned, shares it since fork(), or is using it just now.
   */
  uint64_t busy;
  /**
   * It never moves: memory of files, shared or locked memory, addresses where nothing is.
   */
  uint64_t fixed;
};

/**
 * How memory is registered, allocated or mapped. What is not named is 0:
 *
 *     struct pinmap_memory_options options = {
 *         .size = sizeof(options), .flags = PINMAP_READ_ONLY, .address_bits = 40,
 *     };
 */
struct pinmap_memory_options {
  /**
   * sizeof(struct pinmap_memory_options)
   */
  uint32_t size;
  /**
   * PINMAP_READ_ONLY and others.
   */
  uint32_t flags;
  /**
   * The device drives only so many bits of addresses. 0: as many as it says itself.
   */
  uint32_t address_bits;
  /**
   * The NUMA node, with PINMAP_ON_NODE.
   */
  uint32_t node;
  /**
   * The address that the device is to have, with PINMAP_AT_ADDRESS.
   */
  uint64_t device_address;
};

/**
 * How a stream is made. What is not named is 0.
 */
struct pinmap_stream_options {
  /**
   * sizeof(struct pinmap_stream_options)
   */
  uint32_t size;
  /**
   * Between packets, the device prefers streams of a higher priority. 0 is the lowest.
   */
  uint32_t priority;
  /**
   * How many packets can wait for the device: a power of two from 64 to 65,536. 0: 256.
   */
  uint32_t packets;
  /**
   * 0
   */
  uint32_t reserved;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Maps a BAR, 0 to 5. On a flat device this makes the program its owner. Once the device is gone,
 * an access raises SIGBUS.
 *
 * Errors: ENOENT, the function has no such BAR, or none that can be mapped; EBUSY, another program
 * owns the device; ENODEV, it is gone.
 */
struct pinmap_mapped_bar *pinmap_bar_map(const struct pinmap_device *device,
                                         uint32_t number);

/**
 * Unmaps a BAR. NULL is none.
 */
void pinmap_bar_unmap(struct pinmap_mapped_bar *bar);

/**
 * Returns the length of a BAR in bytes; 0 with an error.
 */
uint64_t pinmap_bar_length(const struct pinmap_mapped_bar *bar);

/**
 * Reads a register of 8 bits: one load, which no other access is merged with.
 *
 * Errors: EINVAL, the BAR has no such register.
 */
int pinmap_bar_read8(const struct pinmap_mapped_bar *bar,
                     uint64_t offset,
                     uint8_t *value);

/**
 * Reads a register of 16 bits: see pinmap_bar_read8().
 *
 * Errors: EINVAL, the BAR has no such register, or the offset is not aligned.
 */
int pinmap_bar_read16(const struct pinmap_mapped_bar *bar,
                      uint64_t offset,
                      uint16_t *value);

/**
 * Reads a register of 32 bits: see pinmap_bar_read16().
 */
int pinmap_bar_read32(const struct pinmap_mapped_bar *bar,
                      uint64_t offset,
                      uint32_t *value);

/**
 * Reads a register of 64 bits: see pinmap_bar_read16().
 */
int pinmap_bar_read64(const struct pinmap_mapped_bar *bar,
                      uint64_t offset,
                      uint64_t *value);

/**
 * Writes a register of 8 bits: one store. What the program stored to memory before is visible to
 * the device when the write reaches it.
 *
 * Errors: EINVAL, the BAR has no such register.
 */
int pinmap_bar_write8(const struct pinmap_mapped_bar *bar,
                      uint64_t offset,
                      uint8_t value);

/**
 * Writes a register of 16 bits: see pinmap_bar_write8().
 *
 * Errors: EINVAL, the BAR has no such register, or the offset is not aligned.
 */
int pinmap_bar_write16(const struct pinmap_mapped_bar *bar,
                       uint64_t offset,
                       uint16_t value);

/**
 * Writes a register of 32 bits: see pinmap_bar_write16().
 */
int pinmap_bar_write32(const struct pinmap_mapped_bar *bar,
                       uint64_t offset,
                       uint32_t value);

/**
 * Writes a register of 64 bits: see pinmap_bar_write16().
 */
int pinmap_bar_write64(const struct pinmap_mapped_bar *bar,
                       uint64_t offset,
                       uint64_t value);

/**
 * Reads `count` words of 32 bits that follow each other, each by one load.
 *
 * Errors: EINVAL, they do not lie in the BAR, or the offset is not aligned.
 */
int pinmap_bar_read_words(const struct pinmap_mapped_bar *bar,
                          uint64_t offset,
                          uint32_t *to,
                          size_t count);

/**
 * Writes `count` words of 32 bits that follow each other, each by one store.
 *
 * Errors: as for pinmap_bar_read_words().
 */
int pinmap_bar_write_words(const struct pinmap_mapped_bar *bar,
                           uint64_t offset,
                           const uint32_t *from,
                           size_t count);

/**
 * Has the device see all writes to a BAR that were made before: reads a register of it.
 */
int pinmap_bar_flush(const struct pinmap_mapped_bar *bar);

/**
 * Stores the devices of this driver, at most `max` of them, in the order of their numbers. Returns
 * how many there are, which may be more; -1 with an error.
 */
int pinmap_list(struct pinmap_node *nodes,
                size_t max);

/**
 * Opens a device by the path of its file, such as "/dev/pinmap0". NULL is for the first one.
 *
 * Errors: ENOENT, there is no such device; EACCES, the user is not in the group of the file.
 */
struct pinmap_device *pinmap_open(const char *path);

/**
 * Opens the device of a PCI function, such as "0000:01:00.0".
 *
 * Errors: EINVAL, that is no address; otherwise as for pinmap_open().
 */
struct pinmap_device *pinmap_open_pci(const char *address);

/**
 * Opens the first device with these PCI ids.
 *
 * Errors: ENODEV, there is none; otherwise as for pinmap_open().
 */
struct pinmap_device *pinmap_find(uint16_t vendor, uint16_t device);

/**
 * Opens the first device that has streams: an accelerator whose packets this library knows.
 *
 * Errors: ENODEV, there is none; otherwise as for pinmap_open().
 */
struct pinmap_device *pinmap_find_accelerator(void);

/**
 * Closes a device. Memory and streams that were made from it stay. NULL is none.
 */
void pinmap_close(struct pinmap_device *device);

/**
 * Stores the properties of a device. `size` is sizeof(struct pinmap_device_info).
 *
 * Errors: EINVAL, there is no room. A device that is gone has the flag PINMAP_DEVICE_INFO_GONE.
 */
int pinmap_get_info(const struct pinmap_device *device,
                    struct pinmap_device_info *info,
                    size_t size);

/**
 * Resets the function. On a flat device this makes the program its owner.
 *
 * Errors: EOPNOTSUPP, the function has no reset; EAGAIN, somebody else is binding, unbinding or
 * resetting it; EBUSY, another program owns the device; ENODEV, the device is gone.
 */
int pinmap_reset(const struct pinmap_device *device);

/**
 * Returns the file descriptor of a device, which stays the device's. poll() finds it readable when
 * there is an event for pinmap_next_event().
 */
int pinmap_fd(const struct pinmap_device *device);

/**
 * Returns the version of this library, such as "0.1.0".
 */
const char *pinmap_version(void);

/**
 * Returns the words of this thread's last error: what failed, why, and what can be done about it.
 * They stay valid until the next call of this library by this thread fails. Empty if none has
 * failed yet.
 */
const char *pinmap_last_error(void);

/**
 * Returns the part of pinmap_last_error() that says what can be done, or NULL if there is none.
 * The words stay valid as those of pinmap_last_error() do.
 */
const char *pinmap_last_hint(void);

/**
 * Returns the kind of this thread's last error.
 */
enum pinmap_error_kind pinmap_last_error_kind(void);

/**
 * Takes the next event of a device. Waits for one, for at most so many milliseconds; -1 is for
 * ever, and 0 only looks. `size` is sizeof(struct pinmap_device_event).
 *
 * Errors: ETIMEDOUT, the time was up; ENODEV, the device is gone, and the last event was taken.
 */
int pinmap_next_event(const struct pinmap_device *device,
                      int timeout_ms,
                      struct pinmap_device_event *event,
                      size_t size);

/**
 * Enables an interrupt vector, from 0 on. On a flat device this makes the program its owner.
 *
 * Errors: ENOENT, the function has no such vector; EEXIST, this program has enabled it already;
 * EBUSY, another program owns the device; ENODEV, the device is gone.
 */
struct pinmap_interrupt *pinmap_interrupt_enable(const struct pinmap_device *device,
                                                 uint32_t vector);

/**
 * Disables an interrupt vector. NULL is none.
 */
void pinmap_interrupt_disable(struct pinmap_interrupt *interrupt);

/**
 * Waits for an interrupt, for at most so many milliseconds; -1 is for ever, and 0 only looks.
 * Stores how many there were since the last wait; `count` may be NULL.
 *
 * If the device sends no other interrupt before this one is acknowledged, write that register,
 * read one back, and only then look for what is done: a write returns before the device has it.
 *
 * Errors: ETIMEDOUT, the time was up; ENODEV, the device is gone.
 */
int pinmap_interrupt_wait(const struct pinmap_interrupt *interrupt,
                          int timeout_ms,
                          uint64_t *count);

/**
 * Returns the file descriptor of an interrupt, an eventfd that stays the interrupt's. poll() finds
 * it readable when there was one.
 */
int pinmap_interrupt_fd(const struct pinmap_interrupt *interrupt);

/**
 * Moves managed memory to the host or to the device: the whole pages around the range. `answer`
 * tells what became of it, and may be NULL; `size` is sizeof(struct pinmap_prefetched).
 *
 * Errors: ENOENT, not all of it is managed; EINVAL, it is empty; EIO, the device did not copy it;
 * ENOMEM, out of memory; ENODEV, the device is gone.
 */
int pinmap_prefetch(const struct pinmap_device *device,
                    const void *address,
                    size_t length,
                    uint32_t to,
                    struct pinmap_prefetched *prefetched,
                    size_t size);

/**
 * Says how managed memory is used, in place of what was said before; 0 is nothing.
 *
 * Errors: ENOENT, not all of it is managed; EINVAL, it is empty, or the advice contradicts itself;
 * ENODEV, the device is gone.
 */
int pinmap_advise(const struct pinmap_device *device,
                  const void *address,
                  size_t length,
                  uint32_t advice);

/**
 * Gives registered memory or a registered file one more device address.
 *
 * Flags: PINMAP_READ_ONLY, PINMAP_AT_ADDRESS.
 *
 * Errors: EOPNOTSUPP, this kind of memory cannot be mapped again; otherwise as for
 * pinmap_register().
 */
struct pinmap_mapping *pinmap_map(const struct pinmap_memory *memory,
                                  const struct pinmap_memory_options *memory_options);

/**
 * Stores the device address of a mapping: that of the first byte of the first page.
 */
int pinmap_mapping_address(const struct pinmap_mapping *mapping,
                           uint64_t *device_address);

/**
 * Takes a device address away from memory. The mapping is gone even if this fails.
 *
 * Errors: EIO, the IOMMU or the device failed; the device is cut off from all memory then.
 */
int pinmap_unmap(struct pinmap_mapping *mapping);

/**
 * Returns the address of the memory in this program; NULL for a registered file.
 */
void *pinmap_address(const struct pinmap_memory *memory);

/**
 * Returns the length of the memory in bytes.
 */
size_t pinmap_length(const struct pinmap_memory *memory);

/**
 * Returns the number by which events name the memory.
 */
uint64_t pinmap_memory_id(const struct pinmap_memory *memory);

/**
 * Stores the address at which the device finds the byte at `offset`.
 *
 * Errors: EINVAL, the memory has no such byte; ESTALE, it is released.
 */
int pinmap_device_address(const struct pinmap_memory *memory,
                          size_t offset,
                          uint64_t *device_address);

/**
 * Stores the device address of a pointer into any memory of the device's, whoever registered it in
 * this program.
 *
 * Errors: ENOENT, nothing of the device's is there, or nothing that is mapped.
 */
int pinmap_translate(const struct pinmap_device *device,
                     const void *address,
                     uint64_t *device_address);

/**
 * Has the device see what the CPU wrote to these bytes. Needed only if the device lacks
 * PINMAP_DEVICE_INFO_COHERENT; otherwise this does nothing.
 *
 * Errors: EINVAL, the memory has no such bytes; ENODEV, the device is gone.
 */
int pinmap_sync_for_device(const struct pinmap_memory *memory,
                           size_t offset,
                           size_t length);

/**
 * Has the CPU see what the device wrote to these bytes: see pinmap_sync_for_device().
 *
 * Errors: as for pinmap_sync_for_device().
 */
int pinmap_sync_for_cpu(const struct pinmap_memory *memory,
                        size_t offset,
                        size_t length);

/**
 * Takes memory away from the device, or frees it, when the work in flight that names it is done.
 * NULL is none. The memory is gone even if this fails, but for EBUSY and EDEADLK.
 *
 * Errors: EBUSY, there are mappings of it (pinmap_map()), or the device does not end the work that
 * names it, and nothing was done; EDEADLK, this is a host function, and there is work in flight
 * that names it, and nothing was done; EIO, the IOMMU or the device failed: the device is cut off
 * from all memory, and will soon be gone.
 */
int pinmap_release(struct pinmap_memory *memory);

/**
 * Registers memory of this program: `length` bytes at `address`. The device can reach it until it
 * is released. Without options (NULL), the device may read and write it, and it must be whole
 * pages.
 *
 * The memory must not be given back, with free() for instance, before it is released. If it leaves
 * the address space before that, by munmap() for instance, the device cannot reach it any more,
 * and there is an event PINMAP_EVENT_TYPE_STALE.
 *
 * Flags: PINMAP_READ_ONLY, PINMAP_ROUND_OUTWARDS, PINMAP_PORTABLE, PINMAP_SAME_ADDRESS,
 * PINMAP_AT_ADDRESS.
 *
 * Errors: EINVAL, the memory is not whole pages, or empty; EFAULT, not all of it is memory that
 * can be pinned; EEXIST, a part of it is registered already, or something else has the device
 * address; ENOMEM, the user may not lock so much; EBUSY, another program owns the device; ENOSPC,
 * the device can have no such address; ENODEV, the device is gone.
 */
struct pinmap_memory *pinmap_register(const struct pinmap_device *device,
                                      void *address,
                                      size_t length,
                                      const struct pinmap_memory_options *memory_options);

/**
 * Registers whole pages of a file that is open as `fd`: a memfd, or one of tmpfs or hugetlbfs. The
 * device and all who map the file share them. The memory has no address in this program, and is no
 * operand of a stream.
 *
 * Flags: PINMAP_READ_ONLY, PINMAP_AT_ADDRESS.
 *
 * Errors: EINVAL, that is no such file, or not whole pages of it; otherwise as for
 * pinmap_register().
 */
struct pinmap_memory *pinmap_register_file(const struct pinmap_device *device,
                                           int fd,
                                           uint64_t offset,
                                           size_t length,
                                           const struct pinmap_memory_options *memory_options);

/**
 * Allocates host memory of the driver's, which is zeroed, pinned and mapped in this program and in
 * the device.
 *
 * Flags: PINMAP_WRITE_COMBINED, PINMAP_ON_NODE, PINMAP_PORTABLE.
 *
 * Errors: EINVAL, the length is 0; ENOMEM, out of memory, or more than the user may lock; EBUSY,
 * another program owns the device; ENODEV, it is gone.
 */
struct pinmap_memory *pinmap_alloc(const struct pinmap_device *device,
                                   size_t length,
                                   const struct pinmap_memory_options *memory_options);

/**
 * Allocates memory of the device's own, which is zeroed. The CPU reaches it by its address,
 * write-combined: it is slow to read. When the device is gone, an access raises SIGBUS.
 *
 * Errors: EOPNOTSUPP, the device has none; ENOSPC, it has too little; otherwise as for
 * pinmap_alloc().
 */
struct pinmap_memory *pinmap_alloc_vram(const struct pinmap_device *device,
                                        size_t length);

/**
 * Allocates managed memory: ordinary memory of the program, that the device reaches at the same
 * address. Its pages move to where they are used.
 *
 * Errors: EOPNOTSUPP, the device cannot have managed memory; otherwise as for pinmap_alloc().
 */
struct pinmap_memory *pinmap_alloc_managed(const struct pinmap_device *device,
                                           size_t length);

/**
 * Has memory of this program managed, where it is: `length` bytes at `address`, and the rest of
 * the pages around them. It may be unmapped and mapped anew; what is there then is managed.
 *
 * What lies in memory that is managed already, stays a part of that.
 *
 * Errors: EOPNOTSUPP, the device cannot have managed memory; EEXIST, it overlaps with managed
 * memory and does not lie in it; EINVAL, it is empty; ENODEV, the device is gone.
 */
struct pinmap_memory *pinmap_manage(const struct pinmap_device *device,
                                    void *address,
                                    size_t length);

/**
 * Imports the dma-buf that is open as `fd`, which this driver must have exported: for this or for
 * another device. The file descriptor stays the caller's.
 *
 * Errors: EINVAL, that is no dma-buf of this driver's; EACCES, it was exported for reading only;
 * otherwise as for pinmap_alloc().
 */
struct pinmap_memory *pinmap_import(const struct pinmap_device *device,
                                    int fd);

/**
 * Exports memory of the driver's, or a registered file, as a dma-buf. Returns its file descriptor,
 * which the caller closes; -1 with an error. Flags: PINMAP_READ_ONLY.
 *
 * Errors: EOPNOTSUPP, this kind of memory cannot be exported; ESTALE, it is stale; ENODEV, the
 * device is gone.
 */
int pinmap_export(const struct pinmap_memory *memory,
                  uint32_t flags);

/**
 * Makes a stream of a device. Without options (NULL), it has the lowest priority.
 *
 * Errors: EOPNOTSUPP, the device has no streams, or packets that this library does not know;
 * EINVAL, the options make no sense; ENOMEM, out of memory, or more than the user may lock;
 * ENOSPC, there are too many streams; ENODEV, the device is gone.
 */
struct pinmap_stream *pinmap_stream_create(const struct pinmap_device *device,
                                           const struct pinmap_stream_options *stream_options);

/**
 * Waits until everything that was submitted to a stream is done, and destroys it. NULL is none.
 * The stream is gone even if this fails; in a host function, where this does not wait, its work is
 * still done.
 *
 * Errors: as for pinmap_stream_synchronize(); EDEADLK, this is a host function.
 */
int pinmap_stream_destroy(struct pinmap_stream *stream);

/**
 * Returns the number by which events name the queue of a stream.
 */
uint64_t pinmap_stream_id(const struct pinmap_stream *stream);

/**
 * Submits a copy of `length` bytes between any two pieces of memory of the stream's device.
 * Returns when it is submitted, which waits only if the stream's ring is full. pinmap_release()
 * waits until it is done.
 *
 * Errors: EINVAL, the parts do not lie in the memory, overlap, or are another device's; EACCES,
 * the device may only read the target; EIO, the stream is known to have failed; EDEADLK, this is a
 * host function; ENODEV, the device is gone.
 */
int pinmap_stream_copy(const struct pinmap_stream *stream,
                       const struct pinmap_memory *to,
                       size_t to_offset,
                       const struct pinmap_memory *from,
                       size_t from_offset,
                       size_t length);

/**
 * Submits a fill: sets `count` elements of `width` bytes, which is 1, 2, 4 or 8, to the lowest
 * bytes of `value`.
 *
 * Errors: EINVAL, there is no such width, or the offset is not a multiple of it; otherwise as for
 * pinmap_stream_copy().
 */
int pinmap_stream_fill(const struct pinmap_stream *stream,
                       const struct pinmap_memory *to,
                       size_t offset,
                       uint64_t count,
                       uint64_t value,
                       uint32_t width);

/**
 * Submits a host function: a thread of this library calls it once with `argument` when everything
 * before is done, and what is submitted next waits for it. If the stream fails before that, it is
 * not called. It must not wait for the stream, and must return: an exception of C++ that leaves it
 * ends the process, and longjmp() out of it is undefined. Functions of this library that
 * might wait fail in it with EDEADLK; pinmap_release() only if there is work in flight that names
 * the memory.
 *
 * Errors: EINVAL, the function is NULL; EIO, the stream has failed; EDEADLK, this is a host
 * function.
 */
int pinmap_stream_call(const struct pinmap_stream *stream,
                       void (*function)(void*),
                       void *argument);

/**
 * Records an event in a stream: it is complete when everything that was submitted before is done.
 *
 * Errors: EINVAL, the event is another device's; ENOMEM, out of memory; EIO, the stream has
 * failed; EDEADLK, this is a host function.
 */
int pinmap_stream_record(const struct pinmap_stream *stream,
                         const struct pinmap_stream_event *event);

/**
 * Has the device wait for an event, as it was recorded last, before it does what is submitted
 * next. The event may be another stream's, also of another device. One that was never recorded is
 * complete.
 *
 * Errors: ENOMEM, out of memory; EIO, the stream has failed; EDEADLK, this is a host function.
 */
int pinmap_stream_wait_event(const struct pinmap_stream *stream,
                             const struct pinmap_stream_event *event);

/**
 * Returns 1 if everything that was submitted is done, 0 if not, -1 with an error.
 *
 * Errors: EIO, the stream has failed, and pinmap_last_error() says at what; ENODEV, the device is
 * gone.
 */
int pinmap_stream_query(const struct pinmap_stream *stream);

/**
 * Waits until everything that was submitted is done, for at most so many milliseconds; -1 is for
 * ever. The program then sees what the work wrote.
 *
 * Errors: ETIMEDOUT, the time was up; EIO, the stream has failed, and pinmap_last_error() says at
 * what; EDEADLK, this is a host function; ENODEV, the device is gone.
 */
int pinmap_stream_synchronize(const struct pinmap_stream *stream,
                              int timeout_ms);

/**
 * Gives up what a stream that has failed has not done, and has it work again.
 *
 * Errors: EDEADLK, this is a host function; ENOMEM, out of memory; ENODEV, the device is gone.
 */
int pinmap_stream_reset(const struct pinmap_stream *stream);

/**
 * Makes a completion: a file descriptor that poll() finds readable when everything that was
 * submitted so far is done, or the stream has failed.
 *
 * Errors: EMFILE, too many files are open; EIO, the stream has failed; EDEADLK, this is a host
 * function.
 */
struct pinmap_completion *pinmap_stream_completion(const struct pinmap_stream *stream);

/**
 * Returns the file descriptor of a completion, which stays the completion's.
 */
int pinmap_completion_fd(const struct pinmap_completion *completion);

/**
 * Returns 1 if the work before a completion is done, 0 if not, -1 with an error: see
 * pinmap_stream_query().
 */
int pinmap_completion_query(const struct pinmap_completion *completion);

/**
 * Destroys a completion. NULL is none.
 */
void pinmap_completion_destroy(struct pinmap_completion *completion);

/**
 * Makes an event for the streams of a device. It is complete until it is recorded.
 *
 * Errors: EOPNOTSUPP, the device has no streams; ENOMEM, out of memory; ENODEV, the device is
 * gone.
 */
struct pinmap_stream_event *pinmap_event_create(const struct pinmap_device *device);

/**
 * Destroys an event. Work that waits for it still does. NULL is none.
 */
void pinmap_event_destroy(struct pinmap_stream_event *event);

/**
 * Returns 1 if an event is complete, 0 if not, -1 with an error.
 *
 * Errors: EIO, its stream has failed; ENODEV, the device is gone.
 */
int pinmap_event_query(const struct pinmap_stream_event *event);

/**
 * Waits until an event is complete, for at most so many milliseconds; -1 is for ever.
 *
 * Errors: ETIMEDOUT, the time was up; otherwise as for pinmap_stream_synchronize().
 */
int pinmap_event_synchronize(const struct pinmap_stream_event *event,
                             int timeout_ms);

/**
 * Stores how many nanoseconds passed between two events, by the device's clock.
 *
 * Errors: EINVAL, one of them was never recorded, or they are of different devices; EAGAIN, one of
 * them is not complete.
 */
int pinmap_event_elapsed(const struct pinmap_stream_event *begin,
                         const struct pinmap_stream_event *end,
                         uint64_t *nanoseconds);

/**
 * Launches a kernel that adds 1.0 to each of `count` floats, in place.
 *
 * Errors of all kernels: as for pinmap_stream_copy(); EINVAL, an offset is not a multiple of the
 * element's size, or a part that is written overlaps with another.
 */
int pinmap_testgpu_increment_f32(const struct pinmap_stream *stream,
                                 const struct pinmap_memory *data,
                                 size_t offset,
                                 uint64_t count);

/**
 * Launches a kernel that computes y = a * x + y for each of `count` floats.
 *
 * Errors: as for pinmap_testgpu_increment_f32().
 */
int pinmap_testgpu_saxpy(const struct pinmap_stream *stream,
                         float a,
                         const struct pinmap_memory *x,
                         size_t x_offset,
                         const struct pinmap_memory *y,
                         size_t y_offset,
                         uint64_t count);

/**
 * Launches a kernel that sums `count` floats, and stores the sum as a float at `sum`.
 *
 * Errors: as for pinmap_testgpu_increment_f32().
 */
int pinmap_testgpu_sum_f32(const struct pinmap_stream *stream,
                           const struct pinmap_memory *data,
                           size_t data_offset,
                           uint64_t count,
                           const struct pinmap_memory *sum,
                           size_t sum_offset);

/**
 * Launches a kernel that counts how often each byte value occurs: 256 counts of 32 bits.
 *
 * Errors: as for pinmap_testgpu_increment_f32().
 */
int pinmap_testgpu_histogram_u8(const struct pinmap_stream *stream,
                                const struct pinmap_memory *data,
                                size_t data_offset,
                                size_t length,
                                const struct pinmap_memory *counts,
                                size_t counts_offset);

/**
 * Launches a kernel that computes the CRC-32C of bytes, and stores its 32 bits at `crc`.
 *
 * Errors: as for pinmap_testgpu_increment_f32().
 */
int pinmap_testgpu_crc32c(const struct pinmap_stream *stream,
                          const struct pinmap_memory *data,
                          size_t data_offset,
                          size_t length,
                          const struct pinmap_memory *crc,
                          size_t crc_offset);

/**
 * Launches a kernel that multiplies matrices of floats, stored row after row from the beginning of
 * the memory: C = A * B. A has `m` rows of `k` elements, B has `k` rows of `n`; each number is at
 * most 4,096.
 *
 * Errors: as for pinmap_testgpu_increment_f32().
 */
int pinmap_testgpu_matmul_f32(const struct pinmap_stream *stream,
                              const struct pinmap_memory *a,
                              const struct pinmap_memory *b,
                              const struct pinmap_memory *c,
                              uint32_t m,
                              uint32_t n,
                              uint32_t k);

/**
 * Launches a kernel that adds `value` to each of `count` numbers of 64 bits, so many times, each
 * time in an atomic access.
 *
 * Errors: as for pinmap_testgpu_increment_f32().
 */
int pinmap_testgpu_atomic_add_u64(const struct pinmap_stream *stream,
                                  const struct pinmap_memory *data,
                                  size_t offset,
                                  uint64_t count,
                                  uint64_t value,
                                  uint64_t times);

/**
 * Launches a kernel that does nothing for so many nanoseconds.
 *
 * Errors: as for pinmap_stream_record().
 */
int pinmap_testgpu_spin(const struct pinmap_stream *stream,
                        uint64_t nanoseconds);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PINMAP_H */
