// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * UCX and Open MPI as Debian packages them, on memory of the driver's: the examples, and benchmarks
 * that know nothing of it.
 */
#define _GNU_SOURCE
#include "cluster.h"
#include "file.h"
#include "gpu.h"

#include <stdio.h>
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

/* Bytes that the copy engines here have read. */
static uint64_t copied(void)
{
	uint64_t bytes = 0;

	for (unsigned int engine = 0; engine < 2; engine++)
		bytes += gpu_register(GPU_ENGINE_HOST_READ + engine * GPU_ENGINE_STRIDE) +
			 gpu_register(GPU_ENGINE_VRAM_READ + engine * GPU_ENGINE_STRIDE);
	return bytes;
}

/* A counter of soft-RoCE here, among which TCP is not. */
static uint64_t sent(const char *what)
{
	char path[96];

	snprintf(path, sizeof(path), "/sys/class/infiniband/rxe0/ports/1/hw_counters/%s", what);
	return file_number(path, 0);
}

/* Whether a line of a text has both of these words. */
static bool has_line(const char *text, const char *first, const char *second)
{
	while ((text = strstr(text, first))) {
		size_t rest = strcspn(text, "\n");

		if (memmem(text, rest, second, strlen(second)))
			return true;
		text += rest;
	}
	return false;
}

static void check_right(const char *output)
{
	if (!strstr(output, "as one rank computes it"))
		FAIL("the result is wrong: %s", output);
}

/* Each of eight rows goes to the other machine by RDMA, as it is. */
TEST(mpi_in_place, .seconds = 100)
{
	uint64_t engines, bytes, packets;
	char *output;

	need_second_node();
	engines = copied();
	bytes = sent("sent_bytes");
	packets = sent("sent_pkts");
	output = said(MPIRUN "-x UCX_PROTO_INFO=y -n 2 " EXAMPLES "mpi 2>&1");
	check_right(output);
	CHECK_EQ(number_behind(output, "sent: "), 2 * 8 * 16384);
	CHECK_EQ(number_behind(output, "copied to send and receive: "), 0);
	CHECK_EQ(copied() - engines, 0);
	CHECK(sent("sent_bytes") - bytes >= 8 * 16384);
	CHECK(sent("sent_pkts") - packets >= 8 * 4);
	CHECK(has_line(output, "rendezvous zero-copy", "rc_verbs/rxe0"));
	free(output);
}

/* A user's program is compiled in the machine, as docs/clusters.md tells. */
TEST(mpi_own_program, .seconds = 100)
{
	char *output;

	need_second_node();
	output = said("PKG_CONFIG_PATH=" EXAMPLES "lib/pkgconfig; export PKG_CONFIG_PATH; "
		      "mpicc -o /out/own-program /src/capi/examples/mpi.c "
		      "$(pkg-config --cflags --libs pinmap) -Wl,-rpath," EXAMPLES "lib 2>&1 && "
		      MPIRUN "-n 2 /out/own-program --rows 64 2>&1; status=$?; "
		      "rm -f /out/own-program; exit $status");
	check_right(output);
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
	static const char script[] = "python3 /src/tests/vm/cluster/cluster/managed.py";
	char *output;

	need_second_node();
	output = said(MPIRUN PYTHON "-n 2 %s 2>&1", script);
	CHECK(strstr(output, "busy, moved: [(1048576, 0), (1048576, 0)]\n"));
	free(output);
	output = said(MPIRUN PYTHON "-x UCX_RCACHE_ENABLE=n -n 2 %s --until-moved 2>&1", script);
	CHECK(strstr(output, "busy, moved: [(0, 1048576), (0, 1048576)]\n"));
	free(output);
}

/* The benchmark of mpi4py, with arrays that the accelerator reaches in place of NumPy's. */
TEST(mpi_pingpong, .seconds = 100)
{
	char *output;

	need_second_node();
	output = said(MPIRUN PYTHON
		      "-n 2 python3 /src/tests/vm/cluster/cluster/pingpong.py 2>&1");
	CHECK(number_behind(output, "\n   1048576 ") > 0);
	/* five lengths, six times, there and back */
	CHECK(strstr(output, "messages in the accelerators' memory: [60, 60]\n"));
	free(output);
}

/*
 * The buffers are from posix_memalign(), which the library that is loaded before has, and which
 * says what it gave. UCX allocates other memory there, too, but none as long as a message.
 */
TEST(ucx_perftest, .seconds = 100)
{
	static const char words[] = "memory of the accelerator's driver: ";
	char *output, *at, *end;

	need_second_node();
	output = said(MPIRUN "-x LD_PRELOAD=" EXAMPLES "preload.so -x UCX_ALLOC_PRIO=heap "
			     "-n 2 ucx_perftest -t tag_bw -s 266240 -n 20 -w 2 2>&1");
	diag("%s", output);
	at = output;
	for (int rank = 0; rank < 2; rank++) {
		unsigned int buffers = 0;

		at = strstr(at, words);
		CHECK(at);
		end = strchr(at, '\n');
		CHECK(end);
		for (; at < end; at++)
			buffers += !strncmp(at, " 266240", 7);
		/* what it sends, and what it receives */
		CHECK_EQ(buffers, 2);
	}
	free(output);
}
