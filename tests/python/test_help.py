"""help(kvconn) is enough to use the package: it is short, complete, and shows public names only."""

import ast
import inspect
import pathlib
import pydoc
import re
import subprocess
import sys

import pytest

from sharing import kv  # noqa: F401: fixtures are found by name
from test_errors import FIELDS

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def page(kv):
    return pydoc.render_doc(kv, renderer=pydoc.plaintext)


def chapters(page):
    """{title: text} of a page of help()."""
    parts = re.split(r"^([A-Z][A-Z ]+)$", page, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def public(kv, predicate):
    return {name: value for name in kv.__all__ if predicate(value := getattr(kv, name))}


def test_all_is_exactly_the_public_names(kv):
    assert len(kv.__all__) == len(set(kv.__all__))
    own = {name for name, value in vars(kv).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert set(kv.__all__) == own and own <= set(dir(kv))
    star = {}
    exec("from kvconn import *", star)
    assert set(kv.__all__) <= set(star) and star["PeerLost"] is kv.PeerLost


def test_every_function_of_the_header_is_there(kv):
    """C's own tools for options, reports, packed frames and statuses are inside the functions that use them."""
    exported = {name.removeprefix("kvconn_") for name in (ROOT / "abi" / "kvconn.symbols").read_text().split()}
    inside = {name for name in exported if name.startswith(("options_", "failure_", "send_packed", "send_batch_packed"))}
    assert set(public(kv, inspect.isfunction)) == exported - inside


def test_the_help_says_which_functions_of_the_header_are_not_there(kv):
    for missing in ("options_", "failure_", "send_packed", "send_packed_to", "send_batch_packed"):
        assert re.search(rf"\b{missing}\b", kv.__doc__), missing


def test_numbers_have_names(kv):
    assert (kv.version(), kv.abi_version()) == (kv.__version__, kv.ABI_VERSION)
    assert (kv.status_name(0), kv.status_name(-7)) == ("KVCONN_OK", "KVCONN_CONNECT_FAILED")
    assert kv.status_errno(-7) and "dial" in kv.strerror(-7).lower()
    assert {number: kv.STATUSES[number].__name__ for number in (-7, -8)} == {-7: "ConnectFailed", -8: "PeerLost"}


def test_every_public_function_and_class_has_a_docstring(kv):
    described = public(kv, lambda value: inspect.isfunction(value) or inspect.isclass(value))
    assert len(described) > 50
    for name, value in described.items():
        assert vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__, name
        assert value.__module__ == "kvconn", name


@pytest.mark.parametrize("path", sorted((ROOT / "python" / "kvconn").glob("[!_]*.py")), ids=lambda path: path.name)
def test_every_public_function_of_a_submodule_has_a_docstring(path):
    for place in ast.walk(ast.parse(path.read_text())):
        for each in getattr(place, "body", []) if isinstance(place, (ast.Module, ast.ClassDef)) else []:
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and not each.name.startswith("_"):
                assert ast.get_docstring(each), each.name


def test_every_method_of_an_object_has_a_docstring(kv):
    for kind in (kv.Call, kv.Connection, kv.Endpoint, kv.Events, kv.Failures, kv.HealthWatch, kv.Manager, kv.Node):
        for name, value in inspect.getmembers_static(kind) if sys.version_info >= (3, 11) else vars(kind).items():
            if not name.startswith("_") and not inspect.ismemberdescriptor(value):
                assert inspect.getdoc(value), (kind, name)


def test_help_is_short(page):
    lines = page.splitlines()
    assert len(lines) < 1100  # 45 functions and objects, and 18 exceptions of 11 lines each
    signatures = [line for line in lines if re.search(r"\) -> \S", line)]  # one line each before Python 3.13
    assert max(map(len, signatures)) <= 175
    assert max(len(line) for line in lines if line not in signatures) <= 125


def test_help_shows_every_public_name_and_no_private_one(kv, page):
    shown = chapters(page)
    functions = re.findall(r"^    (\w+)\(", shown["FUNCTIONS"], re.M)
    classes = re.findall(r"^    class (\w+)", shown["CLASSES"], re.M)
    data = [name for name in re.findall(r"^    (\w+) = ", shown["DATA"], re.M) if name != "__all__"]
    assert sorted(functions + classes + data) == sorted(kv.__all__)
    # pydoc lists the files of a package, whatever they are called.
    rest = "".join(text for title, text in shown.items() if title not in ("PACKAGE CONTENTS", "FILE"))
    assert set(re.findall(r"(?<![\w…])_\w+", rest)) <= {"__all__"}
    assert "byref" not in rest


def test_the_dicts_are_described_with_all_their_fields(kv):
    from kvconn import _ffi

    for function, struct in [
        (kv.connection_info, _ffi.kvconn_connection_info_t),
        (kv.node_info, _ffi.kvconn_node_info_t),
        (kv.next_event, _ffi.kvconn_event_t),
    ]:
        fields = {name for name, _ in struct._fields_} - {"struct_size", "reserved"}
        assert fields <= set(re.findall(r"\w+", function.__doc__)), function.__name__


def test_the_objects_are_described_with_all_their_fields(kv):
    for kind, fields in [(kv.Error, FIELDS | {"kvconn_call"})] + [
        (kind, set(kind._fields)) for kind in (kv.Sent, kv.Failure, kv.FailedEndpoint)
    ]:
        table = re.findall(r"^(\w+)  +\w", inspect.getdoc(kind), re.M)
        assert set(table) == fields, kind


def test_the_guide_names_what_the_functions_take(kv):
    """Every call in the guide's table can be made so, and its defaults are true."""
    guide = (ROOT / "docs" / "guide.md").read_text().split("## Python\n")[1].split("\n## ")[0]
    table = "\n".join(line.split("|")[1] for line in guide.splitlines() if line.startswith("|"))
    calls = re.findall(r"`(\w+)\((.*?)\)`", table)
    assert len(calls) > 15
    for name, given in calls:
        parameters = inspect.signature(getattr(kv, name)).parameters
        if name == "send_batch":
            given = "items"
        names = [part.split("=") for part in given.split(", ") if part]
        assert [each[0] for each in names] == [each for each in parameters if each in [n[0] for n in names]], name
        for each, *default in names:
            assert not default or str(parameters[each].default) == default[0], name
        for each in list(parameters)[len(names) :]:
            assert parameters[each].default is not inspect.Parameter.empty, (name, each)


def test_the_manager_comes_last(kv):
    for name, function in public(kv, inspect.isfunction).items():
        parameters = list(inspect.signature(function).parameters)
        assert name == "manager_destroy" or "manager" not in parameters[:-1], name


def test_without_docstrings_the_package_works(lib):
    script = "import sys; sys.path.insert(0, sys.argv[1]); import kvconn; print(kvconn.connections())"
    run = [sys.executable, "-OO", "-c", f"{script}\nkvconn.shutdown()", ROOT / "python"]
    assert subprocess.run(run, check=True, timeout=60, capture_output=True, text=True).stdout == "[]\n"
