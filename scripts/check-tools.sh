#!/bin/sh
# check-tools.sh [--python]: names everything that is missing before anything is built: tools, their versions, disk
# space, and the registry when crates must be fetched. Reads CC, CXX, PYTHON and TARGET (the directory that is built).
set -u
root=$(dirname "$0")/..
: "${CC:=cc}" "${CXX:=c++}" "${PYTHON:=python3}" "${TARGET:=$root/target}"
GIB_FIRST_BUILD=2 # the release build takes 0.6 GB, a venv 0.2 GB; the tests' debug build takes 5 GB more
GIB_TESTS=6

missing="" packages=""
miss() { # miss TEXT [PACKAGE]...
    missing="$missing
kvconn:   $1"
    shift
    for package in "$@"; do
        case " $packages " in *" $package "*) ;; *) packages="$packages $package" ;; esac
    done
}
have() { command -v "$1" >/dev/null 2>&1; }
# at_least FOUND NEEDED: compares versions of two numbers.
at_least() { printf '%s\n%s\n' "$2" "$1" | sort -t. -k1,1n -k2,2n -C; }

# A compiler can be there without the headers of its library.
if ! have "$CC"; then
    miss "a C compiler: there is no '$CC'" gcc libc6-dev
elif ! echo '#include <stdio.h>' | "$CC" -x c -fsyntax-only - >/dev/null 2>&1; then
    miss "the C library's headers: '$CC' finds no <stdio.h>" libc6-dev
fi
if ! have "$CXX"; then
    miss "a C++ compiler: there is no '$CXX'" g++
elif ! echo '#include <string>' | "$CXX" -x c++ -fsyntax-only - >/dev/null 2>&1; then
    miss "the C++ library's headers: '$CXX' finds no <string>" g++
fi

needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
if ! have cargo; then
    miss "Rust $needed or newer: there is no 'cargo'. Install it from https://rustup.rs; then '. ~/.cargo/env'"
elif ! found=$(cargo --version 2>&1); then
    miss "Rust $needed or newer: 'cargo --version' fails: $(echo "$found" | head -n 1)"
else
    found=$(echo "$found" | sed -n 's/^cargo \([0-9]*\.[0-9]*\).*/\1/p')
    at_least "${found:-0.0}" "$needed" ||
        miss "Rust $needed or newer: this cargo is $found ($(command -v cargo)). Install a newer one from https://rustup.rs"
fi

if [ "${1-}" = --python ]; then
    if ! have "$PYTHON"; then
        miss "Python 3.10 or newer: there is no '$PYTHON'" python3
    elif ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        miss "Python 3.10 or newer: this is $("$PYTHON" --version 2>&1); 'make PYTHON=python3.12' uses another one"
    fi
fi

# The first build of all: is there room?
if [ ! -e "$TARGET/release/libkvconn.so" ]; then
    gib=$GIB_FIRST_BUILD
    [ "${1-}" != --python ] || gib=$GIB_TESTS
    place=$TARGET
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    free=$(df -Pk "$place" | awk 'NR == 2 { print $4 }')
    [ "${free:-0}" -ge $((gib * 1024 * 1024)) ] ||
        miss "disk space: $((free / 1024)) MiB are free in $place, and $gib GiB are needed (CARGO_TARGET_DIR names another place)"
    [ -w "$place" ] || miss "a directory that can be written: $place cannot"
fi

if [ -n "$missing" ]; then
    echo "kvconn: before anything is built, this is missing:$missing" >&2
    [ -z "$packages" ] || echo "kvconn: on Debian and Ubuntu: apt-get install$packages" >&2
    exit 1
fi

# The first build also fetches the crates, if they are not there yet. Cargo's own text says what went wrong.
if [ ! -e "$TARGET/release/libkvconn.so" ]; then
    host=$(cargo -vV | sed -n 's/^host: //p')
    fetch() { cargo fetch --locked --quiet --manifest-path "$root/Cargo.toml" --target "$host" "$@"; }
    if ! fetch --offline 2>/dev/null; then
        echo "kvconn: fetching the crates that are compiled"
        fetch || {
            echo "kvconn: the crates cannot be fetched; cargo's text above says why. The first build needs crates.io" >&2
            exit 1
        }
    fi
fi
