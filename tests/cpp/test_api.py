"""What kvconn.hpp does, against real peers (api.cpp): plain, without exceptions, and with sanitizers."""

import re
import sys

import pytest
from conftest import HERE, ROOT, STRICT, at_once, compiler, link_flags, run

# Optimised builds see more mistakes; sanitizers make an optimised build slow to compile.
BUILDS = {
    "plain": ("g++", ["-std=c++17", "-O2", "-DCOUNT_ALLOCATIONS"]),
    "clang": ("clang++", ["-std=c++20"]),
    "no exceptions": ("g++", ["-std=c++17", "-fno-exceptions", "-fno-rtti"]),
    "asan": ("g++", ["-std=c++17", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]),
    "tsan": ("g++", ["-std=c++17", "-g", "-fsanitize=thread"]),
}
PEER = {"KVCONN_TEST_PYTHON": sys.executable, "KVCONN_TEST_PEER": str(ROOT / "tests" / "peers" / "pull.py")}


def build(folder, name):
    compiler_name, flags = BUILDS[name]
    try:
        words = compiler(compiler_name)
    except pytest.skip.Exception as reason:
        return str(reason)
    if any("sanitize" in flag for flag in flags):
        empty = folder / f"{name}.cpp"
        empty.write_text("int main() { return 0; }\n")
        if run(*words, *flags, empty, "-o", folder / f"{name}_probe").returncode:
            return f"{words[0]} has no library for {flags[2]}"
    program = folder / name.replace(" ", "_")
    return program, run(*words, *flags, *STRICT, f"-I{ROOT / 'include'}", HERE / "api.cpp", "-o", program, *link_flags())


@pytest.fixture(scope="session")
def programs(request, tmp_path_factory):
    """All builds that the selected tests need, compiled beside each other."""
    folder = tmp_path_factory.mktemp("api")
    selected = [item.callspec.params["name"] for item in request.session.items if item.path.name == "test_api.py"]
    return dict(zip(selected, at_once([lambda name=name: build(folder, name) for name in selected])))


@pytest.fixture
def program(programs):
    def get(name):
        if isinstance(programs[name], str):
            pytest.skip(programs[name])
        path, built = programs[name]
        assert built.returncode == 0, built.stdout
        return path

    return get


@pytest.mark.parametrize("name", ["plain", "clang", "no exceptions", "asan"])
def test_the_whole_interface(program, name):
    result = run(program(name), **PEER)
    assert (result.returncode, result.stdout) == (0, "")


def suppressions():
    """The file that docs/cpp.md shows."""
    (block,) = re.findall(r"^```\n(called_from_lib:.*?)^```$", (ROOT / "docs" / "cpp.md").read_text(), re.M | re.S)
    return block


@pytest.mark.parametrize("name", ["tsan"])
def test_thread_sanitizer_is_silent_with_the_documented_line(program, name, tmp_path):
    (tmp_path / "tsan.supp").write_text(suppressions())
    options = {"TSAN_OPTIONS": f"suppressions={tmp_path / 'tsan.supp'}"}
    result = run(program(name), **PEER, **options)
    assert (result.returncode, result.stdout) == (0, "")
    # A race of the program's own is still found, also in a callable that kvconn calls.
    result = run(program(name), "race", **PEER, **options)
    assert result.returncode != 0 and "data race" in result.stdout and "owned_message::released" in result.stdout, result.stdout
