"""What deps/ declares, with what it depends on, and what is said of a build that uses more."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "scripts"))
import declared_packages  # noqa: E402
from declared_packages import Package, alternatives_of, closure  # noqa: E402


def package(*needs, everywhere=False, provides=()):
    return Package(everywhere, set(provides), [alternatives_of(need) for need in needs])


class DeclaredPackages(unittest.TestCase):
    def test_alternatives(self):
        self.assertEqual(alternatives_of("libc6 (>= 2.34) | python3:any [amd64]"), ["libc6", "python3"])

    def test_closure(self):
        packages = {
            "base": package(everywhere=True),
            "mpi-bin": package("mpi-lib (>= 4)", "mail-agent"),
            "mpi-lib": package("base"),
            "mpi-dev": package("mpi-lib"),
            "exim": package(provides=["mail-agent"]),
            "clang-19": package("linker | other-linker"),
            "other-linker": package(),
            "clang-16": package(),
        }
        declared = [["mpi-bin"], ["clang-15", "clang-19", "clang-16"], ["not-installed"]]
        self.assertEqual(closure(packages, declared), {"base", "mpi-bin", "mpi-lib", "exim", "clang-19", "other-linker"})
        self.assertIn("mpi-dev", closure(packages, [*declared, ["mpi-dev"]]))

    def test_what_one_installed_alternative_does_needs_no_other(self):
        packages = {"a": package("x | y"), "x": package(), "y": package()}
        self.assertEqual(closure(packages, [["y"], ["a"]]), {"a", "y"})

    def test_a_file_of_another_package_is_named(self):
        packages = {"declared": package(everywhere=True), "stray": package()}
        files = {"declared": ["/usr/include/stdio.h"], "stray": ["/usr/include", "/usr/include/stdlib.h", "/usr/include/string.h"]}
        with (
            tempfile.TemporaryDirectory() as build,
            mock.patch.multiple(
                declared_packages,
                read_packages=lambda: packages,
                read_lists=list,
                files_of=lambda wanted: [item for item in files.items() if wanted(item[0])],
            ),
        ):
            os.mkdir(os.path.join(build, "CMakeFiles"))
            pathlib.Path(build, "CMakeFiles", "rules.ninja").write_text("rule copy\n  command = cp $in $out\n")
            ninja = pathlib.Path(build, "build.ninja")
            ninja.write_text("include CMakeFiles/rules.ninja\nbuild a: copy /usr/include/stdio.h\n")
            self.assertEqual(self.check(build), (0, ""))
            ninja.write_text("include CMakeFiles/rules.ninja\nbuild a: copy /usr/include/stdio.h | /usr/include/stdlib.h\n")
            code, out = self.check(build)
        self.assertEqual(code, 1)
        self.assertTrue(out.startswith("stray: the build reads /usr/include/stdlib.h; declare the package in deps/apt.txt"), out)

    def check(self, build):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = declared_packages.check(build)
        return code, out.getvalue()


if __name__ == "__main__":
    unittest.main()
