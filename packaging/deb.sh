#!/bin/sh
# deb.sh DIRECTORY: makes the Debian packages libkvconn0, libkvconn-dev and libkvconn0-dbgsym there, with dpkg-deb.
#
# packaging/install.sh decides what is in them; it takes the same variables here. The machine is that of the library, so
# packages for another one can be made as well. Two runs on one input give the same bytes.
#
# Environment: DEBFULLNAME and DEBEMAIL (the maintainer), SOURCE_DATE_EPOCH (else the time of the commit).
set -eu
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
fail() { echo "kvconn: $*" >&2; exit 1; }
[ $# = 1 ] || { echo "usage: deb.sh DIRECTORY" >&2; exit 2; }
command -v dpkg-deb >/dev/null || fail "there is no dpkg-deb: Debian packages are made on Debian or Ubuntu"
mkdir -p "$1"
output=$(cd "$1" && pwd)
case $KVCONN_BUILD_LIB in /*) ;; *) KVCONN_BUILD_LIB=$PWD/$KVCONN_BUILD_LIB ;; esac
[ -r "$KVCONN_BUILD_LIB" ] || fail "there is no $KVCONN_BUILD_LIB: run \`make lib\`"

case $("${READELF:-readelf}" -h "$KVCONN_BUILD_LIB" | sed -n 's/ *Machine: *//p') in
    *X86-64*) machine=amd64 multiarch=x86_64-linux-gnu ;;
    AArch64) machine=arm64 multiarch=aarch64-linux-gnu ;;
    *) fail "$KVCONN_BUILD_LIB is for a machine that packaging/deb.sh does not know" ;;
esac
upstream=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
version=$upstream-1
maintainer="${DEBFULLNAME:-kvconn maintainers} <${DEBEMAIL:-kvconn@users.noreply.github.com}>"
: "${SOURCE_DATE_EPOCH:=$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/CHANGELOG.md")}"
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
stage=$work/stage
# A package for several architectures cannot hold a program: KVCONN_BUILD_PEER is left out.
PREFIX=/usr DESTDIR=$stage KVCONN_BUILD_PEER='' BINDIR=/usr/bin LIBDIR=/usr/lib/$multiarch INCLUDEDIR=/usr/include DOCDIR=/usr/share/doc/libkvconn-dev \
    DEBUGDIR=/usr/lib/debug "$root/packaging/install.sh" install >/dev/null
library=$stage/usr/lib/$multiarch/libkvconn.so.$upstream

# What the library needs. For another machine than this one, no package can be asked: that works if it needs glibc and
# libgcc_s alone, as a release does.
needed() {
    if [ "$machine" = "$(dpkg --print-architecture)" ] && command -v dpkg-shlibdeps >/dev/null; then
        mkdir -p "$work/ask/debian/libkvconn0/DEBIAN"
        printf 'Source: kvconn\n\nPackage: libkvconn0\nArchitecture: any\n' >"$work/ask/debian/control"
        cp "$library" "$work/ask/debian/libkvconn0/libkvconn.so.0"
        (cd "$work/ask" && dpkg-shlibdeps -O -edebian/libkvconn0/libkvconn.so.0) | sed -n 's/^shlibs:Depends=//p'
        return
    fi
    others=$("${READELF:-readelf}" -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        grep -v -e '^libc\.so' -e '^libm\.so' -e '^libpthread\.so' -e '^libdl\.so' -e '^librt\.so' -e '^libgcc_s\.so' -e '^ld-linux' || true)
    [ -z "$others" ] ||
        fail "which packages have $(echo "$others" | tr '\n' ' ')is not known here: make them on $machine, with dpkg-dev"
    glibc=$("${READELF:-readelf}" -VW "$library" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
    unwinder=
    "${READELF:-readelf}" -dW "$library" | grep -q '\[libgcc_s\.so\.1\]' && unwinder=", libgcc-s1"
    echo "libc6 (>= $glibc)$unwinder"
}
depends=$(needed)
[ -n "$depends" ] || fail "the dependencies of the library are not known"

# package NAME SECTION DEPENDS SUMMARY [COMPRESSION] <DESCRIPTION: the control fields; what is in it is moved there before.
package() {
    name=$1 tree=$work/$1
    documents=$tree/usr/share/doc/$name
    install -d "$tree/DEBIAN" "$documents"
    {
        printf 'kvconn is under the Apache License 2.0: /usr/share/common-licenses/Apache-2.0 on Debian systems.\n'
        printf 'The Mozilla Public License 2.0 is /usr/share/common-licenses/MPL-2.0.\n\nCopyright: the authors of kvconn\n\n'
        cat "$root/THIRD_PARTY.md"
    } >"$documents/copyright"
    printf 'kvconn (%s) unstable; urgency=medium\n\n  * Version %s: see changelog.gz in libkvconn-dev.\n\n -- %s  %s\n' \
        "$version" "$upstream" "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" |
        gzip -9n >"$documents/changelog.Debian.gz"
    (cd "$tree" && find usr -type f | LC_ALL=C sort | xargs md5sum) >"$tree/DEBIAN/md5sums"
    {
        printf 'Package: %s\nSource: kvconn\nVersion: %s\nArchitecture: %s\nMulti-Arch: same\n' "$name" "$version" "$machine"
        printf 'Maintainer: %s\nInstalled-Size: %s\nSection: %s\nPriority: optional\n' \
            "$maintainer" "$(du -k --apparent-size -s "$tree/usr" | cut -f1)" "$2"
        printf 'Depends: %s\nDescription: %s\n' "$3" "$4"
        cat
    } >"$tree/DEBIAN/control"
    dpkg-deb --root-owner-group "-Z${5:-xz}" --build "$tree" "$output/${name}_${version}_$machine.deb" >/dev/null
    echo "$output/${name}_${version}_$machine.deb"
}
# take PACKAGE PATH...: moves what was installed.
take() {
    to=$work/$1
    shift
    for path in "$@"; do
        install -d "$to/$(dirname "$path")"
        mv "$stage/$path" "$to/$path"
    done
}
lib=usr/lib/$multiarch
what="ZeroMQ connections of LLM inference engines"

take libkvconn0 "$lib/libkvconn.so.$upstream" "$lib/libkvconn.so.0"
take libkvconn0-dbgsym usr/lib/debug
# Debian has its own names for these: copyright, changelog.
rm "$stage/usr/share/doc/libkvconn-dev/LICENSE" "$stage/usr/share/doc/libkvconn-dev/THIRD_PARTY.md"
mv "$stage/usr/share/doc/libkvconn-dev/CHANGELOG.md" "$stage/usr/share/doc/libkvconn-dev/changelog"
gzip -9n "$stage/usr/share/doc/libkvconn-dev/changelog"
take libkvconn-dev usr # what is left

install -d "$work/libkvconn0/DEBIAN"
echo "activate-noawait ldconfig" >"$work/libkvconn0/DEBIAN/triggers"
echo "libkvconn 0 libkvconn0 (>= $upstream)" >"$work/libkvconn0/DEBIAN/shlibs"
{
    echo "libkvconn.so.0 libkvconn0 #MINVER#"
    LC_ALL=C sort "$root/abi/kvconn.symbols" | sed "s/.*/ &@Base $upstream/"
} >"$work/libkvconn0/DEBIAN/symbols"

package libkvconn0 libs "$depends" "$what" <<'TEXT'
 kvconn keeps the outbound ZeroMQ connections of a disaggregated LLM inference
 engine, one PUSH socket for each remote rank. No call hangs, a dead peer is
 reported with what it has acknowledged, and a node fails in one step.
 .
 This package contains the shared library. libzmq and libsodium are inside and
 hidden.
TEXT
package libkvconn-dev libdevel "libkvconn0 (= $version)" "$what - development" <<'TEXT'
 kvconn keeps the outbound ZeroMQ connections of a disaggregated LLM inference
 engine, one PUSH socket for each remote rank. No call hangs, a dead peer is
 reported with what it has acknowledged, and a node fails in one step.
 .
 This package contains the headers, the static library, the files for pkg-config
 and CMake, and the documents.
TEXT
# They are compressed already.
package libkvconn0-dbgsym debug "libkvconn0 (= $version)" "debug symbols for libkvconn0" gzip <<'TEXT'
 Debuggers find them by the build id of the library.
TEXT
