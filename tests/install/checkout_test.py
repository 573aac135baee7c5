"""The checkout inside a stranger's project, and in an editor."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

from installed import BUILD, CMAKE, HERE, SOURCE, run


class StrangersProjectTest(unittest.TestCase):
    def test_fetch_content_and_add_subdirectory(self):
        # Kept between runs: most of the time goes into building one of our libraries.
        for way in ("add_subdirectory", "FetchContent"):
            with self.subTest(way):
                build = BUILD / "tests/stranger" / way
                run(
                    CMAKE,
                    "-G",
                    "Ninja",
                    "-S",
                    HERE / "stranger",
                    "-B",
                    build,
                    f"-DWAY={way}",
                    f"-DLOCKSTEP_CHECKOUT={SOURCE}",
                    f"-DFETCHCONTENT_SOURCE_DIR_LOCKSTEP={SOURCE}",
                    "-DCMAKE_DISABLE_FIND_PACKAGE_Arrow=ON",
                    "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON",
                    "-DLOCKSTEP_ARROW_DIR=/nowhere",
                    "-DCMAKE_BUILD_TYPE=Debug",
                    env={**os.environ, "VIRTUAL_ENV": str(SOURCE / ".venv")},
                )
                targets = run(CMAKE, "--build", build, "--target", "help")
                for name in ("lockstep_parallel", "lockrun"):
                    self.assertIn(f"{name}: phony", targets)
                for name in ("lockstep_data", "lockstep_tests", "lockstep_python", "toy_ddp", "lockstep"):
                    self.assertNotIn(f"\n{name}: phony", targets)
        run(CMAKE, "--build", build, "--target", "stranger")
        self.assertEqual(run(build / "stranger"), "Lockstep says: a file is missing\n")

    def test_the_library_is_optimized_where_the_project_says_nothing(self):
        with tempfile.TemporaryDirectory() as build:
            for build_type, ours, theirs in (("", "-O2", set()), ("Debug", "-g", {"-g"})):
                with self.subTest(build_type):
                    run(
                        CMAKE,
                        "-G",
                        "Ninja",
                        "-S",
                        HERE / "stranger",
                        "-B",
                        build,
                        "-DWAY=add_subdirectory",
                        f"-DLOCKSTEP_CHECKOUT={SOURCE}",
                        f"-DCMAKE_BUILD_TYPE={build_type}",
                        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                        env={**os.environ, "VIRTUAL_ENV": str(SOURCE / ".venv")},
                    )
                    entries = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
                    flags = {
                        words[words.index("-o") + 1]: {word for word in words if re.match("-O|-g$", word)}
                        for words in (shlex.split(entry["command"]) for entry in entries)
                    }
                    stranger = {name: found for name, found in flags.items() if name.startswith("CMakeFiles/")}
                    self.assertEqual(set(map(frozenset, stranger.values())), {frozenset(theirs)})
                    library = {name: found for name, found in flags.items() if name not in stranger}
                    self.assertGreater(len(library), 10)
                    self.assertEqual({name: found for name, found in library.items() if ours not in found}, {})

    def test_an_unknown_component_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [CMAKE, "-G", "Ninja", "-S", SOURCE, "-B", folder, "-DLOCKSTEP_COMPONENTS=coms"], capture_output=True, text=True, timeout=120
            )
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("LOCKSTEP_COMPONENTS names 'coms'; there are: base;", " ".join(result.stderr.split()))


class EditorTest(unittest.TestCase):
    # Built only where a machine has what they need, or by a test as somebody else's project.
    ELSEWHERE = {
        "lockstep/comm/backends/nccl.cpp",
        "bench/collectives/mpi_rank.cpp",
        "tests/install/app/app.cpp",
        "tests/install/stranger/stranger.cpp",
    }

    def test_the_ide_preset_knows_every_source(self):
        with tempfile.TemporaryDirectory() as folder:
            run(CMAKE, "--preset", "ide", "-B", folder, cwd=SOURCE)
            commands = json.loads((pathlib.Path(folder) / "compile_commands.json").read_text())
        known = {os.path.relpath(entry["file"], SOURCE) for entry in commands}
        self.assertEqual([name for name in known if name.startswith("..") and "/Unity/" in name], [])
        sources = {
            str(path.relative_to(SOURCE))
            for folder in ("lockstep", "launcher", "tools", "bench", "zoo", "python", "tests")
            for path in (SOURCE / folder).rglob("*.cpp")
        }
        self.assertEqual(sources - known - self.ELSEWHERE, set())
        # What precompiled headers would bring is included instead: an editor has none.
        self.assertEqual([entry["file"] for entry in commands if "cmake_pch" in entry["command"]], [])


if __name__ == "__main__":
    unittest.main()
