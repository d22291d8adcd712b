#!/usr/bin/env bash
# release-dist.sh ARCH BUILD-DIR DIST-DIR: what is shipped for one machine, from what release-build.sh has built.
#
# Makes DIST-DIR/ARCH with lib/, include/, doc/ and debug/, and beside it the two tar files.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=$1 build=$2 dist=$3
built=$build/$arch-unknown-linux-gnu/release
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
abi=$(sed -n 's/.*-soname,libkvconn\.so\.\([0-9]*\).*/\1/p' build.rs)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} # tar's time of every file: that of the commit

# GNU binutils for the machine that the files are for.
prefix=
[ "$(uname -m)" = "$arch" ] || prefix=$arch-linux-gnu-

out=$dist/$arch
rm -rf "$out"
mkdir -p "$out/lib" "$out/include" "$out/doc"

library=$out/lib/libkvconn.so.$version
id=$(readelf -n "$built/libkvconn.so" | sed -n 's/.*Build ID: //p')
[ -n "$id" ] || { echo "kvconn: $built/libkvconn.so has no build id" >&2; exit 1; }
debug=$out/debug/.build-id/${id:0:2}/${id:2}.debug
mkdir -p "$(dirname "$debug")"
"${prefix}objcopy" --only-keep-debug --compress-debug-sections=zlib "$built/libkvconn.so" "$debug"
"${prefix}strip" --strip-unneeded --remove-section=.comment -o "$library" "$built/libkvconn.so"
ln -s "libkvconn.so.$version" "$out/lib/libkvconn.so.$abi"
ln -s "libkvconn.so.$abi" "$out/lib/libkvconn.so"

if [ -x packaging/archive.sh ]; then
    # The C++ run-time library, which zig has linked into the shared object.
    runtime=
    for name in libc++ libc++abi libc++; do # each needs the other
        mapfile -t archives < <(find "$build/cache/o" -name "$name.a")
        [ "${#archives[@]}" = 1 ] || { echo "kvconn: zig has made ${#archives[@]} $name.a, not one: remove $build" >&2; exit 1; }
        runtime+=" ${archives[0]}"
    done
    LD=${prefix}ld OBJCOPY=${prefix}objcopy AR=${prefix}ar NM=${prefix}nm STRIP=${prefix}strip KVCONN_ARCHIVE_EXTRA=$runtime \
        packaging/archive.sh "$built/libkvconn.a" "$out/lib/libkvconn.a"
else
    cp "$built/libkvconn.a" "$out/lib/libkvconn.a"
fi

for header in include/*.h include/*.hpp; do
    [ ! -f "$header" ] || cp "$header" "$out/include/"
done
cp LICENSE THIRD_PARTY.md CHANGELOG.md "$out/doc/"
cp "$build/COMMIT" "$out/COMMIT" # not in the tar files
chmod -R u=rwX,go=rX "$out"
chmod 644 "$debug" "$out"/lib/libkvconn.a

pack() { # pack NAME DIRECTORY...: the same files give the same bytes
    local name=$1
    shift
    tar -C "$out" --sort=name --format=gnu --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
        --transform="s,^,$name/,S" -cf - "$@" | gzip -9n >"$dist/$name.tar.gz"
}
pack "kvconn-$version-linux-$arch" doc include lib
pack "kvconn-$version-linux-$arch-debug" debug
(cd "$dist" && sha256sum -- kvconn-"$version"-linux-*.tar.gz >SHA256SUMS)
