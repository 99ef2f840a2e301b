#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs in the build root: takes those modules of an unpacked kernel package that the VM needs.
# usage: stock-modules.sh KERNEL-DIRECTORY RELEASE MODULE...
set -euo pipefail

directory=$1 release=$2
shift 2
from=$directory/unpacked
to=$directory/modules/lib/modules/$release
# kmod looks below /lib only
[ -e "$from/lib" ] || ln -s usr/lib "$from/lib"
depmod -b "$from" "$release"
rm -rf "$directory/modules"
mkdir -p "$to"
for module; do
	modprobe -d "$from" -S "$release" --show-depends "$module" |
		awk '$1 == "insmod" { print $2 }'
done | sort -u | while read -r file; do
	name=${file##*/}
	case $file in
	*.xz) xz -dc "$file" >"$to/${name%.xz}" ;;
	*.zst) zstd -dqc "$file" >"$to/${name%.zst}" ;;
	*) cp "$file" "$to/$name" ;;
	esac
done
cp "$from/lib/modules/$release"/modules.{builtin,builtin.modinfo,order} "$to"
depmod -b "$directory/modules" "$release"
printf '%s\n' "$@" >"$directory/modules/load"
