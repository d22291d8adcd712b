#!/bin/sh
# Names every missing tool, and what provides it, before anything is built.
missing=0
for tool in "$@"; do
    command -v "$tool" >/dev/null 2>&1 && continue
    case $tool in
        cargo) from="Rust: https://rustup.rs, or your distribution's cargo (1.91 or newer)" ;;
        cc | gcc | c++ | g++) from="a C and C++ compiler (Debian: apt-get install gcc g++)" ;;
        *python*) from="Python 3.10 or newer (Debian: apt-get install python3 python3-venv)" ;;
        *) from="a package of your distribution" ;;
    esac
    echo "kvconn: '$tool' is missing; it comes with $from" >&2
    missing=1
done
exit $missing
