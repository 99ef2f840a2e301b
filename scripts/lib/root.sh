# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The build root: a Debian trixie with the whole tool chain, the same on every host.

ROOT_VERSION=1 # to be raised when something here changes what the root holds
ROOT_PACKAGES=(
	# the kernel and the module
	make bc bison flex libelf-dev libssl-dev pahole perl python3 xz-utils
	clang lld llvm rustc rust-src bindgen
	# the programs, also for 32 bits
	cargo rustfmt rust-clippy libc6-dev libc6-dev-i386 lib32gcc-14-dev
	# the VM
	busybox-static cpio kmod e2fsprogs
	ca-certificates
)
ROOT_BACKPORTS=(qemu-system-x86)
# Packages for building for arm64, and its machine.
CROSS_PACKAGES=(gcc-14-aarch64-linux-gnu libc6-dev-arm64-cross libstd-rust-dev:arm64)
CROSS_BACKPORTS=(qemu-system-arm)
# Packages for making and trying the Debian packages, the C library and the Python module, for
# proofs, and for machines in a network.
SYSTEM_PACKAGES=(
	build-essential debhelper dh-dkms dkms lintian fakeroot
	pkgconf valgrind abigail-tools cbindgen
	python3-maturin python3-numpy python3-pytest python3-matplotlib
	ovmf python3-virt-firmware
	cbmc wabt libstd-rust-dev-wasm32
	iproute2 openssh-server libibverbs-dev ibverbs-providers ibverbs-utils perftest
	ucx-utils openmpi-bin libopenmpi-dev python3-mpi4py
)

root_key() {
	{
		echo "$ROOT_VERSION ${ROOT_PACKAGES[*]} ${ROOT_BACKPORTS[*]}"
		[ "$ARCH" = x86_64 ] || echo "${CROSS_PACKAGES[*]} ${CROSS_BACKPORTS[*]}"
	} | hash_of
}

# root_ensure: sets ROOT, making the root first where it is missing. For arm64 it is a root of its
# own, with more packages.
root_ensure() {
	need_root
	ROOT=$CACHE/roots/$(ARCH=x86_64 root_key)
	[ -e "$ROOT" ] || locked root root_make
	libm_ensure
	[ "$ARCH" != x86_64 ] || return 0
	local cross
	cross=$CACHE/roots/$ARCH-$(root_key)
	[ -e "$cross" ] ||
		locked cross root_extend "$cross" "what building for $ARCH takes" cross_install
	ROOT=$cross
	libm_ensure
}

# libm_ensure: in the root is what kernels of the test GPU are linked with for mathematics: musl's
# libc.a for riscv64. It is only unpacked, since its package wants a compiler. Where the mirror does
# not have it, tests of such kernels are skipped.
LIBM=usr/lib/riscv64-linux-musl
libm_ensure() {
	[ -e "$ROOT/$LIBM" ] || locked libm libm_make
}

libm_make() {
	[ ! -e "$ROOT/$LIBM" ] || return 0
	STEP_LOG=$CACHE/logs/libm.log
	step "$STEP_LOG" "unpacking a library of mathematics for kernels" last_line libm_unpack ||
		say "  there is no musl-dev:riscv64: $(root_cause) (log: $STEP_LOG)"
}

# apt learns of riscv64 for this alone.
libm_unpack() {
	# shellcheck disable=SC2016
	in_root sh -ec '
		cd "$(mktemp -d)"
		mkdir -p lists/partial
		sed -n "s/^deb \(.* trixie main\)$/deb [arch=riscv64] \1/p" \
			/etc/apt/sources.list >sources.list
		set -- -q -o Dir::State::lists="$PWD/lists" -o Dir::Cache::pkgcache= \
			-o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=- \
			-o Dir::Cache::srcpkgcache= -o APT::Architectures::=amd64 \
			-o APT::Architectures::=riscv64
		apt-get "$@" update
		apt-get "$@" download musl-dev:riscv64
		dpkg-deb -x musl-dev_*.deb .
		cp -r usr/include/riscv64-linux-musl /usr/include
		cp -r usr/lib/riscv64-linux-musl /usr/lib/riscv64-linux-musl.new
		mv -T /usr/lib/riscv64-linux-musl.new /usr/lib/riscv64-linux-musl
		rm -r "$PWD"'
}

# in_root [--exec] COMMAND...: runs a command in the root, with the tree at /src and the cache at
# /cache. All that it starts ends with it. With --exec this very process becomes the command, so
# that it can be signalled.
in_root() {
	if [ "$1" = --exec ]; then
		shift
		exec unshare --mount bash "$TREE/scripts/lib/enter-root.sh" \
			"$ROOT" "$TREE" "$CACHE" "${OUT:-}" "$@"
	fi
	unshare --mount --pid --fork --kill-child bash "$TREE/scripts/lib/enter-root.sh" \
		"$ROOT" "$TREE" "$CACHE" "${OUT:-}" "$@"
}

# root_mirror: where this host gets Debian from; nothing when that is not known (debootstrap has a
# default).
root_mirror() {
	if [ -n "${PINMAP_MIRROR:-}" ]; then
		echo "$PINMAP_MIRROR"
	elif command -v apt-get >/dev/null; then
		{
			apt-get indextargets --format '$(SITE) $(LABEL)' 2>/dev/null |
				sed -n 's/ Debian$//p'
			# before the first apt-get update there are no labels
			apt-get indextargets --format '$(SITE)' 2>/dev/null | grep -E '/debian/?$'
		} | head -n 1 || :
	fi
}

# system_ensure: sets SYSTEM, a Debian system with the build root's packages and SYSTEM_PACKAGES. In
# the VM it is at /system, for programs that are not static (scripts/vm --system). For arm64 it is
# the same system with what builds packages for arm64.
system_ensure() {
	root_ensure
	local key system cross
	key=$({ ARCH=x86_64 root_key; echo "${SYSTEM_PACKAGES[*]}"; } | hash_of)
	system=$CACHE/roots/system-$key
	[ -e "$system" ] || {
		local ROOT
		ROOT=$CACHE/roots/$(ARCH=x86_64 root_key)
		locked system root_extend "$system" "Python and what packages need" system_install
	}
	ROOT=$system libm_ensure
	SYSTEM=$system
	[ "$ARCH" != x86_64 ] || return 0
	cross=$system-$ARCH-$(root_key)
	[ -e "$cross" ] || {
		local ROOT=$system
		locked cross-system root_extend "$cross" "what building packages for $ARCH takes" \
			cross_install
	}
	SYSTEM=$cross
}

# root_extend DIRECTORY WHAT COMMAND: makes DIRECTORY, a copy of the root in which COMMAND has
# installed WHAT. Runs with the lock held.
root_extend() {
	local to=$1 what=$2
	[ ! -e "$to" ] || return 0
	need_space 5 "$what"
	rm -rf --one-file-system "$to.partial"
	cp -a --reflink=auto "$ROOT" "$to.partial"
	# The VM mounts its own directories there.
	mkdir -p "$to.partial"/{src,out,cache,usr/lib/pinmap,lib/modules}
	STEP_LOG=$CACHE/logs/${to##*/}.log
	local ROOT=$to.partial
	step "$STEP_LOG" "installing $what" apt_progress "$3" ||
		die "cannot install $what: $(root_cause) (log: $STEP_LOG)"
	mv "$to.partial" "$to"
}

# Debian has busybox for one architecture at a time: the VM's is only unpacked.
cross_install() {
	in_root dpkg --add-architecture "$DEBIAN_ARCH" &&
		in_root apt-get -q update &&
		in_root apt-get -q install -y "${CROSS_PACKAGES[@]}" &&
		in_root apt-get -q install -y -t trixie-backports "${CROSS_BACKPORTS[@]}" &&
		in_root env -C /tmp sh -ec "apt-get -q download busybox-static:$DEBIAN_ARCH
			dpkg-deb -x busybox-static_*.deb /usr/${CROSS%-}/busybox" &&
		in_root apt-get -q clean
}

system_install() {
	local install=(in_root apt-get -q install -y "${SYSTEM_PACKAGES[@]}")
	# The archive may have moved on since the root was made.
	{ "${install[@]}" || { in_root apt-get -q update && "${install[@]}"; }; } &&
		in_root apt-get -q clean
}

# in_system COMMAND...: like in_root
in_system() {
	local ROOT=$SYSTEM
	in_root "$@"
}

# root_make: runs with the lock held. A root that is not finished has another name, and is made
# anew.
root_make() {
	[ ! -e "$ROOT" ] || return 0
	need_space 12 "the set-up"
	rm -rf --one-file-system "$CACHE"/roots/*.partial
	root_need_debootstrap
	local final=$ROOT mirror
	local ROOT=$final.partial
	mirror=$(root_mirror)
	mkdir -p "$ROOT"
	STEP_LOG=$CACHE/logs/root.log
	step "$STEP_LOG" "unpacking Debian trixie${mirror:+ from $mirror}" debootstrap_progress \
		root_debootstrap "$mirror" ||
		die "cannot make a Debian trixie root: $(root_cause) (log: $STEP_LOG)"
	root_sources
	STEP_LOG=$CACHE/logs/root-packages.log
	step "$STEP_LOG" "installing the tool chain and QEMU into it" apt_progress root_install ||
		die "cannot install the tool chain: $(root_cause) (log: $STEP_LOG)"
	mv "$ROOT" "$final" || die "the root $final cannot be put into place"
}

root_need_debootstrap() {
	! command -v debootstrap >/dev/null || return 0
	command -v apt-get >/dev/null || die "debootstrap is missing; please install it"
	STEP_LOG=$CACHE/logs/debootstrap-install.log
	step "$STEP_LOG" "installing debootstrap" last_line apt_install_host debootstrap ||
		die "debootstrap is missing and apt-get cannot install it (log: $STEP_LOG)"
}

apt_install_host() {
	local install=(apt-get -q install -y --no-install-recommends "$@")
	export DEBIAN_FRONTEND=noninteractive
	"${install[@]}" || { apt-get -q update && "${install[@]}"; }
}

# debootstrap mounts things in the root it makes; they too stay in a namespace. In a user namespace
# nobody makes device nodes. So they are there before, and debootstrap is told to make do with them.
root_debootstrap() { # [MIRROR]
	local script=
	# Trixie is made as sid is, also where the host's debootstrap has not heard of it.
	[ -e /usr/share/debootstrap/scripts/trixie ] || script=/usr/share/debootstrap/scripts/sid
	# shellcheck disable=SC2016
	container=lxc unshare --mount --pid --fork --kill-child bash -ec '
		mkdir -p "$1/dev"
		mount -t tmpfs -o mode=755 dev "$1/dev"
		mkdir "$1/dev/pts" "$1/dev/shm"
		for node in null zero full random urandom tty console ptmx; do
			: >"$1/dev/$node"
			[ ! -e "/dev/$node" ] || mount --bind "/dev/$node" "$1/dev/$node"
		done
		exec debootstrap --variant=minbase trixie "$@"
	' bash "$ROOT" ${1:+"$1"} ${script:+"$script"}
}

# root_sources: all suites, from the mirror that debootstrap used.
root_sources() {
	local mirror suite
	mirror=$(awk '$1 == "deb" { print $2; exit }' "$ROOT/etc/apt/sources.list")
	for suite in trixie trixie-updates trixie-backports; do
		echo "deb $mirror $suite main"
	done >"$ROOT/etc/apt/sources.list.new"
	mv "$ROOT/etc/apt/sources.list.new" "$ROOT/etc/apt/sources.list"
	printf 'force-unsafe-io\n' >"$ROOT/etc/dpkg/dpkg.cfg.d/pinmap"
	cat >"$ROOT/etc/dpkg/dpkg.cfg.d/pinmap-lean" <<-END
		path-exclude=/usr/share/doc/*
		path-exclude=/usr/share/man/*
		path-exclude=/usr/share/locale/*
	END
	cat >"$ROOT/etc/apt/apt.conf.d/pinmap" <<-END
		APT::Install-Recommends "false";
		Acquire::Languages "none";
		Acquire::Retries "3";
		APT::Update::Error-Mode "any";
		APT::Sandbox::User "root";
		APT::Keep-Downloaded-Packages "false";
	END
	[[ $mirror != https:* ]] ||
		echo 'Acquire::https::CAInfo "/etc/host-certificates.crt";' \
			>>"$ROOT/etc/apt/apt.conf.d/pinmap"
}

root_install() {
	in_root apt-get -q update &&
		in_root apt-get -q install -y "${ROOT_PACKAGES[@]}" &&
		in_root apt-get -q install -y -t trixie-backports "${ROOT_BACKPORTS[@]}" &&
		in_root apt-get -q clean
}

# debootstrap retrieves all packages, then extracts or unpacks and configures each: then it is known
# how many there are.
debootstrap_progress() {
	awk '
		/^I: Validating / { packages++ }
		/^I: (Extracting|Unpacking|Configuring) / { done++ }
		/^I: Chosen extractor/ { known = 1 }
		END {
			if (known) print done + 0, 3 * packages, "steps"
			else print packages + 0, "packages retrieved"
		}' "$STEP_LOG"
}

# apt says how many packages there are, then unpacks and sets up each.
apt_progress() {
	awk '
		/ newly installed, / {
			for (i = 1; i < NF; i++)
				if ($(i + 1) == "newly") total += 2 * $i
		}
		/^(Unpacking|Setting up) / { done++ }
		END {
			if (total) print done + 0, total, "steps"
			else print "reading the lists of packages"
		}' "$STEP_LOG"
}

# root_cause: the reason in a failed step's log, in words.
root_cause() {
	local unreachable='Temporary failure resolving|Could not (connect|resolve)|Failed to fetch'
	unreachable+='|Failed getting release file|Unable to connect|Connection (refused|timed out)'
	if grep -qE "$unreachable" "$STEP_LOG"; then
		echo "the Debian mirror cannot be reached"
	elif grep -qE 'Release file .* is expired' "$STEP_LOG"; then
		echo "the mirror's Release file has expired"
	elif grep -q 'No space left' "$STEP_LOG"; then
		echo "the disk is full"
	else
		grep -E '^(E|W):|rror' "$STEP_LOG" | tail -n 1 | grep . || echo "see the log"
	fi
}
