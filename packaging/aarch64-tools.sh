#!/bin/sh
# aarch64-tools.sh PROGRAM...: says what is missing to build for aarch64 and to run it here, and fails then.
triple=aarch64-unknown-linux-gnu
missing=
for program in "$@"; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ] || missing="$missing rust-std-$triple"
[ -z "$missing" ] && exit 0
echo "kvconn: skipped, these are missing:$missing"
packages="gcc-aarch64-linux-gnu g++-aarch64-linux-gnu"
case "$*" in
    *qemu-system*) packages="$packages qemu-system-arm debootstrap cpio" ;;
    *) packages="$packages qemu-user-static" ;;
esac
echo "kvconn: Debian: apt-get install $packages; and: rustup target add $triple"
exit 1
