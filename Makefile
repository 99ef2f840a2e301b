# SPDX-License-Identifier: GPL-2.0
# Builds the module for the kernel in KDIR, by default the running one. scripts/ builds and tests
# everything else, in a build root of its own.
KDIR ?= /lib/modules/$(shell uname -r)/build

modules modules_install clean rust-analyzer:
	$(MAKE) -C $(KDIR) M=$(CURDIR) $@

.PHONY: modules modules_install clean rust-analyzer
