#!/usr/bin/env bash
# release-build.sh ARCH TARGET-DIR ZIG-VENV GLIBC: kvconn for another Linux, by zig's compiler, against an old glibc.
#
# The result carries no path of this machine, and depends on nothing but the commit and the versions of the tools.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=$1 target_dir=$2 venv=$3 glibc=$4
triple=$arch-unknown-linux-gnu
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rust_source=$(rustc --print sysroot)/lib/rustlib/src/rust
rust_commit=$(rustc -vV | sed -n 's/^commit-hash: //p')

zig=$(echo "$venv"/lib/python*/site-packages/ziglang)

# Always from the beginning: libsodium's build does not see that flags have changed, and what an interrupted build left
# there may have been made with others.
rm -rf "$target_dir"
mkdir -p "$target_dir"
git rev-parse HEAD >"$target_dir/COMMIT"

# Of two prefixes that match, the last one counts, for rustc as for clang.
maps=("$HOME=home" "$PWD=." "$target_dir=target" "$cargo_home=cargo" "$zig=zig" "$rust_source=/rustc/$rust_commit")

CARGO_ENCODED_RUSTFLAGS=""
c_flags=""
for map in "${maps[@]}"; do
    CARGO_ENCODED_RUSTFLAGS+=${CARGO_ENCODED_RUSTFLAGS:+$'\x1f'}--remap-path-prefix=$map
    c_flags+=" -ffile-prefix-map=$map"
done
export CARGO_ENCODED_RUSTFLAGS
suffix=${triple//-/_}
export "CFLAGS_$suffix=${c_flags# }" "CXXFLAGS_$suffix=${c_flags# }"
# clang does not map paths for an assembler's file.
export CCASFLAGS="-g0 -fPIC"
unset RUSTFLAGS CFLAGS CXXFLAGS

# Everything that the build writes stays under the target directory.
export CARGO_TARGET_DIR=$target_dir
export CARGO_ZIGBUILD_CACHE_DIR=$target_dir/zigbuild
export ZIG_GLOBAL_CACHE_DIR=$target_dir/cache ZIG_LOCAL_CACHE_DIR=$target_dir/cache
export CARGO_INCREMENTAL=0 ZERO_AR_DATE=1
# make's own flags would reach the make that builds libsodium.
unset MAKEFLAGS MFLAGS MAKELEVEL

# zig compiles the C++ run-time library and its part of glibc when it links for the first time. Their debug information
# names this machine's paths and no option changes that, so it is removed before cargo links. The members of zig's
# archives have no fixed order either.
without_debug() {
    local archive=$1 members name
    members=$(mktemp -d "$target_dir/members-XXXX")
    "${prefix}ar" t "$archive" | while read -r name; do
        "${prefix}ar" pP "$archive" "$name" >"$members/$(basename "$name")"
    done
    "${prefix}strip" --strip-debug "$members"/*.o
    rm "$archive"
    (export LC_ALL=C && "${prefix}ar" qcsD "$archive" "$members"/*.o)
    rm -r "$members"
}
prefix=
[ "$(uname -m)" = "$arch" ] || prefix=$arch-linux-gnu-
printf '#include <new>\nint *first() { return new int; }\n' >"$target_dir/first.cpp"
"$venv/bin/python" -m ziglang c++ -g -fno-sanitize=all -target "$arch-linux-gnu.$glibc" -shared -fPIC \
    "$target_dir/first.cpp" -o "$target_dir/first.so"
find "$ZIG_GLOBAL_CACHE_DIR/o" -name '*.a' | while read -r archive; do without_debug "$archive"; done

# The unwinder must be the process's own, libgcc_s.so.1: pthread_exit and pthread_cancel of glibc unwind with it through
# kvconn's frames, and would give zig's static unwinder a context that is not its own, which crashes. Any copy of the
# library does not do to link with, since it may be newer than the machines that load kvconn, so it is made here: names only.
unwinder=$target_dir/unwinder/libgcc_s.so.1
mkdir -p "$(dirname "$unwinder")"
grep -o '_Unwind_[A-Za-z_]*' packaging/libgcc_s.map | sed 's/.*/void &(void) {}/' >"$unwinder.c"
"$venv/bin/python" -m ziglang cc -target "$arch-linux-gnu.$glibc" -shared -fPIC -nostdlib "$unwinder.c" -o "$unwinder" \
    -Wl,-soname,libgcc_s.so.1 -Wl,--version-script=packaging/libgcc_s.map
CARGO_ENCODED_RUSTFLAGS+=$'\x1f'-Clink-arg=$unwinder

PATH=$venv/bin:$PATH exec cargo zigbuild --release --lib --locked --target "$triple.$glibc"
