// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "ring.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static size_t submissions_length(const struct ring *ring)
{
	return ring->params.sq_off.array + ring->params.sq_entries * 4;
}

static size_t completions_length(const struct ring *ring)
{
	return ring->params.cq_off.cqes + ring->params.cq_entries * sizeof(struct io_uring_cqe);
}

static void *ring_map(const struct ring *ring, size_t length, off_t offset)
{
	return SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, offset));
}

struct ring ring_new(void *buffer, size_t length)
{
	struct iovec part = { .iov_base = buffer, .iov_len = length };
	struct ring ring = { 0 };

	ring.fd = syscall(SYS_io_uring_setup, 1, &ring.params);
	if (ring.fd < 0 && errno == ENOSYS)
		SKIP("the kernel has no io_uring");
	SYS(ring.fd);
	if (buffer)
		SYS(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &part, 1));
	ring.submissions = ring_map(&ring, submissions_length(&ring), IORING_OFF_SQ_RING);
	ring.completions = ring_map(&ring, completions_length(&ring), IORING_OFF_CQ_RING);
	ring.entries = ring_map(&ring, ring.params.sq_entries * sizeof(*ring.entries),
				IORING_OFF_SQES);
	return ring;
}

void ring_close(struct ring *ring)
{
	SYS(munmap(ring->submissions, submissions_length(ring)));
	SYS(munmap(ring->completions, completions_length(ring)));
	SYS(munmap(ring->entries, ring->params.sq_entries * sizeof(*ring->entries)));
	SYS(close(ring->fd));
}

/* Submits an entry, and waits for so many completions. */
static void submit(struct ring *ring, struct io_uring_sqe entry, unsigned int completions)
{
	uint32_t *tail = (uint32_t *)(ring->submissions + ring->params.sq_off.tail);
	uint32_t index =
		*tail & *(uint32_t *)(ring->submissions + ring->params.sq_off.ring_mask);

	ring->entries[index] = entry;
	((uint32_t *)(ring->submissions + ring->params.sq_off.array))[index] = index;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	CHECK_EQ(SYS(syscall(SYS_io_uring_enter, ring->fd, 1, completions, IORING_ENTER_GETEVENTS,
			     NULL, 0)),
		 1);
}

/* The next completion, which stays where it is until something else is submitted. */
static const struct io_uring_cqe *completion(struct ring *ring)
{
	uint32_t *head = (uint32_t *)(ring->completions + ring->params.cq_off.head),
		 mask = *(uint32_t *)(ring->completions + ring->params.cq_off.ring_mask);
	uint32_t at = *head;

	__atomic_store_n(head, at + 1, __ATOMIC_RELEASE);
	return (struct io_uring_cqe *)(ring->completions + ring->params.cq_off.cqes) + (at & mask);
}

void ring_transfer(struct ring *ring, uint8_t opcode, int file, const void *addr,
		   uint32_t length)
{
	submit(ring,
	       (struct io_uring_sqe){
		       .opcode = opcode, .fd = file, .addr = (uintptr_t)addr, .len = length },
	       1);
	CHECK_EQ(completion(ring)->res, length);
}

void ring_read(struct ring *ring, int file, void *addr, uint32_t length)
{
	ring_transfer(ring, IORING_OP_READ_FIXED, file, addr, length);
}

void ring_write(struct ring *ring, int file, const void *addr, uint32_t length)
{
	ring_transfer(ring, IORING_OP_WRITE_FIXED, file, addr, length);
}

uint32_t ring_send_zc(struct ring *ring, int socket, const void *addr, uint32_t length)
{
	const struct io_uring_cqe *sent, *told;

	submit(ring,
	       (struct io_uring_sqe){
		       .opcode = IORING_OP_SEND_ZC,
		       .ioprio = IORING_RECVSEND_FIXED_BUF | IORING_SEND_ZC_REPORT_USAGE,
		       .fd = socket,
		       .addr = (uintptr_t)addr,
		       .len = length,
		       .msg_flags = MSG_WAITALL,
	       },
	       2);
	sent = completion(ring);
	CHECK_EQ(sent->res, length);
	CHECK(sent->flags & IORING_CQE_F_MORE);
	told = completion(ring);
	CHECK(told->flags & IORING_CQE_F_NOTIF);
	return told->res;
}
