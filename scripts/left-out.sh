#!/bin/sh
# left-out.sh WHAT: what this machine leaves out of `make demo` or `make test`, one line each, with the reason and what
# changes it. Reads PYTHON, VENV (the directory of the virtual environment) and BINDINGS (where `make bindings` puts
# what it fetches).
set -u
what=$1
here=$(dirname "$0")
: "${PYTHON:=python3}" "${VENV:=target/venv}" "${BINDINGS:=target/bindings}"
have() { command -v "$1" >/dev/null 2>&1; }
# docs/operations.md, "A process that hangs".
gdb_knows_the_processor() {
    grep -q amx_tile /proc/cpuinfo || return 0
    version=$(gdb --version | sed -n '1s/.* \([0-9][0-9]*\)\..*/\1/p')
    [ "${version:-0}" -ge 14 ]
}

lines() {
    if [ ! -e "$VENV/.stamp" ]; then
        if reason=$("$here/make-venv.sh" --check "$PYTHON" 2>/dev/null); then
            # Before the run: it will be made. After it: it could not be made.
            [ "$1" = planned ] || reason="pip could not install its packages, or there is no venv; see 'make venv'"
        fi
        case $what in
            demo) left="the picture, and ranks that are pyzmq sockets" ;;
            *) left="the tests of Python, C++, the bindings and an installed copy" ;;
        esac
        [ -z "$reason" ] || echo "$left: $reason"
    fi
    [ "$what" = test ] || return 0

    if ! unshare -m -n true 2>/dev/null; then
        echo "tests that drop packets, replace /etc/hosts, need free ports or a user without threads: no network namespace can be made; run as root"
    elif ! have ip || ! have tc; then
        echo "tests that drop packets: there is no 'ip' or no 'tc'; apt-get install iproute2"
    fi
    if [ "$(id -u)" != 0 ] && [ "$(ulimit -H -n)" != unlimited ] && [ "$(ulimit -H -n)" -lt 12000 ]; then
        echo "2,000 endpoints at once: the limit of descriptors is $(ulimit -H -n); ulimit -Hn 12000, or run as root"
    fi
    if ! have gdb || ! have strip; then
        echo "gdb on a process that hangs: there is no gdb or no strip; apt-get install gdb binutils"
    elif ! have lldb && ! gdb_knows_the_processor; then
        echo "gdb on a process that hangs: gdb before version 14 does not know this processor (AMX); apt-get install lldb"
    fi
    have go || echo "bindings, Go: there is no 'go'; apt-get install golang-go"
    if ! have node; then
        echo "bindings, Node.js: there is no 'node'; apt-get install nodejs npm, then make bindings"
    elif [ ! -d "$BINDINGS/node/node_modules/koffi" ]; then
        echo "bindings, Node.js: koffi is not installed; make bindings (needs npm)"
    fi
    "$here/find-java.sh" "$BINDINGS" >/dev/null 2>&1 || echo "bindings, Java: $("$here/find-java.sh" "$BINDINGS" 2>&1 >/dev/null)"
    have mcs && have mono || have dotnet ||
        echo "bindings, C#: there is neither mono nor dotnet; apt-get install mono-runtime mono-mcs"
}

# `make help` says it before: `planned` leaves out what the run would install by itself.
text=$(lines "${2-}")
[ -n "$text" ] || exit 0
echo
echo "Left out of 'make $what' on this machine:"
echo "$text" | sed 's/^/  - /'
