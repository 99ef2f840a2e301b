/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Transfers by RDMA, between two queue pairs of one machine. */
#ifndef TESTS_RDMA_VERBS_H
#define TESTS_RDMA_VERBS_H

#include "gpu.h"

#include <infiniband/verbs.h>

enum {
	RDMA_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
};

/**
 * struct rdma - two reliable connections of the first device, to each other
 * @context: the device
 * @pd: the domain of both, and of memory
 * @cq: where both tell what is done
 * @near: the one that transfers
 * @far: the other one
 */
struct rdma {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *near, *far;
};

/* Makes both; skips the test if there is no device. */
struct rdma rdma_open(void);
void rdma_close(struct rdma *rdma);

/* Registers memory with the device: 0 or -errno. */
int try_reg_mr(const struct rdma *rdma, void *addr, size_t length, int access, struct ibv_mr **mr);
#define reg_mr(rdma, addr, length, access)					\
	({									\
		struct ibv_mr *mr_;						\
		CHECK_OK(try_reg_mr(rdma, addr, length, access, &mr_));		\
		mr_;								\
	})
void dereg_mr(struct ibv_mr *mr);

/* Has the device move all of @from to @to, and waits. IBV_WR_RDMA_READ is begun by the target. */
void rdma_move(struct rdma *rdma, enum ibv_wr_opcode opcode, struct ibv_mr *from,
	       struct ibv_mr *to);

#endif
