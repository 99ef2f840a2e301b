# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Kernel sources and kernels. Needs common.sh and root.sh.
source "$TREE/scripts/lib/stock.sh"

# The supported kernel lines, the preferred one first. (Bash itself sets a variable LINES, to the
# height of the terminal.)
KERNEL_LINES=(7.3 7.2)
LINE_CHOICES=$(IFS="|" && echo "${KERNEL_LINES[*]}") # for usage texts
KERNELS=(stock base debug) # Debian's own image; a small one; one that finds faults
# To be raised when kernels must be built anew though neither source, configuration nor tool chain
# changed.
KERNEL_VERSION=1

# --- sources ---

# source_ensure [LINE]: sets SOURCE (path seen in the root), RELEASE and LINE. Without LINE: the
# best that can be had.
source_ensure() {
	local line=${1:-${PINMAP_LINE:-}} found
	KERNEL_ROOT=$ROOT
	if [ -n "${PINMAP_LINUX_SRC:-}" ]; then
		[ -f "$PINMAP_LINUX_SRC/Kbuild" ] ||
			die "PINMAP_LINUX_SRC=$PINMAP_LINUX_SRC is not a kernel source tree"
		found=$(make -s -C "$PINMAP_LINUX_SRC" kernelversion) ||
			die "make cannot tell the version of $PINMAP_LINUX_SRC"
		SOURCE=/linux RELEASE=$found-$(realpath "$PINMAP_LINUX_SRC" | hash_of)
		LINE=$(cut -d. -f1-2 <<<"$RELEASE")
		return
	fi
	if [ -n "$line" ]; then
		[[ " ${KERNEL_LINES[*]} " == *" $line "* ]] ||
			die "kernel line $line is not one of the supported ones: ${KERNEL_LINES[*]}"
		found=$(source_cached "$line")
		[ -n "$found" ] || locked source source_make "$line"
	else
		for line in "${KERNEL_LINES[@]}"; do
			found=$(source_cached "$line")
			[ -z "$found" ] || break
		done
		[ -n "$found" ] || locked source source_make "${KERNEL_LINES[@]}"
	fi
	for line in ${1:-${PINMAP_LINE:-"${KERNEL_LINES[@]}"}}; do
		found=$(source_cached "$line")
		[ -z "$found" ] || break
	done
	SOURCE=/cache/sources/$found RELEASE=${found#linux-} LINE=$line
}

# source_cached LINE: the newest source of the line that is already here. It stays in use until the
# cache is deleted: a warm run needs no network and does not rebuild kernels because the archive
# moved on.
source_cached() {
	find "$CACHE/sources" -mindepth 1 -maxdepth 1 -name "linux-$1.*" ! -name '*.partial' \
		-printf '%f\n' | sort -V | tail -n 1
}

# source_available LINE: whether any suite known to the root's apt has it
source_available() {
	local uris
	uris=$(in_kernel_root apt-get -qq --print-uris download "linux-source-$1" 2>/dev/null || :)
	[[ $uris == "'"* ]]
}

# line_available LINE: whether the line can be had, here or from the archive
line_available() {
	[ -n "$(source_cached "$1")" ] || source_available "$1"
}

# source_make LINE...: fetches the first of the lines that there is. Runs with the lock held.
source_make() {
	local line
	for line; do
		[ -z "$(source_cached "$line")" ] || return 0
	done
	rm -rf "$CACHE"/sources/*.partial
	for line; do
		if source_available "$line"; then
			source_fetch "$line"
			return 0
		fi
	done
	# Backports drops a line soon after the next one comes. The source package of any suite will
	# do, and nothing else is taken from these suites: their priority is lower than that of all
	# the others.
	STEP_LOG=$CACHE/logs/source-suites.log
	step "$STEP_LOG" "looking for Linux $* in Debian testing and unstable" last_line \
		source_add_suites ||
		die "cannot look for Linux $*: $(root_cause) (log: $STEP_LOG)"
	for line; do
		if source_available "$line"; then
			source_fetch "$line"
			return 0
		fi
	done
	die "the Debian archive has no source of Linux $* any more;" \
		"PINMAP_LINUX_SRC=/path can name a tree"
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

source_fetch() { # LINE [PREFIX]
	SOURCE_PARTIAL=${2:-}$1.partial
	STEP_LOG=$CACHE/logs/source-${2:-}$1.log
	step "$STEP_LOG" "fetching the source of Linux $1" source_progress source_unpack "$@" ||
		die "cannot fetch the source of Linux $1: $(root_cause) (log: $STEP_LOG)"
}

# source_progress: the download, then the files
source_progress() {
	local files total
	if [ ! -e "$CACHE/sources/$SOURCE_PARTIAL/tree/Kbuild" ]; then
		du -cm "$CACHE/sources/$SOURCE_PARTIAL/deb" 2>/dev/null |
			awk 'END { print $1 + 0, 160, "MB" }'
		return
	fi
	files=$(find "$CACHE/sources/$SOURCE_PARTIAL/tree" -type f | wc -l)
	total=$(awk '$1 == "source" { print $2 }' "$TREE/scripts/kernel/objects")
	echo "$files $total files"
}

# apt_download DIRECTORY PACKAGE...: fetches packages into a directory of the kernel's root. Where
# the root's lists are older than the archive, they are fetched anew first.
apt_download() {
	local get=(in_kernel_root env -C "$1" apt-get -q download "${@:2}")
	"${get[@]}" || {
		in_kernel_root apt-get -q update && "${get[@]}"
	}
}

source_unpack() { # LINE [PREFIX]
	local name=$SOURCE_PARTIAL version deb
	deb=/cache/sources/$name/deb
	local dir=$CACHE/sources/$name
	rm -rf "$dir"
	mkdir -p "$dir/deb" "$dir/tree" &&
		apt_download "$deb" "linux-source-$1" &&
		version=$(in_kernel_root sh -c "dpkg-deb -f $deb/*.deb Version") &&
		echo "unpacking $version" &&
		in_kernel_root bash -c "set -o pipefail; cd /cache/sources/$name &&
			dpkg-deb --fsys-tarfile deb/*.deb |
			tar -xO --wildcards '*/linux-source-*.tar.xz' |
			xz -dT0 | tar -x --no-same-owner --strip-components=1 -C tree" &&
		[ -f "$dir/tree/Kbuild" ] &&
		mv "$dir/tree" "$CACHE/sources/${2:-}linux-$version" &&
		rm -rf "$dir"
}

# --- kernels ---

# kernel_config KERNEL: the fragment for it on the chosen line
kernel_config() {
	[ "$1" != stock ] || return 0
	local fragments=("$TREE/scripts/kernel/base.config")
	[ "$1" = base ] || fragments+=("$TREE/scripts/kernel/$1.config")
	sed -nE "s/^(CONFIG_[^ ]+)( # ${LINE/./\\.})?\$/\1/p" "${fragments[@]}"
}

toolchain() {
	local list=$KERNEL_ROOT/var/lib/dpkg/status packages
	packages='^(clang-19|lld-19|gcc-14|binutils|rustc|rust-src|bindgen|libclang1-19)$'
	awk -v packages="$packages" '
		/^Package:/ { p = $2 }
		/^Version:/ && p ~ packages { print p, $2 }' "$list"
}

kernel_known() { # KERNEL
	[[ " ${KERNELS[*]} " == *" $1 "* ]]
}

# kernel_find KERNEL [LINE]: sets KERNEL, COMPILER (arguments of make), KDIR (its directory in the
# cache; KDIR/out is what modules are built against), KERNEL_IMAGE and what source_ensure sets;
# succeeds when the kernel is there.
kernel_find() {
	kernel_known "$1" || die "there is no kernel '$1': ${KERNELS[*]} are the ones"
	root_ensure
	KERNEL=$1
	if [ "$KERNEL" = stock ] && [ -n "${STOCK_SUITES[${2:-none}]:-}" ]; then
		stock_source_ensure "$2"
	else
		source_ensure "${2:-}"
	fi
	local key image=out/arch/x86/boot/bzImage
	COMPILER=()
	case $KERNEL in
	stock) image=vmlinuz ;;
	# GCC needs two thirds of clang's time; but with Rust only clang can do KASAN.
	debug) COMPILER=(LLVM=1) ;;
	esac
	key=$({
		echo "$KERNEL_VERSION $RELEASE ${COMPILER[*]}"
		toolchain
		kernel_config "$KERNEL"
	} | hash_of)
	KDIR=$CACHE/kernels/$KERNEL-$LINE-$key
	KERNEL_IMAGE=$KDIR/$image
	if [ "$KERNEL" = stock ] && [ -e "$KDIR/compiler" ]; then
		COMPILER=("CC=$(cat "$KDIR/compiler")")
	fi
	[ -e "$KDIR/done" ]
}

# kernel_ensure KERNEL [LINE]: kernel_find, which builds the kernel where it is missing
kernel_ensure() {
	kernel_find "$@" && return
	if [ "$KERNEL" = stock ]; then
		locked "${KDIR##*/}" stock_make
		COMPILER=("CC=$(cat "$KDIR/compiler")")
	else
		locked "${KDIR##*/}" kernel_make
	fi
}

# kernel_start KERNEL LINE NICENESS: makes the kernel while the script goes on. kernel_finish KERNEL
# LINE waits for it, and succeeds when the kernel is there. The exit status does not count: the
# shell forgets that of a process whose number is used again.
declare -A KERNEL_BUILDERS=()
kernel_start() {
	PROGRESS=lines nice -n "$3" "$TREE/scripts/setup" --kernel "$1" --line "$2" &
	KERNEL_BUILDERS[$1-$2]=$!
}
kernel_finish() {
	local pid=${KERNEL_BUILDERS[$1-$2]:-}
	(kernel_find "$1" "$2") || {
		[ -z "$pid" ] || wait "$pid" || :
		(kernel_find "$1" "$2")
	}
}
kernel_stop_builders() {
	local pid
	for pid in "${KERNEL_BUILDERS[@]}"; do
		# Its number may be another process's by now.
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
	total=$(awk -v name="$KERNEL-$LINE" '$1 == name { print $2 }' \
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
	in_root "${make[@]}" rustavailable &&
		in_root "${make[@]}" "KCONFIG_ALLCONFIG=$out/fragment" allnoconfig &&
		kernel_check_config &&
		in_root "${make[@]}" "-j$(nproc)" bzImage modules &&
		in_root "${make[@]}" "INSTALL_MOD_PATH=$out/modules" modules_install
}

# kernel_check_config: Kconfig drops silently what it does not know or cannot have.
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
