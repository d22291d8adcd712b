#!/bin/sh
# build-fast.sh PYTHON CC: the C extension of the Python package, in place (python/kvconn/_fast.abi3.so).
#
# Where it cannot be built it says why, removes an old one and succeeds: the package works through ctypes then.
set -eu
python=$1 cc=$2
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
out=$root/python/kvconn/_fast.abi3.so

without() {
    rm -f "$out"
    echo "kvconn: the C extension of the Python package was not built: $1; the package goes through ctypes" >&2
    exit 0
}

includes() { "$python" -c 'import sysconfig; print(sysconfig.get_path("include"))'; }
has_header() { [ -f "$(includes)/Python.h" ]; }

if [ "$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("Py_GIL_DISABLED") or 0)')" = 1 ]; then
    without "this Python has no GIL"
fi
if ! has_header && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "kvconn: $python has no Python.h; installing python3-dev"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends python3-dev >/dev/null 2>&1 ||
        { apt-get update && apt-get install -y --no-install-recommends python3-dev; } >/dev/null 2>&1 ||
        echo "kvconn: apt-get could not install python3-dev" >&2
fi
has_header || without "Python.h is missing (Debian, Ubuntu: apt-get install python3-dev)"
# A new file each time: a process may have the old one mapped.
rm -f "$out"
"$cc" -std=c11 -O2 -g -Wall -Wextra -Werror -fPIC -fno-plt -fvisibility=hidden -shared -I"$root/include" \
    -I"$(includes)" "$root/python/kvconn/_fastmodule.c" -o "$out.new" || without "$cc failed"
mv "$out.new" "$out"
