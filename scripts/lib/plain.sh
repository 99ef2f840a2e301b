# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# A plain Debian system in a virtual machine, as a user has one: debootstrap's, with systemd and
# Debian's kernel, and no file of this tree. Needs common.sh, root.sh, kernel.sh, build.sh,
# vm.sh and package.sh.

PLAIN_VERSION=2 # to be raised when something here changes what the system holds
PLAIN_PACKAGES=(systemd-sysv udev dbus kmod initramfs-tools pciutils zstd passwd login
	python3-numpy)
# What pinmap-dkms needs, besides the kernel's headers and source: its dependencies.
PLAIN_DKMS_PACKAGES=(dkms bc bindgen bison flex libelf-dev libssl-dev openssl rust-src rustc
	xz-utils)

# plain_ensure [OLDER]: sets PLAIN, the root directory of a Debian trixie with the kernel KREL from
# trixie-backports. With OLDER, another release: one with that kernel alone and what builds modules
# for it, before it is updated.
plain_ensure() {
	local key
	key=$(echo "$PLAIN_VERSION ${PLAIN_PACKAGES[*]} ${PLAIN_DKMS_PACKAGES[*]} $KREL ${1:-}" |
		hash_of)
	PLAIN=$CACHE/roots/plain-$key
	[ -e "$PLAIN" ] || locked plain plain_make "${1:-}"
}

plain_make() { # OLDER
	[ ! -e "$PLAIN" ] || return 0
	need_space 8 "a plain Debian system"
	root_need_debootstrap
	local mirror ROOT=$PLAIN.partial
	mirror=$(root_mirror)
	rm -rf --one-file-system "$ROOT"
	mkdir -p "$ROOT"
	STEP_LOG=$CACHE/logs/plain.log
	step "$STEP_LOG" "unpacking a plain Debian" debootstrap_progress \
		root_debootstrap trixie "$mirror" ||
		die "cannot make a plain Debian: $(root_cause) (log: $STEP_LOG)"
	root_sources trixie trixie-updates trixie-backports
	# Plain: with manual pages and documents.
	rm "$ROOT/etc/dpkg/dpkg.cfg.d/pinmap-lean"
	STEP_LOG=$CACHE/logs/plain-packages.log
	step "$STEP_LOG" "installing its kernel${1:+ and what builds modules for it}" apt_progress \
		plain_install "$1" ||
		die "cannot install the packages of a plain Debian: $(root_cause) (log: $STEP_LOG)"
	mv "$ROOT" "$PLAIN"
}

# The kernels have names that only trixie-backports knows; everything else is trixie's: the compiler
# must be the one that built them.
plain_install() { # OLDER
	local packages=("${PLAIN_PACKAGES[@]}" "linux-image-${1:-$KREL}")
	packages+=(linux-base/trixie-backports)
	[ -z "$1" ] || packages+=("${PLAIN_DKMS_PACKAGES[@]}" "linux-headers-$1"
		"linux-source-$(cut -d. -f1-2 <<<"$1")")
	in_root apt-get -q update &&
		in_root apt-get -q install -y "${packages[@]}" &&
		in_root apt-get -q clean
}

# plain_image ROOT IMAGE: makes a disk of a root directory, as it is now
plain_image() {
	local root=/cache${1#"$CACHE"} image=/cache${2#"$CACHE"}
	# Where this host's directories were put for a command; and what belongs to the host.
	rmdir "$1"/{src,cache,out,linux} 2>/dev/null || :
	rm -f "$1"/etc/host-certificates.crt
	: >"$1/etc/resolv.conf"
	echo plain >"$1/etc/hostname"
	printf '/dev/vda / ext4 defaults 0 1\n' >"$1/etc/fstab"
	rm -f "$2"
	in_root mke2fs -q -t ext4 -d "$root" -E root_owner=0:0 "$image" 5G
}

# plain_run IMAGE RELEASE DIRECTORY [OPTION...]: boots the system on the disk IMAGE with its kernel
# RELEASE, as TAP: the program `guest` in DIRECTORY runs as root, with the directory at /mnt. The
# disk stays as it is. Options:
#   --append ARGUMENTS   for the kernel, and for `guest`, which reads /proc/cmdline
#   --keys FILE          the firmware is UEFI's, with these variables
plain_run() {
	local image=$1 release=$2 directory=$3 append='' keys='' run in_root_run accel rc=0
	shift 3
	while [ $# -gt 0 ]; do
		case $1 in
		--append) append=$2; shift 2 ;;
		--keys) keys=$2; shift 2 ;;
		esac
	done
	run=$(mktemp -d "$CACHE/runs/XXXXXXXX")
	in_root_run=/cache/runs/${run##*/}
	PLAIN_RUNS+=("$run")
	accel=$(accelerator)
	in_root mke2fs -q -t ext4 -d "/cache${directory#"$CACHE"}" "$in_root_run/packages" 256M ||
		die "a disk with the packages cannot be made"
	in_root --exec "/cache${TESTGPU#"$CACHE"}" --socket "$in_root_run/testgpu" \
		>"$run/gpu" 2>&1 </dev/null &
	PLAIN_PIDS+=($!)
	local i
	for ((i = 0; i < 1200; i++)); do
		[ ! -S "$run/testgpu" ] || break
		sleep 0.05
	done
	local line="root=/dev/vda rw console=ttyS0 quiet no_timer_check tsc=reliable panic=-1"
	line+=" systemd.mount-extra=/dev/vdb:/mnt:ext4:ro systemd.run=/mnt/guest"
	line+=" systemd.run_success_action=poweroff systemd.run_failure_action=poweroff"
	local socket="{\"type\":\"unix\",\"path\":\"$in_root_run/testgpu\"}"
	local gpu="\"driver\":\"vfio-user-pci\",\"addr\":\"0x14\",\"rombar\":0"
	local machine=q35,accel=$accel,memory-backend=ram
	[ "$accel" = tcg ] || machine+=,kernel-irqchip=split
	local qemu=(
		qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none
		-machine "$machine" -smp 2 -m 1G
		-cpu "max$([ "$accel" != tcg ] || echo ,erms=off,fsrm=off)"
		-object memory-backend-memfd,id=ram,size=1G,share=on -run-with exit-with-parent=on
		-device intel-iommu,intremap=on,caching-mode=on,aw-bits=48
		-device edu,dma_mask=0xffffffffffffffff,addr=0x10
		-device "{$gpu,\"socket\":$socket}"
		-kernel "/cache${PLAIN_BOOT#"$CACHE"}/vmlinuz-$release"
		-initrd "/cache${PLAIN_BOOT#"$CACHE"}/initrd.img-$release"
		-append "$line $append"
		-drive "file=/cache${image#"$CACHE"},format=raw,if=virtio,snapshot=on"
		-drive "file=$in_root_run/packages,format=raw,if=virtio,readonly=on"
		-serial "file:$in_root_run/console" -serial "file:$in_root_run/out"
	)
	[ -z "$keys" ] || qemu+=("${PLAIN_FIRMWARE[@]}"
		-drive "if=pflash,format=raw,file=/cache${keys#"$CACHE"},snapshot=on")
	touch "$run/out"
	in_root --exec timeout 900 "${qemu[@]}" >"$run/qemu" 2>&1 </dev/null &
	PLAIN_PIDS+=($!)
	wait $! || rc=$?
	tr -d '\r' <"$run/out"
	if [ "$rc" -ne 0 ] || ! grep -q '^1\.\.' "$run/out"; then
		tail -q -n 30 "$run/console" "$run/qemu" | tr -d '\r' | sed 's/^/# /'
		return 1
	fi
}
PLAIN_RUNS=() PLAIN_PIDS=()
plain_clean_up() {
	local pid
	for pid in "${PLAIN_PIDS[@]}"; do
		kill "$pid" 2>/dev/null || :
	done
	[ ${#PLAIN_RUNS[@]} -eq 0 ] || rm -rf "${PLAIN_RUNS[@]}"
}
at_exit plain_clean_up
