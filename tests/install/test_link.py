"""Programs that have nothing but an installed kvconn: each sends, sees its peer killed, and goes on with another."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

from conftest import DIST, HERE, ROOT, SECONDS, VERSION, clean_environment, compilers, fail_over, run

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


@pytest.fixture
def folder(tmp_path):
    """An empty folder with the sources of the consumers."""
    for path in HERE.iterdir():
        if path.suffix in (".c", ".cpp", ".h", ".txt"):
            shutil.copy(path, tmp_path)
    return tmp_path


def needs_of(program):
    return run("readelf", "-dW", program)


# ---- C by pkg-config -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", compilers())
def test_c_with_the_shared_library(prefix, pkg_config, folder, peer, compiler):
    flags = pkg_config("--cflags", "--libs", "kvconn")
    run(compiler, "-std=c11", *WARNINGS, "failover.c", "-o", "failover", *flags, cwd=folder)
    assert "[libkvconn.so.0]" in needs_of(folder / "failover")
    fail_over(peer, [folder / "failover"], LD_LIBRARY_PATH=prefix / "lib")


LINKS = [["-pie", "-fPIE"], ["-no-pie"], ["-O2", "-Wl,--gc-sections"], ["-fuse-ld=gold"], ["-fuse-ld=lld"]]


@pytest.mark.parametrize("options", LINKS, ids=" ".join)
@pytest.mark.parametrize("compiler", compilers())
def test_c_with_the_static_library(pkg_config, folder, peer, compiler, options):
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    if subprocess.run([compiler, *options, "empty.c"], cwd=folder, capture_output=True).returncode:
        pytest.skip(f"{compiler} has no {options[0]}")
    flags = pkg_config("--cflags", "--libs", "kvconn-static")
    run(compiler, "-std=c11", *WARNINGS, *options, "failover.c", "-o", "failover", *flags, cwd=folder)
    assert "kvconn" not in needs_of(folder / "failover") and "zmq" not in needs_of(folder / "failover")
    fail_over(peer, [folder / "failover"])


def test_c_in_a_program_that_is_static_throughout(pkg_config, folder, peer):
    flags = pkg_config("--static", "--cflags", "--libs", "kvconn")
    command = [compilers()[0], "-static", "failover.c", "-o", "failover", *flags]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode and "cannot find -l" in result.stderr:
        pytest.skip(f"no static C++ library: {result.stderr.strip().splitlines()[0]}")
    assert result.returncode == 0, result.stderr
    assert "no dynamic section" in needs_of(folder / "failover")
    fail_over(peer, [folder / "failover"])


@pytest.mark.skipif(bool(DIST), reason="the C++ run-time library is inside a release: a test cannot replace its operator new")
def test_an_exception_inside_the_static_library_is_caught_there(pkg_config, folder):
    """Memory that libzmq cannot have is an exception that libzmq catches: the unwind tables are whole."""
    hosts = pathlib.Path("/etc/hosts")
    if not hosts.exists() or "localhost" not in hosts.read_text():
        pytest.skip("/etc/hosts has no localhost: each of some hundred runs would wait for a name server")
    shutil.copy(ROOT / "tests/faults/sweep.c", folder)
    flags = pkg_config("--cflags", "--libs", "kvconn-static")
    options = ["-std=gnu11", "-O1", "-g", "-fexceptions", "-rdynamic", "-pthread"]
    run(compilers()[0], *options, "sweep.c", "-o", "sweep", *flags, cwd=folder)
    swept = run("./sweep", "fast", "operator_new", cwd=folder)
    (all_cases,) = [line for line in swept.splitlines() if "| all |" in line]
    runs, reached, aborts, hangs = [int(cell) for cell in all_cases.split("|")[3:7]]
    assert runs >= reached > 50 and aborts == hangs == 0, all_cases


# ---- C++ by CMake, beside another libzmq -----------------------------------------------------------------------------


def bundled_with_pyzmq():
    """The libzmq of pyzmq's wheel."""
    zmq = pytest.importorskip("zmq")
    found = list((pathlib.Path(zmq.__file__).parents[1] / "pyzmq.libs").glob("libzmq*"))
    if not found:
        pytest.skip("this pyzmq has no libzmq of its own")
    return found[0]


ASK_VERSION = """
import ctypes, sys
numbers = [ctypes.c_int() for _ in range(3)]
ctypes.CDLL(sys.argv[1]).zmq_version(*map(ctypes.byref, numbers))
print(*[number.value for number in numbers], sep=".")
"""


@pytest.fixture(params=["one that ends the process", "pyzmq's", "the system's"])
def another_libzmq(request, folder):
    """The path of another libzmq, its version, and whether it can send."""
    if request.param == "pyzmq's":
        path = bundled_with_pyzmq()
    elif request.param == "the system's":
        path = run(compilers()[0], "-print-file-name=libzmq.so").strip()
        if not os.path.isabs(path):
            pytest.skip("there is no libzmq3-dev")
    else:
        path = folder / "libzmq.so"
        run(compilers()[0], "-shared", "-fPIC", "fake_zmq.c", "-Wl,-soname,libzmq.so", "-o", path, cwd=folder)
    return path, run(sys.executable, "-c", ASK_VERSION, path).strip(), request.param != "one that ends the process"


def test_cpp_by_cmake_shared_and_static_on_either_side_of_another_libzmq(prefix, cmake, folder, peer, another_libzmq):
    libzmq, version, sends = another_libzmq
    build = folder / "build"
    configure = ["-S", ".", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DANOTHER_LIBZMQ={libzmq}"]
    assert f"-- kvconn {VERSION}\n" in run(cmake, *configure, "-DCMAKE_BUILD_TYPE=Release", cwd=folder)
    targets = [f"{kind}_{place}_libzmq" for kind in ("shared", "static") for place in ("before", "after")]
    targets += [] if sends else ["shared", "static"]  # once is enough
    run(cmake, "--build", build, "--parallel", "2", "--target", *targets, cwd=folder)
    for kind in ("shared", "static"):
        for place in ("before", "after"):
            program = build / f"{kind}_{place}_libzmq"
            assert ("[libkvconn.so.0]" in needs_of(program)) == (kind == "shared")
            lines = fail_over(peer, [program, "ENDPOINTS", *(["send"] if sends else [])], messages=100 + sends)
            assert lines[0] == f"libzmq {version}", program
    for kind in () if sends else ("shared", "static"):
        fail_over(peer, [build / kind])


MAJOR, MINOR = map(int, VERSION.split(".")[:2])
THIS, NEXT = f"{MAJOR}.{MINOR}", f"{MAJOR}.{MINOR + 1}"
FITS = {THIS: 1, VERSION: 1, f"{MAJOR}": 1, NEXT: 0, f"{MAJOR + 1}.0": 0, f"{THIS}.99": 0}
FITS |= {f"{THIS}...<{NEXT}": 1, f"{NEXT}...<{MAJOR + 1}": 0, f"{MAJOR}.{MINOR - 1}": 0} if MINOR else {}


@pytest.mark.parametrize("wanted, found", FITS.items())
def test_cmake_takes_only_a_version_that_fits(prefix, cmake, tmp_path, wanted, found):
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.19)\nproject(versions NONE)\nfind_package(kvconn {wanted})\n"
        'message(STATUS "found: ${kvconn_FOUND}")\n'
    )
    said = run(cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    assert f"found: {found}" in said


# ---- Inside a shared object ------------------------------------------------------------------------------------------

PYTHON = """
import sys, zmq
first, second, order, module, directory = sys.argv[1:]
sys.path.insert(0, directory)
def load():
    if module == "extension":
        import kvconn_inside
        return kvconn_inside.failover
    import ctypes
    call = ctypes.CDLL(directory + "/plugin.so").plugin_failover
    return lambda first, second: call(first.encode(), second.encode())
if order == "kvconn first":
    failover = load()
context = zmq.Context()
push = context.socket(zmq.PUSH)
push.connect(second)
if order == "pyzmq first":
    failover = load()
assert not zmq.has("draft")
push.send(b"pyzmq")
result = failover(first, second)
push.close(linger=20000)
context.term()
sys.exit(result)
"""


@pytest.mark.parametrize("order", ["pyzmq first", "kvconn first"])
@pytest.mark.parametrize("module", ["extension", "plugin"])
def test_the_static_library_inside_a_shared_object_beside_pyzmq(pkg_config, folder, peer, module, order):
    flags = pkg_config("--cflags", "--libs", "kvconn-static")
    options = ["-shared", "-fPIC", "-O2"]
    if module == "extension":
        include = sysconfig.get_paths()["include"]
        if not os.path.exists(f"{include}/Python.h"):
            pytest.skip(f"there is no {include}/Python.h (Debian: apt-get install python3-dev)")
        name = "kvconn_inside" + sysconfig.get_config_var("EXT_SUFFIX")
        run(compilers()[0], *options, f"-I{include}", "extension.c", "-o", name, *flags, cwd=folder)
    else:
        name = "plugin.so"
        run(compilers()[0], *options, "plugin.c", "-o", name, *flags, "-Wl,-z,defs", cwd=folder)
    # dlclose must not unmap the code that libzmq's threads run.
    assert "NODELETE" in needs_of(folder / name)
    exported = run("nm", "-D", "--defined-only", folder / name)
    assert "zmq_" not in exported and "crypto_" not in exported
    program = [sys.executable, "-c", PYTHON, "ENDPOINTS", order, module, folder]
    fail_over(peer, program, messages=101)


def test_the_cpp_example_is_built_by_cmake_and_runs(prefix, cmake, tmp_path, peer):
    example = ROOT / "examples_cpp" / "engine.cpp"
    if not example.exists():
        pytest.skip("there is no examples_cpp/engine.cpp")
    shutil.copy(example, tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(engine CXX)\nset(CMAKE_CXX_STANDARD 17)\n"
        "find_package(Threads REQUIRED)\nfind_package(kvconn REQUIRED)\n"
        "foreach(kind kvconn kvconn_static)\n  add_executable(engine_${kind} engine.cpp)\n"
        "  target_link_libraries(engine_${kind} PRIVATE kvconn::${kind} Threads::Threads)\nendforeach()\n"
    )
    run(cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run(cmake, "--build", tmp_path / "build", "--parallel", "2")
    for kind in ("kvconn", "kvconn_static"):
        ranks = {"A": peer(), "B": peer()}
        words = [word for name, rank in ranks.items() for word in (name, f"tcp://127.0.0.1:{rank.port}")]
        command = [tmp_path / "build" / f"engine_{kind}", *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes, env=clean_environment()) as engine:
            try:
                for rank in ranks.values():
                    rank.expect(10)
                said, _ = engine.communicate(timeout=SECONDS)  # the end of its input ends it
            finally:
                engine.kill()
        assert engine.returncode == 0, said
