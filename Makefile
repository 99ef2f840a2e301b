# SPDX-License-Identifier: GPL-2.0
#
# `make` builds the module for the kernel in KDIR, by default the running one; `make rust-analyzer`
# also tells editors about it. `make install` puts it in place, with what belongs to it: the ABI's
# header, the udev rule, the group, the command if cargo has built it, its manual pages and
# completions. `make uninstall` removes exactly that. DESTDIR and prefix are as everywhere. scripts/
# builds and tests everything else, in a build root of its own.
KDIR ?= /lib/modules/$(shell uname -r)/build
prefix ?= /usr/local
export KDIR prefix DESTDIR

modules modules_install clean:
	$(MAKE) -C $(KDIR) M=$(CURDIR) $@

rust-analyzer: modules
	$(MAKE) -C $(KDIR) M=$(CURDIR) $@
	@packaging/rust-project

install uninstall:
	@packaging/$@

.PHONY: modules modules_install clean rust-analyzer install uninstall
