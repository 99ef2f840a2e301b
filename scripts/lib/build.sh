# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Builds the tree: the module, the programs, the tests. Needs common.sh, root.sh and kernel.sh.
# Every checkout has a directory of its own in the cache to build in, so that two of them do not
# undo each other's work. A result is named after its sources, so it is made once for all checkouts.

BUILDS=$CACHE/builds/$(echo "$TREE" | hash_of)
RESULTS=$CACHE/results
# With PINMAP_COVERAGE programs are built apart, and write down what they execute
# (scripts/coverage); what a compiler does is not kept.
COVERED=${PINMAP_COVERAGE:+-coverage} COVER=${PINMAP_COVERAGE:+-Cinstrument-coverage}
[ -z "$COVER" ] || export LLVM_PROFILE_FILE=${LLVM_PROFILE_FILE:-/tmp/%m.profraw}

# files_in DIRECTORY: the names of everything in it that may matter to a build
files_in() {
	(cd "$1" && find . \( -name .git -o -path ./build -o -name target \) -prune -o \
		-type f -print) | LC_ALL=C sort
}

# content_of DIRECTORY PATTERN...: a hash of the files below it whose names match one of the
# extended regular expressions
content_of() {
	local directory=$1 pattern
	pattern=$(IFS='|' && shift && echo "$*")
	files_in "$directory" | grep -E "$pattern" | tr '\n' '\0' |
		(cd "$directory" && xargs -0 -r sha256sum) | hash_of
}

# build_key: everything that all builds depend on, besides their sources
build_key() {
	root_key
	sha256sum <"$TREE/scripts/lib/build.sh"
}

MODULE_FILES='^\./(Kbuild|Makefile|(driver|include)/.*\.(rs|c|h))$'

# module_build [--from DIRECTORY] [--name NAME] [--no-gpu] [--no-mirror] [--no-debuginfo]
# [--clippy]: builds the module for the kernel in KDIR and sets MODULE, the path of pinmap.ko.
# DIRECTORY is a tree with other sources (the default is this one); NAME keeps its objects apart.
# Without information for debuggers it is made in two thirds of the time.
module_build() {
	local from=$TREE name=module arguments=()
	while [ $# -gt 0 ]; do
		case $1 in
		--from) from=$(realpath "$2"); shift 2 ;;
		--name) name=$2; shift 2 ;;
		--no-gpu) name=$name-flat arguments+=(PINMAP_GPU=n); shift ;;
		--no-mirror) name=$name-unmirrored arguments+=(PINMAP_MIRROR=n); shift ;;
		--clippy) name=$name-clippy arguments+=(CLIPPY=1); shift ;;
		--no-debuginfo) arguments+=(KRUSTFLAGS=-Cdebuginfo=0); shift ;;
		esac
	done
	[ -f "$from/Kbuild" ] || die "there is no driver in $from (no Kbuild)"
	local dir=$BUILDS/${KDIR##*/}/$name content
	content=$({
		build_key
		content_of "$from" "$MODULE_FILES"
		echo "${arguments[*]}"
	} | hash_of)
	MODULE=$RESULTS/modules/${KDIR##*/}-$content.ko
	[ -e "$MODULE" ] ||
		locked "$name-${KDIR##*/}-${BUILDS##*/}" \
			module_make "$from" "$dir" "${arguments[@]}"
	touch -c "$MODULE"
}

# module_kbuild DIR [MAKE-ARGUMENT...]: builds DIR/tree with the kernel in KDIR
module_kbuild() {
	in_root make -s -C "/cache/kernels/${KDIR##*/}/out" "M=/cache${1#"$CACHE"}/tree" \
		"${COMPILER[@]}" "${@:2}"
}

module_make() { # FROM DIR [MAKE-ARGUMENT...]
	local from=$1 dir=$2 log=$2/log
	shift 2
	[ ! -e "$MODULE" ] || return 0
	mkdir -p "$dir/tree"
	module_copy "$from" "$dir/tree"
	# clippy looks only at files that are compiled
	[[ " $* " != *' CLIPPY=1 '* ]] || find "$dir/tree" -name '*.o' -delete
	STEP_LOG=$log MODULE_TREE=$dir/tree
	if ! step "$log" "building the module for ${KDIR##*/} (${dir##*/})" module_progress \
		module_kbuild "$dir" "-j$(nproc)" "$@" modules; then
		cat "$log" >&2
		die "the module cannot be built for ${KDIR##*/}"
	fi
	# Messages of make about the kernel's own build do not concern the module.
	sed -i '/^warning: pahole version differs/,/You are using/d' "$log"
	! grep -q warning "$log" || cat "$log" >&2
	if [[ " $* " == *' CLIPPY=1 '* ]] && grep -q '^warning' "$log"; then
		die "clippy has warnings"
	fi
	keep "$dir/tree/pinmap.ko" "$MODULE" 300
}

# module_progress: one object for each file in C, and one for what is in Rust, which takes as long
# as all others together, so there is no estimate of the time that is left.
module_progress() {
	local sources objects
	sources=$(find "$MODULE_TREE" -name '*.c' ! -name '*.mod.c' | wc -l)
	objects=$(find "$MODULE_TREE" -name '*.o' ! -name '*.mod.o' ! -name pinmap.o | wc -l)
	echo "$objects of $((sources + 1)) objects"
}

# editor_project: writes rust-project.json for the tree and the kernel in KDIR, with paths as they
# are outside of the build root.
editor_project() {
	local dir=$BUILDS/${KDIR##*/}/module
	mkdir -p "$dir/tree"
	module_copy "$TREE" "$dir/tree"
	MODULE_TREE=$dir/tree
	step "$dir/log" "building the module for an editor" module_progress \
		module_kbuild "$dir" "-j$(nproc)" modules ||
		die "the module cannot be built (log: $dir/log)"
	module_kbuild "$dir" rust-analyzer &&
		in_root /src/packaging/rust-project "/cache${dir#"$CACHE"}/tree"
	sed "s,\"/src/,\"$TREE/,; s,\"/cache/,\"$CACHE/,; s,\"/usr,\"$ROOT/usr," \
		"$dir/tree/rust-project.json" >"$TREE/rust-project.json"
}

# extra_module_build FOLDER: builds the only module in FOLDER of the tree, which the tests or the
# bench need besides pinmap's, for the kernel in KDIR, and sets EXTRA_MODULE, its path.
extra_module_build() {
	local name=${1##*/}
	local dir=$BUILDS/${KDIR##*/}/$name
	EXTRA_MODULE=$RESULTS/$name/${KDIR##*/}-$(content_of "$TREE/$1" '^\./').ko
	[ -e "$EXTRA_MODULE" ] ||
		locked "$name-${KDIR##*/}-${BUILDS##*/}" extra_module_make "$TREE/$1" "$dir"
	touch -c "$EXTRA_MODULE"
}

extra_module_make() { # SOURCES DIR
	[ ! -e "$EXTRA_MODULE" ] || return 0
	rm -rf "$2/tree"
	mkdir -p "$2"
	cp -r "$1" "$2/tree"
	if ! module_kbuild "$2" modules >"$2/log" 2>&1; then
		cat "$2/log" >&2
		die "the module in ${1#"$TREE/"} cannot be built for ${KDIR##*/}"
	fi
	! grep -q warning "$2/log" || cat "$2/log" >&2
	keep "$(echo "$2/tree"/*.ko)" "$EXTRA_MODULE" 10
}

# keep FROM TO N: makes FROM the result TO, also where another checkout has made the same. The
# newest N results stay.
keep() {
	local partial=$2.partial.$$
	mkdir -p "${2%/*}"
	rm -rf "$partial"
	cp -r "$1" "$partial"
	[ -e "$2" ] || mv -T "$partial" "$2" 2>/dev/null || [ -e "$2" ] || die "$2 cannot be made"
	rm -rf "$partial"
	keep_newest "$3" "${2%/*}"
}

# module_copy FROM TO: writes only files whose content differs, for make goes by time. When a file
# came or went it starts afresh.
module_copy() {
	local file names
	names=$(files_in "$1" | grep -E "$MODULE_FILES")
	if [ "$names" != "$(cat "$2.names" 2>/dev/null)" ]; then
		rm -rf "$2"
		mkdir "$2"
	fi
	while read -r file; do
		cmp -s "$1/$file" "$2/$file" || install -D -m 644 "$1/$file" "$2/$file"
	done <<<"$names"
	echo "$names" >"$2.names"
}

keep_newest() { # N DIRECTORY
	find "$2" -ignore_readdir_race -mindepth 1 -maxdepth 1 ! -name '*.partial.*' \
		-printf '%T@ %p\n' |
		sort -rn | tail -n "+$(($1 + 1))" | cut -d' ' -f2- | xargs -r -d '\n' rm -rf
}

# programs_build [--commands]: builds the workspace's programs and the C tests and sets PROGRAMS: a
# directory with bin/ and tests/, as they are installed in the VM. With --commands: only what users
# install.
programs_build() {
	local content what='the programs and the tests' commands=${1:-}
	[ -z "$commands" ] || what='the commands'
	content=$({
		build_key
		echo "$COVER $PAGE"
		content_of "$TREE" '^\./(Cargo|README\.md$)' \
			'^\./(userlib|devices|cli|capi|driver/logic|include|tests)/' \
			'^\./docs/(kernels|using)\.md$'
	} | hash_of)
	PROGRAMS=$RESULTS/programs/$content
	if [ -n "$commands" ] && [ ! -e "$PROGRAMS" ]; then
		PROGRAMS=$PROGRAMS-commands
	fi
	[ -e "$PROGRAMS" ] || locked "programs-${BUILDS##*/}" programs_make
	touch -c "$PROGRAMS"
}

programs_make() {
	[ ! -e "$PROGRAMS" ] || return 0
	local to=$BUILDS/programs
	rm -rf "$to"
	mkdir -p "$to"/{bin,tests}
	STEP_LOG=$BUILDS/programs.log
	step "$STEP_LOG" "building $what" cargo_progress with_progress programs_compile "$to" || {
		cat "$STEP_LOG" >&2
		die "the programs cannot be built"
	}
	keep "$to" "$PROGRAMS" 10
}

# Where the VM has the libraries of programs that are not static.
LIBRARIES=/usr/lib/pinmap/lib

# programs_sanitize: exchanges crate-test in PROGRAMS for one that AddressSanitizer watches: each
# access to memory of the heap, the stack and statics, by the crate or by a test. It cannot be
# static, so its libraries come with it.
programs_sanitize() {
	local from=$PROGRAMS
	PROGRAMS=$from-sanitized
	[ -e "$PROGRAMS" ] || locked "sanitized-${BUILDS##*/}" sanitized_make "$from"
	touch -c "$PROGRAMS"
}

sanitized_make() { # FROM
	[ ! -e "$PROGRAMS" ] || return 0
	local to=$BUILDS/sanitized
	rm -rf "$to/programs"
	mkdir -p "$to/programs/lib"
	cp -r "$1/." "$to/programs"
	STEP_LOG=$to/log
	step "$STEP_LOG" "building crate-test with AddressSanitizer" cargo_progress \
		with_progress sanitized_compile "$to" || {
		cat "$STEP_LOG" >&2
		die "crate-test cannot be built with AddressSanitizer"
	}
	keep "$to/programs" "$PROGRAMS" 10
}

# cluster_build: builds what is for machines in a network, with the Debian system's libraries, and
# sets CLUSTER: a directory with tests/, libpinmap, the module for Python, examples, and a key of
# ssh.
cluster_build() {
	local content
	system_ensure
	content=$({
		build_key
		echo "$SYSTEM"
		content_of "$TREE" '^\./(Cargo|README\.md$)' '^\./(userlib|capi|include|python)/' \
			'^\./tests/(Makefile|lib/|runner/|vm/cluster/)'
	} | hash_of)
	CLUSTER=$RESULTS/cluster/$content
	[ -e "$CLUSTER" ] || locked "cluster-${BUILDS##*/}" cluster_make
	touch -c "$CLUSTER"
}

cluster_make() {
	[ ! -e "$CLUSTER" ] || return 0
	local to=$BUILDS/cluster library wheel
	library=$("$TREE/scripts/capi") && wheel=$("$TREE/scripts/python") || exit
	rm -rf "$to"
	mkdir -p "$to"
	STEP_LOG=$BUILDS/cluster.log
	step "$STEP_LOG" "building what is for machines in a network" last_line \
		cluster_compile "/cache${library#"$CACHE"}" "/cache${to#"$CACHE"}" \
		"/cache${wheel#"$CACHE"}" || {
		cat "$STEP_LOG" >&2
		die "what is for machines in a network cannot be built"
	}
	keep "$to" "$CLUSTER" 4
}

cluster_compile() { # LIBRARY TO WHEEL
	# shellcheck disable=SC2016
	in_system bash -ec '
		make -s -C /src/tests CLUSTER=1 "OUT=$2/tests" "-j$(nproc)"
		make -s -C /src/capi "OUT=$1" "CARGO_TARGET_DIR=${1%/*}/cargo" CARGO=true \
			"prefix=$2" install
		export PKG_CONFIG_PATH=$2/lib/pkgconfig
		mpicc -O2 -Wall -Wextra -Werror -o "$2/mpi" /src/capi/examples/mpi.c \
			$(pkg-config --cflags --libs pinmap) "-Wl,-rpath,/run/vm/cluster/lib"
		cc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$2/preload.so" \
			/src/capi/examples/preload.c $(pkg-config --cflags --libs pinmap) \
			"-Wl,-rpath,/run/vm/cluster/lib"
		python3 -m zipfile -e "$3" "$2/python"
		ssh-keygen -q -t ed25519 -N "" -C "" -f "$2/key"
		# Where the machines have it.
		sed -i "s|$2|/run/vm/cluster|" "$2/lib/pkgconfig/pinmap.pc"
		rm -rf "$2/tests/.obj"
	' bash "$@"
}

# The compiler has sanitizers behind a switch that only RUSTC_BOOTSTRAP turns on; their runtime is
# GCC's.
sanitized_compile() { # TO
	local target=x86_64-unknown-linux-gnu in_cache=/cache${1#"$CACHE"} library flags
	flags="-Zsanitizer=address -Zexternal-clangrt -Cdebuginfo=1"
	# The runtime must be the first library.
	flags+=" -Zpre-link-arg=-Wl,--no-as-needed -Zpre-link-arg=-lasan"
	flags+=" -Zpre-link-arg=-Wl,--as-needed"
	# RPATH and not RUNPATH, so that it holds for the libraries of libraries, too.
	flags+=" -Clink-arg=-Wl,--disable-new-dtags,-rpath=$LIBRARIES"
	flags+=" -Clink-arg=-Wl,--dynamic-linker=$LIBRARIES/ld-linux-x86-64.so.2"
	CARGO_TARGET_DIR=$in_cache/target RUSTFLAGS=$flags \
		in_root env -C /src RUSTC_BOOTSTRAP=1 cargo build --release --locked \
		-p pinmap-crate-test --target "$target" &&
		cp "$1/target/$target/release/crate-test" "$1/programs/tests/" || return 1
	for library in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libgcc_s.so.1 libasan.so.8; do
		in_root cp -L "/usr/lib/x86_64-linux-gnu/$library" "$in_cache/programs/lib/" ||
			return 1
	done
	in_root llvm-strip --strip-debug "$in_cache/programs/tests/crate-test"
}

# with_progress COMMAND...: makes cargo tell its progress, as it does by itself on a terminal only
with_progress() {
	CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=80 "$@"
}

# cargo_progress: the last progress in the log STEP_LOG. Cargo's own, such as
# `Building [==> ] 12/34: NAMES`, gives no estimate: the last crates take longest, and it counts the
# crates of one run of cargo, and a step can have several runs.
cargo_progress() {
	tail -c 4000 "$STEP_LOG" | tr '\r' '\n' |
		sed -E -e 's/^ +| +$//g' -e '/^($|Compiling |Download)/d' \
			-e 's|^Building \[.*\] ([0-9]+)/([0-9]+)|\1 of \2 crates|' |
		tail -n 1 | cut -c1-100
}

cargo_in_root() { # ARGUMENT...
	CARGO_TARGET_DIR=/cache/builds/${BUILDS##*/}/cargo$COVERED \
		RUSTFLAGS=${RUSTFLAGS:-}${COVER:+ $COVER} in_root env -C /src cargo "$@"
}

# Static, because the VM has no libraries; for a named target, because otherwise that would hold for
# build scripts too.
programs_compile() { # TO
	local static='-C target-feature=+crt-static' target=$TARGET
	local objects=$BUILDS/tests${CROSS:+-$FLAVOUR}
	local made=$BUILDS/cargo-messages line targets=(--workspace --bins --examples)
	local compiler=(M32=1)
	if [ -n "$CROSS" ]; then
		compiler=("CC=${CROSS}gcc-14")
		targets+=(--exclude 'pinmap-bench-*')
	fi
	[ -z "$commands" ] || targets=(--bin pinmap)
	if [ -f "$TREE/Cargo.toml" ]; then
		RUSTFLAGS=$static cargo_in_root build --release --locked "${targets[@]}" \
			--target "$target" --message-format json-render-diagnostics >"$made" ||
			return 1
		while read -r line; do
			local program directory=bin
			program=$(sed -nE 's/.*"executable":"([^"]*)".*/\1/p' <<<"$line")
			[[ $line != *'"manifest_path":"/src/tests/'* ]] || directory=tests
			[ -z "$program" ] || cp "$CACHE${program#/cache}" "$1/$directory/" ||
				return 1
		done <"$made"
	fi
	if [ -z "$commands" ] && [ -f "$TREE/tests/devices/Cargo.toml" ]; then
		RUSTFLAGS=$static devices_cargo build --release --bin testgpu-vfio \
			--target "$target" &&
			cp "$BUILDS/devices/target/$target/release/testgpu-vfio" "$1/tests/" ||
			return 1
	fi
	if [ -z "$commands" ] && [ -f "$TREE/tests/programs/Cargo.toml" ]; then
		RUSTFLAGS=$static programs_cargo build --release --target "$target" || return 1
		while read -r line; do
			cp "$line" "$1/bin/program-${line##*/}" || return 1
		done < <(find "$BUILDS/users$COVERED/target/$target/release" -maxdepth 1 -type f \
			-perm -1)
		in_root /src/tests/programs/guide "/cache/builds/${BUILDS##*/}/guide" "$target" &&
			cp "$BUILDS/guide/saxpy/build/out/saxpy" "$1/bin/program-saxpy" || return 1
	fi
	if [ -n "$(ls "$1"/bin "$1"/tests)" ]; then
		# Line numbers would make the initramfs ten times as big; names stay, for
		# backtraces.
		in_root find "/cache${1#"$CACHE"}" -type f -exec llvm-strip --strip-debug {} + ||
			return 1
	fi
	[ -z "$commands" ] && [ -f "$TREE/tests/Makefile" ] || return 0
	RUSTFLAGS=$static cargo_in_root build --release --locked -p pinmap-capi \
		--target "$target" || return 1
	local archive=/cache/builds/${BUILDS##*/}/cargo$COVERED/$target/release/libpinmap_capi.a
	# A static library does not have what writes down.
	[ -z "$COVER" ] || archive+=" /usr/lib/rustlib/$target/lib/libprofiler_builtins-*.rlib"
	# Objects stay for the next time, but a program whose source is gone must not.
	mkdir -p "$objects" && find "$objects" -maxdepth 1 -type f -delete &&
		in_root env LDFLAGS="${COVER:+-Wl,-u,__llvm_profile_runtime}" \
			make -s -C /src/tests "OUT=/cache/builds/${BUILDS##*/}/${objects##*/}" \
			"${compiler[@]}" "PAGE=$PAGE" "LIBPINMAP=$archive" \
			"-j$(nproc)" &&
		find "$objects" -maxdepth 1 -type f -exec cp -t "$1/tests" {} +
}

# separate_cargo FOLDER TARGET COMMAND ARGUMENT...: for a workspace of its own in tests/
separate_cargo() {
	local folder=$1 target=$2 command=$3 locked=(--locked)
	shift 3
	[ "$command" != fmt ] || locked=()
	CARGO_TARGET_DIR=/cache/builds/${BUILDS##*/}/$target in_root \
		cargo "$command" "${locked[@]}" --manifest-path "/src/tests/$folder/Cargo.toml" "$@"
}

programs_cargo() { # COMMAND ARGUMENT...
	RUSTFLAGS=${RUSTFLAGS:-}${COVER:+ $COVER} \
		separate_cargo programs "users$COVERED/target" "$@"
}

devices_cargo() { # COMMAND ARGUMENT...
	separate_cargo devices devices/target "$@"
}

api_cargo() { # COMMAND ARGUMENT...
	separate_cargo api api/target "$@"
}

fuzz_cargo() { # COMMAND ARGUMENT...
	separate_cargo fuzz/fuzzer fuzz/target "$@"
}

loom_cargo() { # COMMAND ARGUMENT...
	separate_cargo loom loom/target "$@"
}

# devices_build: builds the devices that QEMU attaches and sets DEVICES, a directory with the
# programs testgpu, testfpga and xdma.
devices_build() {
	local content
	content=$({
		ARCH=x86_64 build_key
		content_of "$TREE/tests/devices" '^\./(Cargo|[^/]*/(Cargo|README|src/))'
	} | hash_of)
	DEVICES=$RESULTS/devices/$content
	[ -e "$DEVICES" ] || locked "devices-${BUILDS##*/}" devices_make
	touch -c "$DEVICES"
}

devices_make() {
	[ ! -e "$DEVICES" ] || return 0
	local dir=$BUILDS/devices
	mkdir -p "$dir/programs"
	STEP_LOG=$dir/log
	step "$STEP_LOG" "building the devices" cargo_progress \
		with_progress devices_cargo build --release \
		--bin testgpu --bin testfpga --bin xdma || {
		cat "$dir/log" >&2
		die "the devices cannot be built"
	}
	cp "$dir/target/release"/{testgpu,testfpga,xdma} "$dir/programs/"
	keep "$dir/programs" "$DEVICES" 10
}
