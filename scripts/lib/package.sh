# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Debian packages. Needs common.sh, root.sh, kernel.sh and build.sh.

# packages_build [NAME]: builds the packages and sets PACKAGES, a directory with them, and
# KREL, the release of the kernel that the driver is prebuilt for. With a NAME they are built again,
# apart from others: to see whether they come out the same.
packages_build() {
	local content name=${1:-package}${CROSS:+-$ARCH}
	kernel_ensure stock
	module_build
	system_ensure
	KREL=$(basename "$(echo "$KDIR"/modules/lib/modules/*)")
	content=$({
		build_key
		sha256sum <"$MODULE"
		echo "$name $SYSTEM"
		sha256sum <"$TREE/scripts/lib/package.sh"
		content_of "$TREE" '^\./(Cargo|README\.md$|Kbuild|Makefile)' \
			'^\./(userlib|devices|cli|capi|python|driver|include|udev|docs)/' \
			'^\./packaging/(debian/|dkms/|modules-load\.conf$)'
	} | hash_of)
	PACKAGES=$RESULTS/packages/$content
	[ -e "$PACKAGES" ] || locked "$name-${BUILDS##*/}" packages_make "$name"
	touch -c "$PACKAGES"
}

packages_make() { # NAME
	[ ! -e "$PACKAGES" ] || return 0
	local dir=$BUILDS/$1
	mkdir -p "$dir/tree/target"
	# The output of cargo stays for the next time, and so do its sources.
	find "$dir" -mindepth 1 -maxdepth 1 ! -name tree -exec rm -rf {} +
	rm -rf "$dir"/tree/target/{capi,man} "$dir/tree/debian"
	packages_copy "$dir/tree"
	cp "$MODULE" "$dir/pinmap.ko"
	# Of this machine's architecture, for the manual pages.
	[ -z "$CROSS" ] || cp "$(native_command)" "$dir/pinmap"
	STEP_LOG=$BUILDS/$1.log
	step "$STEP_LOG" "building the Debian packages" cargo_progress \
		with_progress packages_compile "/cache${dir#"$CACHE"}" || {
		cat "$STEP_LOG" >&2
		die "the packages cannot be built"
	}
	mkdir "$dir/packages"
	mv "$dir"/*.deb "$dir/packages"
	keep "$dir/packages" "$PACKAGES" 12
}

# native_command: the path of the command for this machine
native_command() {
	arch_set x86_64
	root_ensure
	programs_build --commands
	echo "$PROGRAMS/bin/pinmap"
}

# packages_copy TO: the tree, with packaging/debian as debian/. Files that have not changed stay,
# for cargo goes by time. Directories that have become empty would be a part of a package.
packages_copy() {
	local version file
	comm -13 <(files_in "$TREE") <(files_in "$1") | tr '\n' '\0' |
		(cd "$1" && xargs -0 -r rm -f)
	find "$1" -mindepth 1 -depth -type d -empty ! -path "$1/target*" -delete
	while read -r file; do
		cmp -s "$TREE/$file" "$1/$file" || {
			mkdir -p "$1/${file%/*}"
			cp "$TREE/$file" "$1/$file"
		}
	done < <(files_in "$TREE")
	cp -r "$1/packaging/debian" "$1/debian"
	sed "s/@RELEASE@/$KREL/" "$1/debian/control.modules" >>"$1/debian/control"
	for file in postinst postrm; do
		sed "s/@RELEASE@/$KREL/" "$1/debian/modules.$file" \
			>"$1/debian/pinmap-modules-$KREL.$file"
	done
	rm "$1"/debian/control.modules "$1"/debian/modules.*
	version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$1/Cargo.toml" | head -n 1)
	for file in "$1"/debian/pinmap-dkms.{postinst,prerm}; do
		sed -i "s/@VERSION@/$version/" "$file"
	done
	# Dates do not become a part of the packages.
	chmod -R u=rwX,go=rX "$1/debian"
}

# packages_compile DIRECTORY: always at the same path, which is a part of what is built; without
# packages for debuggers, which take longer than all others
packages_compile() {
	local build='mount --mkdir --bind "$1/tree" /tmp/pinmap/tree && cd /tmp/pinmap/tree &&
		export MODULE=$1/pinmap.ko RELEASE=$2 DEB_BUILD_OPTIONS=noautodbgsym &&
		dpkg-buildpackage -us -uc -d "${@:3}" && mv /tmp/pinmap/*.deb "$1"'
	local options=(-b) environment=()
	# Packages for all architectures are made with those for x86-64.
	if [ -n "$CROSS" ]; then
		options=(-B -a "$DEBIAN_ARCH")
		environment=("CC=${CROSS}gcc-14" "NATIVE=$1/pinmap")
	fi
	in_system unshare --mount --propagation unchanged env "${environment[@]}" \
		bash -c "$build" bash "$1" "$KREL" "${options[@]}"
}
