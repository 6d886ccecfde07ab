"""Builds mxrdma: CMake compiles the core; a .pth file lets an unmodified script have the store's name.

Metadata is in pyproject.toml. What needs code is here:
- mxrdma._core is built by CMake in build/cmake-<tag>, so that a second build only compiles what changed;
- cmake and ninja come from PyPI only where the machine has none;
- `mxrdma_register.pth` is put into site-packages by a wheel and by an editable install alike.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
CMAKE_MINIMUM = (3, 18)
PTH_NAME = "mxrdma_register.pth"
# site.py executes a line that begins with `import`. The module is tiny and imports nothing but sys. It may be gone
# while this file is still there (a source tree of an editable install that was moved): then nothing happens.
PTH_LINE = "import sys; exec('try:\\n    import _mxrdma_hook\\nexcept ImportError:\\n    pass')\n"


def version() -> str:
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, "pyproject.toml has no version"
    return found.group(1)


def has_cmake() -> bool:
    """Whether the machine's own CMake will do."""
    program = shutil.which("cmake")
    if program is None:
        return False
    text = subprocess.run([program, "--version"], stdout=subprocess.PIPE, check=False).stdout.decode(errors="replace")
    found = re.search(r"version (\d+)\.(\d+)", text)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= CMAKE_MINIMUM


def build_tools():
    """What pip must fetch to build: nothing that the machine has."""
    wanted = [] if has_cmake() else ["cmake>=3.18,<4"]
    return wanted if shutil.which("ninja") else [*wanted, "ninja"]


class CMakeBuild(build_ext):
    """Runs CMake in place of the compiler commands of setuptools."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        target.mkdir(parents=True, exist_ok=True)
        build = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        import pybind11

        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DMXRDMA_VERSION={version()}",
            # A newer compiler's new warning is no reason to refuse a user's installation.
            "-DMXRDMA_WERROR=OFF",
            "-DMXRDMA_BUILD_TESTS=OFF",
            *os.environ.get("MXRDMA_CMAKE_ARGS", "").split(),
        ]  # fmt: skip
        # pybind11 and the interpreter may have moved since the last build (pip builds in a new environment each time).
        cache = build / "CMakeCache.txt"
        if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text():
            shutil.rmtree(build)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        self._run(configure)
        self._run(["cmake", "--build", str(build), "--parallel", jobs])

    def copy_extensions_to_source(self) -> None:
        """An editable install keeps all that CMake made for the package beside its Python files."""
        super().copy_extensions_to_source()
        program = Path(self.build_lib) / "mxrdma" / "mxrdma_bound"
        if program.exists():
            shutil.copy2(program, ROOT / "mxrdma" / program.name)

    @staticmethod
    def _run(command) -> None:
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            sys.exit(f"mxrdma: {command[0]} is needed to build; install it (Debian: apt-get install cmake ninja-build)")
        except subprocess.CalledProcessError as error:
            sys.exit(
                f"mxrdma: `{' '.join(command[:2])} ...` ended with code {error.returncode}; see its output above. It needs "
                "a C++17 compiler, OpenSSL and spdlog (Debian: apt-get install g++ libssl-dev libspdlog-dev)"
            )


class BuildPython(build_py):
    """Adds the .pth file to what a wheel puts into site-packages."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib).mkdir(parents=True, exist_ok=True)
            (Path(self.build_lib) / PTH_NAME).write_text(PTH_LINE)


class EditableWheel(editable_wheel):
    """Adds the .pth file to the wheel that stands for the source tree, and to its RECORD, so that pip removes it again."""

    def run(self) -> None:
        super().run()
        folder = Path(self.dist_dir)
        wheel = max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)
        digest = base64.urlsafe_b64encode(hashlib.sha256(PTH_LINE.encode()).digest()).rstrip(b"=").decode()
        copy = wheel.with_suffix(".tmp")
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
            for info in old.infolist():
                content = old.read(info)
                if info.filename.endswith(".dist-info/RECORD"):
                    content = f"{PTH_NAME},sha256={digest},{len(PTH_LINE)}\n".encode() + content
                new.writestr(info, content)
            new.writestr(PTH_NAME, PTH_LINE)
        copy.replace(wheel)


setup(
    ext_modules=[Extension("mxrdma._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildPython, "editable_wheel": EditableWheel},
    setup_requires=build_tools(),
)
