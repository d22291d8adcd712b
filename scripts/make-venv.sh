#!/bin/sh
# make-venv.sh PYTHON DIRECTORY REQUIREMENTS: a virtual environment for the tests and the demo.
set -eu
python=$1 directory=$2 requirements=$3

# Debian has ensurepip in a package of its own. Without it `python3 -m venv` leaves a broken directory.
has_venv() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }

if ! has_venv && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "kvconn: $python has no venv module; installing python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends python3-venv >/dev/null 2>&1 ||
        { apt-get update && apt-get install -y --no-install-recommends python3-venv; } ||
        echo "kvconn: apt-get could not install python3-venv" >&2
fi
if ! has_venv; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "kvconn: $python ($version) cannot make virtual environments: its modules venv and ensurepip are missing." >&2
    echo "kvconn: install them (Debian, Ubuntu: apt-get install python3-venv) and run make again." >&2
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
