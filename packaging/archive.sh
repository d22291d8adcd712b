#!/bin/sh
# archive.sh INPUT.a OUTPUT.a: makes the static library that is installed from the one that cargo has built.
#
# Cargo's archive defines all symbols of libzmq, libsodium and the Rust standard library. A program that also links
# another libzmq would get one libzmq for both. The output is one object that defines the functions of kvconn.h and
# nothing else, like the shared library:
#   - what these functions need is linked together, and the rest of the archive is left out;
#   - every other symbol becomes local. C++ templates and inline functions are in COMDAT groups, which a linker merges
#     by name even if their symbols are local; so the groups are dissolved (--force-group-allocation);
#   - debug information and the bitcode of the Rust compiler are removed.
# The same input gives the same bytes.
#
# Environment: LD (GNU ld; lld cannot dissolve groups), OBJCOPY, AR and NM for the target's machine.
# KVCONN_ARCHIVE_EXTRA: archives that are linked in as well, for example a C++ run-time library.
set -eu
[ $# = 2 ] || { echo "usage: archive.sh INPUT.a OUTPUT.a" >&2; exit 2; }
input=$1 output=$2
symbols=$(dirname "$0")/../abi/kvconn.symbols
fail() { echo "kvconn: $*" >&2; exit 1; }
[ -r "$input" ] || fail "there is no $input: run \`make lib\`"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# shellcheck disable=SC2046,SC2086 # lists of words
"${LD:-ld}" -r --force-group-allocation --gc-sections $(sed 's/^/-u /' "$symbols") \
    "$input" ${KVCONN_ARCHIVE_EXTRA:-} -o "$work/linked.o"
"${OBJCOPY:-objcopy}" --wildcard --keep-global-symbol='kvconn_*' --strip-debug \
    --remove-section=.llvmbc --remove-section=.llvmcmd --remove-section=.comment "$work/linked.o" "$work/kvconn.o"

"${NM:-nm}" -g --defined-only "$work/kvconn.o" | sed 's/.* //' | LC_ALL=C sort >"$work/defined"
LC_ALL=C sort "$symbols" >"$work/wanted"
diff "$work/wanted" "$work/defined" >&2 ||
    fail "$input does not become an archive of kvconn's functions alone (>: too many, <: missing)"

# The D is for deterministic: no time, no owner.
rm -f "$output"
(cd "$work" && "${AR:-ar}" rcsD kvconn.a kvconn.o)
cp "$work/kvconn.a" "$output"
chmod 644 "$output"
