#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs in the build root: makes the VM's initramfs.
# usage: make-image.sh IMAGE KERNEL-MODULES PROGRAMS PINMAP.KO IMPORTER.KO MORE-MODULES BUSYBOX
# (the last but one, and the three before it, may be empty)
set -euo pipefail

image=$1 modules=$2 programs=$3 module=$4 importer=$5 more=$6 busybox=$7
stage=$(mktemp -d)
cd "$stage"
mkdir -p bin sbin usr/bin usr/sbin usr/lib/pinmap etc dev proc sys run \
	 tmp root src out home/user lib/modules
chmod 1777 tmp
chown 1000:1000 home/user

cp "$busybox" bin/busybox
for applet in $(busybox --list); do
	[ "$applet" = busybox ] || ln -s busybox "bin/$applet"
done
cp /src/scripts/guest/init init
cp /src/scripts/guest/command usr/lib/pinmap/command
cat >etc/passwd <<END
root:x:0:0:root:/root:/bin/sh
user:x:1000:1000:user:/home/user:/bin/sh
END
cat >etc/group <<END
root:x:0:
pinmap:x:900:
user:x:1000:
END

if [ -n "$programs" ]; then
	cp -a "$programs/bin/." usr/bin
	cp -a "$programs/tests" usr/lib/pinmap
	[ ! -e "$programs/lib" ] || cp -a "$programs/lib" usr/lib/pinmap
	[ -z "$importer" ] || cp "$importer" usr/lib/pinmap/tests/importer.ko
fi
cp -a "$modules/lib/modules/." lib/modules
[ -z "$more" ] || cp -a "$more/lib/modules/." lib/modules
# modules that are no part of the kernel's image, and are needed from the beginning
[ ! -e "$modules/load" ] || cp "$modules/load" etc/modules
release=$(ls lib/modules)
# where distributions put it
[ ! -e "$modules/config" ] || install -D -m 644 "$modules/config" "boot/config-$release"
rm -f "lib/modules/$release"/{build,source}
if [ -n "$module" ]; then
	mkdir -p "lib/modules/$release/extra"
	llvm-strip --strip-debug -o "lib/modules/$release/extra/pinmap.ko" "$module"
fi
[ -z "$module$more" ] || depmod -b . "$release"
find . -mindepth 1 | cpio -o -H newc --quiet >"$image"
