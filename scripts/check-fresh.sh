#!/usr/bin/env bash
# check-fresh.sh TREE [--user|--root] [--layer DIR] TARGET...: runs `make TARGET...` in a bare Debian 12: gcc, g++, make, git and
# python3 (without venv and pip) from debootstrap, and this machine's Rust. The last commit is what is tested.
# TREE is made when it is not there (about 500 MB), and is never changed: each run has a layer of its own on top.
# Needs root and debootstrap. --user (the default) runs as an ordinary user, --root as root. --layer keeps the layer in
# DIR; a second run with it goes on there, with the sources of the first.
set -euo pipefail
tree=$(realpath -m "$1")
shift
account=builder
layer=""
while [ "${1:0:2}" = -- ]; do
    case $1 in
        --user) ;;
        --root) account=root ;;
        --layer) layer=$(realpath -m "$2") && shift ;;
        *) echo "check-fresh.sh: there is no option $1" >&2 && exit 2 ;;
    esac
    shift
done
source=$(realpath "$(dirname "$0")/..")
rust=$(rustc --print sysroot)
cargo_home=${CARGO_HOME:-$HOME/.cargo}

if [ ! -e "$tree/.whole" ]; then
    rm -rf "$tree"
    debootstrap --variant=minbase --include=gcc,g++,make,python3,git,ca-certificates bookworm "$tree" >/dev/null
    touch "$tree/.whole"
fi

scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/kvconn-fresh-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
layer=${layer:-$scratch}
git -C "$source" archive --prefix=kvconn/ --output="$scratch/kvconn.tar" HEAD

inside() { # in a mount namespace of its own
    mkdir -p "$layer/upper" "$layer/work" "$scratch/root"
    mount -t overlay overlay -o "lowerdir=$tree,upperdir=$layer/upper,workdir=$layer/work" "$scratch/root"
    cd "$scratch/root"
    mkdir -p opt/rust home
    mount --bind -o ro "$rust" opt/rust
    mount -t proc proc proc
    mount --rbind /dev dev
    mount -t tmpfs tmpfs tmp
    cp /etc/resolv.conf /etc/hosts etc/
    cp -r /etc/ssl/certs/. etc/ssl/certs/ # a proxy's certificate
    local home=root
    if [ "$account" != root ]; then
        chroot . id "$account" >/dev/null 2>&1 || chroot . useradd --create-home "$account"
        home=home/$account
    fi
    if [ ! -d "$home/kvconn" ]; then
        mkdir -p "$home/.cargo"
        [ ! -d "$cargo_home/registry" ] || cp -r "$cargo_home/registry" "$home/.cargo/" # spares the download only
        tar -xf "$scratch/kvconn.tar" -C "$home"
        chroot . chown -R "$account:" "/$home"
    fi
    local path=/opt/rust/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
    # The tree becomes the root. A chroot would not do: a program that makes a mount namespace of its own, as tests do,
    # finds itself there under the path that it has outside.
    mkdir -p other
    pivot_root . other
    cd /
    umount --lazy other
    su "$account" -s /bin/sh -c "export PATH=$path HOME=/$home CARGO_HOME=/$home/.cargo; unset CI
        cd ~/kvconn && make $*"
}
export -f inside
export layer scratch tree rust cargo_home account
unshare --mount --propagation private bash -euo pipefail -c 'inside "$@"' inside "$@"
