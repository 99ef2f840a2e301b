// SPDX-License-Identifier: MIT OR Apache-2.0
/* GET_INFO and GET_RESERVED. */
#define _GNU_SOURCE
#include "device.h"
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

TEST(info, .smoke = true)
{
	struct pci_device device = need_device(0);
	struct pinmap_info info = get_info(open_device(0));
	unsigned int domain, bus, slot, function;
	char link[128], *group;
	ssize_t length;

	CHECK_EQ(sscanf(device.bdf, "%x:%x:%x.%x", &domain, &bus, &slot, &function), 4);
	CHECK_EQ(info.size, sizeof(info));
	CHECK_EQ(info.out_kind, PINMAP_KIND_FLAT);
	CHECK_EQ(info.out_pci_domain, domain);
	CHECK_EQ(info.out_pci_bus, bus);
	CHECK_EQ(info.out_pci_devfn, slot << 3 | function);
	CHECK_EQ(info.out_vendor, 0x1234);
	CHECK_EQ(info.out_device, 0x11e8);
	CHECK_EQ(info.out_subsystem_vendor,
		 file_number(pci_path(device.bdf, "subsystem_vendor"), -1));
	CHECK_EQ(info.out_subsystem_device,
		 file_number(pci_path(device.bdf, "subsystem_device"), -1));
	CHECK_EQ(info.out_class, file_number(pci_path(device.bdf, "class"), -1));
	length = SYS(readlink(pci_path(device.bdf, "iommu_group"), link, sizeof(link) - 1));
	link[length] = 0;
	group = strrchr(link, '/');
	CHECK(group);
	CHECK_EQ(info.out_iommu_group, atoi(group + 1));
	CHECK_EQ(info.out_nr_vectors, 1);
	CHECK_EQ(info.out_registrations, 0);
	CHECK(info.out_max_registrations >= 1024);
}

TEST(info_aperture)
{
	struct pinmap_info info = get_info(open_device(0));

	CHECK(info.out_page_sizes & PAGE);
	CHECK(info.out_aperture_start < info.out_aperture_last);
	CHECK_EQ(info.out_aperture_start & (PAGE - 1), 0);
	CHECK_EQ(info.out_aperture_last & (PAGE - 1), PAGE - 1);
	/* all addresses that a program can have memory at */
	CHECK(info.out_aperture_last >= (1ULL << 47) - 1);
	CHECK(info.out_flags & PINMAP_INFO_COHERENT);
}

TEST(info_bars)
{
	struct pinmap_info info = get_info(open_device(0));
	const struct pinmap_bar *bar = &info.out_bars[0];

	CHECK_EQ(bar->length, MIB);
	CHECK_EQ(bar->offset & (PAGE - 1), 0);
	CHECK_EQ(bar->flags, PINMAP_BAR_MMAP);
	CHECK_EQ(bar->hole_length, 0);
	CHECK_EQ(bar->hole_offset, 0);
	for (int i = 1; i < PINMAP_NR_BARS; i++) {
		CHECK_EQ(info.out_bars[i].length, 0);
		CHECK_EQ(info.out_bars[i].flags, 0);
	}
}

/* Every byte that the kernel returns is defined, whatever was in the caller's memory. */
TEST(padding_zero)
{
	struct pinmap_register args;
	struct pinmap_event event;
	struct pinmap_info info;
	char *page = anon(1);
	int fd = open_device(0);

	CHECK_OK(try_get_info(fd, &info)); /* filled with junk before */
	CHECK_EQ(info.__reserved, 0);
	CHECK_EQ(info.flags, 0);
	for (int i = 0; i < PINMAP_NR_BARS; i++)
		CHECK_EQ(info.out_bars[i].__reserved, 0);
	args = register_args(page, PAGE, 0);
	CHECK_OK(try_register_args(fd, &args));
	CHECK(bytes_are(&args.fail, sizeof(args.fail), 0));
	CHECK_EQ(args.__reserved, 0);
	CHECK_EQ(args.out_generation, 1);
	/* of a failure, too, every byte is defined */
	args = register_args(page, PAGE, 0);
	CHECK_ERR(EEXIST, try_register_args(fd, &args));
	CHECK_EQ(args.fail.__reserved, 0);
	CHECK_EQ(args.fail.needed, 0);
	CHECK_EQ(args.fail.allowed, 0);
	munmap(page, PAGE);
	event = next_event(fd);
	CHECK_EQ(event.access, 0);
}

TEST(info_while_owned)
{
	int first = open_device(0), second = open_device(0);
	struct edu edu;

	CHECK_EQ(get_info(first).out_flags & (PINMAP_INFO_OWNED | PINMAP_INFO_OWNER), 0);
	edu = edu_open(first);
	CHECK_EQ(get_info(first).out_flags & (PINMAP_INFO_OWNED | PINMAP_INFO_OWNER),
		 PINMAP_INFO_OWNED | PINMAP_INFO_OWNER);
	CHECK_EQ(get_info(second).out_flags & (PINMAP_INFO_OWNED | PINMAP_INFO_OWNER),
		 PINMAP_INFO_OWNED);
	edu_close(&edu);
	/* a context stays the owner until its file is closed */
	CHECK_EQ(get_info(second).out_flags & (PINMAP_INFO_OWNED | PINMAP_INFO_OWNER),
		 PINMAP_INFO_OWNED);
	close(first);
	CHECK_EQ(get_info(second).out_flags & (PINMAP_INFO_OWNED | PINMAP_INFO_OWNER), 0);
}

TEST(info_counts)
{
	char *memory = anon(4);
	int fd = open_device(0), other = open_device(0);
	struct registration first = register_memory(fd, memory, PAGE, 0);
	struct registration second = register_memory(fd, memory + PAGE, PAGE, NO_MAP);

	CHECK_EQ(get_info(fd).out_registrations, 2);
	CHECK_EQ(get_info(other).out_registrations, 0);
	release(fd, first.handle);
	CHECK_EQ(get_info(fd).out_registrations, 1);
	release(fd, second.handle);
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

/* Whether a range that sysfs names is reserved, as what it is there. */
static bool is_reserved(int fd, uint64_t start, uint64_t last, const char *type)
{
	struct pinmap_reserved reserved;

	for (uint32_t i = 0; !try_get_reserved(fd, i, &reserved); i++)
		if (reserved.out_start <= start && reserved.out_last >= last)
			return (reserved.out_kind == PINMAP_RESERVED_MSI) == !strcmp(type, "msi");
	return false;
}

TEST(reserved_ranges)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0);
	uint32_t count = get_info(fd).out_nr_reserved;
	unsigned long long start, last;
	struct pinmap_reserved reserved;
	unsigned int known = 0;
	uint64_t above = 0;
	char type[32];
	FILE *file;

	CHECK(count >= 1);
	for (uint32_t i = 0; i < count; i++) {
		CHECK_OK(try_get_reserved(fd, i, &reserved));
		CHECK(reserved.out_kind == PINMAP_RESERVED_MSI ||
		      reserved.out_kind == PINMAP_RESERVED_OTHER);
		CHECK(reserved.out_start <= reserved.out_last);
		CHECK(i == 0 || reserved.out_start > above);
		above = reserved.out_last;
	}
	file = fopen(pci_path(device.bdf, "iommu_group/reserved_regions"), "re");
	CHECK(file);
	while (fscanf(file, "%llx %llx %31s", &start, &last, type) == 3) {
		/* the kernel lets the others be mapped over */
		if (!strcmp(type, "direct-relaxable"))
			continue;
		CHECK(is_reserved(fd, start, last, type));
		known++;
	}
	fclose(file);
	CHECK(known >= 1);
#ifndef __aarch64__
	/* on a PC, interrupts are writes to these addresses */
	CHECK(is_reserved(fd, 0xfee00000, 0xfeefffff, "msi"));
#endif
	CHECK_ERR(ENOENT, try_get_reserved(fd, count, &reserved));
	CHECK_ERR(ENOENT, try_get_reserved(fd, UINT32_MAX, &reserved));
}
