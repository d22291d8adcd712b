"""What a new machine lacks is named before anything is built, all at once, with what installs it. R44."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
BASIC = "sh dirname sed sort df awk head id printf echo grep".split()
GOOD = {
    "cc": "exit 0",
    "c++": "exit 0",
    "cargo": 'case $1 in -vV) echo "host: none" ;; --version) echo "cargo 1.95.0 (f2d3ce0bd 2026-03-21)" ;; esac',
    "python3": "exit 0",
}


@pytest.fixture
def machine(tmp_path):
    """A PATH with these programs (name → shell text) and the system's basic ones only."""

    def with_programs(programs):
        path = tmp_path / "bin"
        path.mkdir()
        for name in BASIC:
            if found := shutil.which(name):
                (path / name).symlink_to(found)
        for name, text in programs.items():
            (path / name).unlink(missing_ok=True)
            (path / name).write_text(f"#!/bin/sh\n{text}\n")
            (path / name).chmod(0o755)
        return str(path)

    return with_programs


def run(script, *arguments, path, **environment):
    environment = {"PATH": path, "HOME": "/nowhere", **environment}
    command = [shutil.which("sh"), SCRIPTS / script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_a_whole_machine_lacks_nothing(machine, tmp_path):
    result = run("check-tools.sh", "--python", path=machine(GOOD), TARGET=str(tmp_path))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_everything_that_is_missing_is_named_at_once(machine, tmp_path):
    result = run("check-tools.sh", "--python", path=machine({}), TARGET=str(tmp_path))
    assert result.returncode == 1 and result.stdout == ""
    for text in ("a C compiler", "a C++ compiler", "Rust 1.91 or newer", "rustup.rs", "Python 3.10 or newer"):
        assert text in result.stderr
    assert result.stderr.splitlines()[-1] == "kvconn: on Debian and Ubuntu: apt-get install gcc libc6-dev g++ python3"


@pytest.mark.parametrize(
    "program, text, expected",
    [
        ("cargo", 'echo "cargo 1.63.0"', "Rust 1.91 or newer: this cargo is 1.63 ("),
        ("cargo", 'echo "cargo 1.9.1"', "Rust 1.91 or newer: this cargo is 1.9 ("),
        ("cargo", "echo 'error: no default toolchain' >&2; exit 1", "'cargo --version' fails: error: no default toolchain"),
        ("cc", "exit 1", "the C library's headers: 'cc' finds no <stdio.h>"),
        ("c++", "exit 1", "the C++ library's headers: 'c++' finds no <string>"),
        ("python3", '[ "$1" = --version ] && echo Python 3.9.2 || exit 1', "Python 3.10 or newer: this is Python 3.9.2"),
        ("df", "printf 'head\\n/dev/x 9 9 1048576 9 /\\n'", "disk space: 1024 MiB are free in "),
    ],
)
def test_what_is_there_but_does_not_do_is_named(machine, tmp_path, program, text, expected):
    result = run("check-tools.sh", "--python", path=machine(GOOD | {program: text}), TARGET=str(tmp_path))
    assert result.returncode == 1
    assert expected in result.stderr and len(result.stderr.splitlines()) <= 3, result.stderr


def test_crates_that_cannot_be_fetched_end_the_build_before_it_begins(machine, tmp_path):
    cargo = 'case "$*" in fetch*) echo "error: no route to the registry" >&2; exit 101 ;; esac\n' + GOOD["cargo"]
    result = run("check-tools.sh", path=machine(GOOD | {"cargo": cargo}), TARGET=str(tmp_path))
    assert result.returncode == 1
    assert "error: no route to the registry" in result.stderr and "the crates cannot be fetched" in result.stderr


def test_nothing_is_fetched_or_measured_once_the_library_is_built(machine, tmp_path):
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "libkvconn.so").touch()
    cargo = 'case "$*" in fetch*) exit 101 ;; esac\n' + GOOD["cargo"]
    path = machine(GOOD | {"cargo": cargo, "df": "exit 1"})
    assert run("check-tools.sh", "--python", path=path, TARGET=str(tmp_path)).returncode == 0


NO_VENV = 'case "$*" in *ensurepip*) exit 1 ;; *version_info*) echo python3.11-venv ;; esac'


@pytest.fixture
def a_user_without_venv(machine):
    return machine(GOOD | {"python3": NO_VENV, "id": "echo 1000", "unshare": "exit 1"})


def test_a_user_without_venv_reads_why_and_what_installs_it(a_user_without_venv, tmp_path):
    result = run("make-venv.sh", "--check", "python3", path=a_user_without_venv)
    assert result.returncode == 1
    assert result.stdout == (
        "python3 has no modules venv and ensurepip (Debian, Ubuntu: apt-get install python3.11-venv)\n"
    )
    made = run("make-venv.sh", "python3", tmp_path / "venv", "requirements.txt", path=a_user_without_venv)
    assert made.returncode == 1 and result.stdout.strip() in made.stderr and not (tmp_path / "venv").exists()


@pytest.mark.parametrize("when", [[], ["planned"]])
def test_what_is_left_out_has_its_reason_and_its_cure(a_user_without_venv, tmp_path, when):
    environment = {"VENV": str(tmp_path / "venv"), "BINDINGS": str(tmp_path / "bindings")}
    result = run("left-out.sh", "test", *when, path=a_user_without_venv, **environment)
    assert (result.returncode, result.stderr) == (0, "")
    title, *lines = result.stdout.strip().splitlines()
    assert title == "Left out of 'make test' on this machine:"
    for what, cure in [
        ("the tests of Python", "apt-get install python3.11-venv"),
        ("tests that drop packets", "run as root"),
        ("gdb", "apt-get install gdb"),
        ("bindings, Go", "apt-get install golang-go"),
        ("bindings, Node.js", "make bindings"),
        ("bindings, Java", "make bindings"),
        ("bindings, C#", "apt-get install mono-runtime"),
    ]:
        assert any(what in line and cure in line for line in lines), (what, result.stdout)
    demo = run("left-out.sh", "demo", *when, path=a_user_without_venv, **environment).stdout
    assert "Left out of 'make demo'" in demo and "the picture" in demo and len(demo.strip().splitlines()) == 2


def test_a_machine_that_has_all_leaves_nothing_out(machine, tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / ".stamp").touch()
    (tmp_path / "bindings" / "node" / "node_modules" / "koffi").mkdir(parents=True)
    java = "echo 'openjdk version \"22.0.1\" 2024-04-16' >&2"
    tools = dict.fromkeys("unshare ip tc gdb lldb strip go node javac mcs mono".split(), "exit 0") | {"java": java}
    environment = {"VENV": str(tmp_path / "venv"), "BINDINGS": str(tmp_path / "bindings")}
    result = run("left-out.sh", "test", path=machine(GOOD | tools | {"id": "echo 0"}), **environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
