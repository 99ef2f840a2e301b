// SPDX-License-Identifier: MIT OR Apache-2.0
/* Programs as Debian packages them, between two machines. */
#define _GNU_SOURCE
#include "cluster.h"
#include "edu.h"
#include "gpu.h"
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_NAME "/dev/shm/pinmap-cluster"

/*
 * A program on one machine that waits for the other one's, which is begun again until it finds it.
 * All that both print. Both end after a while: where one dies, the other may wait for ever.
 */
#define FOR_A_WHILE "timeout 600 "
#define BOTH(waits, finds)                                                          \
	waits " >/tmp/waits 2>&1 & tries=100; "                                     \
	"until " finds " >/tmp/finds 2>&1 || [ $((tries -= 1)) -eq 0 ]; do "        \
	"sleep 0.3; done; wait $!; waited=$?; cat /tmp/finds /tmp/waits; "          \
	"[ $tries -gt 0 ] && exit $waited"
#define WITH_NODE2(program) BOTH("ssh node2 " FOR_A_WHILE program, FOR_A_WHILE program " node2")

static const struct {
	const char *name;
	const char *command;
	const char *text;
} programs[] = {
	{ "ib_write_bw", WITH_NODE2("ib_write_bw -F -d rxe0 -s 65536 -n 100"),
	  "\n 65536      100 " },
	{ "ib_send_lat", WITH_NODE2("ib_send_lat -F -d rxe0 -n 200"), "\n 2       200 " },
	{ "ibv_rc_pingpong", WITH_NODE2("ibv_rc_pingpong -d rxe0 -g 1 -n 200"), "200 iters in " },
};

TEST_EACH(between, programs, .seconds = 100)
{
	char *output;

	need_second_node();
	output = said("%s", row->command);
	diag("%s%g", row->text + strspn(row->text, "\n "), number_behind(output, row->text));
	CHECK(number_behind(output, row->text) > 0);
	free(output);
}

/* perftest fills the memory of both sides with random numbers, if it is not told what to send. */
static const uint32_t sent[] = { 0x5ca1ab1e, 0x0ddba115, 0x600df00d, 0x7e57ab1e };
#define SENT "0x5ca1ab1e,0x0ddba115,0x600df00d,0x7e57ab1e"

/* The accelerator here finds in the pages of a file what node 2 writes over the network. */
TEST(written_where_the_device_works, .seconds = 100)
{
	enum { LENGTH = 1 << 20, MESSAGE = 1 << 16 };
	int fd = open_gpu(), file;
	struct pinmap_register_fd registered;
	struct gpu_memory seen;
	struct gpu_queue queue;
	const char *view;

	need_second_node();
	file = SYS(open(FILE_NAME, O_RDWR | O_CREAT | O_TRUNC, 0600));
	SYS(ftruncate(file, LENGTH));
	view = SYS(mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, file, 0));
	registered = register_fd(fd, file, 0, LENGTH, WRITE);
	queue = queue_new(fd);
	gpu_fill(&queue, registered.device_addr, LENGTH, 0x77);
	free(said("%s", BOTH(FOR_A_WHILE "ib_write_bw -F -d rxe0 -s 65536 -n 20 --mmap=" FILE_NAME,
			     "ssh node2 'echo " SENT " >/tmp/sent; " FOR_A_WHILE
			     "ib_write_bw -F -d rxe0 -s 65536 -n 20 "
			     "--payload_file_path=/tmp/sent node1'")));
	seen = gpu_alloc(fd, 0, LENGTH);
	gpu_copy(&queue, (uintptr_t)seen.addr, registered.device_addr, LENGTH);
	CHECK(!memcmp(seen.addr, view, LENGTH));
	/* the first part of its memory is for what it sends, and the second for what comes */
	for (size_t at = 0; at < MESSAGE; at += sizeof(sent))
		if (memcmp(seen.addr + MESSAGE + at, sent, sizeof(sent)))
			FAIL("%zu bytes have come", at);
	CHECK(memcmp(seen.addr, sent, sizeof(sent)));
	CHECK(bytes_are(seen.addr + 2 * MESSAGE, LENGTH - 2 * MESSAGE, 0x77));
	SYS(unlink(FILE_NAME));
}
