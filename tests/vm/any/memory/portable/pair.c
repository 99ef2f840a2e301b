// SPDX-License-Identifier: MIT OR Apache-2.0
#include "pair.h"

#include "file.h"
#include "pci.h"
#include "pins.h"

void need_two(void)
{
	need_device(1);
}

long long pinned_kib(void)
{
	return file_field("/proc/self/status", "VmPin:");
}

struct pair pair_open(void)
{
	struct pair pair;

	need_two();
	pair.fd = open_device(0);
	pair.other = open_device(1);
	pair.memory = anon(2 * PAGES);
	pair.pins = pins_held();
	return pair;
}

struct pair pair_new(void)
{
	struct pair pair = pair_open();

	pair.registration = register_memory(pair.fd, pair.memory, PAGES * PAGE, WRITE | PORTABLE);
	return pair;
}
