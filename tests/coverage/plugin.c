// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plugin for QEMU's emulator: writes down which code of kernel modules the virtual machine
 * executes, in whichever thread.
 *
 * QEMU translates a block of instructions just before it executes it for the first time, so what is
 * translated is taken for executed. That costs next to nothing, and the kernel needs no help for
 * it. When QEMU ends, the file named by the argument out= has a line for each run of bytes: the
 * addresses of the first one and of the last one.
 *
 * QEMU documents the functions: docs/devel/tcg-plugins.rst.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of QEMU's interface that is used, in its version 7. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
					   void (*translated)(struct qemu_plugin_tb *, void *),
					   void *data);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*at_exit)(void *), void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 7;
EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv);

/* Where x86-64 has modules (Documentation/arch/x86/x86_64/mm.rst). */
#define FIRST 0xffffffffa0000000ull
#define LENGTH 0x5f000000ull

static unsigned char *executed;
static const char *out;

static void translated(struct qemu_plugin_tb *tb, void *data)
{
	uint64_t first = qemu_plugin_tb_vaddr(tb) - FIRST;
	struct qemu_plugin_insn *last =
		qemu_plugin_tb_get_insn(tb, qemu_plugin_tb_n_insns(tb) - 1);
	uint64_t end = qemu_plugin_insn_vaddr(last) + qemu_plugin_insn_size(last) - FIRST;

	(void)data;
	if (first < end && end <= LENGTH)
		memset(executed + first, 1, end - first);
}

static void finish(void *data)
{
	FILE *file = fopen(out, "we");
	const unsigned char *next, *end = executed + LENGTH;

	(void)data;
	if (!file) {
		perror(out);
		return;
	}
	for (next = executed; (next = memchr(next, 1, end - next));) {
		const unsigned char *first = next;

		next = memchr(first, 0, end - first);
		if (!next)
			next = end;
		fprintf(file, "%llx %llx\n", FIRST + (first - executed),
			FIRST + (next - executed) - 1);
	}
	if (fclose(file))
		perror(out);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	(void)info;
	if (argc != 1 || strncmp(argv[0], "out=", 4)) {
		fprintf(stderr, "coverage: the only argument is out=FILE\n");
		return -1;
	}
	out = strdup(argv[0] + 4);
	executed = calloc(LENGTH, 1);
	if (!out || !executed)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
	qemu_plugin_register_atexit_cb(id, finish, NULL);
	return 0;
}
