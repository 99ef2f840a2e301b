// SPDX-License-Identifier: MIT OR Apache-2.0
/* Programs as Debian packages them, between two machines. */
#define _GNU_SOURCE
#include "cluster.h"
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
 * All that both print.
 */
#define BOTH(waits, finds)                                                          \
	"timeout 120 " waits " >/tmp/waits 2>&1 & tries=100; "                      \
	"until " finds " >/tmp/finds 2>&1 || [ $((tries -= 1)) -eq 0 ]; do "        \
	"sleep 0.3; done; wait $!; waited=$?; cat /tmp/finds /tmp/waits; "          \
	"[ $tries -gt 0 ] && exit $waited"
#define WITH_NODE2(program) BOTH("ssh node2 " program, program " node2")

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

/* The accelerator here finds in the pages of a file what node 2 writes over the network. */
TEST(written_where_the_device_works, .seconds = 100)
{
	enum { LENGTH = 1 << 20 };
	int fd = open_gpu(), file;
	struct pinmap_register_fd registered;
	struct gpu_memory seen;
	struct gpu_queue queue;
	size_t changed = 0;
	const char *view;

	need_second_node();
	file = SYS(open(FILE_NAME, O_RDWR | O_CREAT | O_TRUNC, 0600));
	SYS(ftruncate(file, LENGTH));
	view = SYS(mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, file, 0));
	registered = register_fd(fd, file, 0, LENGTH, WRITE);
	queue = queue_new(fd);
	queue_push(&queue, GPU_FILL, registered.device_addr, LENGTH, 0x77);
	queue_finish(&queue);
	free(said("%s", BOTH("ib_write_bw -F -d rxe0 -s 65536 -n 20 --mmap=" FILE_NAME,
			     "ssh node2 ib_write_bw -F -d rxe0 -s 65536 -n 20 node1")));
	seen = gpu_alloc(fd, 0, LENGTH);
	queue_push(&queue, GPU_COPY, registered.device_addr, (uintptr_t)seen.addr, LENGTH);
	queue_finish(&queue);
	CHECK(!memcmp(seen.addr, view, LENGTH));
	for (size_t i = 0; i < LENGTH; i++)
		changed += seen.addr[i] != 0x77;
	diag("%zu bytes are changed", changed);
	CHECK(changed >= 60000);
	SYS(unlink(FILE_NAME));
}
