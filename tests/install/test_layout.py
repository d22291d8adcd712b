"""What `make install` puts where, that it needs no compiler, and that `make uninstall` leaves nothing."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import BUILT, DIST, ROOT, VERSION, clean_environment, make, run, target_directory

LIBRARY = f"libkvconn.so.{VERSION}"
ARCHIVE_SYMBOLS = (ROOT / "abi" / "kvconn.symbols").read_text().split()
EXAMPLES = {".c", ".h", ".cpp", ".py"}


def files(directory):
    """Every file and link below a directory."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_symlink() or path.is_file()}


def build_id(file):
    return re.search(r"Build ID: *([0-9a-f]+)", run("readelf", "-n", file))[1]


def test_everything_is_installed_and_the_library_is_small(prefix):
    identity = build_id(prefix / "lib" / LIBRARY)
    expected = {f"lib/{name}" for name in (LIBRARY, "libkvconn.so.0", "libkvconn.so", "libkvconn.a")}
    expected |= {"lib/pkgconfig/kvconn.pc", "lib/pkgconfig/kvconn-static.pc"}
    expected |= {f"lib/cmake/kvconn/kvconn{name}.cmake" for name in ("Config", "ConfigVersion", "Targets")}
    expected |= {f"lib/debug/.build-id/{identity[:2]}/{identity[2:]}.debug"}
    expected |= {f"include/{path.name}" for path in (ROOT / "include").glob("kvconn.h*")}
    documents = {path.name for path in (ROOT / "docs").glob("*.md")} - {"architecture.md", "dependencies.md"}
    documents |= {picture for name in documents for picture in re.findall(r"!\[.*?\]\((\S+\.svg)\)", (ROOT / "docs" / name).read_text())}
    documents |= {"LICENSE", "THIRD_PARTY.md", "CHANGELOG.md"}
    documents |= {f"{path.parent.name}/{path.name}" for path in ROOT.glob("examples_*/*.*") if path.suffix in EXAMPLES}
    expected |= {f"share/doc/kvconn/{name}" for name in documents}
    if (BUILT / "kvconn-peer").exists():  # `make peer`
        expected |= {"bin/kvconn-peer"}
    assert files(prefix) == expected
    assert os.readlink(prefix / "lib/libkvconn.so.0") == LIBRARY
    assert os.readlink(prefix / "lib/libkvconn.so") == "libkvconn.so.0"
    built = BUILT / "libkvconn.so"
    assert build_id(built) == identity
    size = {path: path.stat().st_size for path in (built, prefix / "lib" / LIBRARY, prefix / "lib" / "libkvconn.a")}
    print("bytes:", {str(path.name): bytes for path, bytes in size.items()})
    assert size[prefix / "lib" / LIBRARY] < 4 << 20
    assert size[prefix / "lib" / "libkvconn.a"] < 16 << 20
    sections = run("readelf", "-SW", prefix / "lib" / LIBRARY)
    assert ".dynsym" in sections and ".debug_info" not in sections and ".symtab" not in sections


def test_the_links_of_the_installed_documents_lead_somewhere(prefix):
    documents = prefix / "share/doc/kvconn"
    links = 0
    for document in documents.glob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), (document.name, target)
                links += 1
    assert links > 25
    assert "`CONTRIBUTING.md` of the source" in (documents / "install.md").read_text()


def test_no_installed_text_names_where_it_was_made(prefix):
    for name in files(prefix):
        if name.endswith((".pc", ".cmake")):
            text = (prefix / name).read_text()
            assert "@" not in text, name
            for directory in (ROOT, prefix, prefix.parent.parent):
                assert str(directory) not in text, name


@pytest.mark.skipif(not (BUILT / "kvconn-peer").exists(), reason="there is no kvconn-peer: run `make peer`")
def test_the_installed_peer_runs_and_the_package_finds_it(prefix):
    """A test of an engine with nothing but the installed copy and the Python files."""
    program = prefix / "bin" / "kvconn-peer"
    assert "usage: kvconn-peer" in run(program, "--help") and program.stat().st_size < 4 << 20
    script = "import kvconn.testing as t; print(t.find_program()); t.Peer().close()"
    environment = {"KVCONN_LIB": prefix / "lib/libkvconn.so.0", "PYTHONPATH": ROOT / "python", "PATH": "/usr/bin:/bin"}
    assert run(sys.executable, "-c", script, **environment).strip() == str(program)


def test_the_archive_defines_the_functions_of_the_header_and_nothing_else(prefix):
    lines = run("nm", "-g", "--defined-only", prefix / "lib" / "libkvconn.a").splitlines()
    symbols = [line.split()[1:] for line in lines if len(line.split()) == 3]
    assert sorted(name for _, name in symbols) == ARCHIVE_SYMBOLS
    assert {kind for kind, _ in symbols} == {"T"}
    sections = run("readelf", "-SW", prefix / "lib" / "libkvconn.a")
    # A linker merges COMDAT groups by name, also with local symbols.
    for unwanted in ("GROUP", ".llvmbc", ".llvmcmd", ".debug_"):
        assert unwanted not in sections, unwanted


@pytest.mark.skipif(bool(DIST), reason="`make check-reproducible` is the test for a release")
def test_one_input_gives_one_archive(prefix, tmp_path):
    run(ROOT / "packaging/archive.sh", target_directory() / "release/libkvconn.a", tmp_path / "again.a")
    assert (tmp_path / "again.a").read_bytes() == (prefix / "lib/libkvconn.a").read_bytes()


@pytest.mark.parametrize("libdir", ["lib64", "lib/x86_64-linux-gnu"])
def test_a_staged_installation_and_its_end(prefix, tmp_path, libdir):
    stage = tmp_path / "stage"
    arguments = ["PREFIX=/usr", f"LIBDIR=/usr/{libdir}", f"DESTDIR={stage}"]
    arguments += [f"KVCONN_BUILD_ARCHIVE={prefix / 'lib/libkvconn.a'}"]
    make("install", *arguments)
    installed = files(stage)
    assert f"usr/{libdir}/{LIBRARY}" in installed and "usr/include/kvconn.h" in installed
    assert all(name.startswith("usr/") for name in installed)
    # Somebody else's files stay.
    others = ["usr/include/other.h", f"usr/{libdir}/pkgconfig/other.pc", "usr/share/doc/kvconn/notes"]
    for name in others:
        (stage / name).write_text("")
    make("install", *arguments)
    assert files(stage) == installed | set(others)
    make("uninstall", *arguments)
    assert files(stage) == set(others)
    for name in others:
        (stage / name).unlink()
    make("uninstall", *arguments)
    assert list(stage.iterdir()) == []


def test_installing_needs_no_cargo_and_no_compiler(tmp_path):
    """As `sudo make install` after `make lib`: root's PATH has no cargo, and nothing in the build directory changes."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cargo", "cc", "c++", "gcc", "g++", "clang", "rustc"):
        (tools / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/compiled\nexit 1\n")
        (tools / name).chmod(0o755)
    release = target_directory() / "release"
    before = {path: path.stat().st_mtime_ns for path in [*release.glob("libkvconn.*"), release, ROOT / "packaging"]}
    make("install", f"PREFIX={tmp_path / 'usr'}", PATH=f"{tools}:{os.environ['PATH']}")
    assert (tmp_path / "usr/lib" / LIBRARY).exists()
    # make asks once whether cargo-nextest is there.
    tried = (tmp_path / "compiled").read_text().split() if (tmp_path / "compiled").exists() else []
    assert set(tried) <= {"cargo"} and len(tried) <= 1, tried
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_other_files_can_be_installed_by_the_same_rules(prefix, tmp_path):
    """As the release and cross builds do: a library and an archive from elsewhere."""
    other = tmp_path / "built"
    other.mkdir()
    shutil.copy(BUILT / "libkvconn.so", other / "kvconn.so")
    shutil.copy(prefix / "lib/libkvconn.a", other / "kvconn.a")
    inputs = [f"KVCONN_BUILD_LIB={other / 'kvconn.so'}", f"KVCONN_BUILD_ARCHIVE={other / 'kvconn.a'}"]
    make("install", f"PREFIX={tmp_path / 'usr'}", *inputs)
    assert files(tmp_path / "usr") == files(prefix) - {"bin/kvconn-peer"}, "there is none beside that library"
    assert (tmp_path / "usr/lib/libkvconn.a").read_bytes() == (other / "kvconn.a").read_bytes()
    command = ["make", "-C", ROOT, "install", f"PREFIX={tmp_path / 'none'}", f"KVCONN_BUILD_LIB={tmp_path / 'no.so'}"]
    result = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert result.returncode != 0 and "there is no" in result.stderr
    command[-1] = f"KVCONN_BUILD_ARCHIVE={target_directory() / 'release/libkvconn.a'}"
    result = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert result.returncode != 0 and "defines functions of libzmq" in result.stderr
    assert not (tmp_path / "none").exists()


def test_cargo_alone_makes_the_link_that_a_program_looks_for(tmp_path):
    """build.rs makes it, so a program linked against target/release runs after a plain `cargo build --release`."""
    if not shutil.which("rustc"):
        pytest.skip("there is no rustc")
    run("rustc", "--edition", "2024", ROOT / "build.rs", "-o", tmp_path / "build-script")
    release = tmp_path / "target" / "release"
    out = release / "build" / "kvconn-0" / "out"
    out.mkdir(parents=True)
    for _ in range(2):
        run(tmp_path / "build-script", OUT_DIR=out, CARGO_CFG_TARGET_OS="linux", DEP_ZMQ_COMPLETE=1)
        assert os.readlink(release / "libkvconn.so.0") == "libkvconn.so"
    shutil.copy(target_directory() / "release/libkvconn.so", release)
    (tmp_path / "main.c").write_text("#include <kvconn.h>\nint main(void) { return kvconn_abi_version() != 0; }\n")
    cc = os.environ.get("CC", "cc").split()
    run(*cc, f"-I{ROOT / 'include'}", "main.c", f"-L{release}", "-lkvconn", f"-Wl,-rpath,{release}", cwd=tmp_path)
    run(tmp_path / "a.out")


@pytest.mark.skipif(not shutil.which("gdb"), reason="there is no gdb")
def test_gdb_finds_the_debug_information_by_the_build_id(prefix):
    commands = ["info line kvconn_connect", "info functions -q zmq::socket_base_t::send"]
    words = [word for command in commands for word in ("-ex", command)]
    gdb = ["gdb", "-nx", "-batch", "-iex", f"set debug-file-directory {prefix / 'lib/debug'}"]
    said = run(*gdb, *words, prefix / "lib" / LIBRARY)
    assert re.search(r'Line \d+ of "src/capi/connections?\.rs"', said), said
    assert "zmq::socket_base_t::send" in said, said
    alone = run("gdb", "-nx", "-batch", "-iex", "set debug-file-directory /nowhere", *words, prefix / "lib" / LIBRARY)
    assert "No line number information" in alone, alone
