"""kvconn-peer as the remote rank, and how the programs of bindings/ are compiled and run."""

import os
import pathlib
import shutil
import struct
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


class Peer:
    """kvconn-peer: a PULL socket in a process of its own."""

    def __init__(self, record, *options):
        program = pathlib.Path(os.environ.get("KVCONN_PEER") or TARGET / "release" / "kvconn-peer")
        if not program.exists():
            pytest.fail(f"{program} is missing: run `make peer`")
        self.record = record
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([program, "--record", record, *options, "tcp://127.0.0.1:*"], **pipes)
        port = self.process.stdout.readline().rpartition(":")[2].strip()
        self.endpoint = f"tcp://127.0.0.1:{port}"

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def received(self):
        """The messages in its record, as lists of frames."""
        record = self.record.read_bytes()
        messages, at = [], 0
        while at < len(record):
            (count,) = struct.unpack_from("=I", record, at)
            sizes = struct.unpack_from(f"={count}I", record, at + 4)
            at += 4 + 4 * count
            messages.append([])
            for size in sizes:
                messages[-1].append(record[at : at + size])
                at += size
        return messages

    def kill_now(self):
        """SIGKILL; the process and its port are gone when this returns."""
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill_now()
        self.process.stdin.close()
        self.process.stdout.close()


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
