# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The virtual machine: its initramfs, its disk, its QEMU. Needs common.sh, root.sh, kernel.sh and
# build.sh.

# complaints: the words by which a kernel says that something is wrong with it
complaints() {
	sed -n 's/^"\(.*\)",$/\1/p' "$TREE/tests/runner/complaints.h"
	echo panic
}

# image_build [MODULE]: sets IMAGE, an initramfs with busybox, PROGRAMS, the IMPORTER for the tests
# and the modules; MORE_MODULES is a directory with more of the kernel's.
MORE_MODULES=
image_build() {
	local module=${1:-} content
	content=$({
		echo "$(root_key) ${KDIR##*/} ${PROGRAMS##*/} ${IMPORTER##*/} $module $MORE_MODULES"
		[ -z "$module" ] || sha256sum <"$module"
		cat "$TREE"/scripts/guest/* | sha256sum
		sha256sum <"$TREE/scripts/lib/make-image.sh"
	} | hash_of)
	IMAGE=$RESULTS/images/$content
	[ -e "$IMAGE" ] || locked "image-${BUILDS##*/}" image_make "$module"
	touch "$IMAGE"
}

image_make() {
	[ ! -e "$IMAGE" ] || return 0
	mkdir -p "$BUILDS"
	local in_cache=/cache/builds/${BUILDS##*/}/image module=${1:+/cache${1#"$CACHE"}}
	if [ -n "$1" ] && [[ $1 != "$CACHE"/* ]]; then
		cp "$1" "$BUILDS/image.ko"
		module=$in_cache.ko
	fi
	in_root bash /src/scripts/lib/make-image.sh "$in_cache" \
		"/cache/kernels/${KDIR##*/}/modules" "${PROGRAMS:+/cache${PROGRAMS#"$CACHE"}}" \
		"$module" \
		"${IMPORTER:+/cache${IMPORTER#"$CACHE"}}" \
		"${MORE_MODULES:+/cache${MORE_MODULES#"$CACHE"}}" \
		"${CROSS:+/usr/${CROSS%-}/busybox/usr}/bin/busybox" ||
		die "the VM's initramfs cannot be made"
	rm -f "$BUILDS/image.ko"
	keep "$BUILDS/image" "$IMAGE" 40
	rm "$BUILDS/image"
}

# disk_ensure: sets DISK, a small ext4 file system. No VM ever writes to it.
disk_ensure() {
	DISK=$CACHE/disk-64M-ext4
	[ -e "$DISK" ] || locked disk disk_make
}

disk_make() {
	[ ! -e "$DISK" ] || return 0
	truncate -s 64M "$DISK.partial"
	in_root mkfs.ext4 -q "/cache/${DISK##*/}.partial" || die "the VM's disk cannot be made"
	mv "$DISK.partial" "$DISK"
}

# accelerator: prints kvm where it works, else tcg. That /dev/kvm is there says little: on some
# hosts a guest hangs in its first instructions. So a kernel is booted, once per host boot; without
# a root file system it panics at once, which ends QEMU.
accelerator() {
	[[ $ARCH == x86_64 && -w /dev/kvm ]] || { echo tcg; return; }
	local verdict
	verdict=$CACHE/kvm-$({ cat /proc/sys/kernel/random/boot_id; uname -r; root_key; } | hash_of)
	[ -e "$verdict" ] || locked kvm accelerator_try "$verdict"
	cat "$verdict"
}

accelerator_try() { # VERDICT-FILE
	local log=$CACHE/logs/kvm.log result=tcg
	[ ! -e "$1" ] || return 0
	say "trying whether KVM works here (at most 10 s)"
	rm -f "$CACHE"/kvm-*
	in_root timeout -s KILL 10 qemu-system-x86_64 \
		-machine q35,accel=kvm,kernel-irqchip=split -cpu max -m 256M -nodefaults \
		-no-reboot \
		-display none -serial file:/cache/logs/kvm-console.log \
		-kernel "/cache${KERNEL_IMAGE#"$CACHE"}" \
		-append 'console=ttyS0 panic=-1' >"$log" 2>&1 </dev/null &&
		grep -q 'Kernel panic' "$CACHE/logs/kvm-console.log" && result=kvm
	[ "$result" = kvm ] || say "  it does not; using emulation"
	echo "$result" >"$1"
}
