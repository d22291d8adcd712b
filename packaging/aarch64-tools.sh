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
echo "kvconn: Debian: apt-get install gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user-static; and: rustup target add $triple"
exit 1
