#!/bin/sh
# install.sh install|uninstall: what `make install` and `make uninstall` do. packaging/install.mk sets the variables.
#
# Everything is made in a temporary directory and copied to its place, so root leaves nothing in the build directory, and
# nothing is compiled. KVCONN_BUILD_LIB and KVCONN_BUILD_ARCHIVE name what is installed: any shared library of kvconn, and
# any archive that packaging/archive.sh has made. Without KVCONN_BUILD_ARCHIVE, it is made from KVCONN_CARGO_ARCHIVE.
# KVCONN_BUILD_PEER names the program kvconn-peer; without it, it is not installed.
set -eu
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
fail() { echo "kvconn: $*" >&2; exit 1; }

# A directory as an absolute path. What is relative is below the prefix.
absolute() {
    case $1 in
        /*) realpath -ms "$1" ;;
        *) realpath -ms "$PREFIX/$1" ;;
    esac
}
case $PREFIX in /*) ;; *) PREFIX=$PWD/$PREFIX ;; esac
PREFIX=$(realpath -ms "$PREFIX")
LIBDIR=$(absolute "$LIBDIR") INCLUDEDIR=$(absolute "$INCLUDEDIR")
BINDIR=$(absolute "$BINDIR") DOCDIR=$(absolute "$DOCDIR") DEBUGDIR=$(absolute "$DEBUGDIR")
to=$DESTDIR # before every path

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
soname=libkvconn.so.0
[ -n "$version" ] || fail "no version in Cargo.toml"
packages="kvconnConfig kvconnConfigVersion kvconnTargets"
documents="LICENSE THIRD_PARTY.md CHANGELOG.md"
for file in "$root"/docs/*.md; do
    case $file in */architecture.md | */dependencies.md) continue ;; esac # for those who change kvconn
    documents="$documents docs/${file##*/}"
done
# The pictures that these documents show.
pictures=
for file in "$root"/docs/*.svg; do
    for document in $documents; do
        if grep -qF "](${file##*/})" "$root/$document"; then pictures="$pictures ${file##*/}" && break; fi
    done
done

examples=
for file in "$root"/examples_c/*.[ch] "$root"/examples_c/*.py "$root"/examples_cpp/*.cpp "$root"/examples_python/*.py; do
    examples="$examples ${file#"$root/"}"
done

# .build-id/ab/cdef….debug: where debuggers look for the debug information of a file.
debug_name() {
    id=$("${READELF:-readelf}" -n "$1" 2>/dev/null | sed -n 's/.*Build ID: *//p' | head -n 1)
    [ -n "$id" ] || return 1
    echo ".build-id/$(echo "$id" | cut -c1-2)/$(echo "$id" | cut -c3-).debug"
}

uninstall() {
    installed=$to$LIBDIR/libkvconn.so.$version
    if [ -e "$installed" ] && debug=$(debug_name "$installed"); then
        rm -f "$to$DEBUGDIR/$debug"
        rmdir "$(dirname "$to$DEBUGDIR/$debug")" "$to$DEBUGDIR/.build-id" "$to$DEBUGDIR" 2>/dev/null || true
    fi
    rm -f "$installed" "$to$LIBDIR/$soname" "$to$LIBDIR/libkvconn.so" "$to$LIBDIR/libkvconn.a" \
        "$to$LIBDIR/pkgconfig/kvconn.pc" "$to$LIBDIR/pkgconfig/kvconn-static.pc" \
        "$to$INCLUDEDIR/kvconn.h" "$to$INCLUDEDIR/kvconn.hpp" "$to$BINDIR/kvconn-peer"
    for name in $packages; do rm -f "$to$LIBDIR/cmake/kvconn/$name.cmake"; done
    for file in $documents $pictures; do rm -f "$to$DOCDIR/${file##*/}"; done
    for file in $examples; do rm -f "$to$DOCDIR/$file"; done
    # Only what is empty.
    for file in $examples; do rmdir "$to$DOCDIR/${file%/*}" 2>/dev/null || true; done
    rmdir "$to$LIBDIR/cmake/kvconn" "$to$LIBDIR/cmake" "$to$LIBDIR/pkgconfig" "$to$DOCDIR" 2>/dev/null || true
}

# Removes the directories that are empty now, up to and with the prefix. Those of /usr and /usr/local belong to the system.
remove_empty() {
    case $to$PREFIX in /usr | /usr/local) return ;; esac
    for directory in "$BINDIR" "$LIBDIR" "$INCLUDEDIR" "$DOCDIR" "$DEBUGDIR"; do
        while :; do
            case $directory/ in "$PREFIX"/*) ;; *) break ;; esac
            if [ -e "$to$directory" ]; then rmdir "$to$directory" 2>/dev/null || break; fi
            directory=${directory%/*}
        done
    done
}

# A document with the links that are right where it is installed: the headers are elsewhere, and of the source only the
# examples are there.
document() {
    headers=$(realpath -ms --relative-to="$DOCDIR" "$INCLUDEDIR")
    sed -E -e 's#\]\((CONTRIBUTING\.md|SECURITY\.md|docs/|include/|examples_)#](../\1#g' -e 's#\]\(\.\./docs/#](#g' \
        -e 's#\]\(\.\./examples_#](examples_#g' -e 's#\]\(\.\./include/#](include/#g' \
        -e 's#\[([^]]*)\]\(\.\./([^)\#]*)[^)]*\)#\1 (`\2` of the source)#g' \
        -e "s#\]\(include/#]($headers/#g" "$root/$1" >"$work/document"
    put 644 "$work/document" "$DOCDIR/${1##*/}"
}

# fill TEMPLATE FILE
fill() {
    sed -e "s|@VERSION@|$version|g" -e "s|@SONAME@|$soname|g" \
        -e "s|@VERSION_MAJOR@|${version%%.*}|g" -e "s|@VERSION_MINOR@|$(echo "$version" | cut -d. -f2)|g" \
        -e "s|@PREFIX_FROM_PKGCONFIG@|$(realpath -ms --relative-to="$LIBDIR/pkgconfig" "$PREFIX")|g" \
        -e "s|@LIBDIR_FROM_PREFIX@|$(realpath -ms --relative-to="$PREFIX" "$LIBDIR")|g" \
        -e "s|@INCLUDEDIR_FROM_PREFIX@|$(realpath -ms --relative-to="$PREFIX" "$INCLUDEDIR")|g" \
        -e "s|@INCLUDEDIR_FROM_CMAKE@|$(realpath -ms --relative-to="$LIBDIR/cmake/kvconn" "$INCLUDEDIR")|g" \
        -e "s|@LIBS_PRIVATE@|$libs_private|g" \
        -e "s|@LIBS_PRIVATE_LIST@|$(echo "$libs_private" | tr ' ' ';')|g" "$1" >"$work/filled"
    put 644 "$work/filled" "$2"
}

# put MODE FILE DESTINATION
put() { install -D -m "$1" "$2" "$to$3"; }

install_all() {
    library=$KVCONN_BUILD_LIB
    [ -r "$library" ] || fail "there is no $library: run \`make lib\`"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM

    archive=${KVCONN_BUILD_ARCHIVE:-}
    if [ -z "$archive" ]; then
        archive=$work/libkvconn.a
        "$root/packaging/archive.sh" "$KVCONN_CARGO_ARCHIVE" "$archive"
    elif "${NM:-nm}" -g --defined-only "$archive" | grep -q ' zmq_'; then
        fail "$archive defines functions of libzmq: packaging/archive.sh makes one that can be installed"
    fi
    # What a program needs beside the archive. The linker's -z nodelete: dlclose must not unmap code that threads run.
    libs_private="-Wl,-z,nodelete -lm -lpthread -ldl -lrt"
    if "${NM:-nm}" -u "$archive" | grep -q '__gxx_personality_v0$'; then
        libs_private="-lstdc++ $libs_private"
    fi

    debug=$(debug_name "$library") || fail "$library has no build id (linker option --build-id)"
    # A release has its debug information in a directory beside that of the library.
    apart=$(dirname "$(realpath "$library")")/../debug/$debug
    if [ -r "$apart" ]; then
        cp "$apart" "$work/debug"
    else
        "${OBJCOPY:-objcopy}" --only-keep-debug --compress-debug-sections "$library" "$work/debug"
    fi
    "${STRIP:-strip}" --strip-unneeded -o "$work/stripped" "$library"
    put 644 "$work/debug" "$DEBUGDIR/$debug"
    put 644 "$work/stripped" "$LIBDIR/libkvconn.so.$version"
    ln -sf "libkvconn.so.$version" "$to$LIBDIR/$soname"
    ln -sf "$soname" "$to$LIBDIR/libkvconn.so"
    put 644 "$archive" "$LIBDIR/libkvconn.a"
    if [ -n "${KVCONN_BUILD_PEER:-}" ]; then
        "${STRIP:-strip}" -o "$work/peer" "$KVCONN_BUILD_PEER"
        put 755 "$work/peer" "$BINDIR/kvconn-peer"
    fi

    put 644 "$root/include/kvconn.h" "$INCLUDEDIR/kvconn.h"
    if [ -e "$root/include/kvconn.hpp" ]; then put 644 "$root/include/kvconn.hpp" "$INCLUDEDIR/kvconn.hpp"; fi
    for name in kvconn kvconn-static; do
        fill "$root/packaging/$name.pc.in" "$LIBDIR/pkgconfig/$name.pc"
    done
    for name in $packages; do
        fill "$root/packaging/cmake/$name.cmake.in" "$LIBDIR/cmake/kvconn/$name.cmake"
    done
    for file in $documents; do document "$file"; done
    for file in $pictures; do put 644 "$root/docs/$file" "$DOCDIR/$file"; done
    for file in $examples; do put 644 "$root/$file" "$DOCDIR/$file"; done
}

case ${1:-} in
    install)
        uninstall # another version's debug information would stay
        install_all
        echo "kvconn $version is in $to$PREFIX"
        # The loader knows these two prefixes, and finds a new library there after ldconfig.
        case $to$PREFIX in
            /usr | /usr/local)
                [ "$(id -u)" != 0 ] || ldconfig 2>/dev/null || /sbin/ldconfig 2>/dev/null || true
                ;;
        esac
        ;;
    uninstall)
        uninstall
        remove_empty
        ;;
    *) echo "usage: install.sh install|uninstall" >&2; exit 2 ;;
esac
