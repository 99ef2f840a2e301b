// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * TCP that sends from the page that the accelerator wrote (MSG_ZEROCOPY, io_uring's SEND_ZC), and
 * what the kernel says of it when the memory may be written again. It copies for the loopback
 * device, whose receiver could keep the page for ever, and not for a network card.
 */
#define _GNU_SOURCE
#include "cluster.h"
#include "gpu.h"
#include "memory.h"
#include "pins.h"
#include "ring.h"

#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAGES = 64, LENGTH = PAGES * 4096, PORT = 5000 };

static const struct row {
	const char *name;
	bool uring, network;
} rows[] = {
	{ "msg_zerocopy_loopback", false, false },
	{ "msg_zerocopy_network", false, true },
	{ "send_zc_loopback", true, false },
	{ "send_zc_network", true, true },
};

/* Where it runs, it ends after a while, so that the next one finds the port free. */
#define RECEIVE "timeout 30 /usr/lib/pinmap/tests/cluster --receive"

/* Takes one connection, and ends with 0 if what comes is what the device wrote. */
bool helper_main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	static uint64_t words[LENGTH / 8];
	int listener, connection, on = 1;

	if (argc != 2 || strcmp(argv[1], "--receive"))
		return false;
	listener = SYS(socket(AF_INET, SOCK_STREAM, 0));
	SYS(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	SYS(bind(listener, (struct sockaddr *)&address, sizeof(address)));
	SYS(listen(listener, 1));
	printf("ready\n");
	fflush(stdout);
	connection = SYS(accept(listener, NULL, NULL));
	CHECK_EQ(recv(connection, words, LENGTH, MSG_WAITALL), LENGTH);
	check_pages(words, PAGES, 0x1000);
	return true;
}

static int connect_to(const char *address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int connection = SYS(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));

	CHECK_EQ(inet_pton(AF_INET, address, &to.sin_addr), 1);
	SYS(connect(connection, (struct sockaddr *)&to, sizeof(to)));
	return connection;
}

/* Reads the next notice: how many sends it is about, and whether the kernel copied. */
static bool next_notice(int connection, uint32_t *sends, bool *copied)
{
	char control[128];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
	const struct sock_extended_err *notice;

	if (recvmsg(connection, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
		CHECK_EQ(errno, EAGAIN);
		return false;
	}
	CHECK(CMSG_FIRSTHDR(&message));
	notice = (const struct sock_extended_err *)CMSG_DATA(CMSG_FIRSTHDR(&message));
	CHECK_EQ(notice->ee_errno, 0);
	CHECK_EQ(notice->ee_origin, SO_EE_ORIGIN_ZEROCOPY);
	CHECK_EQ(notice->ee_info, *sends);
	*sends = notice->ee_data + 1;
	*copied |= notice->ee_code & SO_EE_CODE_ZEROCOPY_COPIED;
	return true;
}

/* Sends by send(), and waits until all sends are noticed; returns whether the kernel copied. */
static bool send_zerocopy(int connection, const char *memory)
{
	uint32_t sends = 0, noticed = 0;
	bool copied = false;
	int on = 1;

	SYS(setsockopt(connection, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)));
	for (size_t done = 0; done < LENGTH; sends++)
		done += SYS(send(connection, memory + done, LENGTH - done, MSG_ZEROCOPY));
	if (!WAIT_FOR(10000, noticed == sends ||
				     (next_notice(connection, &noticed, &copied) &&
				      noticed == sends)))
		FAIL("%u of %u sends are noticed", noticed, sends);
	return copied;
}

static bool send_by_ring(int connection, char *memory)
{
	struct ring ring = ring_new(memory, LENGTH);
	uint32_t said_of_it = ring_send_zc(&ring, connection, memory, LENGTH);

	ring_close(&ring);
	return said_of_it & IORING_NOTIF_USAGE_ZC_COPIED;
}

TEST_EACH(zero_copy, rows)
{
	char *memory = anon(PAGES), line[16];
	long long before = pins_held();
	struct registration registration;
	struct gpu_queue queue;
	int fd = open_gpu(), connection;
	FILE *receiver;
	bool copied;

	if (row->network)
		need_second_node();
	registration = register_memory(fd, memory, LENGTH, WRITE | IDENTITY);
	queue = queue_new(fd);
	gpu_fill_pages(&queue, (uintptr_t)memory, PAGES, 0x1000);
	receiver = popen(row->network ? "ssh node2 " RECEIVE : RECEIVE, "re");
	CHECK(receiver && fgets(line, sizeof(line), receiver) && !strcmp(line, "ready\n"));
	connection = connect_to(row->network ? "10.0.0.2" : "127.0.0.1");
	copied = row->uring ? send_by_ring(connection, memory) : send_zerocopy(connection, memory);
	CHECK_EQ(copied, !row->network);
	CHECK_EQ(pclose(receiver), 0);
	close(connection);
	release(fd, registration.handle);
	queue_delete(&queue);
	if (!WAIT_FOR(5000, pins_held() == before))
		CHECK_PINS(before);
}
