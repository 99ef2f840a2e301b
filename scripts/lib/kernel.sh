# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Kernel sources and kernels. Needs common.sh and root.sh.
source "$TREE/scripts/lib/stock.sh"

# The line of the kernel that the driver is for. CONTRIBUTING.md says how to go to the next one.
KERNEL_LINE=7.3
# Debian's own image; a small one; one that finds faults; one that finds them in little time
KERNELS=(stock base debug fuzz)
# To be raised when kernels must be built anew though neither source, configuration nor tool chain
# changed.
KERNEL_VERSION=1

# --- sources ---

# source_ensure: sets SOURCE (path seen in the root) and RELEASE.
source_ensure() {
	local found
	if [ -n "${PINMAP_LINUX_SRC:-}" ]; then
		[ -f "$PINMAP_LINUX_SRC/Kbuild" ] ||
			die "PINMAP_LINUX_SRC=$PINMAP_LINUX_SRC is not a kernel source tree"
		found=$(make -s -C "$PINMAP_LINUX_SRC" kernelversion) ||
			die "make cannot tell the version of $PINMAP_LINUX_SRC"
		SOURCE=/linux RELEASE=$found-$(realpath "$PINMAP_LINUX_SRC" | hash_of)
		return
	fi
	found=$(source_cached)
	[ -n "$found" ] || locked source source_make
	found=$(source_cached)
	SOURCE=/cache/sources/$found RELEASE=${found#linux-}
}

# source_cached: the newest source that is already here. It stays in use until the cache is deleted:
# a warm run needs no network and does not rebuild kernels because the archive moved on.
source_cached() {
	find "$CACHE/sources" -mindepth 1 -maxdepth 1 -name "linux-$KERNEL_LINE.*" -printf '%f\n' |
		sort -V | tail -n 1
}

# source_available: whether any suite known to the root's apt has it
source_available() {
	local uris get=(in_root apt-get -qq --print-uris download)
	uris=$("${get[@]}" "linux-source-$KERNEL_LINE" 2>/dev/null || :)
	[[ $uris == "'"* ]]
}

# source_make: runs with the lock held.
source_make() {
	[ -z "$(source_cached)" ] || return 0
	rm -rf "$CACHE"/sources/*.partial
	# Backports drops a line soon after the next one comes. The source package of any suite will
	# do, and nothing else is taken from these suites: their priority is the lowest.
	if ! source_available; then
		STEP_LOG=$CACHE/logs/source-suites.log
		step "$STEP_LOG" "looking for Linux $KERNEL_LINE in Debian testing and unstable" \
			last_line source_add_suites ||
			die "cannot look for Linux $KERNEL_LINE: $(root_cause) (log: $STEP_LOG)"
		source_available ||
			die "the Debian archive has no source of Linux $KERNEL_LINE any more;" \
				"PINMAP_LINUX_SRC=/path can name a tree"
	fi
	STEP_LOG=$CACHE/logs/source-$KERNEL_LINE.log
	step "$STEP_LOG" "fetching the source of Linux $KERNEL_LINE" \
		source_progress source_unpack ||
		die "cannot fetch the source of Linux $KERNEL_LINE: $(root_cause) (log: $STEP_LOG)"
}

source_add_suites() {
	local mirror
	mirror=$(awk '$1 == "deb" { print $2; exit }' "$ROOT/etc/apt/sources.list")
	printf 'deb %s %s main\n' "$mirror" testing "$mirror" unstable \
		>"$ROOT/etc/apt/sources.list.d/later.list"
	printf 'Package: *\nPin: release a=%s\nPin-Priority: 1\n\n' testing unstable \
		>"$ROOT/etc/apt/preferences.d/later"
	in_root apt-get -q update
}

# source_progress: the download, then the files
source_progress() {
	local files total dir=$CACHE/sources/$KERNEL_LINE.partial
	if [ ! -e "$dir/tree/Kbuild" ]; then
		du -cm "$dir/deb" 2>/dev/null |
			awk 'END { print $1 + 0, 160, "MB" }'
		return
	fi
	files=$(find "$dir/tree" -type f | wc -l)
	total=$(awk '$1 == "source" { print $2 }' "$TREE/scripts/kernel/objects")
	echo "$files $total files"
}

# apt_download DIRECTORY PACKAGE...: fetches packages into a directory of the root. Where the root's
# lists are older than the archive, they are fetched anew first.
apt_download() {
	local get=(in_root env -C "$1" apt-get -q download "${@:2}")
	"${get[@]}" || {
		in_root apt-get -q update && "${get[@]}"
	}
}

source_unpack() {
	local name=$KERNEL_LINE.partial version
	local deb=/cache/sources/$name/deb dir=$CACHE/sources/$name
	rm -rf "$dir"
	mkdir -p "$dir/deb" "$dir/tree" &&
		apt_download "$deb" "linux-source-$KERNEL_LINE" &&
		version=$(in_root sh -c "dpkg-deb -f $deb/*.deb Version") &&
		echo "unpacking $version" &&
		in_root bash -c "set -o pipefail; cd /cache/sources/$name &&
			dpkg-deb --fsys-tarfile deb/*.deb |
			tar -xO --wildcards '*/linux-source-*.tar.xz' |
			xz -dT0 | tar -x --no-same-owner --strip-components=1 -C tree" &&
		[ -f "$dir/tree/Kbuild" ] &&
		mv "$dir/tree" "$CACHE/sources/linux-$version" &&
		rm -rf "$dir"
}

# --- kernels ---

# kernel_config KERNEL: the fragment for it. PINMAP_KERNEL_CONFIG is a file with more lines.
kernel_config() {
	[ "$1" != stock ] || return 0
	local fragments=("$TREE/scripts/kernel/base.config")
	[ "$1" = base ] || fragments+=("$TREE/scripts/kernel/$1.config")
	[ -z "${PINMAP_KERNEL_CONFIG:-}" ] || fragments+=("$PINMAP_KERNEL_CONFIG")
	grep -h ^CONFIG_ "${fragments[@]}"
}

toolchain() {
	local list=$ROOT/var/lib/dpkg/status packages
	packages='^(clang-19|lld-19|gcc-14|binutils|rustc|rust-src|bindgen|libclang1-19)$'
	awk -v packages="$packages" '
		/^Package:/ { p = $2 }
		/^Version:/ && p ~ packages { print p, $2 }' "$list"
}

kernel_known() { # KERNEL
	[[ " ${KERNELS[*]} " == *" $1 "* ]]
}

# kernel_find KERNEL: sets KERNEL, COMPILER (arguments of make), KDIR (its directory in the
# cache; KDIR/out is what modules are built against), KERNEL_IMAGE and what source_ensure sets;
# succeeds when the kernel is there.
kernel_find() {
	kernel_known "$1" || die "there is no kernel '$1': ${KERNELS[*]} are the ones"
	[[ $ARCH == x86_64 || $1 == stock ]] ||
		die "for $ARCH there is the kernel stock alone"
	root_ensure
	KERNEL=$1
	source_ensure
	local key image=out/arch/x86/boot/bzImage
	COMPILER=()
	case $KERNEL in
	stock) image=vmlinuz ;;
	# GCC needs two thirds of clang's time; but with Rust only clang can do KASAN.
	debug | fuzz) COMPILER=(LLVM=1) ;;
	esac
	key=$({
		echo "$KERNEL_VERSION $RELEASE ${COMPILER[*]}${CROSS:+ $FLAVOUR}"
		toolchain
		kernel_config "$KERNEL"
	} | hash_of)
	KDIR=$CACHE/kernels/$KERNEL${CROSS:+-$FLAVOUR}-$(cut -d. -f1-2 <<<"$RELEASE")-$key
	KERNEL_IMAGE=$KDIR/$image
	if [ "$KERNEL" = stock ] && [ -e "$KDIR/compiler" ]; then
		stock_compiler_known
	fi
	[ -e "$KDIR/done" ]
}

# kernel_ensure KERNEL: kernel_find, which builds the kernel where it is missing
kernel_ensure() {
	kernel_find "$@" && return
	if [ "$KERNEL" = stock ]; then
		locked "${KDIR##*/}" stock_make
		stock_compiler_known
	else
		locked "${KDIR##*/}" kernel_make
	fi
}

# kernel_start KERNEL NICENESS: makes the kernel while the script goes on. kernel_finish KERNEL
# waits for it, and succeeds when the kernel is there. The exit status does not count: the shell
# forgets the status of a process whose number is used again.
declare -A KERNEL_BUILDERS=()
kernel_start() {
	PROGRESS=lines nice -n "$2" "$TREE/scripts/setup" --kernel "$1" &
	KERNEL_BUILDERS[$1]=$!
}
kernel_finish() {
	local pid=${KERNEL_BUILDERS[$1]:-}
	(kernel_find "$1") || {
		[ -z "$pid" ] || wait "$pid" || :
		(kernel_find "$1")
	}
}
kernel_stop_builders() {
	local pid
	for pid in "${KERNEL_BUILDERS[@]}"; do
		# Another process may have the number by now.
		! jobs -pr | grep -qx "$pid" || kill "$pid" || :
	done
}
at_exit kernel_stop_builders

# kernel_make: runs with the lock held. An interrupted build goes on where it stopped.
kernel_make() {
	[ ! -e "$KDIR/done" ] || return 0
	need_space 3 "building a kernel"
	mkdir -p "$KDIR/out"
	kernel_config "$KERNEL" >"$KDIR/fragment"
	STEP_LOG=$CACHE/logs/kernel-${KDIR##*/}.log
	step "$STEP_LOG" "building the kernel $KERNEL (Linux ${RELEASE%%-*})" \
		kernel_progress kernel_build ||
		die "the kernel $KERNEL cannot be built: $(kernel_cause) (log: $STEP_LOG)"
	touch "$KDIR/done"
}

# kernel_progress: the total is what the last build of such a kernel had (scripts/kernel/objects).
kernel_progress() {
	local objects total
	objects=$(find "$KDIR/out" -name '*.o' -o -name '*.rmeta' | wc -l)
	total=$(awk -v name="$KERNEL" '$1 == name { print $2 }' \
		"$TREE/scripts/kernel/objects")
	echo "$objects${total:+ $total} objects"
}

kernel_cause() {
	grep -E 'error:|Error |not what was asked|No space left' "$STEP_LOG" |
		head -n 1 | cut -c1-200 | grep . || last_line
}

kernel_build() {
	local out=/cache/kernels/${KDIR##*/}
	local make=(make -s -C "$SOURCE" "O=$out/out" "${COMPILER[@]}")
	# `fuzz` itself is not instrumented, only the module, which is built without this word.
	[ "$KERNEL" != fuzz ] || make+=(KASAN_SANITIZE=n)
	in_root "${make[@]}" rustavailable &&
		in_root "${make[@]}" "KCONFIG_ALLCONFIG=$out/fragment" allnoconfig &&
		kernel_check_config &&
		in_root "${make[@]}" "-j$(nproc)" bzImage modules &&
		in_root "${make[@]}" "INSTALL_MOD_PATH=$out/modules" modules_install
}

# kernel_check_config: Kconfig silently drops options that it does not know or cannot have.
kernel_check_config() {
	local line missing=()
	while read -r line; do
		case $line in
		*=n) grep -q "^${line%=n}=" "$KDIR/out/.config" && missing+=("$line") ;;
		*) grep -qx -- "$line" "$KDIR/out/.config" || missing+=("$line") ;;
		esac
	done <"$KDIR/fragment"
	[ ${#missing[@]} -eq 0 ] || {
		echo "the configuration is not what was asked for: ${missing[*]}"
		return 1
	}
}
