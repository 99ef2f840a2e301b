#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs inside a fresh mount namespace: puts what a command needs into the build root, then runs the
# command there. Because the mounts exist in this namespace only, deleting the cache from outside
# can never reach the host's files.
# usage: enter-root.sh ROOT TREE CACHE OUT COMMAND...    (TREE, CACHE and OUT may be empty)
set -euo pipefail

root=$1 tree=$2 cache=$3 out=$4
shift 4

mount --make-rprivate /
mount -t tmpfs -o mode=755 dev "$root/dev"
for node in null zero full random urandom tty kvm; do
	[ -e "/dev/$node" ] || continue
	: >"$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
# In a PID namespace of its own the root must see that one's processes.
if [ "$$" -eq 1 ]; then
	mount -t proc proc "$root/proc"
else
	mount --rbind /proc "$root/proc"
fi
mount --rbind /sys "$root/sys"

bind() { # bind FROM AT [OPTIONS]
	mkdir -p "$root$2"
	mount --bind ${3:+-o "$3"} "$1" "$root$2"
}
[ -z "$tree" ] || bind "$tree" /src
[ -z "$cache" ] || bind "$cache" /cache
[ -z "$out" ] || bind "$out" /out
[ -z "${PINMAP_LINUX_SRC:-}" ] || bind "$(realpath "$PINMAP_LINUX_SRC")" /linux ro

bind_file() { # bind_file FROM AT
	[ -e "$root$2" ] || : >"$root$2"
	mount --bind "$1" "$root$2"
	# In a user namespace not every mount can be changed, and what is root's is not written to.
	mount -o remount,bind,ro "$root$2" 2>/dev/null || :
}
[ ! -s /etc/resolv.conf ] || bind_file /etc/resolv.conf /etc/resolv.conf
# The host may trust more than Debian does (a proxy's certificate, say).
certificates=/etc/ssl/certs/ca-certificates.crt
for bundle in "${CARGO_HTTP_CAINFO:-}" "${SSL_CERT_FILE:-}" \
	/etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
	if [ -n "$bundle" ] && [ -s "$bundle" ]; then
		certificates=/etc/host-certificates.crt
		bind_file "$bundle" "$certificates"
		break
	fi
done

environment=(
	PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
	HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" DEBIAN_FRONTEND=noninteractive
	CARGO_HTTP_CAINFO="$certificates" SSL_CERT_FILE="$certificates" CARGO_HOME=/cache/cargo
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc-14
)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY \
	CARGO_TARGET_DIR RUSTFLAGS PROPTEST_CASES CARGO_TERM_PROGRESS_{WHEN,WIDTH} \
	LLVM_PROFILE_FILE; do
	[ -z "${!name:-}" ] || environment+=("$name=${!name}")
done
cd "$root"
exec env -i "${environment[@]}" chroot "$root" "$@"
