"""The wheel: its tag is honest, it is reproducible, and it works in a bare venv without a compiler and a network."""

import csv
import importlib.util
import io
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import venv
import zipfile

import pytest

from conftest import ROOT
from sharing import canonical, kv  # noqa: F401: fixtures are found by name

SECONDS = 300  # for a loaded machine
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def tool():
    """packaging/wheel.py as a module."""
    spec = importlib.util.spec_from_file_location("wheel_tool", ROOT / "packaging" / "wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def build(library, output, *options):
    """A wheel of this library."""
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf (binutils)")
    if importlib.util.find_spec("setuptools.command.bdist_wheel") is None:
        pytest.skip("setuptools is older than 70.1: run `make venv`")
    command = [sys.executable, ROOT / "packaging" / "wheel.py", "--library", library, "--output", output, *options]
    zig = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "zig-venv" / "bin" / "python"
    run(*command, "--zig", zig, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    (wheel,) = pathlib.Path(output).glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheel(lib, tmp_path_factory):
    """The wheel of the library under test."""
    return build(lib, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def bare(wheel, tmp_path_factory):
    """The Python of a venv with the wheel and nothing else. Installed without a network."""
    directory = tmp_path_factory.mktemp("venv")
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    site = run(python, "-Ic", "import sysconfig; print(sysconfig.get_path('platlib'))").strip()
    options = ["--no-index", "--no-deps", "--disable-pip-version-check", "--target", site]
    run(sys.executable, "-m", "pip", "install", "--quiet", *options, wheel)
    return python


def bare_run(python, folder, *arguments):
    """Runs Python isolated in an empty folder: no KVCONN_LIB, no PYTHONPATH, no compiler on the path."""
    return run(python, "-I", *arguments, cwd=folder, env={"PATH": "/nowhere", "LC_ALL": "C.UTF-8"})


# ---- What is in it ---------------------------------------------------------------------------------------------------


def test_it_has_the_package_the_library_and_the_licences_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        sources = {path for path in (ROOT / "python" / "kvconn").rglob("*") if path.suffix in (".py", ".pyi", ".typed")}
        expected = {str(path.relative_to(ROOT / "python")) for path in sources} | {"kvconn/libkvconn.so.0", "kvconn/py.typed"}
        expected |= {"kvconn/_fast.abi3.so"} if "abi3" in wheel.name else set()
        about = f"kvconn-{VERSION}.dist-info"
        files = {name for name in names if not name.startswith(about)}
        assert files == expected
        assert {f"{about}/licenses/LICENSE", f"{about}/licenses/THIRD_PARTY.md"} <= names
        assert "[sglang.srt.plugins]\nkvconn = " in packed.read(f"{about}/entry_points.txt").decode()
        metadata = packed.read(f"{about}/METADATA").decode()
        assert f"\nVersion: {VERSION}\n" in metadata and "\nRequires-Python: >=3.10\n" in metadata
        assert not re.search(r"^Requires-Dist: (?!.*extra ==)", metadata, re.M), "it needs no other package"
        recorded = {row[0] for row in csv.reader(io.StringIO(packed.read(f"{about}/RECORD").decode()))}
        assert recorded == names
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in packed.infolist()}
        for name, mode in modes.items():
            assert name.endswith("/RECORD") or mode == (0o755 if ".so" in name else 0o644), (name, oct(mode))


def test_the_tag_is_honest(wheel, lib):
    """manylinux_2_28 only without libstdc++ and without a later glibc."""
    python, abi, tag = wheel.stem.split("-")[2:]
    has_extension = "kvconn/_fast.abi3.so" in zipfile.ZipFile(wheel).namelist()
    assert (python, abi) == (("cp310", "abi3") if has_extension else ("py3", "none"))
    _, glibc, libraries = tool().needs(lib)
    machine = platform.machine()
    portable = glibc <= (2, 28) and not libraries
    assert tag == (f"manylinux_2_28_{machine}" if portable else f"linux_{machine}")


def test_auditwheel_agrees_with_the_tag(wheel):
    pytest.importorskip("auditwheel", reason="auditwheel is not installed (make python-tools)")
    text = run(sys.executable, "-m", "auditwheel", "show", wheel)
    major, minor = map(int, re.search(r'platform tag:\s+"manylinux_(\d+)_(\d+)_', text).groups())
    if "manylinux" in wheel.name:
        assert (major, minor) <= (2, 28), text
    else:
        assert (major, minor) > (2, 28), f"it could be tagged better:\n{text}"


def test_abi3audit_finds_no_name_outside_the_limited_api(wheel):
    pytest.importorskip("abi3audit", reason="abi3audit is not installed (make python-tools)")
    if "abi3" not in wheel.name:
        pytest.skip("this wheel has no C extension")
    with zipfile.ZipFile(wheel) as packed:
        path = packed.extract("kvconn/_fast.abi3.so", wheel.parent / "extracted")
    result = run(sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", "--report", path)
    assert '"is_abi3": true' in result and '"non_abi3_symbols": []' in result, result


def test_the_same_files_give_the_same_bytes(wheel, lib, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    again = build(lib, tmp_path / "elsewhere")
    assert again.name == wheel.name and again.read_bytes() == wheel.read_bytes()


def test_without_the_extension_the_tag_names_no_abi(lib, tmp_path):
    assert "-py3-none-" in build(lib, tmp_path, "--no-fast").name


@pytest.mark.parametrize(
    ("needs", "tag", "why"),
    [
        ([("x86_64", (2, 28), set())], "manylinux_2_28_x86_64", ""),
        ([("aarch64", (2, 17), set())], "manylinux_2_28_aarch64", ""),
        ([("x86_64", (2, 29), set())], "linux_x86_64", "needs glibc 2.29"),
        ([("x86_64", (2, 17), {"libstdc++.so.6"})], "linux_x86_64", "needs libstdc++.so.6"),
        ([("x86_64", (2, 17), set()), ("x86_64", (2, 34), set())], "linux_x86_64", "needs glibc 2.34"),
    ],
)
def test_the_tag_follows_from_what_the_files_need(monkeypatch, needs, tag, why):
    wheel_tool, given = tool(), dict(enumerate(needs))
    monkeypatch.setattr(wheel_tool, "needs", given.__getitem__)
    assert wheel_tool.platform_tag(list(given)) == (tag, why)


def test_the_versions_are_one():
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "python" / "pyproject.toml").read_text()


# ---- It works --------------------------------------------------------------------------------------------------------


def test_the_program_of_the_readme_runs_in_a_bare_venv(bare, peer, tmp_path):
    program = re.search(r"^## Python$.*?^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)[1]
    receiver = peer("--keep")
    output = bare_run(bare, tmp_path, "-c", program, canonical(receiver))
    assert re.fullmatch(r"connection \d+ accepted message 1 for .*\n", output)
    receiver.expect(1)
    assert receiver.messages() == [[b"room", b"17"]]


def test_the_asynchronous_example_runs_in_a_bare_venv(bare, peer, tmp_path):
    receiver = peer("--keep")
    output = bare_run(bare, tmp_path, ROOT / "examples_python" / "objects.py", canonical(receiver))
    assert f"READY {canonical(receiver)}\n" in output and "accepted message 1" in output
    receiver.expect(1)


def test_it_uses_its_own_library_and_the_extension(bare, wheel, tmp_path):
    script = """
    import kvconn, pathlib, sys
    from kvconn import _ffi
    here = pathlib.Path(kvconn.__file__).parent
    assert here.is_relative_to(sys.prefix), here
    assert _ffi.find() == str(here / "libkvconn.so.0"), _ffi.find()
    try:
        from kvconn import _fast
        print("fast")
    except ImportError:
        print("ctypes")
    """
    output = bare_run(bare, tmp_path, "-c", textwrap.dedent(script))
    assert output == ("fast\n" if "abi3" in wheel.name else "ctypes\n")


def test_the_command_runs(bare, wheel, tmp_path):
    """As a module, and as the script that pip makes of the entry point."""
    site = pathlib.Path(run(bare, "-Ic", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())
    for command in (["-m", "kvconn"], [site / "bin" / "kvconn"]):
        assert bare_run(bare, tmp_path, *command, "--version") == f"kvconn {VERSION}\n"
        assert "stall_ms" in bare_run(bare, tmp_path, *command, "options", "stall")


def test_kvconn_zmq_says_that_it_needs_pyzmq(bare, tmp_path):
    script = "import kvconn\ntry:\n    import kvconn.zmq\nexcept ImportError as error:\n    print(error)"
    assert bare_run(bare, tmp_path, "-c", script).startswith("kvconn.zmq needs pyzmq")


# ---- Where the library is looked for ---------------------------------------------------------------------------------

FOUND = "import kvconn._ffi as f, sys; print(f.find()); print(f.load().kvconn_abi_version())"


@pytest.fixture
def places(lib, tmp_path):
    """A checkout with a build tree, a copy of the package without one, and a folder for the system's loader."""
    checkout, installed, system = tmp_path / "checkout", tmp_path / "site-packages", tmp_path / "system"
    for directory in (checkout / "python", installed):
        shutil.copytree(ROOT / "python" / "kvconn", directory / "kvconn", ignore=shutil.ignore_patterns("*.so*"))
    (checkout / "Cargo.toml").touch()
    (checkout / "target" / "release").mkdir(parents=True)
    (checkout / "target" / "release" / "libkvconn.so").symlink_to(lib)
    system.mkdir()
    return checkout, installed, system


def found(package, folder, **environment):
    command = [sys.executable, "-c", FOUND]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment)


def test_the_order_in_which_the_library_is_looked_for(places, lib, tmp_path):
    checkout, installed, system = places
    named = tmp_path / "named.so"
    named.symlink_to(lib)
    beside = installed / "kvconn" / "libkvconn.so.0"
    (system / "libkvconn.so.0").symlink_to(lib)
    here = {"LD_LIBRARY_PATH": str(system)}
    assert found(installed, tmp_path, **here).stdout == "libkvconn.so.0\n0\n"
    beside.symlink_to(lib)
    assert found(installed, tmp_path, **here).stdout == f"{beside}\n0\n"
    assert found(installed, tmp_path, KVCONN_LIB=str(named), **here).stdout == f"{named}\n0\n"
    built = checkout / "target" / "release" / "libkvconn.so"
    assert found(checkout / "python", tmp_path, **here).stdout == f"{built}\n0\n"
    shutil.copytree(checkout / "target", tmp_path / "elsewhere", symlinks=True)
    moved = found(checkout / "python", tmp_path, CARGO_TARGET_DIR=str(tmp_path / "elsewhere"))
    assert moved.stdout == f"{tmp_path}/elsewhere/release/libkvconn.so\n0\n"


def test_a_build_tree_is_looked_for_only_in_a_checkout(places, tmp_path):
    """CARGO_TARGET_DIR of some other project must not decide what an installed package loads."""
    checkout, installed, _ = places
    result = found(installed, tmp_path, CARGO_TARGET_DIR=str(checkout / "target"))
    assert result.returncode == 1 and "there is no libkvconn.so.0" in result.stderr


def test_without_a_library_the_error_says_what_to_do(places, tmp_path):
    _, installed, _ = places
    error = found(installed, tmp_path).stderr.splitlines()[-1]
    assert error.startswith("OSError: kvconn: there is no libkvconn.so.0: install the wheel")
    assert str(installed / "kvconn" / "libkvconn.so.0") in error and "KVCONN_LIB" in error


def test_a_library_that_is_older_than_the_package_is_named(lib):
    from kvconn import _ffi

    declared = dict(_ffi.FUNCTIONS)
    try:
        _ffi.FUNCTIONS["kvconn_of_tomorrow"] = (None, [])
        with pytest.raises(OSError, match="has no kvconn_of_tomorrow: it is older than this Python package"):
            _ffi.load()
    finally:
        _ffi.FUNCTIONS.clear()
        _ffi.FUNCTIONS.update(declared)
