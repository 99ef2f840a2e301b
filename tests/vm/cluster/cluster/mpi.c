// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * UCX and Open MPI as Debian packages them, on memory of the driver's: the examples, and benchmarks
 * that know nothing of it.
 */
#define _GNU_SOURCE
#include "cluster.h"
#include "file.h"
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

#define EXAMPLES "/run/vm/cluster/"

/*
 * Ranks take turns between the machines, so all neighbours are on the other one. Soft-RoCE carries
 * what is sent, alone, and without a copy from 8 KiB on; TCP is there for connections to be made.
 */
#define MPI_AS_ROOT "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 200 "
#define MPIRUN                                                                        \
	MPI_AS_ROOT "mpirun --host node1:2,node2:2 --map-by node --mca pml ucx "                  \
	"-x UCX_TLS=rc_v,tcp,sm,self -x UCX_MAX_RNDV_RAILS=1 -x UCX_RNDV_THRESH=8192 "

#define PYTHON "-x PYTHONPATH=" EXAMPLES "python "

/* Bytes that the copy engines here have read; bytes that the network card has sent. */
static uint64_t copied(void)
{
	uint64_t bytes = 0;

	for (unsigned int engine = 0; engine < 2; engine++)
		bytes += gpu_register(GPU_ENGINE_HOST_READ + engine * GPU_ENGINE_STRIDE) +
			 gpu_register(GPU_ENGINE_VRAM_READ + engine * GPU_ENGINE_STRIDE);
	return bytes;
}

static uint64_t sent(void)
{
	return file_number("/sys/class/net/eth0/statistics/tx_bytes", 0);
}

static void check_right(const char *output)
{
	if (!strstr(output, "as one rank computes it"))
		FAIL("the result is wrong: %s", output);
}

/* Each of eight rows goes to the other machine as it is. */
TEST(mpi_in_place, .seconds = 100)
{
	uint64_t engines, network;
	char *output;

	need_second_node();
	engines = copied();
	network = sent();
	output = said(MPIRUN "-x UCX_PROTO_INFO=y -n 2 " EXAMPLES "mpi 2>&1");
	check_right(output);
	CHECK_EQ(number_behind(output, "sent: "), 2 * 8 * 16384);
	CHECK_EQ(number_behind(output, "copied to send and receive: "), 0);
	CHECK_EQ(copied() - engines, 0);
	CHECK(sent() - network > 8 * 16384);
	CHECK(strstr(output, "rendezvous zero-copy"));
	free(output);
}

/*
 * In VRAM the plate is too large for one device. Two have room for it, and copy each row that is
 * sent, and each that comes.
 */
TEST(mpi_staged, .seconds = 100)
{
	static const char plate[] = "mpi --staged --rows 768 --steps 2 2>&1";
	uint64_t engines;
	char *output;

	need_second_node();
	if (gpu_register(GPU_VRAM_SIZE) > 16 * MIB)
		SKIP("the plate is not too large for this device");
	output = said("! " MPI_AS_ROOT EXAMPLES "%s", plate);
	if (!strstr(output, "ENOSPC"))
		FAIL("one device takes the plate: %s", output);
	free(output);
	engines = copied();
	output = said(MPIRUN "-n 2 " EXAMPLES "%s", plate);
	check_right(output);
	CHECK_EQ(number_behind(output, "copied to send and receive: "), 2 * 4 * 16384);
	/* The result, too, is copied to be compared. */
	CHECK_EQ(copied() - engines, (4 + 384) * 16384);
	free(output);
}

/* The device here takes seconds for its rows: those that are exchanged are there before. */
TEST(mpi_four_ranks_overlap, .seconds = 150)
{
	uint64_t bandwidth;
	char *output;

	need_second_node();
	bandwidth = gpu_register(GPU_LINK_BANDWIDTH);
	gpu_set_register(GPU_LINK_BANDWIDTH, 20000000);
	output = said(MPIRUN "-n 4 " EXAMPLES "mpi --rows 256 --steps 2 2>&1");
	gpu_set_register(GPU_LINK_BANDWIDTH, bandwidth);
	check_right(output);
	diag("of 8: %g", number_behind(output, "ended while kernels ran: "));
	CHECK(number_behind(output, "ended while kernels ran: ") >= 2);
	free(output);
}

TEST(mpi_python, .seconds = 150)
{
	char *output;

	need_second_node();
	output = said(MPIRUN PYTHON "-n 4 python3 /src/python/examples/mpi.py 256 4096 4 2>&1");
	check_right(output);
	free(output);
}

/* UCX keeps what it has sent registered, so managed memory stays home, unless it is told not to. */
TEST(mpi_managed, .seconds = 150)
{
	static const char script[] = "python3 /src/tests/vm/cluster/cluster/managed.py 2>&1";
	char *output;

	need_second_node();
	output = said(MPIRUN PYTHON "-n 2 %s", script);
	CHECK(strstr(output, "busy: 1048576, moved: 0\nbusy: 1048576, moved: 0\n"));
	free(output);
	output = said(MPIRUN PYTHON "-x UCX_RCACHE_ENABLE=n -n 2 %s", script);
	CHECK(strstr(output, "busy: 0, moved: 1048576\nbusy: 0, moved: 1048576\n"));
	free(output);
}

/* The benchmark of mpi4py, with arrays that the accelerator reaches in place of NumPy's. */
TEST(mpi_pingpong, .seconds = 100)
{
	char *output;

	need_second_node();
	output = said(MPIRUN PYTHON "-n 2 python3 -c '"
			     "import numpy, pinmap, mpi4py.bench\n"
			     "from mpi4py import MPI\n"
			     "gpu = pinmap.find_accelerator()\n"
			     "numpy.empty = lambda *what: gpu.alloc(*what).numpy()\n"
			     "mpi4py.bench.pingpong(MPI.COMM_WORLD, "
			     "\"-m 65536 -n 1048576 --loop 5 --skip 1\".split())' 2>&1");
	CHECK(number_behind(output, "\n   1048576 ") > 0);
	free(output);
}

/* The buffers are from posix_memalign(), which the library that is loaded before has. */
TEST(ucx_perftest, .seconds = 100)
{
	char *output;

	need_second_node();
	output = said(MPIRUN "-x LD_PRELOAD=" EXAMPLES "preload.so -x UCX_ALLOC_PRIO=heap "
			     "-n 2 ucx_perftest -t tag_bw -s 262144 -n 20 -w 2 2>&1");
	diag("%s", output);
	CHECK(number_behind(output, "memory of the accelerator's driver: ") >= 262144);
	free(output);
}
