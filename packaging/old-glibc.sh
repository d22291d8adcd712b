#!/usr/bin/env bash
# old-glibc.sh DIST WORK: compiles the C tests on Debian 11 (gcc 10, glibc 2.31, as in Ubuntu 20.04) with a release for this
# machine, and runs them there.
#
# Debian 11 is in a directory, and has this machine's kernel. It has no network but its loopback.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$1/$(uname -m) work=$2
suite=bullseye

skip() { echo "kvconn: check-old-glibc is skipped: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "debootstrap needs root"
command -v debootstrap >/dev/null || skip "no debootstrap. Debian: apt-get install debootstrap"
[ -e "$dist/COMMIT" ] || { echo "kvconn: there is no $dist: make release" >&2; exit 1; }

root=$work/root
if [ ! -e "$work/complete" ]; then # what is fetched is fetched once
    rm -rf "$work"
    mkdir -p "$work"
    debootstrap --variant=minbase --include=gcc,libc6-dev "$suite" "$root" >"$work/debootstrap.log" 2>&1 ||
        skip "debootstrap cannot fetch $suite: $work/debootstrap.log"
    touch "$work/complete"
fi

rm -rf "$root/kvconn"
mkdir "$root/kvconn"
cp -r "$dist/lib" "$dist/include" tests/c "$root/kvconn/"
cat >"$root/kvconn/check" <<'CHECK'
#!/bin/sh
set -e
cd /kvconn
mount -t proc proc /proc
ldd --version | head -n 1
for source in c/*.c; do
    program=$(basename "$source" .c)
    gcc -std=c11 -O2 -Iinclude "$source" -o "$program-shared" -Llib -lkvconn -Wl,-rpath,/kvconn/lib -pthread
    gcc -std=c11 -O2 -Iinclude "$source" -o "$program-static" lib/libkvconn.a -pthread -ldl -lm -lrt
    for kind in shared static; do echo "$program-$kind" && "./$program-$kind"; done
done
CHECK
chmod +x "$root/kvconn/check"
# Mounts and network of its own, which end with it.
unshare --mount --net --pid --fork sh -c 'ip link set lo up && exec chroot "$1" /kvconn/check' - "$root"
echo "kvconn: the release works with this glibc"
