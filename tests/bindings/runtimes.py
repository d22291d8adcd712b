"""Where the tests of bindings/ find the library, and how the programs are compiled and run."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
FETCHED = pathlib.Path(os.environ.get("KVCONN_BINDINGS") or TARGET / "bindings")
LIBRARY = pathlib.Path(os.environ.get("KVCONN_LIB") or TARGET / "release" / "libkvconn.so")
SECONDS = 120  # for a program on a loaded machine

sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("KVCONN_LIB", str(LIBRARY))


def need(program, package):
    if not shutil.which(program):
        pytest.skip(f"there is no {program} here ({package})")


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=SECONDS, **options)


def build(*command, **options):
    result = run(*command, **options)
    assert result.returncode == 0, result.stdout + result.stderr


def environment(**changes):
    """Where every program finds the library, by its SONAME."""
    path = os.pathsep.join(filter(None, [str(LIBRARY.parent), os.environ.get("LD_LIBRARY_PATH")]))
    return {**os.environ, "KVCONN_LIB": str(LIBRARY), "LD_LIBRARY_PATH": path, **changes}


def build_go(directory, source=ROOT / "bindings" / "go"):
    need("go", "Debian: golang-go")
    program = directory / "engine"
    flags = {"CGO_CFLAGS": f"-I{ROOT / 'include'}", "CGO_LDFLAGS": f"-L{LIBRARY.parent}"}
    caches = {"GOCACHE": str(FETCHED / "go-cache"), "GOPROXY": "off", "GOFLAGS": "-mod=mod", "CGO_ENABLED": "1"}
    build("go", "build", "-o", program, ".", cwd=source, env=environment(**flags, **caches))
    return [program], environment()


def build_node(directory):
    need("node", "Debian: nodejs")
    modules = FETCHED / "node" / "node_modules"
    if not (modules / "koffi").exists():
        pytest.skip("koffi is not installed: run `make bindings`")
    return ["node", ROOT / "bindings" / "node" / "engine.js"], environment(NODE_PATH=str(modules))


def build_java(directory):
    found = run(ROOT / "scripts" / "find-java.sh", FETCHED)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    java, compiler = found.stdout.splitlines()
    build(*compiler.split(), "-d", directory, ROOT / "bindings" / "java" / "Engine.java")
    return [java, "--enable-native-access=ALL-UNNAMED", "-cp", directory, "Engine"], environment()


def build_csharp(directory):
    need("mcs", "Debian: mono-mcs")
    need("mono", "Debian: mono-runtime")
    program = directory / "Engine.exe"
    build("mcs", "-unsafe", "-warnaserror", f"-out:{program}", ROOT / "bindings" / "csharp" / "Engine.cs")
    return ["mono", program], environment()


BUILDERS = {"go": build_go, "node": build_node, "java": build_java, "csharp": build_csharp}
