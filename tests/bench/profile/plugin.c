// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plugin for QEMU's emulator: writes down which code the virtual machine executes between two
 * marks.
 *
 * A mark is an instruction that does nothing, with a number that nobody else uses (mark() in
 * tests/bench/bench.h). Of all windows between two marks the one with the fewest instructions is
 * kept, since an interrupt only adds to them. When QEMU ends, the file named by the argument out=
 * has a line for each block of code in the window, in the order of execution: the address, and how
 * many instructions it has.
 *
 * One virtual processor only. QEMU documents the functions: docs/devel/tcg-plugins.rst.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mark.h"

/* The part of QEMU's interface that is used, in its version 7. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { QEMU_PLUGIN_CB_NO_REGS };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
					   void (*translated)(struct qemu_plugin_tb *, void *),
					   void *data);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb,
					  void (*executed)(unsigned int, void *), int flags,
					  void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
					    void (*executed)(unsigned int, void *), int flags,
					    void *data);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*at_exit)(void *), void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t length);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 7;
EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv);

struct block {
	uint64_t address;
	uint64_t instructions;
};

/* Blocks that were executed. More than MOST are too many for a list by function. */
enum { MOST = 1 << 22 };
struct window {
	struct block *blocks;
	size_t count;
	uint64_t instructions;
};

static struct window now, shortest;
static bool open, overflow;
static const char *out;

static void executed(unsigned int cpu, void *data)
{
	const struct block *block = data;

	(void)cpu;
	if (!open)
		return;
	if (now.count == MOST) {
		overflow = true;
		return;
	}
	now.blocks[now.count++] = *block;
	now.instructions += block->instructions;
}

static void begin(unsigned int cpu, void *data)
{
	(void)cpu;
	(void)data;
	now.count = 0;
	now.instructions = 0;
	overflow = false;
	open = true;
}

static void end(unsigned int cpu, void *data)
{
	(void)cpu;
	(void)data;
	if (open && !overflow && now.count &&
	    (!shortest.count || now.instructions < shortest.instructions)) {
		struct window before = shortest;

		shortest = now;
		now = before;
	}
	open = false;
}

static void translated(struct qemu_plugin_tb *tb, void *data)
{
	size_t count = qemu_plugin_tb_n_insns(tb);
	/* Lives as long as the block may be executed, so until the end. */
	struct block *block = malloc(sizeof(*block));

	(void)data;
	if (!block)
		abort();
	*block = (struct block){ qemu_plugin_tb_vaddr(tb), count };
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, QEMU_PLUGIN_CB_NO_REGS, block);
	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		unsigned char bytes[sizeof(mark_begin)];

		if (qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) != sizeof(bytes))
			continue;
		if (!memcmp(bytes, mark_begin, sizeof(bytes)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, begin, QEMU_PLUGIN_CB_NO_REGS,
							       NULL);
		else if (!memcmp(bytes, mark_end, sizeof(bytes)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, end, QEMU_PLUGIN_CB_NO_REGS,
							       NULL);
	}
}

static void finish(void *data)
{
	FILE *file = fopen(out, "we");

	(void)data;
	if (!file) {
		perror(out);
		return;
	}
	for (size_t i = 0; i < shortest.count; i++)
		fprintf(file, "%llx %llu\n", (unsigned long long)shortest.blocks[i].address,
			(unsigned long long)shortest.blocks[i].instructions);
	if (fclose(file))
		perror(out);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	(void)info;
	if (argc != 1 || strncmp(argv[0], "out=", 4)) {
		fprintf(stderr, "profile: the only argument is out=FILE\n");
		return -1;
	}
	out = strdup(argv[0] + 4);
	now.blocks = malloc(MOST * sizeof(struct block));
	shortest.blocks = malloc(MOST * sizeof(struct block));
	if (!out || !now.blocks || !shortest.blocks)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
	qemu_plugin_register_atexit_cb(id, finish, NULL);
	return 0;
}
