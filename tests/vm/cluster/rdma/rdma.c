// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * One page for an accelerator and a network card: the test GPU writes it, the card sends it from
 * there, and the test GPU reads what arrives. Nothing is copied in between, and the pages stay the
 * same ones.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"
#include "verbs.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 16, LENGTH = PAGES * 4096 };

/* How a piece of memory is had. */
enum kind { ALLOCATED, WRITE_COMBINED, REGISTERED, MANAGED };

static const struct kind_row {
	const char *name;
	enum kind kind;
	long long pins; /* of the driver */
} kinds[] = {
	{ "allocated", ALLOCATED, 0 },
	{ "write_combined", WRITE_COMBINED, 0 },
	{ "registered", REGISTERED, PAGES },
	{ "managed", MANAGED, 0 },
};

/* Memory of the program's that the test GPU reaches at its address. */
struct piece {
	char *addr;
	uint64_t handle;
};

static struct piece piece_new(int fd, enum kind kind)
{
	struct piece piece = { 0 };
	struct pinmap_manage manage;

	if (kind == ALLOCATED || kind == WRITE_COMBINED) {
		struct gpu_memory memory = gpu_alloc(
			fd, kind == WRITE_COMBINED ? PINMAP_ALLOC_WRITE_COMBINED : 0, LENGTH);

		return (struct piece){ memory.addr, memory.args.out_handle };
	}
	/* Each begins a block of 2 MiB, so that no two lie in the same one. */
	piece.addr = address_space(LENGTH, HUGE);
	SYS(mmap(piece.addr, LENGTH, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0));
	if (kind == REGISTERED) {
		piece.handle =
			register_memory(fd, piece.addr, LENGTH, WRITE | IDENTITY).handle;
	} else {
		CHECK_OK(try_manage(fd, 0, piece.addr, LENGTH, &manage));
		piece.handle = manage.out_handle;
	}
	return piece;
}

static void piece_end(int fd, const struct piece *piece)
{
	release(fd, piece->handle);
	SYS(munmap(piece->addr, LENGTH));
}

/* The device writes each page, and reads all by a copy, which the CPU looks at. */
static void gpu_writes(struct gpu_queue *queue, const struct piece *piece, uint64_t first)
{
	gpu_fill_pages(queue, (uintptr_t)piece->addr, PAGES, first);
}

static void check_gpu_reads(struct gpu_queue *queue, const struct piece *piece, uint64_t first)
{
	struct gpu_memory seen = gpu_alloc(queue->fd, 0, LENGTH);

	gpu_copy(queue, (uintptr_t)seen.addr, (uintptr_t)piece->addr, LENGTH);
	check_pages(seen.addr, PAGES, first);
	release(queue->fd, seen.args.out_handle);
	SYS(munmap(seen.addr, LENGTH));
}

static struct pinmap_residency where(int fd, const void *addr)
{
	struct pinmap_residency args = { .size = sizeof(args),
					 .addr = (uintptr_t)addr,
					 .length = LENGTH };

	CHECK_OK(try_ioctl(fd, PINMAP_RESIDENCY, &args));
	return args;
}

/* All of it goes to the device; somebody may have pages in his hands for a moment. */
static bool try_move(int fd, const struct piece *piece)
{
	struct pinmap_prefetch args;

	CHECK_OK(try_prefetch(fd, 0, piece->addr, LENGTH, &args));
	return where(fd, piece->addr).out_device == LENGTH;
}
#define CHECK_MOVES(fd, piece) CHECK(WAIT_FOR(5000, try_move(fd, piece)))

static void check_way(const struct kind_row *row, enum ibv_wr_opcode opcode)
{
	uint64_t frames[2][PAGES], now[2][PAGES];
	struct rdma rdma = rdma_open();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	long long before = pins_held();
	struct piece from = piece_new(fd, row->kind), to = piece_new(fd, row->kind);
	struct ibv_mr *from_mr = reg_mr(&rdma, from.addr, LENGTH, RDMA_ACCESS),
		      *to_mr = reg_mr(&rdma, to.addr, LENGTH, RDMA_ACCESS);

	page_frames(from.addr, PAGES, frames[0]);
	page_frames(to.addr, PAGES, frames[1]);
	CHECK_PINS(before + 2 * (row->pins + PAGES));
	for (uint64_t seed = 0x1000; seed <= 0x3000; seed += 0x1000) {
		gpu_writes(&queue, &from, seed);
		rdma_move(&rdma, opcode, from_mr, to_mr);
		check_gpu_reads(&queue, &to, seed);
	}
	page_frames(from.addr, PAGES, now[0]);
	page_frames(to.addr, PAGES, now[1]);
	CHECK(frames[0][0] && frames[1][0] && !memcmp(frames, now, sizeof(now)));
	dereg_mr(from_mr);
	dereg_mr(to_mr);
	CHECK_PINS(before + 2 * row->pins);
	piece_end(fd, &from);
	piece_end(fd, &to);
	CHECK_PINS_SOON(before);
	queue_delete(&queue);
	rdma_close(&rdma);
}

TEST_EACH(send, kinds)
{
	check_way(row, IBV_WR_SEND);
}

TEST_EACH(write, kinds)
{
	check_way(row, IBV_WR_RDMA_WRITE);
}

TEST_EACH(read, kinds)
{
	check_way(row, IBV_WR_RDMA_READ);
}

/* The card has the pages for as long as it wants, whatever becomes of the device's part. */
TEST_EACH(released_before, kinds)
{
	struct rdma rdma = rdma_open();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	long long before = pins_held();
	struct piece from = piece_new(fd, row->kind), to = piece_new(fd, REGISTERED);
	struct ibv_mr *from_mr = reg_mr(&rdma, from.addr, LENGTH, RDMA_ACCESS),
		      *to_mr = reg_mr(&rdma, to.addr, LENGTH, RDMA_ACCESS);

	gpu_writes(&queue, &from, 0x4000);
	piece_end(fd, &from);
	CHECK_PINS_SOON(before + 3 * PAGES);
	rdma_move(&rdma, IBV_WR_RDMA_WRITE, from_mr, to_mr);
	check_gpu_reads(&queue, &to, 0x4000);
	dereg_mr(from_mr);
	dereg_mr(to_mr);
	piece_end(fd, &to);
	CHECK_PINS_SOON(before);
	queue_delete(&queue);
	rdma_close(&rdma);
}

/* When the device is taken away, what the network has of its memory stays as it is. */
TEST_EACH(unbound_before, kinds)
{
	const char *bdf = need_gpu();
	struct rdma rdma = rdma_open();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	long long before = pins_held();
	struct piece from = piece_new(fd, row->kind);
	struct ibv_mr *from_mr = reg_mr(&rdma, from.addr, LENGTH, RDMA_ACCESS), *to_mr;
	char *to = anon(PAGES);

	gpu_writes(&queue, &from, 0xa000);
	pci_unbind(bdf);
	to_mr = reg_mr(&rdma, to, LENGTH, RDMA_ACCESS);
	rdma_move(&rdma, IBV_WR_RDMA_WRITE, from_mr, to_mr);
	check_pages(to, PAGES, 0xa000);
	dereg_mr(from_mr);
	dereg_mr(to_mr);
	close(fd);
	CHECK_PINS_SOON(before);
	pci_bind(bdf);
	rdma_close(&rdma);
}

/* A program that is killed in the midst of transfers leaves nothing that is pinned. */
TEST_EACH(killed, kinds)
{
	long long before = pins_held();
	struct gate works = gate_new();
	pid_t child = SYS(fork());

	if (child == 0) {
		struct rdma rdma = rdma_open();
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);
		struct piece from = piece_new(fd, row->kind), to = piece_new(fd, row->kind);
		struct ibv_mr *from_mr = reg_mr(&rdma, from.addr, LENGTH, RDMA_ACCESS),
			      *to_mr = reg_mr(&rdma, to.addr, LENGTH, RDMA_ACCESS);

		for (uint64_t seed = 0xb000;; seed += 0x1000) {
			gpu_writes(&queue, &from, seed);
			rdma_move(&rdma, IBV_WR_RDMA_WRITE, from_mr, to_mr);
			check_gpu_reads(&queue, &to, seed);
			gate_open(&works);
		}
	}
	gate_pass(&works);
	gate_pass(&works);
	kill_now(child);
	CHECK_PINS_SOON(before);
}

/* Managed memory comes home to be pinned, and stays, while the device works on it there. */
TEST(managed_stays_home)
{
	struct rdma rdma = rdma_open();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct piece from = piece_new(fd, MANAGED), to = piece_new(fd, ALLOCATED);
	struct ibv_mr *to_mr = reg_mr(&rdma, to.addr, LENGTH, RDMA_ACCESS), *mr;
	struct pinmap_prefetch moved;

	gpu_writes(&queue, &from, 0x5000);
	CHECK_MOVES(fd, &from);
	mr = reg_mr(&rdma, from.addr, LENGTH, RDMA_ACCESS);
	CHECK_EQ(where(fd, from.addr).out_host, LENGTH);
	rdma_move(&rdma, IBV_WR_RDMA_WRITE, mr, to_mr);
	check_gpu_reads(&queue, &to, 0x5000);
	CHECK_OK(try_prefetch(fd, 0, from.addr, LENGTH, &moved));
	CHECK_EQ(moved.out_busy, LENGTH);
	gpu_writes(&queue, &from, 0x6000);
	CHECK_EQ(where(fd, from.addr).out_host, LENGTH);
	rdma_move(&rdma, IBV_WR_RDMA_WRITE, mr, to_mr);
	check_gpu_reads(&queue, &to, 0x6000);
	dereg_mr(mr);
	CHECK_MOVES(fd, &from);
	check_gpu_reads(&queue, &from, 0x6000);
	dereg_mr(to_mr);
	piece_end(fd, &from);
	piece_end(fd, &to);
	queue_delete(&queue);
	rdma_close(&rdma);
}

/*
 * A card that pages (on-demand paging) pins nothing: managed memory moves to the device between two
 * transfers, and comes home for each. (Soft-RoCE of Linux 7.3 does so for packets that are a page:
 * docs/clusters.md.)
 */
TEST(managed_on_demand)
{
	struct rdma rdma = rdma_open();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	long long before = pins_held();
	struct piece from = piece_new(fd, MANAGED), to = piece_new(fd, MANAGED);
	struct ibv_mr *from_mr, *to_mr;

	CHECK_MOVES(fd, &from);
	CHECK_OK(try_reg_mr(&rdma, from.addr, LENGTH, RDMA_ACCESS | IBV_ACCESS_ON_DEMAND,
			    &from_mr));
	to_mr = reg_mr(&rdma, to.addr, LENGTH, RDMA_ACCESS | IBV_ACCESS_ON_DEMAND);
	CHECK_PINS(before);
	CHECK_EQ(where(fd, from.addr).out_device, LENGTH);
	for (uint64_t seed = 0x7000; seed <= 0x9000; seed += 0x1000) {
		gpu_writes(&queue, &from, seed);
		CHECK_MOVES(fd, &from);
		CHECK_MOVES(fd, &to);
		rdma_move(&rdma, IBV_WR_RDMA_WRITE, from_mr, to_mr);
		CHECK_EQ(where(fd, from.addr).out_host, LENGTH);
		CHECK_EQ(where(fd, to.addr).out_host, LENGTH);
		check_gpu_reads(&queue, &to, seed);
		CHECK_PINS(before);
	}
	dereg_mr(from_mr);
	dereg_mr(to_mr);
	piece_end(fd, &from);
	piece_end(fd, &to);
	queue_delete(&queue);
	rdma_close(&rdma);
}

/* The memory of a device and its registers have no pages that ibv_reg_mr() could pin. */
TEST(refused_vram)
{
	struct rdma rdma = rdma_open();
	int fd = open_gpu();
	long long before = pins_held();
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, LENGTH);
	struct ibv_mr *mr;

	CHECK_ERR(EFAULT, try_reg_mr(&rdma, vram.addr, LENGTH, RDMA_ACCESS, &mr));
	CHECK_PINS(before);
	rdma_close(&rdma);
}

TEST(refused_doorbell)
{
	struct rdma rdma = rdma_open();
	struct gpu_queue queue = queue_new(open_gpu());
	struct ibv_mr *mr;

	CHECK_ERR(EFAULT,
		  try_reg_mr(&rdma, (void *)queue.doorbell, PAGE, RDMA_ACCESS, &mr));
	rdma_close(&rdma);
}

/* Soft-RoCE takes no dma-bufs; cards do, as docs/clusters.md tells. */
TEST(refused_dma_buf)
{
	struct rdma rdma = rdma_open();
	int fd = open_gpu(), dma_buf;
	struct piece piece = piece_new(fd, ALLOCATED);

	dma_buf = export_buffer(fd, piece.handle, PINMAP_EXPORT_WRITE);
	CHECK(!ibv_reg_dmabuf_mr(rdma.pd, 0, LENGTH, (uintptr_t)piece.addr, dma_buf, RDMA_ACCESS));
	CHECK_EQ(errno, EOPNOTSUPP);
	close(dma_buf);
	rdma_close(&rdma);
}

/*
 * RDMA's limit is that of the process, for which what the driver has pinned counts, too: memory
 * that both have needs room for two.
 */
TEST(limit_is_for_both)
{
	struct rdma rdma = rdma_open();
	int fd = open_gpu();
	/* With room for the device's page tables, and not for the memory a second time. */
	uint64_t limit = LENGTH + 12 * PAGE;
	struct registration memory;
	struct ibv_mr *mr;

	become_user(true);
	set_memlock(limit);
	memory = register_memory(fd, anon(PAGES), LENGTH, WRITE);
	CHECK_ERR(ENOMEM, try_reg_mr(&rdma, memory.addr, LENGTH, RDMA_ACCESS, &mr));
	release(fd, memory.handle);
	mr = reg_mr(&rdma, memory.addr, LENGTH, RDMA_ACCESS);
	memory = register_memory(fd, memory.addr, LENGTH, WRITE);
	dereg_mr(mr);
}
