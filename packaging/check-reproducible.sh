#!/usr/bin/env bash
# check-reproducible.sh DIST WHEELS WORK VENV ZIG-VENV GLIBC ARCH...: makes a release of this commit a second time, from a
# clone in another directory, and compares every file with what is in DIST, and the wheel with the one in WHEELS.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$1 wheels=$2 work=$3 venv=$4 zig_venv=$5 glibc=$6
shift 6
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || { echo "kvconn: commit your changes first" >&2; exit 1; }

rm -rf "$work"
clone=$work/another/place
git clone --quiet --no-hardlinks . "$clone"
for arch in "$@"; do
    [ "$(cat "$dist/$arch/COMMIT" 2>/dev/null)" = "$commit" ] ||
        { echo "kvconn: $dist has no release of this commit for $arch: make release" >&2; exit 1; }
    "$clone/packaging/release-build.sh" "$arch" "$clone/build/$arch" "$zig_venv" "$glibc"
    "$clone/packaging/release-dist.sh" "$arch" "$clone/build/$arch" "$work/dist"
    diff -r "$dist/$arch" "$work/dist/$arch"
    for archive in "$work"/dist/kvconn-*-linux-"$arch"*.tar.gz; do
        cmp "$archive" "$dist/$(basename "$archive")"
        sha256sum "$archive"
    done
    "$venv/bin/python" "$clone/packaging/wheel.py" --library "$work/dist/$arch/lib/libkvconn.so" \
        --output "$work/wheels" --zig "$zig_venv/bin/python" >/dev/null
    for wheel in "$work"/wheels/*"$arch.whl"; do
        cmp "$wheel" "$wheels/$(basename "$wheel")"
        sha256sum "$wheel"
    done
    rm -rf "$clone/build"
    echo "kvconn: $arch: two builds of $commit in two directories are the same"
done
rm -rf "$work"
