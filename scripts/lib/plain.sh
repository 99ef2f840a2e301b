# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# A plain Debian system in a virtual machine, as a user has one: debootstrap's, with systemd and
# Debian's kernel, and no file of this tree. Needs common.sh, root.sh, kernel.sh, build.sh,
# vm.sh and package.sh.

PLAIN_VERSION=6 # to be raised when something here changes what the system holds
PLAIN_PACKAGES=(systemd-sysv udev dbus kmod initramfs-tools pciutils zstd passwd login
	python3-numpy)
# The dependencies of pinmap-dkms, besides the kernel's headers and source.
PLAIN_DKMS_PACKAGES=(dkms bc bindgen bison flex libelf-dev libssl-dev openssl python3 rust-src
	rustc xz-utils)
# The kernel that such a user comes from: trixie's own, which the driver is not for.
PLAIN_OLDER=(linux-image-amd64/trixie linux-headers-amd64/trixie)

# plain_ensure [--dkms]: sets PLAIN, the root directory of a Debian system with the kernel KREL.
# With --dkms: one that can build modules, with PLAIN_OLDER instead. The packages of KREL are
# in its directory /var/cache/update then, so that no test needs the network.
plain_ensure() {
	local kind=${1:-} key packages="${PLAIN_PACKAGES[*]}"
	[ -z "$kind" ] || packages+=" ${PLAIN_DKMS_PACKAGES[*]} ${PLAIN_OLDER[*]}"
	key=$(echo "$PLAIN_VERSION $packages $KREL" | hash_of)
	PLAIN=$CACHE/roots/plain${kind#-}-$key
	[ -e "$PLAIN" ] || locked "${PLAIN##*/}" plain_make "$PLAIN" "$kind"
}

# What containers need, for an ordinary user too, besides a plain system.
CONTAINER_PACKAGES=(podman crun uidmap dbus-user-session libpam-systemd)

# container_ensure: sets SYSTEM, a plain Debian system with podman, and with `user`, who is a member
# of the group pinmap and has ids for containers. scripts/vm --systemd boots it.
container_ensure() {
	plain_ensure
	SYSTEM=$CACHE/roots/container-$(echo "${PLAIN##*-} ${CONTAINER_PACKAGES[*]}" | hash_of)
	[ -e "$SYSTEM" ] || {
		local ROOT=$PLAIN
		locked container root_extend "$SYSTEM" podman container_install
	}
}

container_install() {
	in_root apt-get -q update &&
		in_root apt-get -q install -y "${CONTAINER_PACKAGES[@]}" &&
		in_root sh -ec 'groupadd -g 900 pinmap
			useradd -u 1000 -G pinmap -s /bin/bash user
			useradd -u 1001 -s /bin/bash other
			grep -q ^user: /etc/subuid
			mkdir -p /var/lib/systemd/linger
			touch /var/lib/systemd/linger/user' &&
		in_root apt-get -q clean
}

plain_make() { # DIRECTORY [--dkms]
	[ ! -e "$1" ] || return 0
	need_space 8 "a plain Debian system"
	root_need_debootstrap
	local mirror ROOT=$1.partial
	mirror=$(root_mirror)
	rm -rf --one-file-system "$ROOT"
	mkdir -p "$ROOT"
	STEP_LOG=$CACHE/logs/${1##*/}.log
	step "$STEP_LOG" "unpacking a plain Debian trixie" debootstrap_progress \
		root_debootstrap "$mirror" ||
		die "cannot make a plain Debian: $(root_cause) (log: $STEP_LOG)"
	root_sources
	# Plain: with manual pages and documents.
	rm "$ROOT/etc/dpkg/dpkg.cfg.d/pinmap-lean"
	STEP_LOG=$CACHE/logs/${1##*/}-packages.log
	step "$STEP_LOG" "installing a kernel${2:+ and what builds modules}" \
		apt_progress plain_install "${2:-}" ||
		die "cannot install the packages of a plain Debian: $(root_cause) (log: $STEP_LOG)"
	mv "$ROOT" "$1"
}

# The kernels have names that only trixie-backports knows; everything else is trixie's: the compiler
# must be the one that built them.
plain_install() { # [--dkms]
	local install=(in_root apt-get -q install -y) version
	local kernel=("linux-image-$KREL" linux-base/trixie-backports)
	in_root apt-get -q update || return 1
	if [ -z "$1" ]; then
		"${install[@]}" "${PLAIN_PACKAGES[@]}" "${kernel[@]}" || return 1
	else
		version=$(in_root apt-cache policy "linux-headers-$KREL" |
			awk '$1 == "Candidate:" { print $2 }')
		mkdir -p "$ROOT/var/cache/update/partial"
		"${install[@]}" "${PLAIN_PACKAGES[@]}" "${PLAIN_DKMS_PACKAGES[@]}" \
			"${PLAIN_OLDER[@]}" "linux-source-$KERNEL_LINE=$version" &&
			"${install[@]}" --download-only \
				-o Dir::Cache::Archives=/var/cache/update \
				"${kernel[@]}" "linux-headers-$KREL" || return 1
		rm -rf "$ROOT"/var/cache/update/{partial,lock}
	fi
	# From here on nothing comes from the archive, and apt need not read what it has.
	find "$ROOT/var/lib/apt/lists" "$ROOT/var/cache/apt" -type f -delete
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
	in_root mke2fs -q -t ext4 -d "$root" -E root_owner=0:0 "$image" 6G ||
		die "a disk with a plain Debian cannot be made"
}

# plain_disk IMAGE: makes the disk of the plain system without tools; runs with the lock held
plain_disk() {
	[ ! -e "$1" ] || return 0
	mkdir -p "${1%/*}"
	plain_image "$PLAIN" "$1.partial"
	mv "$1.partial" "$1"
	keep_newest 2 "${1%/*}"
}

# plain_run IMAGE RELEASE BOOT DIRECTORY [OPTION...]: boots the system on the disk IMAGE with its
# kernel RELEASE, which is in BOOT with its initramfs, as TAP: the program `guest` in DIRECTORY runs
# as root, with the directory at /mnt. The disk stays as it is. To be run in a subshell. Options:
#   --append ARGUMENTS   for the kernel, and for `guest`, which reads /proc/cmdline
#   --keys DIRECTORY     the firmware is UEFI's: `firmware` there, with the variables in `keys`
plain_run() {
	local image=$1 release=$2 boot=$3 directory=$4 append='' keys='' run in_root_run accel rc=0
	local gpu='' machine=''
	shift 4
	while [ $# -gt 0 ]; do
		case $1 in
		--append) append=$2; shift 2 ;;
		--keys) keys=/cache${2#"$CACHE"}; shift 2 ;;
		esac
	done
	run=$(mktemp -d "$CACHE/runs/XXXXXXXX")
	in_root_run=/cache/runs/${run##*/}
	trap 'kill $gpu $machine 2>/dev/null; rm -rf "$run"; exit 143' TERM
	accel=$(accelerator)
	in_root mke2fs -q -t ext4 -d "/cache${directory#"$CACHE"}" "$in_root_run/packages" 256M ||
		die "a disk with the packages cannot be made"
	in_root --exec "/cache${DEVICES#"$CACHE"}/testgpu" --socket "$in_root_run/testgpu" \
		>"$run/gpu" 2>&1 </dev/null &
	gpu=$!
	until [ -S "$run/testgpu" ]; do
		kill -0 "$gpu" 2>/dev/null || { cat "$run/gpu" >&2; die "the test GPU has ended"; }
		sleep 0.05
	done
	local line="root=/dev/vda rw console=ttyS0 quiet no_timer_check tsc=reliable panic=-1"
	line+=" systemd.mount-extra=/dev/vdb:/mnt:ext4:ro systemd.run=/mnt/guest"
	line+=" systemd.run_success_action=poweroff systemd.run_failure_action=poweroff"
	local socket="{\"type\":\"unix\",\"path\":\"$in_root_run/testgpu\"}"
	local device="\"driver\":\"vfio-user-pci\",\"addr\":\"0x14\",\"rombar\":0"
	local kind=q35,accel=$accel,memory-backend=ram
	[ "$accel" = tcg ] || kind+=,kernel-irqchip=split
	local qemu=(
		qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none
		-machine "$kind" -smp 2 -m 1G
		-cpu "max$([ "$accel" != tcg ] || echo ,erms=off,fsrm=off,fsrs=off)"
		-object memory-backend-memfd,id=ram,size=1G,share=on -run-with exit-with-parent=on
		-device intel-iommu,intremap=on,caching-mode=on,aw-bits=48
		-device edu,dma_mask=0xffffffffffffffff,addr=0x10
		-device "{$device,\"socket\":$socket}"
		-kernel "/cache${boot#"$CACHE"}/vmlinuz-$release"
		-initrd "/cache${boot#"$CACHE"}/initrd.img-$release"
		-append "$line $append"
		-drive "file=/cache${image#"$CACHE"},format=raw,if=virtio,snapshot=on"
		-drive "file=$in_root_run/packages,format=raw,if=virtio,readonly=on"
		-serial "file:$in_root_run/console" -serial "file:$in_root_run/out"
	)
	[ -z "$keys" ] || qemu+=(
		-drive "if=pflash,format=raw,readonly=on,file=$keys/firmware"
		-drive "if=pflash,format=raw,file=$keys/keys,snapshot=on"
	)
	touch "$run/out"
	in_root --exec timeout 2400 "${qemu[@]}" >"$run/qemu" 2>&1 </dev/null &
	machine=$!
	wait "$machine" || rc=$?
	kill "$gpu" 2>/dev/null || :
	tr -d '\r' <"$run/out"
	if [ "$rc" -ne 0 ] || ! grep -q '^1\.\.' "$run/out"; then
		echo "# QEMU has ended with exit status $rc (124: after 2400 s); its last words:"
		tail -q -n 30 "$run/console" "$run/qemu" | tr -d '\r' | sed 's/^/# /'
		rc=1
	fi
	rm -rf "$run"
	return "$rc"
}
