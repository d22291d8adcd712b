"""What the C++ tests share: compilers, building beside each other, and the peers of the Python tests."""

import concurrent.futures
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).parent
SECONDS = 300  # for one compiler or program on a loaded machine
STRICT = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wswitch-enum -Werror".split()
STANDARDS = ["c++17", "c++20", "c++23"]

_spec = importlib.util.spec_from_file_location("python_tests", ROOT / "tests" / "python" / "conftest.py")
python_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(python_tests)
Peer, wait_until_true, library_path = python_tests.Peer, python_tests.wait_until_true, python_tests.library_path
peer = python_tests.peer


def run(*command, **environment):
    """Runs a program; its standard output and error are in .stdout."""
    environment = {**os.environ, "LC_ALL": "C", **environment}
    command = [str(word) for word in command]
    merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, env=environment, timeout=SECONDS, check=False, **merged)


def compiler(name):
    """A compiler as a list of words: g++ and gcc may be spelt otherwise by CXX and CC. Skips if there is none."""
    words = shlex.split(os.environ.get({"g++": "CXX", "gcc": "CC"}.get(name, ""), "") or name)
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not installed")
    return words


def standard(words, name):
    """A language standard as this compiler spells it. Skips if it has none."""
    for spelling in (name, name.replace("23", "2b").replace("20", "2a")):
        if run(*words, f"-std={spelling}", "-fsyntax-only", "-x", "c++", "/dev/null").returncode == 0:
            return f"-std={spelling}"
    pytest.skip(f"{words[0]} has no {name}")


def at_once(calls):
    """The results of calls, as many beside each other as there are processors."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda call: call(), calls))


def link_flags():
    directory = library_path().parent
    return [f"-L{directory}", "-lkvconn", f"-Wl,-rpath,{directory}", "-pthread"]
