"""Brings an unmodified SGLang from PyPI for the tests: `get.py DIRECTORY`. It is never part of this repository.

Only the few files that the tests load are unpacked. Nothing of SGLang is installed.
"""

import pathlib
import subprocess
import sys
import zipfile

VERSION = "0.5.23"
FILES = """
disaggregation/base/conn.py disaggregation/common/bootstrap.py disaggregation/common/conn.py
disaggregation/pp_consensus_store.py environ.py plugins/__init__.py plugins/hook_registry.py utils/network.py
""".split()


def main(directory):
    here = pathlib.Path(__file__).parent
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
    subprocess.run([*pip, "install", "--only-binary", ":all:", "-r", here / "requirements.txt"], check=True)
    wheels = directory / "wheel"
    if not list(wheels.glob(f"sglang-{VERSION}-*.whl")):
        system = ["--platform", "manylinux_2_34_x86_64", "--python-version", "3.11", "--implementation", "cp"]
        system += ["--abi", "cp311"]  # its Python files are the same for all systems
        command = [*pip, "download", "--no-deps", "--only-binary", ":all:", *system, "--dest", wheels]
        subprocess.run([*command, f"sglang=={VERSION}"], check=True)
    (wheel,) = wheels.glob(f"sglang-{VERSION}-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for name in FILES:
            packed.extract(f"sglang/srt/{name}", directory)
    (directory / "ready").write_text(VERSION + "\n")


if __name__ == "__main__":
    try:
        main(pathlib.Path(sys.argv[1]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"kvconn: pip failed ({error.returncode}); its message is above")
