# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The kernel `stock`: the unmodified image that Debian distributes. Needs common.sh, root.sh and
# kernel.sh.
#
# Debian builds its kernels with Rust, but linux-headers leaves out the compiled crates that a
# module in Rust is compiled against (`rust/*.rmeta`). The compiler's output depends on nothing but
# its version, the source and the configuration. So they are made again, from linux-source of the
# same version, with Debian's configuration and the very compilers that the image was built with.
# The image must export each symbol that they export: symbols of Rust contain a hash of their
# crate. packaging/dkms/rust-metadata does it. The kernels of trixie-backports are built with
# trixie's own tool chain, which the build root has.

# Modules that the VM needs and the image does not contain, each with its dependencies.
STOCK_MODULES=(9p 9pnet_virtio virtio_blk ext4 virtio-iommu vfio-pci vfio_iommu_type1 vgem)

stock_config() { # NAME: its value in the configuration of the image
	sed -nE "s/^CONFIG_$1=\"?([^\"]*)\"?\$/\1/p" \
		"$KDIR/unpacked/usr/src/linux-headers-$KREL/.config"
}

# stock_make: runs with the lock held.
stock_make() {
	[ ! -e "$KDIR/done" ] || return 0
	need_space 3 "Debian's kernel"
	rm -rf "$KDIR/debs" "$KDIR/unpacked"
	mkdir -p "$KDIR"/{out,debs,unpacked}
	KREL=$(stock_release)
	[ -n "$KREL" ] ||
		die "the Debian archive has no image of Linux ${RELEASE%%-*} any more:" \
			"delete $CACHE/sources/linux-$RELEASE"
	STEP_LOG=$CACHE/logs/kernel-${KDIR##*/}-fetch.log
	step "$STEP_LOG" "fetching Debian's kernel $KREL" stock_fetch_progress stock_fetch ||
		die "cannot fetch Debian's kernel: $(root_cause) (log: $STEP_LOG)"
	stock_compiler_known
	STEP_LOG=$CACHE/logs/kernel-${KDIR##*/}.log
	step "$STEP_LOG" "compiling the Rust metadata of $KREL" kernel_progress stock_build ||
		die "the Rust metadata of $KREL cannot be made: $(kernel_cause) (log: $STEP_LOG)"
	rm -rf "$KDIR/debs" "$KDIR/unpacked"
	touch "$KDIR/done"
}

stock_packages() {
	printf "%s-$KREL:$DEBIAN_ARCH\n" linux-headers linux-modules linux-binary linux-base
}

# stock_release: the release (uname -r) of the image that was built from the source in SOURCE
stock_release() {
	local name="^linux-headers-${KERNEL_LINE/./\\.}\\.[^-]*-$FLAVOUR\$"
	in_root apt-cache search --names-only "$name" |
		cut -d' ' -f1 | sort -V |
		while read -r package; do
			[ -z "$(in_root apt-cache madison "$package" |
				grep -F " $RELEASE ")" ] || echo "${package#linux-headers-}"
		done | tail -n 1
}

stock_fetch() {
	local package in_cache=/cache/kernels/${KDIR##*/}
	# shellcheck disable=SC2046
	apt_download "$in_cache/debs" $(stock_packages | sed "s/\$/=$RELEASE/") || return 1
	for package in "$KDIR"/debs/*.deb; do
		in_root dpkg-deb -x "$in_cache/debs/${package##*/}" "$in_cache/unpacked" ||
			return 1
	done
	cp "$KDIR/unpacked/usr/lib/modules/$KREL/vmlinuz" "$KDIR/vmlinuz" &&
		stock_compiler &&
		in_root bash /src/scripts/lib/stock-modules.sh "$in_cache" "$KREL" \
			"${STOCK_MODULES[@]}"
}

# stock_more_ensure NAME MODULE...: sets MORE_MODULES to a directory with more of Debian's modules,
# which is kept by that name: beside the driver for NVMe the crate pinmap-nvme is tested, and those
# for networks are for machines in one.
stock_more_ensure() {
	MORE_MODULES=$RESULTS/$1/${KDIR##*/}
	[ -e "$MORE_MODULES" ] || locked "$1-${KDIR##*/}" stock_more_make "$@"
	# Where they cannot be fetched, the tests do without.
	[ -e "$MORE_MODULES" ] || MORE_MODULES=
	[ -z "$MORE_MODULES" ] || touch "$MORE_MODULES"
}

stock_more_make() { # NAME MODULE...
	[ ! -e "$MORE_MODULES" ] || return 0
	local dir=$BUILDS/$1
	KREL=$(ls "$KDIR/modules/lib/modules")
	rm -rf "$dir"
	mkdir -p "$dir"/{debs,unpacked}
	STEP_LOG=$CACHE/logs/$1-${KDIR##*/}.log
	if step "$STEP_LOG" "fetching the modules of $KREL" last_line \
		stock_more_fetch "$dir" "${@:2}"; then
		keep "$dir/modules" "$MORE_MODULES" 3
	else
		say "cannot fetch the modules of $KREL: $(root_cause) (log: $STEP_LOG)"
	fi
	rm -rf "$dir"
}

stock_more_fetch() { # DIRECTORY MODULE...
	local in_cache=/cache${1#"$CACHE"} modules=lib/modules/$KREL
	apt_download "$in_cache/debs" "linux-modules-$KREL:$DEBIAN_ARCH=$RELEASE" &&
		in_root sh -c "dpkg-deb -x $in_cache/debs/*.deb $in_cache/unpacked" &&
		cp "$KDIR/modules/$modules"/modules.{builtin,builtin.modinfo,order} \
			"$1/unpacked/usr/$modules/" &&
		in_root bash /src/scripts/lib/stock-modules.sh "$in_cache" "$KREL" "${@:2}" &&
		# They are not to be loaded from the beginning.
		rm "$1/modules/load"
}

# nvme_tools_ensure: sets TOOLS, a directory with e2fsprogs and nvme-cli, and their libraries, with
# which the crate pinmap-nvme is tested.
nvme_tools_ensure() {
	TOOLS=
	# They are this machine's.
	[ -z "$CROSS" ] || return 0
	TOOLS=$RESULTS/nvme-tools/$(root_key)
	[ -e "$TOOLS" ] || locked nvme-tools nvme_tools_make
	# Where they cannot be fetched, the tests do without.
	[ -e "$TOOLS" ] || TOOLS=
}

nvme_tools_make() {
	[ ! -e "$TOOLS" ] || return 0
	local dir=$BUILDS/nvme-tools
	rm -rf "$dir"
	mkdir -p "$dir"/{debs,tools}
	STEP_LOG=$CACHE/logs/nvme-tools.log
	if step "$STEP_LOG" "fetching nvme-cli" last_line nvme_tools_fetch "/cache${dir#"$CACHE"}"
	then
		keep "$dir/tools" "$TOOLS" 3
	else
		say "cannot fetch nvme-cli: $(root_cause) (log: $STEP_LOG)"
	fi
	rm -rf "$dir"
}

nvme_tools_fetch() { # DIRECTORY, as the root has it
	# shellcheck disable=SC2016
	apt_download "$1/debs" nvme-cli libnvme1t64 libjson-c5 &&
		in_root bash -ec 'cd "$1"
			for package in debs/*.deb; do
				dpkg-deb -x "$package" unpacked
			done
			export LD_LIBRARY_PATH=$1/unpacked/usr/lib/x86_64-linux-gnu
			programs=("$1/unpacked/usr/sbin/nvme" /usr/sbin/{mke2fs,e2fsck,debugfs})
			ldd "${programs[@]}" | grep -oE "/[^ :]+" | sort -u | xargs cp -Lt tools
		' bash "$1"
}

# stock_compiler: the C compiler of the kernel, in a file and by that in COMPILER; installed where
# it is missing
stock_compiler() {
	local name
	name=$(stock_config CC_VERSION_TEXT | cut -d' ' -f1)
	[ -e "$ROOT/usr/bin/$name" ] ||
		in_root apt-get -q install -y "${name#x86_64-linux-gnu-}" || return 1
	echo "$name" >"$KDIR/compiler"
	stock_compiler_known
}

stock_compiler_known() {
	COMPILER=("CC=$(cat "$KDIR/compiler")" "${KBUILD_ARCH[@]}")
}

stock_fetch_progress() {
	local done
	done=$(du -scm "$KDIR/debs"/*.deb 2>/dev/null | awk 'END { print $1 + 0 }')
	if [ -e "$KDIR/unpacked/usr" ]; then
		echo "unpacking it"
	else
		echo "$done 119 MB"
	fi
}

# stock_build: makes the metadata, with what the package pinmap-dkms makes it with.
stock_build() {
	local in_cache=/cache/kernels/${KDIR##*/}
	local headers=$in_cache/unpacked/usr/src/linux-headers-$KREL
	in_root env "${KBUILD_ARCH[@]}" bash /src/packaging/dkms/rust-metadata \
		--headers "$headers" --source "$SOURCE" --build "$in_cache/out" "$KREL" &&
		cp "$CACHE${headers#/cache}/Module.symvers" "$KDIR/out/" &&
		cp "$CACHE${headers#/cache}/.config" "$KDIR/modules/config"
}
