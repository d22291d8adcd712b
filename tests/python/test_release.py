"""What `make release` has made (target/dist, or KVCONN_DIST): it loads on every Linux with glibc 2.28, exports kvconn_*
alone, names no path of the machine it was built on, and works. Without a release of this commit the tests are skipped."""

import ctypes
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
DIST = pathlib.Path(os.environ.get("KVCONN_DIST") or TARGET / "dist")
SYMBOLS = (ROOT / "abi" / "kvconn.symbols").read_text().split()
HIGHEST_GLIBC = (2, 28)
# The parts of glibc. All but the C library itself are empty since glibc 2.34.
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
GLIBC |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
SECONDS = 300  # for a program on a loaded machine, under an emulator


def output(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def made():
    """The machines that a release of this commit was made for."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    builds = [path.parent for path in DIST.glob("*/COMMIT") if path.read_text() == commit]
    return sorted(path.name for path in builds)


@pytest.fixture(params=made() or [None])
def dist(request):
    """The directory of what is shipped for one machine."""
    if request.param is None:
        pytest.skip(f"no release of this commit in {DIST}: make release")
    return DIST / request.param


def library(dist):
    (path,) = dist.glob("lib/libkvconn.so.*.*.*")
    return path


def test_it_needs_glibc_and_the_unwinder_and_nothing_else(dist):
    dynamic = output("readelf", "-dW", library(dist))
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    # pthread_exit of glibc unwinds with libgcc_s: with another unwinder in the library that would crash.
    assert {"libc.so.6", "libgcc_s.so.1"} <= needed <= GLIBC | {"libgcc_s.so.1"}, needed
    assert re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) == ["libkvconn.so.0"]
    assert "NODELETE" in dynamic and "TEXTREL" not in dynamic and "RUNPATH" not in dynamic and "RPATH" not in dynamic


def test_the_highest_version_of_glibc_that_it_needs(dist):
    versions = set(re.findall(r"Name: (\S+)", output("readelf", "-VW", library(dist))))
    versions -= {"GCC_3.0", "GCC_3.3", "GCC_4.2.0"}  # of libgcc_s; gcc 4.2 is older than any glibc that counts here
    assert versions and all(re.fullmatch(r"GLIBC_[\d.]+", version) for version in versions), versions
    highest = max(tuple(map(int, version.removeprefix("GLIBC_").split("."))) for version in versions)
    print(f"{dist.name}: glibc {'.'.join(map(str, highest))}")
    assert highest <= HIGHEST_GLIBC


def test_it_exports_the_functions_of_the_header_and_nothing_else(dist):
    rows = (line.split() for line in output("readelf", "--dyn-syms", "-W", library(dist)).splitlines())
    rows = [row for row in rows if len(row) >= 8 and row[0][:-1].isdigit() and row[6] != "UND"]
    assert {(row[3], row[4]) for row in rows} == {("FUNC", "GLOBAL")}
    assert sorted(row[7].split("@")[0] for row in rows) == SYMBOLS


def debug_symbols(dist):
    (build_id,) = re.findall(r"Build ID: ([0-9a-f]{40})", output("readelf", "-n", library(dist)))
    return dist / "debug" / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"


def test_the_unwinder_is_that_of_the_process(dist):
    """The release library is linked by name to libgcc_s; no part of another unwinder came with the compiler."""
    rows = (line.split() for line in output("readelf", "--syms", "-W", debug_symbols(dist)).splitlines())
    unwinder = {row[7]: row[6] for row in rows if len(row) >= 8 and re.match(r"_Unwind_|_*unw_", row[7])}
    assert any(name.startswith("_Unwind_Resume") for name in unwinder), "no symbol table"
    assert {place for place in unwinder.values()} == {"UND"}, unwinder


def test_the_debug_symbols_are_found_by_the_build_id(dist):
    debug = debug_symbols(dist)
    sections = output("readelf", "-SW", debug)
    assert ".debug_line" in sections and ".symtab" in sections
    assert ".debug" not in output("readelf", "-SW", library(dist))


def binutils(dist, tool):
    """A program of binutils for this machine or the other one."""
    return tool if dist.name == platform.machine() else f"{dist.name}-linux-gnu-{tool}"


def machine_paths():
    """What no shipped file may contain: where this machine keeps the sources, the tools and the user."""
    sysroot = output("rustc", "--print", "sysroot").strip()
    cargo = os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo"
    paths = {ROOT, TARGET, pathlib.Path.home(), sysroot, cargo}
    return [str(path).encode() for path in paths if len(str(path)) > 3]


def paths_in(content):
    """Each path of this machine in the content, with what stands around it. After a brace it is the end of another path:
    `/proc/{pid}/root`."""
    found = (re.findall(rb"[ -~]*(?<!\})" + re.escape(path) + rb"(?![\w.-])[ -~]*", content) for path in machine_paths())
    return sorted({text.decode()[-200:] for texts in found for text in texts})


def test_a_path_of_this_machine_is_found():
    source = bytes(ROOT) + b"/src/lib.rs"
    assert paths_in(b"\0\1" + source + b"\0") == [source.decode()]
    assert paths_in(b"\0src/lib.rs\0/proc/{pid}" + bytes(ROOT) + b"\0") == []


def test_no_shipped_file_names_a_path_of_the_build_machine(dist, tmp_path):
    files = [path for path in dist.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) >= 5
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".debug":  # its sections are compressed
            plain = tmp_path / path.name
            output(binutils(dist, "objcopy"), "--decompress-debug-sections", path, plain)
            content = plain.read_bytes()
        found = paths_in(content)
        assert not found, f"{path} has {len(found)} paths of this machine: {found[:5]}"


def test_the_wheel_has_this_library_and_names_no_path_of_the_build_machine(dist):
    wheels = list((TARGET / "wheels").glob(f"kvconn-*manylinux*_{dist.name}.whl"))
    if not wheels or DIST != TARGET / "dist":
        pytest.skip(f"no wheel for {dist.name} in {TARGET / 'wheels'}: make release")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            assert packed.read("kvconn/libkvconn.so.0") == library(dist).read_bytes()
            for name in packed.namelist():
                assert not paths_in(packed.read(name)), f"{name} in {wheel}"


def test_the_tar_files_have_what_the_directory_has(dist):
    version = library(dist).name.removeprefix("libkvconn.so.")
    name = f"kvconn-{version}-linux-{dist.name}"
    times, names = set(), []
    for archive in (f"{name}.tar.gz", f"{name}-debug.tar.gz"):
        content = (DIST / archive).read_bytes()
        assert content[4:8] == b"\0\0\0\0", "gzip has written a time"
        with tarfile.open(DIST / archive) as tar:
            for member in tar:
                assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", ""), member.name
                assert member.issym() or member.mode & 0o466 == 0o444, member.name
                times.add(member.mtime)
                path = dist / pathlib.Path(member.name).relative_to(archive.removesuffix(".tar.gz"))
                names.append(path)
                if member.isfile():
                    assert tar.extractfile(member).read() == path.read_bytes()
                elif member.issym():
                    assert member.linkname == os.readlink(path)
        sums = (DIST / "SHA256SUMS").read_text()
        assert f"{hashlib.sha256(content).hexdigest()}  {archive}\n" in sums
    assert len(times) == 1, "the time of the commit"
    assert set(names) | {dist / "COMMIT"} == set(dist.rglob("*"))


@pytest.fixture
def compiler(dist):
    """A C compiler for the machine, and what runs its programs here. Skips where there is none."""
    if dist.name == platform.machine():
        return [os.environ.get("CC", "cc")], []
    compiler = f"{dist.name}-linux-gnu-gcc"
    emulator = shutil.which(f"qemu-{dist.name}-static") or shutil.which(f"qemu-{dist.name}")
    if not shutil.which(compiler) or not emulator:
        pytest.skip(f"no {compiler} or no qemu-{dist.name}: programs for {dist.name} cannot be run here")
    return [compiler], [emulator, "-L", f"/usr/{dist.name}-linux-gnu"]


# A program in C, linked by a C compiler: the static archive needs no C++ library either.
@pytest.mark.parametrize("kind", ["shared", "static"])
@pytest.mark.parametrize("program", sorted(path.stem for path in (ROOT / "tests" / "c").glob("*.c")))
def test_a_c_program(dist, compiler, program, kind, tmp_path):
    compile_, run = compiler
    link = {
        "shared": [f"-L{dist}/lib", "-lkvconn", f"-Wl,-rpath,{dist}/lib", "-pthread"],
        "static": [dist / "lib" / "libkvconn.a", "-pthread", "-ldl", "-lm", "-lrt"],
    }[kind]
    source = ROOT / "tests" / "c" / f"{program}.c"
    output(*compile_, "-std=c11", "-O2", f"-I{dist}/include", source, "-o", tmp_path / program, *link)
    # qemu-user cuts TCP_INFO to 4 bytes.
    environment = {**os.environ, "KVCONN_TEST_WITHOUT_TCP_INFO": "1"} if run else os.environ
    output(*run, tmp_path / program, env=environment)


def test_python_with_the_release_library(dist, peer):
    if dist.name != platform.machine():
        pytest.skip(f"no Python for {dist.name} here")
    assert ctypes.CDLL(str(library(dist))).kvconn_abi_version() == 0
    receiver = peer("--keep")
    environment = {**os.environ, "KVCONN_LIB": str(library(dist)), "PYTHONPATH": str(ROOT / "python")}
    python = os.environ.get("KVCONN_TEST_PYTHON") or "python3"
    output(python, ROOT / "examples_python" / "quickstart.py", receiver.endpoint, env=environment)
    receiver.expect(1)
    assert receiver.messages() == [[b"room", b"17"]]
