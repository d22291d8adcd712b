"""The Debian packages: installed in an empty root by dpkg, used from there, removed again."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import HERE, ROOT, compilers, fail_over, make, run

MISSING = [name for name in ("dpkg-deb", "dpkg-shlibdeps") if not shutil.which(name)]
WHY = f"there is no {' and no '.join(MISSING)} (Debian: apt-get install dpkg-dev)"
pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY)


@pytest.fixture(scope="module")
def packages(prefix, tmp_path_factory):
    directory = tmp_path_factory.mktemp("deb")
    make("deb", f"DEB_DIR={directory}", f"KVCONN_BUILD_ARCHIVE={prefix / 'lib/libkvconn.a'}")
    found = {path.name.split("_")[0]: path for path in directory.iterdir()}
    assert set(found) == {"libkvconn0", "libkvconn-dev", "libkvconn0-dbgsym"}
    return found


@pytest.fixture(scope="module")
def root(packages, tmp_path_factory):
    """A root directory in which nothing but the packages is installed."""
    root = tmp_path_factory.mktemp("root")
    for name in ("updates", "info"):
        (root / "var/lib/dpkg" / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text("")
    if os.geteuid() != 0:
        pytest.skip("dpkg installs packages only for root")
    dpkg = ["dpkg", f"--root={root}", f"--log={root}/log", "--force-depends", "--force-script-chrootless"]
    # dpkg looks for ldconfig there, and root after a plain `su` has the PATH of a user.
    path = os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin:/sbin"
    run(*dpkg, "-i", *packages.values(), PATH=path)
    yield root
    run(*dpkg, "--purge", *packages, PATH=path)
    assert not (root / "usr").exists()


def test_a_program_is_built_and_run_from_the_packages(root, tmp_path, peer):
    (library,) = (root / "usr/lib").glob("*/libkvconn.so.0")
    assert run("dpkg", f"--root={root}", "--verify") == ""
    for name in ("failover.c", "failover.h"):
        shutil.copy(HERE / name, tmp_path)
    include, lib = root / "usr/include", library.parent
    run(compilers()[0], "failover.c", "-o", "failover", f"-I{include}", f"-L{lib}", "-lkvconn", cwd=tmp_path)
    fail_over(peer, [tmp_path / "failover"], LD_LIBRARY_PATH=lib)


def test_the_paths_of_pkg_config_are_those_of_the_packages(root):
    program = shutil.which("pkg-config") or pytest.skip("there is no pkg-config")
    (directory,) = (root / "usr/lib").glob("*/pkgconfig")
    flags = run(program, "--cflags", "--libs", "kvconn", PKG_CONFIG_LIBDIR=directory).split()
    assert os.path.samefile(flags[0].removeprefix("-I"), root / "usr/include")
    assert os.path.samefile(flags[1].removeprefix("-L"), directory.parent)


def test_cmake_finds_the_packages(root, cmake, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(paths C)\nfind_package(kvconn REQUIRED)\n"
        "get_target_property(location kvconn::kvconn IMPORTED_LOCATION)\n"
        "get_target_property(include kvconn::kvconn INTERFACE_INCLUDE_DIRECTORIES)\n"
        'message(STATUS "location:${location} include:${include}.")\n'
    )
    said = run(cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={root / 'usr'}")
    location, include = re.search(r"location:(.*) include:(.*)\.\n", said).groups()
    assert location.startswith(f"{root}/usr/lib/") and os.path.exists(location)
    assert os.path.samefile(include, root / "usr/include")


def test_the_packages_say_what_they_need_and_promise(packages):
    depends = run("dpkg-deb", "-f", packages["libkvconn0"], "Depends")
    assert re.search(r"\blibc6 \(>= 2\.\d+\)", depends), depends
    for name in ("libkvconn-dev", "libkvconn0-dbgsym"):
        version = run("dpkg-deb", "-f", packages["libkvconn0"], "Version").strip()
        assert run("dpkg-deb", "-f", packages[name], "Depends").strip() == f"libkvconn0 (= {version})"
    symbols = run("dpkg-deb", "-I", packages["libkvconn0"], "symbols")
    functions = (ROOT / "abi/kvconn.symbols").read_text().split()
    assert re.findall(r"^ (kvconn_\w+)@Base ", symbols, re.MULTILINE) == functions
    assert "ldconfig" in run("dpkg-deb", "-I", packages["libkvconn0"], "triggers")


@pytest.mark.skipif(not shutil.which("lintian"), reason="there is no lintian")
def test_lintian_finds_nothing(packages):
    # The tag that is left out asks for a bug of Debian's tracker, which only an upload to Debian has.
    command = ["lintian", "--allow-root", "--suppress-tags", "initial-upload-closes-no-bugs"]
    command += [packages["libkvconn0"], packages["libkvconn-dev"]]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout + result.stderr
