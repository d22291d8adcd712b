#!/bin/sh
# make-venv.sh PYTHON DIRECTORY REQUIREMENTS: a virtual environment for the tests and the demo.
# make-venv.sh --check PYTHON: if there is no way to make one, says why and exits 1.
set -eu

# Debian has ensurepip in a package of its own. Without it `python3 -m venv` leaves a broken directory.
has_venv() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }
# With the version in the name: the package python3-venv belongs to the distribution's own Python only.
package() { "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])' 2>/dev/null; }

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }
why_not() { echo "$python has no modules venv and ensurepip (Debian, Ubuntu: apt-get install $(package || echo python3-venv))"; }

if [ "$1" = --check ]; then
    python=$2
    has_venv || can_install || { why_not && exit 1; }
    exit 0
fi

python=$1 directory=$2 requirements=$3
if ! has_venv && can_install; then
    echo "kvconn: $python has no venv module; installing $(package)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends "$(package)" >/dev/null 2>&1 ||
        { apt-get update && apt-get install -y --no-install-recommends "$(package)"; } >/dev/null 2>&1 ||
        echo "kvconn: apt-get could not install it" >&2
fi
if ! has_venv; then
    echo "kvconn: no virtual environment: $(why_not)" >&2
    exit 1
fi

rm -rf "$directory"
mkdir -p "$(dirname "$directory")"
"$python" -m venv "$directory"
if ! "$directory/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"; then
    rm -rf "$directory"
    echo "kvconn: pip could not install $requirements; the message above is pip's" >&2
    exit 1
fi
