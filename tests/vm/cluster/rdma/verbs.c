// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "verbs.h"

enum { PORT = 1 };

/* The GID of RoCE version 2 by which the port has its IPv4 address: one that is mapped. */
static int find_gid(struct ibv_context *context, union ibv_gid *gid)
{
	for (int i = 0; !ibv_query_gid(context, PORT, i, gid); i++)
		if (gid->raw[10] == 0xff && gid->raw[11] == 0xff)
			return i;
	FAIL("the port has no IPv4 address");
}

static struct ibv_qp *qp_new(struct rdma *rdma)
{
	struct ibv_qp_init_attr init = {
		.send_cq = rdma->cq,
		.recv_cq = rdma->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = PORT,
				    .qp_access_flags = RDMA_ACCESS };
	struct ibv_qp *qp = ibv_create_qp(rdma->pd, &init);

	CHECK(qp);
	CHECK_EQ(ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       IBV_QP_ACCESS_FLAGS),
		 0);
	return qp;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *other, union ibv_gid gid, int index,
		       enum ibv_mtu mtu)
{
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = other->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = PORT,
			     .grh = { .dgid = gid, .sgid_index = index, .hop_limit = 1 } },
	};
	struct ibv_qp_attr send = { .qp_state = IBV_QPS_RTS,
				    .timeout = 18,
				    .retry_cnt = 7,
				    .rnr_retry = 7,
				    .max_rd_atomic = 1 };

	CHECK_EQ(ibv_modify_qp(qp, &receive,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER),
		 0);
	CHECK_EQ(ibv_modify_qp(qp, &send,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
}

struct rdma rdma_open(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct rdma rdma = { 0 };
	struct ibv_port_attr port;
	union ibv_gid gid;
	int index;

	if (!devices || !devices[0])
		SKIP("there is no RDMA device (scripts/vm --device cluster has one)");
	rdma.context = ibv_open_device(devices[0]);
	ibv_free_device_list(devices);
	CHECK(rdma.context);
	CHECK_EQ(ibv_query_port(rdma.context, PORT, &port), 0);
	index = find_gid(rdma.context, &gid);
	rdma.pd = ibv_alloc_pd(rdma.context);
	CHECK(rdma.pd);
	rdma.cq = ibv_create_cq(rdma.context, 16, NULL, NULL, 0);
	CHECK(rdma.cq);
	rdma.near = qp_new(&rdma);
	rdma.far = qp_new(&rdma);
	connect_to(rdma.near, rdma.far, gid, index, port.active_mtu);
	connect_to(rdma.far, rdma.near, gid, index, port.active_mtu);
	return rdma;
}

void rdma_close(struct rdma *rdma)
{
	CHECK_EQ(ibv_destroy_qp(rdma->near), 0);
	CHECK_EQ(ibv_destroy_qp(rdma->far), 0);
	CHECK_EQ(ibv_destroy_cq(rdma->cq), 0);
	CHECK_EQ(ibv_dealloc_pd(rdma->pd), 0);
	CHECK_EQ(ibv_close_device(rdma->context), 0);
}

int try_reg_mr(const struct rdma *rdma, void *addr, size_t length, int access, struct ibv_mr **mr)
{
	*mr = ibv_reg_mr(rdma->pd, addr, length, access);
	return *mr ? 0 : -errno;
}

void dereg_mr(struct ibv_mr *mr)
{
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

static bool is_done(struct rdma *rdma, unsigned int *left)
{
	struct ibv_wc done;

	while (*left && ibv_poll_cq(rdma->cq, 1, &done) == 1) {
		if (done.status != IBV_WC_SUCCESS)
			FAIL("the transfer ends: %s", ibv_wc_status_str(done.status));
		(*left)--;
	}
	return !*left;
}

void rdma_move(struct rdma *rdma, enum ibv_wr_opcode opcode, struct ibv_mr *from,
	       struct ibv_mr *to)
{
	struct ibv_mr *local = opcode == IBV_WR_RDMA_READ ? to : from,
		      *remote = opcode == IBV_WR_RDMA_READ ? from : to;
	struct ibv_sge ours = { .addr = (uintptr_t)local->addr,
				.length = local->length,
				.lkey = local->lkey },
		       theirs = { .addr = (uintptr_t)remote->addr,
				  .length = remote->length,
				  .lkey = remote->lkey };
	struct ibv_send_wr send = { .opcode = opcode,
				    .sg_list = &ours,
				    .num_sge = 1,
				    .send_flags = IBV_SEND_SIGNALED },
			   *bad_send;
	struct ibv_recv_wr receive = { .sg_list = &theirs, .num_sge = 1 }, *bad_receive;
	unsigned int left = 1;

	if (opcode == IBV_WR_SEND) {
		CHECK_EQ(ibv_post_recv(rdma->far, &receive, &bad_receive), 0);
		left = 2;
	} else {
		send.wr.rdma.remote_addr = (uintptr_t)remote->addr;
		send.wr.rdma.rkey = remote->rkey;
	}
	CHECK_EQ(ibv_post_send(rdma->near, &send, &bad_send), 0);
	if (!WAIT_FOR(20000, is_done(rdma, &left)))
		FAIL("the transfer does not end");
}
