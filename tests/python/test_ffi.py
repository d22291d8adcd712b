"""python/kvconn/_ffi.py says the same as the header and the ABI files, about every function, struct and constant."""

import ctypes
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = (ROOT / "include" / "kvconn.h").read_text()
CODE = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)

SCALARS = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "char": ctypes.c_char,
}


@pytest.fixture
def ffi(lib):
    from kvconn import _ffi

    return _ffi


def functions():
    """{name: (what it returns, [what each parameter is])} of the header, in C's words without names."""
    found = {}
    for returns, name, parameters in re.findall(r"^([a-z][\w ]*?[ *]+)(kvconn_\w+)\(([^;]*?)\);", CODE, re.M):
        parameters = [] if parameters.strip() == "void" else parameters.split(",")
        found[name] = returns.strip(), [re.sub(r"\w+$", "", " ".join(p.split())).strip() for p in parameters]
    return found


def scalar(ffi, name):
    typedefs = {new: old for old, new in re.findall(r"^typedef (\w+) (kvconn_\w+);", CODE, re.M)}
    while name in typedefs:
        name = typedefs[name]
    return SCALARS.get(name) or getattr(ffi, name)


def expected(ffi, declared):
    """The ctypes type of a C type."""
    declared = declared.replace("const ", "").replace("const", "").replace(" ", "")
    if declared == "void":
        return None
    if declared in ("kvconn_log_fn_t", "kvconn_release_fn_t"):
        return getattr(ffi, declared.removeprefix("kvconn_"))
    base, stars = declared.rstrip("*"), declared.count("*")
    opaque = {"void", "kvconn_options_t", "kvconn_failure_t"}
    if stars == 0:
        return scalar(ffi, base)
    if base in opaque:
        kind, stars = ctypes.c_void_p, stars - 1
    elif base == "char":
        kind, stars = ctypes.c_char_p, stars - 1
    else:
        kind = scalar(ffi, base)
    for _ in range(stars):
        kind = ctypes.POINTER(kind)
    return kind


def test_every_function_is_declared_as_in_the_header(ffi):
    header = functions()
    exported = set((ROOT / "abi" / "kvconn.symbols").read_text().split())
    assert set(header) == exported, "this test does not read the header rightly"
    assert set(ffi.FUNCTIONS) == exported
    for name, (returns, takes) in header.items():
        declared = ffi.FUNCTIONS[name]
        assert declared[0] == expected(ffi, returns), name
        for place, (ours, theirs) in enumerate(zip(declared[1], takes)):
            # A buffer that may hold NULs, and that the library fills, is no C string.
            if theirs == "char *":
                assert ours is ctypes.c_void_p, (name, place)
            else:
                assert ours == expected(ffi, theirs), (name, place, theirs)
        assert len(declared[1]) == len(takes), name


def test_every_struct_lies_in_memory_as_in_c(ffi):
    layout = {}
    for line in (ROOT / "abi" / "layout.txt").read_text().splitlines():
        words = line.split()
        if line.startswith(" "):
            layout[struct][1].append((words[0], int(words[1]), int(words[2])))
        elif not line.startswith("#"):
            struct = words[0]
            layout[struct] = int(words[1]), []
    assert len(layout) >= 6
    for name, (size, fields) in layout.items():
        kind = getattr(ffi, name)
        assert ctypes.sizeof(kind) == size, name
        ours = [(n, getattr(kind, n).offset, getattr(kind, n).size) for n, _ in kind._fields_]
        assert ours == fields, name
        if fields[0][0] == "struct_size" and name != "kvconn_failed_endpoint_t":
            assert kind().struct_size == size, name


def test_every_constant_has_the_number_of_the_header(ffi, lib):
    import kvconn

    for line in (ROOT / "abi" / "constants.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        name, number = line.split()
        short = name.removeprefix("KVCONN_")
        if int(number) in kvconn.STATUSES and hasattr(kvconn, short.title().replace("_", "")):
            # A status: an exception of that name.
            assert kvconn.STATUSES[int(number)].__name__ == short.title().replace("_", "")
        elif name != "KVCONN_OK":
            assert ffi.CONSTANTS[short] == int(number), name


def test_every_status_is_an_exception(lib):
    import kvconn

    table = re.findall(r"^\| `KVCONN_(\w+)` \| (-?\d+) \|", (ROOT / "docs" / "status.md").read_text(), re.M)
    assert len(table) == len(kvconn.STATUSES) + 1  # and OK
    for name, number in table[1:]:
        exception = getattr(kvconn, name.title().replace("_", ""))
        assert exception is kvconn.STATUSES[int(number)] and issubclass(exception, kvconn.Error) and exception.__doc__


def test_the_library_is_the_one_of_the_header(lib):
    import kvconn

    version = re.search(r'^#define KVCONN_VERSION "(.*)"', CODE, re.M)[1]
    assert kvconn.__version__ == version


def test_another_abi_is_refused(ffi, lib, monkeypatch):
    monkeypatch.setattr(ffi, "ABI_VERSION", 77)
    with pytest.raises(OSError, match="77"):
        ffi.load()


def test_text_with_a_nul_and_frames_of_the_wrong_type_are_refused(lib):
    import kvconn

    with pytest.raises(ValueError):
        kvconn.connect("tcp://127.0.0.1:1\0:2")
    with pytest.raises(ValueError):
        kvconn.node_open("a\0b")
    with pytest.raises(TypeError):
        kvconn.send(1, ["text"])
