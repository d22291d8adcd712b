"""A Rust compiler that comes with the sources of its standard library.

ThreadSanitizer sees only what was compiled for it. The standard library as it is shipped was not: its locks, channels and
reference counts order memory unseen, and every use of them looks like a race. So the TSan step compiles the standard
library too, and needs its sources. They are a component of rustup (`rustup component add rust-src`). Where there are none,
Debian has a compiler and sources that fit each other; they are unpacked into a directory, and nothing is installed.
"""

import glob
import os
import pathlib
import re
import shutil
import subprocess

LIBRARY = "lib/rustlib/src/rust/library/Cargo.lock"


class Missing(Exception):
    """Why there is none."""


def output(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout


def depends(package, prefix):
    """The package that this one needs and whose name begins so."""
    found = re.search(rf"^\s+Depends: ({prefix}\S*)", output("apt-cache", "depends", package), re.MULTILINE)
    if not found:
        raise Missing(f"{package} of this Debian needs no {prefix}")
    return found.group(1)


def unpack(folder):
    """Debian's compiler and sources, in `folder`."""
    packages = ["rustc-web", "libstd-rust-web-dev", "rust-web-src", "libz3-4"]
    packages.append(depends("libstd-rust-web-dev", "libstd-rust"))
    packages.append(depends(packages[-1], "libllvm"))
    downloads = folder / "packages"
    shutil.rmtree(folder, ignore_errors=True)
    downloads.mkdir(parents=True)
    subprocess.run(["apt-get", "download", "--quiet", *packages], cwd=downloads, check=True, capture_output=True)
    for package in downloads.glob("*.deb"):
        # The sources of the compiler itself are most of it.
        only = ["--wildcards", "./usr/src/*/library", "./usr/lib"] if package.name.startswith("rust-web-src") else []
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as files:
            subprocess.run(["tar", "--extract", "--directory", folder, *only], stdin=files.stdout, check=True)
    shutil.rmtree(downloads)
    (libraries,) = {pathlib.Path(name).parent for name in glob.glob(f"{folder}/usr/lib/*/librustc_driver*.so")}
    wrapper = folder / "rustc"
    wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{folder}/usr/bin/rustc" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def compiler(folder, oldest):
    """A compiler of that version at least, as a path, with sources. Unpacks Debian's into `folder` if rustc has none."""
    sysroot = output("rustc", "--print", "sysroot").strip()
    if os.path.exists(f"{sysroot}/{LIBRARY}"):
        return "rustc"
    wrapper = folder / "rustc"
    try:
        if not wrapper.exists():
            wrapper = unpack(folder)
        version = re.search(r"rustc (\d+)\.(\d+)", output(str(wrapper), "--version"))
    except (OSError, ValueError, subprocess.CalledProcessError) as e:
        raise Missing(f"Debian's cannot be unpacked: {e}") from None
    if tuple(map(int, version.groups())) < oldest:
        raise Missing(f"Debian's is {version.group(0)}, which is too old")
    return str(wrapper)
