"""What the tests of this folder have in common: an installed copy, and commands that end in an error with all their output."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
CMAKE = os.environ["LOCKSTEP_CMAKE"]
HERE = pathlib.Path(__file__).parent
# Where the compiler's cache is there, what an earlier run has compiled from the same sources comes from it. It keeps a precompiled
# header only with this sloppiness and, of g++, this flag (LockstepToolchain.cmake). The folder has another name in each run.
CACHED = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
CACHED_FLAGS = "-fpch-preprocess" if CACHED else ""


def cache_of(folder):
    """Variables for ccache and a build below `folder`."""
    return {
        "CCACHE_BASEDIR": str(folder),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime",
    }


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, **options)
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def other_libtorch(directory, version="2.9.0"):
    """A LibTorch of another version, as far as anybody looks into it before using it."""
    for file in ("lib/libtorch_cpu.so", "lib/libtorch_cuda.so", "lib/libc10.so", "share/cmake/Torch/TorchConfig.cmake"):
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).touch()
    (directory / "share/cmake/Torch/TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
    return directory


class InstalledTest(unittest.TestCase):
    """`prefix` holds an installed copy, in the folder `work`, which is removed at the end."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        cls.prefix = cls.work / "prefix"
        run(CMAKE, "--install", BUILD, "--prefix", cls.prefix)
