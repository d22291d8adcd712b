"""What the tests of an installed kvconn share: an empty prefix, tools, compilers, peers."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "install"
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
SECONDS = 120  # for one command on a loaded machine

# The peers of the Python tests. Their file has the same name as this one.
_spec = importlib.util.spec_from_file_location("python_tests", ROOT / "tests" / "python" / "conftest.py")
python_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(python_tests)
peer = python_tests.peer


def clean_environment(**more):
    """The environment without anything that leads to the build tree or to another make."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVCONN_", "MAKE", "MFLAGS"))}
    for name in ("LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "CMAKE_PREFIX_PATH", "DESTDIR", "PREFIX", "LIBDIR"):
        kept.pop(name, None)
    return {**kept, **{name: str(value) for name, value in more.items()}}


def run(*command, cwd=None, **environment):
    """Runs a command that must succeed; returns what it printed."""
    command = [str(word) for word in command]
    result = subprocess.run(
        command, cwd=cwd, env=clean_environment(**environment), capture_output=True, text=True, timeout=SECONDS
    )
    assert result.returncode == 0, f"{' '.join(command)}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def make(*arguments, **environment):
    """make of this repository, with the target directory of these tests."""
    directory = f"CARGO_TARGET_DIR={target_directory()}"
    return run("make", "--no-print-directory", "-C", ROOT, directory, *FROM_RELEASE, *arguments, **environment)


def target_directory():
    return (ROOT / (os.environ.get("CARGO_TARGET_DIR") or "target")).resolve()


# With KVCONN_TEST_DIST (a directory that `make release` has made), that is installed; else the everyday library.
DIST = os.environ.get("KVCONN_TEST_DIST")
BUILT = pathlib.Path(DIST).resolve() / "lib" if DIST else target_directory() / "release"
FROM_RELEASE = [f"KVCONN_BUILD_LIB={BUILT}/libkvconn.so", f"KVCONN_BUILD_ARCHIVE={BUILT}/libkvconn.a"] if DIST else []


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """A prefix with an installed kvconn. It was moved afterwards, so nothing can lead to where it was made."""
    if not (BUILT / "libkvconn.so").exists():
        pytest.exit(f"there is no {BUILT}/libkvconn.so: run `make {'release' if DIST else 'lib'}`", returncode=2)
    made, moved = (tmp_path_factory.mktemp(name) / "usr" for name in ("made", "moved"))
    make("install", f"PREFIX={made}")
    made.rename(moved)
    return moved


def _tool(names, package):
    """A program of the machine, else one from PyPI in this virtual environment."""
    beside = pathlib.Path(sys.executable).parent
    look = lambda: next(filter(None, (shutil.which(name) or shutil.which(name, path=beside) for name in names)), None)
    found, why = look(), ""
    if not found and sys.prefix != sys.base_prefix:  # only into a virtual environment
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--only-binary", ":all:", "--retries", "1", "--timeout", "15", package]
        result = subprocess.run(pip, capture_output=True, text=True)
        found, why = look(), (result.stderr.strip().splitlines() or [""])[-1]
    if not found:
        pytest.skip(f"neither {names[0]} nor its package {package} on PyPI can be had: {why}")
    return found


@pytest.fixture(scope="session")
def pkg_config(prefix):
    """pkg-config for the installed copy: the words that it prints."""
    program = _tool(["pkg-config", "pkgconf"], "pkgconf")
    directory = prefix / "lib" / "pkgconfig"
    return lambda *arguments: run(program, *arguments, PKG_CONFIG_PATH=directory, PKG_CONFIG_LIBDIR=directory).split()


@pytest.fixture(scope="session")
def cmake():
    return _tool(["cmake"], "cmake")


def compilers():
    """gcc, and clang where it is."""
    cc = os.environ.get("CC", "cc").split()[0]
    return [cc] + [name for name in ["clang"] if shutil.which(name) and name != cc]


def fail_over(peer, command, messages=100, **environment):
    """Runs a consumer: `command FIRST SECOND`. Its first peer is killed when it has its messages. Returns its lines."""
    first, second = peer(), peer()
    endpoints = [f"tcp://127.0.0.1:{receiver.port}" for receiver in (first, second)]
    command = [str(word) for word in command]
    at = command.index("ENDPOINTS") if "ENDPOINTS" in command else len(command)
    command[at : at + 1] = endpoints
    consumer = subprocess.Popen(
        command, env=clean_environment(**environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        lines = []
        for line in consumer.stdout:
            lines.append(line.rstrip("\n"))
            if lines[-1] == "sent 100":
                first.expect(100)
                first.kill()
        _, errors = consumer.communicate(timeout=SECONDS)
    finally:
        consumer.kill()
    assert (consumer.returncode, errors) == (0, ""), f"{command}: {consumer.returncode}, {lines}, {errors}"
    second.expect(messages)
    assert "sent 100" in lines and lines[-1].startswith("failed over with kvconn "), lines
    return lines
