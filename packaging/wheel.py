"""Packs the Python wheel: python/kvconn, a built library, and the C extension where there is a compiler for it.

    python packaging/wheel.py --library target/release/libkvconn.so --output target/wheels

The tag says what the files need. `manylinux_2_28` is given only to a library that needs no later glibc and no libstdc++.
Every other library makes a wheel for machines like this one (`linux_x86_64`), which pip installs and PyPI refuses.
The same files give the same wheel, byte for byte. Needs readelf, and setuptools in the Python that runs this.
"""

import argparse
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
GLIBC = 2, 28
# What every manylinux system has. libstdc++ is left out: the release library must not need it.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1"}
MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def readelf(path, *options):
    """What readelf says of a file, in English."""
    environment = {**os.environ, "LC_ALL": "C"}
    command = ["readelf", "--wide", *options, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def needs(path):
    """(machine, latest version of glibc, other libraries) that an ELF file needs."""
    header = re.search(r"Machine: +(.*)", readelf(path, "-h"))[1].strip()
    if header not in MACHINES:
        raise SystemExit(f"kvconn: {path} is for {header}; wheels are for {', '.join(MACHINES.values())}")
    machine = MACHINES[header]
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(path, "-d"))) - SYSTEM - {LOADERS[machine]}
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", readelf(path, "-V"))
    return machine, max(((int(a), int(b)) for a, b in versions), default=(0, 0)), libraries


def platform_tag(files):
    """The platform of a wheel with these files, and why it is not portable, if it is not."""
    found = [needs(path) for path in files]
    machines = {machine for machine, _, _ in found}
    if len(machines) != 1:
        raise SystemExit(f"kvconn: files for different machines: {', '.join(sorted(machines))}")
    machine = machines.pop()
    glibc, libraries = max(glibc for _, glibc, _ in found), set().union(*(libraries for _, _, libraries in found))
    reasons = [f"needs {name}" for name in sorted(libraries)]
    if glibc > GLIBC:
        reasons.append(f"needs glibc {glibc[0]}.{glibc[1]}")
    portable = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    return (f"linux_{machine}", ", ".join(reasons)) if reasons else (portable, "")


def compile_fast(source, output, machine, portable, zig, compiler):
    """Compiles the C extension; returns its path, or None with a printed reason."""
    include = sysconfig.get_path("include")
    if not source.exists():
        return None
    if not (pathlib.Path(include) / "Python.h").exists():
        print(f"kvconn: no C extension: Python's headers are not in {include}", file=sys.stderr)
        return None
    environment = dict(os.environ)
    if portable and zig:
        # Nothing is written outside the output's directory, and nothing that another build left there is used.
        environment["ZIG_GLOBAL_CACHE_DIR"] = environment["ZIG_LOCAL_CACHE_DIR"] = str(output.parent / "zig-cache")
        command = [*zig, "cc", "-target", f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"]
    elif machine == platform.machine() and shutil.which(compiler[0]):
        command = compiler
    else:
        print(f"kvconn: no C extension: there is no compiler for {machine}", file=sys.stderr)
        return None
    # Only names that the limited API has since Python 3.10, so that one file is for all later versions.
    flags = ["-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,relro,-z,now", "-DPy_LIMITED_API=0x030A0000"]
    flags += [f"-I{include}", f"-I{ROOT / 'include'}", f"-ffile-prefix-map={ROOT}=."]
    subprocess.run([*command, *flags, str(source), "-o", str(output)], check=True, env=environment)
    output.chmod(0o755)
    return output


def strip(library, output, machine):
    """A copy of the library without debug information, if there is a strip for its machine; the release has none."""
    shutil.copyfile(library, output)
    tool = "strip" if machine == platform.machine() else f"{machine}-linux-gnu-strip"
    if ".debug_line" in readelf(library, "-S") and shutil.which(tool):
        subprocess.run([tool, "--strip-unneeded", str(output)], check=True)
    return output


def stage(directory):
    """Copies what the wheel is built from, and nothing that lies about in the checkout."""
    package = directory / "kvconn"
    package.mkdir()
    files = [ROOT / "python" / name for name in ("pyproject.toml", "setup.py", "README.md")]
    files += [ROOT / "LICENSE", ROOT / "THIRD_PARTY.md"]
    for path in files:
        shutil.copyfile(path, directory / path.name)
    for path in sorted((ROOT / "python" / "kvconn").rglob("*")):
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            copy = package / path.relative_to(ROOT / "python" / "kvconn")
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)


def epoch():
    """The time of every file in the wheel: SOURCE_DATE_EPOCH, else that of the commit, else 1980."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "315532800"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True, help="the shared object")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the directory of the wheel")
    parser.add_argument("--zig", type=pathlib.Path, help="a Python with the package ziglang")
    parser.add_argument("--cc", default="cc", help="the compiler of the C extension for this machine")
    parser.add_argument("--no-fast", action="store_true", help="leave the C extension out")
    given = parser.parse_args()
    os.umask(0o022)
    library = given.library.resolve()
    machine, *_ = needs(library)
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.output) as made:
        made = pathlib.Path(made)
        sources = made / "sources"
        sources.mkdir()
        stage(sources)
        library, fast = strip(library, made / "libkvconn.so.0", machine), None
        if not given.no_fast:
            zig = [str(given.zig), "-m", "ziglang"] if given.zig and given.zig.exists() else None
            portable = platform_tag([library])[0].startswith("manylinux")
            source = ROOT / "python" / "kvconn" / "_fastmodule.c"
            fast = compile_fast(source, made / "_fast.abi3.so", machine, portable, zig, given.cc.split())
        tag, why = platform_tag([library, fast] if fast else [library])
        if why:
            print(f"kvconn: the wheel is not for every Linux: it {why}", file=sys.stderr)
        environment = {**os.environ, "KVCONN_WHEEL_LIBRARY": str(library), "KVCONN_WHEEL_PLATFORM": tag}
        environment |= {"SOURCE_DATE_EPOCH": epoch(), "PYTHONHASHSEED": "0"}
        environment.pop("KVCONN_WHEEL_FAST", None)
        if fast:
            environment["KVCONN_WHEEL_FAST"] = str(fast)
        wheels = made / "wheels"
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(wheels), str(sources)]
        subprocess.run(command, check=True, env=environment)
        wheel, = wheels.glob("*.whl")
        print(shutil.copyfile(wheel, given.output / wheel.name))


if __name__ == "__main__":
    main()
