"""The package and an example are typed: mypy --strict and pyright find nothing (requirements-tools.txt)."""

import ast
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT
from sharing import kv  # noqa: F401: fixtures are found by name

PACKAGE = ROOT / "python" / "kvconn"


def bare(path):
    """The functions of a file that lack an annotation."""
    for each in ast.walk(ast.parse(path.read_text())):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
            missing = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
            if missing or each.returns is None:
                yield f"{path.name}:{each.lineno} {each.name}"


EXAMPLES = sorted((ROOT / "examples_python").glob("*.py"))
SECONDS = 600  # for a loaded machine

# What a user writes, and what a type checker must say to it: the line's comment.
WRITTEN = """
import kvconn
import kvconn.testing
import kvconn.zmq
from kvconn.types import Event, Options

conn = kvconn.connect("tcp://127.0.0.1:9", {"send_hwm": 100, "require_curve": False}, wait_ms=3000)
reveal_type(conn)  # int
reveal_type(kvconn.Manager().connect("tcp://127.0.0.1:9").info()["accepted"])  # int
reveal_type(kvconn.next_event())  # Event | None
reveal_type(kvconn.PeerLost)  # type[PeerLost]
reveal_type(kvconn.EVENT_READY)  # int
reveal_type(kvconn.take_failure())  # Failure | None
reveal_type([failure.requests for failure in kvconn.Failures()])  # list[list[int]]
reveal_type(kvconn.testing.Peer("ipc://*", rcvhwm=1).report().messages)  # int
reveal_type(kvconn.testing.Peer(curve=True).public_key)  # str | None
kvconn.testing.Peer(rcvhwm="1")  # error
options: Options = {"curve_server_key": b"k", "send_hwm": 7}
kvconn.connect(9)  # error
kvconn.connect("tcp://127.0.0.1:9", wait_ms="3")  # error
kvconn.Manager().connect("tcp://127.0.0.1:9").send_multipart(b"one buffer")  # error
kvconn.Manager().connect("tcp://127.0.0.1:9").send_multipart([b"x", bytearray(1), memoryview(b"")])
kvconn.connection_info(conn)["no_such_field"]  # error
kvconn.NO_SUCH_CONSTANT  # error
kvconn.node_info(kvconn.Manager().open_node("n"))


def loss(error: kvconn.Error) -> str:
    return f"{error.name} {error.os_errno + 1} {error.endpoint}"


async def events() -> list[Event]:
    return [event async for event in kvconn.Events()]


try:
    pass
except kvconn.zmq.Timeout as again:
    reveal_type(again.errno)  # int | None
"""


def mypy(*arguments):
    pytest.importorskip("mypy", reason="mypy is not installed (make python-tools)")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--cache-dir", ROOT / "target" / "mypy", *arguments]
    environment = {"MYPYPATH": str(ROOT / "python"), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT, env=environment)
    return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="session")
def pyright_works():
    pytest.importorskip("pyright", reason="pyright is not installed (make python-tools)")
    try:
        command = [sys.executable, "-m", "pyright", "--version"]
        probe = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        pytest.skip("pyright could not load itself within 180 s")
    if probe.returncode:
        pytest.skip(f"pyright could not load itself: {(probe.stderr or probe.stdout).strip()[-200:]}")


def pyright(*arguments, strict=False, directory):
    """(file, line, severity, message) of everything that pyright reports."""
    for path in {*arguments, PACKAGE}:  # pyright looks only below its settings
        copy = directory / path.name
        if path != copy:
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copy)
    settings = {"typeCheckingMode": "strict" if strict else "standard", "pythonVersion": "3.10"}
    settings |= {"include": [path.name for path in arguments]}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", directory]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] > 0, result.stdout
    return [
        (pathlib.Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["severity"], each["message"])
        for each in report["generalDiagnostics"]
    ]


def test_mypy_strict_accepts_the_package():
    code, output = mypy("--python-version", "3.10", PACKAGE)
    assert code == 0, output


def test_mypy_strict_accepts_every_example():
    for example in EXAMPLES:
        code, output = mypy("--follow-imports", "silent", example)
        assert code == 0, output


def test_pyright_accepts_the_package(pyright_works, tmp_path):
    assert pyright(PACKAGE, directory=tmp_path) == []


def test_pyright_strict_accepts_every_example(pyright_works, tmp_path):
    assert pyright(*EXAMPLES, strict=True, directory=tmp_path) == []


def expected():
    """{line: what the comment says} of WRITTEN."""
    lines = enumerate(WRITTEN.splitlines(), 1)
    return {number: line.split("  # ")[1] for number, line in lines if "  # " in line}


def test_mypy_sees_the_types_and_the_mistakes(tmp_path):
    (tmp_path / "written.py").write_text(WRITTEN)
    _, output = mypy("--follow-imports", "silent", tmp_path / "written.py")
    said = {}
    for line in output.splitlines()[:-1]:
        place, _, text = line.partition(": ")
        said.setdefault(int(place.rsplit(":", 1)[1]), text)
    assert set(said) == set(expected()), output
    for number, what in expected().items():
        assert (what == "error") == said[number].startswith("error"), said[number]
        assert what == "error" or f'"{what}"' in short(said[number]), said[number]


def short(text):
    """mypy's text as pyright says it."""
    text = text.replace("def (error: Any) -> kvconn._errors.PeerLost", "type[PeerLost]")
    text = re.sub(r"TypedDict\(kvconn\.types\.(\w+), \{.*?\}\)", r"\1", text)
    return re.sub(r"tuple\[.*fallback=kvconn\._nodes\.(\w+)\]", r"\1", text)


def test_pyright_sees_the_types_and_the_mistakes(pyright_works, tmp_path):
    (tmp_path / "written.py").write_text(WRITTEN)
    said = {}
    for _, line, severity, text in pyright(tmp_path / "written.py", directory=tmp_path):
        if severity != "warning":
            said.setdefault(line, (severity, text))
    assert set(said) == set(expected()), said
    for number, what in expected().items():
        assert (what == "error") == (said[number][0] == "error"), said[number]
        text = re.sub(r'"Literal\[\d+\]"', '"int"', said[number][1])
        assert what == "error" or f'"{what}"' in text, text


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_every_function_is_annotated(path):
    assert list(bare(path)) == []


def test_the_wheel_says_that_it_is_typed(kv):
    assert (PACKAGE / "py.typed").exists()


def test_the_types_of_the_dicts_have_the_fields_of_the_structs(kv):
    from kvconn import _ffi, types

    for kind, struct in [
        (types.ConnectionInfo, _ffi.kvconn_connection_info_t),
        (types.NodeInfo, _ffi.kvconn_node_info_t),
        (types.Event, _ffi.kvconn_event_t),
    ]:
        fields = [name for name, _ in struct._fields_[1:]]
        assert sorted(kind.__annotations__) == sorted(fields), kind
        values = {name: str if "c_char" in str(what) else int for name, what in struct._fields_[1:]}
        for name, value in kind.__annotations__.items():
            assert values[name] is value, (kind, name)
