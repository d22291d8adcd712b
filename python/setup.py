"""What pyproject.toml cannot say: the files that are built elsewhere, and the tag of the wheel.

Set by packaging/wheel.py:
    KVCONN_WHEEL_LIBRARY   the shared object, for kvconn/libkvconn.so.0
    KVCONN_WHEEL_FAST      the C extension, for kvconn/_fast.abi3.so; may be left out
    KVCONN_WHEEL_PLATFORM  such as manylinux_2_28_x86_64
Without them the wheel is py3-none-any and holds Python files only. It then uses the system's libkvconn.so.0.
"""

import os
import pathlib
import shutil

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

LIBRARY = os.environ.get("KVCONN_WHEEL_LIBRARY")
FAST = os.environ.get("KVCONN_WHEEL_FAST")
PLATFORM = os.environ.get("KVCONN_WHEEL_PLATFORM")


class BuildPy(build_py):
    """Also copies the built files."""

    def run(self):
        super().run()
        for built, name in ((LIBRARY, "libkvconn.so.0"), (FAST, "_fast.abi3.so")):
            if built:
                copy = pathlib.Path(self.build_lib) / "kvconn" / name
                shutil.copyfile(built, copy)
                copy.chmod(0o755)


class Built(Distribution):
    """With the library the package belongs to a platform, as if it had extension modules."""

    def has_ext_modules(self):
        return bool(LIBRARY)


class Wheel(bdist_wheel):
    """The tag is that of the built files, not of the machine that packs them."""

    def get_tag(self):
        if not LIBRARY:
            return "py3", "none", "any"
        return ("cp310", "abi3", PLATFORM) if FAST else ("py3", "none", PLATFORM)


setup(distclass=Built, cmdclass={"build_py": BuildPy, "bdist_wheel": Wheel})
