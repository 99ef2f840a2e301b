// SPDX-License-Identifier: MIT OR Apache-2.0
/* Fork and copy-on-write. The device always sees the page of the process that registered it. */
#define _GNU_SOURCE
#include "edu.h"
#include "memory.h"
#include "process.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum who { NOBODY, PARENT, CHILD };

static const struct cow {
	const char *name;
	enum memory_kind kind;
	bool fork_first; /* before the registration */
	uint32_t flags;
	enum who writes;
} cows[] = {
	{ "fork_then_register", ANON, true, WRITE, NOBODY },
	{ "fork_then_register_parent_writes", ANON, true, WRITE, PARENT },
	{ "fork_then_register_child_writes", ANON, true, WRITE, CHILD },
	{ "fork_then_register_read_only_parent_writes", ANON, true, 0, PARENT },
	{ "fork_then_register_read_only_child_writes", ANON, true, 0, CHILD },
	{ "register_then_fork", ANON, false, WRITE, NOBODY },
	{ "register_then_fork_parent_writes", ANON, false, WRITE, PARENT },
	{ "register_then_fork_child_writes", ANON, false, WRITE, CHILD },
	{ "register_read_only_then_fork_parent_writes", ANON, false, 0, PARENT },
	{ "thp_fork_then_register", THP, true, WRITE, PARENT },
	{ "thp_register_then_fork", THP, false, WRITE, PARENT },
	{ "private_file_register_then_fork", MEMFD_PRIVATE, false, WRITE, PARENT },
	{ "private_file_read_only_parent_writes", MEMFD_PRIVATE, false, 0, PARENT },
};

struct family {
	struct gate written;
	struct gate end;
	pid_t pid;
};

/* A child that writes at a certain moment, and must see its own pages in the end. */
static struct family split(char *page, enum who writes)
{
	struct family family = { .written = gate_new(), .end = gate_new() };
	char before = page[1];

	family.pid = fork();
	if (family.pid)
		return family;
	if (writes == CHILD)
		memset(page, 0xcc, PAGE);
	gate_open(&family.written);
	gate_pass(&family.end);
	CHECK(bytes_are(page, PAGE, writes == CHILD ? 0xcc : before));
	_exit(0);
}

TEST_EACH(cow, cows)
{
	struct memory memory = memory_new(row->kind, PAGE);
	char *page = memory.addr, buffer[PAGE];
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration;
	struct family family;

	if (row->fork_first)
		family = split(page, row->writes);
	registration = register_memory(fd, page, memory.length, row->flags);
	if (!row->fork_first)
		family = split(page, row->writes);
	gate_pass(&family.written);
	if (row->writes == PARENT)
		memset(page, 0xdd, PAGE);

	edu_reads(&edu, registration.device_addr, PAGE);
	edu_store(&edu, buffer);
	CHECK(bytes_are(buffer, PAGE, row->writes == PARENT ? 0xdd : 0x11));
	if (row->flags & WRITE) {
		edu_load(&edu, 14);
		edu_writes(&edu, registration.device_addr, PAGE);
		CHECK(pattern_is(page, PAGE, 14));
	}
	gate_open(&family.end);
	join(family.pid);
	CHECK_NO_EVENT(fd);
	if (memory.alias)
		CHECK(bytes_are(memory.alias, PAGE, 0x11));
}
