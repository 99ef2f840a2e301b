/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The least work by which memory becomes reachable for a device: the calls that nobody gets around,
 * and the time of each.
 */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define BENCH_FLOOR_NODE "bench-floor"

/**
 * struct bench_floor - pins, maps, unmaps and unpins a range, mapped at its own address
 * @addr: where it begins
 * @length: bytes; whole pages
 * @out_runs: runs of neighbouring page frames
 * @out_pin_ns: pin_user_pages_fast(), for writing and for long
 * @out_map_ns: one iommu_map_sg() of the runs
 * @out_unmap_ns: one iommu_unmap()
 * @out_unpin_ns: unpin_user_pages()
 */
struct bench_floor {
	__u64 addr;
	__u64 length;
	__u64 out_runs;
	__u64 out_pin_ns;
	__u64 out_map_ns;
	__u64 out_unmap_ns;
	__u64 out_unpin_ns;
};

/* Bytes that BENCH_FLOOR_MOVE takes at most. */
#define BENCH_FLOOR_MOVE_MOST (128 << 20)

/* BENCH_FLOOR_MOVE moves there, back, or both, one after the other. */
#define BENCH_FLOOR_THERE (1 << 0)
#define BENCH_FLOOR_BACK (1 << 1)
/* The CPU copies each small page to a buffer, or from one. */
#define BENCH_FLOOR_COPY (1 << 2)

/**
 * struct bench_floor_move - moves anonymous memory to a device that is none, and back, without its
 *                           contents
 * @addr: where it begins
 * @length: bytes; whole pages
 * @flags: BENCH_FLOOR_THERE, BENCH_FLOOR_BACK, BENCH_FLOOR_COPY. A page that the CPU touches comes
 *         back by itself, and is copied if it was when it went there.
 * @out_moved: bytes that went there
 * @out_there_ns: the way there
 * @out_back_ns: the way back, with taking new pages
 */
struct bench_floor_move {
	__u64 addr;
	__u64 length;
	__u64 flags;
	__u64 out_moved;
	__u64 out_there_ns;
	__u64 out_back_ns;
};

/**
 * struct bench_floor_fault - reads the page table of 2 MiB, as for a device that has faulted there
 * @addr: where they begin
 * @made: bytes at their beginning that are faulted in for writing before; whole pages
 * @out_present: pages that the page table has
 * @out_ns: hmm_range_fault() of what is made, and of all, with taking the mmap lock; and one
 *          iommu_map() or iommu_map_sg() of the pages
 */
struct bench_floor_fault {
	__u64 addr;
	__u64 made;
	__u64 out_present;
	__u64 out_ns;
};

#define BENCH_FLOOR_RUN _IOWR('B', 0, struct bench_floor)
#define BENCH_FLOOR_MOVE _IOWR('B', 1, struct bench_floor_move)
#define BENCH_FLOOR_FAULT _IOWR('B', 2, struct bench_floor_fault)

#endif
