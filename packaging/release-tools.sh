#!/bin/sh
# release-tools.sh ARCH...: says what is missing to make a release for these machines, before anything is built.
status=0
for arch in "$@"; do
    prefix=
    [ "$(uname -m)" = "$arch" ] || prefix=$arch-linux-gnu-
    for tool in ld objcopy strip ar nm; do
        command -v "$prefix$tool" >/dev/null 2>&1 && continue
        echo "kvconn: $prefix$tool is missing. Debian: apt-get install binutils${prefix:+-$arch-linux-gnu}" >&2
        status=1
    done
    [ -d "$(rustc --print sysroot)/lib/rustlib/$arch-unknown-linux-gnu/lib" ] && continue
    echo "kvconn: Rust's standard library for $arch is missing: rustup target add $arch-unknown-linux-gnu" >&2
    status=1
done
exit $status
