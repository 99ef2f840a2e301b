# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The build root: a Debian trixie with the whole tool chain, the same on every host.

ROOT_VERSION=1 # to be raised when something here changes what the root holds
ROOT_PACKAGES=(
	# the kernel and the module
	make bc bison flex libelf-dev libssl-dev pahole perl python3 xz-utils clang lld llvm rustc rust-src bindgen
	# the programs, also for 32 bits
	cargo rustfmt rust-clippy libc6-dev libc6-dev-i386 lib32gcc-14-dev
	# the VM
	busybox-static cpio kmod e2fsprogs
	ca-certificates
)
ROOT_BACKPORTS=(qemu-system-x86)

root_key() {
	echo "$ROOT_VERSION ${ROOT_PACKAGES[*]} ${ROOT_BACKPORTS[*]}" | hash_of
}

# root_ensure: sets ROOT, making the root first where it is missing.
root_ensure() {
	need_root
	ROOT=$CACHE/roots/$(root_key)
	[ -e "$ROOT" ] || locked root root_make
}

# in_root [--exec] COMMAND...: runs a command in the root, with the tree at /src and the cache at /cache.
# Whatever it starts ends with it. With --exec this very process becomes the command, so that it can be signalled.
in_root() {
	if [ "$1" = --exec ]; then
		shift
		exec unshare --mount bash "$TREE/scripts/lib/enter-root.sh" "$ROOT" "$TREE" "$CACHE" "${OUT:-}" "$@"
	fi
	unshare --mount --pid --fork --kill-child bash "$TREE/scripts/lib/enter-root.sh" "$ROOT" "$TREE" "$CACHE" "${OUT:-}" "$@"
}

# root_mirror: where this host gets Debian from; nothing when that is not known (debootstrap has a default).
root_mirror() {
	if [ -n "${PINMAP_MIRROR:-}" ]; then
		echo "$PINMAP_MIRROR"
	elif command -v apt-get >/dev/null; then
		{
			apt-get indextargets --format '$(SITE) $(LABEL)' 2>/dev/null | sed -n 's/ Debian$//p'
			# before the first apt-get update there are no labels
			apt-get indextargets --format '$(SITE)' 2>/dev/null | grep -E '/debian/?$'
		} | head -n 1 || :
	fi
}

# root_make: runs with the lock held. A root that is not finished has another name, and is made anew.
root_make() {
	[ ! -e "$ROOT" ] || return 0
	need_space 12 "the set-up"
	rm -rf --one-file-system "$CACHE"/roots/*.partial
	if ! command -v debootstrap >/dev/null; then
		command -v apt-get >/dev/null || die "debootstrap is missing; please install it"
		STEP_LOG=$CACHE/logs/debootstrap-install.log
		step "$STEP_LOG" "installing debootstrap" last_line apt_install_host debootstrap ||
			die "debootstrap is missing and apt-get cannot install it (log: $STEP_LOG)"
	fi
	local final=$ROOT mirror
	local ROOT=$final.partial
	mirror=$(root_mirror)
	mkdir -p "$ROOT"
	STEP_LOG=$CACHE/logs/root.log
	step "$STEP_LOG" "unpacking Debian trixie${mirror:+ from $mirror}" last_line root_debootstrap "$mirror" ||
		die "cannot make a Debian trixie root: $(root_cause) (log: $STEP_LOG)"
	root_sources
	STEP_LOG=$CACHE/logs/root-packages.log
	step "$STEP_LOG" "installing the tool chain and QEMU into it" last_line root_install ||
		die "cannot install the tool chain: $(root_cause) (log: $STEP_LOG)"
	mv "$ROOT" "$final"
}

apt_install_host() {
	DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@" ||
		{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"; }
}

# debootstrap mounts things in the root it makes; they too stay in a namespace.
root_debootstrap() {
	unshare --mount --pid --fork --kill-child debootstrap --variant=minbase trixie "$ROOT" ${1:+"$1"}
}

# root_sources: the suites beside trixie, from the mirror that debootstrap used.
root_sources() {
	local mirror
	mirror=$(awk '$1 == "deb" { print $2; exit }' "$ROOT/etc/apt/sources.list")
	cat >"$ROOT/etc/apt/sources.list" <<-END
		deb $mirror trixie main
		deb $mirror trixie-updates main
		deb $mirror trixie-backports main
	END
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
	[[ $mirror != https:* ]] || echo 'Acquire::https::CAInfo "/etc/host-certificates.crt";' >>"$ROOT/etc/apt/apt.conf.d/pinmap"
}

root_install() {
	in_root apt-get -q update &&
		in_root apt-get -q install -y "${ROOT_PACKAGES[@]}" &&
		in_root apt-get -q install -y -t trixie-backports "${ROOT_BACKPORTS[@]}" &&
		in_root apt-get -q clean
}

# root_cause: the reason in a failed step's log, in words.
root_cause() {
	if grep -qE 'Temporary failure resolving|Could not (connect|resolve)|Failed to fetch|Failed getting release file|Unable to connect|Connection (refused|timed out)' "$STEP_LOG"; then
		echo "the Debian mirror cannot be reached"
	elif grep -q 'No space left' "$STEP_LOG"; then
		echo "the disk is full"
	else
		grep -E '^(E|W):|rror' "$STEP_LOG" | tail -n 1 | grep . || echo "see the log"
	fi
}
