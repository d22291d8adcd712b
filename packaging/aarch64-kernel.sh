#!/usr/bin/env bash
# aarch64-kernel.sh BUILT WORK: runs the C tests and the Python tests in an emulated aarch64 machine with a kernel of its own.
#
# qemu-user passes system calls on and cuts TCP_INFO, so nothing is known to be acknowledged there. Here everything is.
# BUILT has release/libkvconn.so, release/kvconn-peer, tests_c/ and examples_c/ for aarch64. The machine has Debian's kernel and
# Python, and everything in its memory; it has no network but its loopback, and no disk.
set -euo pipefail
cd "$(dirname "$0")/.."
built=$1 work=$2
python=3.11 # of Debian 12
suite=bookworm
seconds=${KVCONN_AARCH64_SECONDS:-1500}

skip() { echo "kvconn: check-aarch64-kernel is skipped: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "debootstrap needs root"

root=$work/root
if [ ! -e "$work/complete" ]; then # what is fetched is fetched once
    rm -rf "$work"
    mkdir -p "$root" "$work/kernel" "$work/packages"
    debootstrap --arch=arm64 --foreign --variant=minbase --include=python3,iproute2,linux-image-cloud-arm64 "$suite" \
        "$work/packages" >"$work/debootstrap.log" 2>&1 || skip "debootstrap cannot fetch $suite: $work/debootstrap.log"
    for package in "$work"/packages/var/cache/apt/archives/*.deb; do
        case $package in
            *linux-image-*) dpkg-deb -x "$package" "$work/kernel" ;;
            *) dpkg-deb -x "$package" "$root" ;;
        esac
    done
    rm -rf "$work/packages" "$root"/usr/share/{doc,man,locale}
    # The versions of the tests' own environment, for the other machine.
    "${KVCONN_TEST_PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --dest "$work/wheels" --only-binary :all: \
        --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 --python-version "$python" \
        -r tests/python/requirements.txt || skip "pip cannot fetch the packages of tests/python/requirements.txt for aarch64"
    mkdir -p "$root/site"
    for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$root/site"; done
    mkdir -p "$root"/{proc,sys,dev,tmp,root,etc}
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
    printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
    printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
    touch "$work/complete"
fi

rm -rf "$root/kvconn"
mkdir -p "$root/kvconn/target/release"
cp -r examples_c examples_python include python tests docs README.md "$root/kvconn/"
cp -r "$built/tests_c" "$built/examples_c" "$root/kvconn/target/"
cp "$built/release/libkvconn.so" "$built/release/kvconn-peer" "$root/kvconn/target/release/"
aarch64-linux-gnu-strip "$root/kvconn/target/release/libkvconn.so" "$root/kvconn/target/release/kvconn-peer"
ln -s libkvconn.so "$root/kvconn/target/release/libkvconn.so.0"
cat >"$root/check" <<'CHECK'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONPATH=/site TERM=dumb
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
ip link set lo up
cd /kvconn && uname -srm
status=0
for program in target/tests_c/*; do echo "$program" && "$program" || status=1; done
python3 -m pytest -p no:cacheprovider tests/python/test_examples.py -k "quickstart_sends or event_loop or embedding or (the_demo_tells and pyzmq)" || status=1
python3 -m pytest -p no:cacheprovider tests/python/test_failover.py tests/python/test_curve.py tests/python/test_owned.py || status=1
echo "kvconn: the machine ends with status $status"
echo o >/proc/sysrq-trigger
sleep 60
CHECK
chmod +x "$root/check"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/root.cpio.gz"

timeout "$seconds" qemu-system-aarch64 -M virt -cpu neoverse-n1 -smp 2 -m 3G -nographic -no-reboot -net none \
    -kernel "$work"/kernel/boot/vmlinuz-* -initrd "$work/root.cpio.gz" -append "console=ttyAMA0 rdinit=/check quiet" \
    </dev/null 2>&1 | tee "$work/console.log" || { echo "kvconn: the machine did not end within $seconds s" >&2; exit 1; }
grep -q "ends with status 0" "$work/console.log" || { echo "kvconn: a test has failed in the machine" >&2; exit 1; }
