# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The kernel `stock`: the unmodified image that Debian distributes. Needs common.sh, root.sh and kernel.sh.
#
# Debian builds its kernels with Rust, but linux-headers leaves out the compiled crates that a module in Rust is compiled against
# (`rust/*.rmeta`). The compiler's output depends on nothing but its version, the source and the configuration. So they are made
# again, from linux-source of the same version, with Debian's configuration and the very compilers that the image was built with.
# That each symbol which they export is exported by the image, too, is checked: symbols of Rust contain a hash of their crate.

# What the VM needs and the image does not contain; each with what it depends on.
STOCK_MODULES=(9p 9pnet_virtio virtio_blk ext4 virtio-iommu vfio-pci vfio_iommu_type1 vgem)

stock_config() { # NAME: its value in the configuration of the image
	sed -nE "s/^CONFIG_$1=\"?([^\"]*)\"?\$/\1/p" "$KDIR/unpacked/usr/src/linux-headers-$KREL/.config"
}

# stock_make: runs with the lock held.
stock_make() {
	[ ! -e "$KDIR/done" ] || return 0
	need_space 3 "Debian's kernel"
	rm -rf "$KDIR/debs" "$KDIR/unpacked"
	mkdir -p "$KDIR"/{out,debs,unpacked}
	KREL=$(stock_release)
	[ -n "$KREL" ] || die "the Debian archive has no image of Linux ${RELEASE%%-*} any more: delete $CACHE/sources/linux-$RELEASE"
	STEP_LOG=$CACHE/logs/kernel-${KDIR##*/}-fetch.log
	step "$STEP_LOG" "fetching Debian's kernel $KREL" stock_fetch_progress stock_fetch ||
		die "cannot fetch Debian's kernel: $(root_cause) (log: $STEP_LOG)"
	STEP_LOG=$CACHE/logs/kernel-${KDIR##*/}.log
	step "$STEP_LOG" "compiling the Rust metadata of $KREL" kernel_progress stock_build ||
		die "the Rust metadata of $KREL cannot be made: $(kernel_cause) (log: $STEP_LOG)"
	rm -rf "$KDIR/debs" "$KDIR/unpacked"
	touch "$KDIR/done"
}

stock_packages() {
	printf '%s\n' "linux-headers-$KREL" "linux-modules-$KREL" "linux-binary-$KREL" "linux-base-$KREL"
}

# stock_release: the release (uname -r) of the image that was built from the source in SOURCE
stock_release() {
	in_root apt-cache search --names-only "^linux-headers-${LINE/./\\.}\\.[^-]*-amd64\$" | cut -d' ' -f1 | sort -V |
		while read -r package; do
			! in_root apt-cache madison "$package" | grep -qF " $RELEASE " || echo "${package#linux-headers-}"
		done | tail -n 1
}

stock_fetch() {
	local package
	# shellcheck disable=SC2046
	in_root env -C "/cache/kernels/${KDIR##*/}/debs" apt-get -q download $(stock_packages | sed "s/\$/=$RELEASE/") || return 1
	for package in "$KDIR"/debs/*.deb; do
		in_root dpkg-deb -x "/cache/kernels/${KDIR##*/}/debs/${package##*/}" "/cache/kernels/${KDIR##*/}/unpacked" || return 1
	done
	cp "$KDIR/unpacked/usr/lib/modules/$KREL/vmlinuz" "$KDIR/vmlinuz" &&
		in_root bash /src/scripts/lib/stock-modules.sh "/cache/kernels/${KDIR##*/}" "$KREL" "${STOCK_MODULES[@]}"
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

stock_build() {
	local out=/cache/kernels/${KDIR##*/}/out headers=$KDIR/unpacked/usr/src/linux-headers-$KREL
	local make=(make -s -C "$SOURCE" "O=$out" "${COMPILER[@]}" "KERNELRELEASE=$KREL")
	stock_check_compilers &&
		cp "$headers/.config" "$KDIR/out/.config" &&
		in_root "${make[@]}" olddefconfig &&
		stock_check_config "$headers/.config" &&
		in_root "${make[@]}" "-j$(nproc)" prepare modules_prepare &&
		cp "$headers/Module.symvers" "$KDIR/out/" &&
		stock_check_symbols
}

# The metadata fits the image only if these versions are those that built it.
stock_check_compilers() {
	local wanted found
	for wanted in "RUSTC_VERSION_TEXT rustc --version" "BINDGEN_VERSION_TEXT bindgen --version" "CC_VERSION_TEXT ${COMPILER[0]#CC=} --version"; do
		# shellcheck disable=SC2086
		found=$(in_root ${wanted#* } 2>&1 | head -n 1)
		[ "$found" = "$(stock_config "${wanted%% *}")" ] ||
			{ echo "error: the image was built with $(stock_config "${wanted%% *}"), and here is $found"; return 1; }
	done
}

stock_check_config() { # CONFIG
	local drift
	drift=$(diff <(grep ^CONFIG_ "$1") <(grep ^CONFIG_ "$KDIR/out/.config")) ||
		{ echo "error: this is not the image's configuration any more: $(head -n 4 <<<"$drift" | tr '\n' ' ')"; return 1; }
}

stock_check_symbols() {
	local missing
	missing=$(comm -23 <(sed -n 's/EXPORT_SYMBOL_RUST_GPL(\(.*\));/\1/p' "$KDIR"/out/rust/exports_*_generated.h | sort -u) \
		<(cut -f2 "$KDIR/out/Module.symvers" | sort -u))
	[ -z "$missing" ] || { echo "error: the image does not export $(wc -l <<<"$missing") symbols, first of all ${missing%%$'\n'*}"; return 1; }
}
