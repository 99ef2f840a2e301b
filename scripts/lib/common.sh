# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Parts that every command uses: messages, the cache, locks, long steps. Sourced, never run.

umask 022
shopt -s inherit_errexit

TREE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
CACHE=$(realpath -m "${XDG_CACHE_HOME:-$HOME/.cache}/pinmap")

# An ordinary user goes on as root of a user namespace, with the ids that /etc/subuid has for the
# user. Where there is no such namespace, need_root says what is missing.
if [ "$(id -u)" -ne 0 ] && unshare --map-root-user --map-auto true 2>/dev/null; then
	exec unshare --map-root-user --map-auto "$0" "$@"
fi

# Everything said goes to stderr: stdout belongs to the command that runs in the VM.
say() {
	printf '[%2d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*" >&2
}

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# arch_set ARCH: chooses the architecture that is built for and emulated, for the commands that this
# one calls, too. Sets ARCH, without a page size; DEBIAN_ARCH and TARGET, as Debian and Rust call
# it; FLAVOUR, as Debian calls its kernel, and PAGE, the kernel's page; CROSS, what its tools' names
# begin with; and KBUILD_ARCH, arguments of the kernel's make.
arch_set() {
	export PINMAP_ARCH=$1
	ARCH=${1%-16k}
	case $1 in
	x86_64) DEBIAN_ARCH=amd64 TARGET=x86_64-unknown-linux-gnu CROSS='' KBUILD_ARCH=() ;;
	arm64 | arm64-16k)
		DEBIAN_ARCH=arm64 TARGET=aarch64-unknown-linux-gnu CROSS=aarch64-linux-gnu-
		KBUILD_ARCH=(ARCH=arm64 "CROSS_COMPILE=$CROSS")
		;;
	*) die "there is no architecture '$1': x86_64, arm64 and arm64-16k are the ones" ;;
	esac
	FLAVOUR=$DEBIAN_ARCH${1#"$ARCH"} PAGE=4096
	[ "$1" = "$ARCH" ] || PAGE=16384
}
arch_set "${PINMAP_ARCH:-x86_64}"

# hash_of: a short name for the contents of stdin.
hash_of() {
	sha256sum | cut -c1-16
}

# need_root: namespaces, chroot and debootstrap all need it, so it is asked for once, before
# anything else. Root of a user namespace will do.
need_root() {
	[ "$(id -u)" -eq 0 ] || die "$(root_missing)"
	[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
		die "runs on x86-64 Linux only, and this is $(uname -s) on $(uname -m)"
	unshare --mount true 2>/dev/null ||
		die "this root may not make mount namespaces (a container needs CAP_SYS_ADMIN)"
	mkdir -p "$CACHE"/{locks,logs,roots,sources,kernels,builds,results,runs} 2>/dev/null ||
		die "cannot create the cache directory $CACHE"
	CACHE=$(cd "$CACHE" && pwd -P)
}

# root_missing: what an ordinary user lacks for a user namespace with several ids
root_missing() {
	local user why
	user=$(id -un)
	if ! unshare --map-root-user true 2>/dev/null; then
		why="this system lets no user make user namespaces"
	elif ! command -v newuidmap >/dev/null; then
		why="newuidmap is missing (Debian's package uidmap)"
	elif ! grep -q "^\($user\|$(id -u)\):" /etc/subuid /etc/subgid 2>/dev/null; then
		why="$user has no ids in /etc/subuid and /etc/subgid (as root: usermod"
		why+=" --add-subuids 100000-165535 --add-subgids 100000-165535 $user)"
	else
		why="unshare --map-auto fails: $(unshare --map-root-user --map-auto true 2>&1)"
	fi
	echo "needs root, or a user namespace with several ids, and $why"
}

# need_space GIGABYTES WHAT
need_space() {
	local free
	free=$(df --output=avail -B1G "$CACHE" | tail -n 1)
	[ "$free" -ge "$1" ] || die "$2 needs $1 GB of free disk space, and $CACHE has $((free))"
}

# at_exit FUNCTION: calls it when the script ends, however that comes about.
at_exit() {
	AT_EXIT+=("$1")
}
AT_EXIT=()
run_at_exit() {
	local function
	for function in "${AT_EXIT[@]}"; do
		"$function" || :
	done
}
trap run_at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# locked NAME COMMAND...: two runs at once must not make the same thing twice, let alone into each
# other.
locked() {
	local name=$1 lock
	shift
	exec {lock}>"$CACHE/locks/$name"
	if ! flock -n "$lock"; then
		say "waiting for another run, which is making $name"
		flock "$lock"
	fi
	"$@"
	exec {lock}>&-
}

# step LOG TITLE PROGRESS COMMAND...: runs a long command with its output in LOG. After ten seconds,
# and from time to time after that, one line tells how far it is. PROGRESS is a command that prints
# `DONE TOTAL UNIT`, from which the time that is left is estimated, or a text. The command has a
# process group of its own, so that an interrupted script can end all of it. As step is used with
# ||, errexit does not hold in the command: its parts must be joined with &&.
step() {
	local log=$1 title=$2 progress=$3 began=$SECONDS next=$((SECONDS + 10)) rc=0 pause=30 first
	shift 3
	! progress_in_place || pause=2
	say "$title"
	: >"$log"
	first=$($progress)
	set -m
	("$@") >"$log" 2>&1 </dev/null &
	STEP_PID=$!
	set +m
	while kill -0 "$STEP_PID" 2>/dev/null; do
		sleep 0.5
		if [ "$SECONDS" -ge "$next" ]; then
			next=$((SECONDS + pause))
			say_progress "  $title: $(
				step_progress "$first" "$($progress)" $((SECONDS - began))
			)"
		fi
	done
	wait "$STEP_PID" || rc=$?
	STEP_PID=
	[ "$rc" -eq 0 ] && say "  $title: done in $(duration $((SECONDS - began)))"
	return "$rc"
}

# say_progress LINE: like say; on a terminal the next line replaces it.
say_progress() {
	if progress_in_place; then
		printf '[%2d:%02d] %.90s\033[K\r' $((SECONDS / 60)) $((SECONDS % 60)) "$1" >&2
	else
		say "$1"
	fi
}

# Not where several say what they do.
PROGRESS=${PROGRESS:-}
progress_in_place() {
	[ -t 2 ] && [ "$PROGRESS" != lines ]
}

duration() { # SECONDS
	if [ "$1" -lt 60 ]; then
		echo "$1 s"
	else
		echo "$(($1 / 60)) min $(($1 % 60)) s"
	fi
}

# step_progress FIRST NOW SECONDS: the progress of a step that has run for SECONDS. An interrupted
# step goes on where it stopped, so only the work since FIRST counts for the estimate. There is no
# estimate before a twentieth is done, since the first part often takes longer.
step_progress() {
	local first=0 done total unit
	if ! [[ $2 =~ ^([0-9]+)\ ([0-9]+)\ (.+)$ ]]; then
		echo "$2"
		return
	fi
	done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]} unit=${BASH_REMATCH[3]}
	! [[ $1 =~ ^([0-9]+)\  ]] || first=${BASH_REMATCH[1]}
	printf '%s of %s %s' "$done" "$total" "$unit"
	if [ $((20 * (done - first))) -ge $((total - first)) ] && [ "$done" -lt "$total" ]; then
		printf ', about %s left' "$(duration $(($3 * (total - done) / (done - first))))"
	fi
}

STEP_PID=
stop_step() {
	[ -z "$STEP_PID" ] || kill -KILL -- "-$STEP_PID" 2>/dev/null
}
at_exit stop_step

# The usual PROGRESS: the last line of the step's log.
last_line() {
	tail -c 400 "$STEP_LOG" 2>/dev/null | tr '\r' '\n' | grep -v '^ *$' | tail -n 1 |
		cut -c1-100 || :
}
