"""cmake/LockstepMpi.cmake where there is no MPI, half of one, and a whole one. It never ends the configuration."""

import os
import pathlib
import subprocess
import tempfile
import unittest

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(Probe LANGUAGES CXX)
include({source}/cmake/LockstepMpi.cmake)
if(TARGET Lockstep::mpi)
  get_target_property(libraries Lockstep::mpi INTERFACE_LINK_LIBRARIES)
  message(STATUS "there is a target: ${{libraries}}")
endif()
"""
# What Debian's wrapper says of itself: where its headers are, and how to compile and link with it.
COMPILER = """#!/bin/sh
case $1 in
  -showme:incdirs) echo {headers} ;;
  -showme:compile) echo -I{headers} ;;
  -showme:link) echo {link} ;;
  -showme:version) echo mpicxx: Open MPI 4.1.4 ;;
  *) exit 1 ;;
esac
"""
HEADER = """
#define MPI_VERSION 3
#define MPI_SUBVERSION 1
inline int MPI_Init(int*, char***) { return 0; }
inline int MPI_Finalize() { return 0; }
"""


class FindMpi(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        (self.directory / "CMakeLists.txt").write_text(PROJECT.format(source=os.environ["LOCKSTEP_SOURCE_DIR"]))
        self.headers = self.directory / "include"
        self.headers.mkdir()
        (self.directory / "libsome_mpi.a").write_bytes(b"!<arch>\n")

    def install_compiler(self, library="some_mpi"):
        link = f"-L{self.directory} -l{library}"
        program = self.directory / "mpi" / "bin" / "mpicxx"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(COMPILER.format(headers=self.headers, link=link))
        program.chmod(0o755)

    def configure(self):
        """What CMake said; this machine's own MPI is not looked at."""
        run = subprocess.run(
            [
                os.environ["CMAKE_COMMAND"],
                "-G",
                "Ninja",
                "-S",
                self.directory,
                "-B",
                self.directory / "build",
                *(f"-D{name}={os.environ[name]}" for name in ("CMAKE_MAKE_PROGRAM", "CMAKE_CXX_COMPILER")),
                "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF",
                "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
            ],
            env=dict(os.environ, MPI_HOME=str(self.directory / "mpi")),
            capture_output=True,
            text=True,
            timeout=100,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def test_none(self):
        self.assertIn("MPI: no MPI compiler (mpicxx)\n", self.configure())

    def test_a_compiler_without_its_header(self):
        self.install_compiler()
        out = self.configure()
        self.assertIn("mpicxx without its header mpi.h (Debian: libopenmpi-dev)\n", out)
        self.assertNotIn("there is a target", out)

    def test_a_header_without_its_library(self):
        self.install_compiler("no_such_mpi")
        (self.headers / "mpi.h").write_text(HEADER)
        out = self.configure()
        self.assertIn("but a program does not compile and link with it (mpi_check/check.log in the build directory)\n", out)
        self.assertNotIn("there is a target", out)

    def test_one_that_works(self):
        self.install_compiler()
        (self.headers / "mpi.h").write_text(HEADER)
        out = self.configure()
        self.assertIn(f"mpicxx, {self.headers}/mpi.h\n", out)
        self.assertIn("there is a target", out)

    def test_what_is_installed_later_is_found(self):
        self.configure()
        self.test_a_compiler_without_its_header()
        (self.headers / "mpi.h").write_text(HEADER)
        self.assertIn("there is a target", self.configure())

    def test_another_installation_takes_the_place_of_one_that_is_gone(self):
        self.test_one_that_works()
        library = (self.directory / "libsome_mpi.a").rename(self.directory / "libother_mpi.a")
        self.install_compiler("other_mpi")
        self.assertIn(f"there is a target: {library}\n", self.configure())


if __name__ == "__main__":
    unittest.main()
