"""Every header of the core has tests that can be found: by its name, by an include, or in tests/tests_of_headers.toml."""

import os
import pathlib
import sys
import tomllib
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "scripts"))
import test_case  # noqa: E402

FOLDERS = ("shm", "comm", "parallel", "checkpoint", "trainer")
FOREIGN = "gloo_abi"  # headers of Gloo


class TestsOfHeaders(unittest.TestCase):
    def test_each_header_has_tests(self):
        headers = [
            str(path.relative_to(SOURCE))
            for folder in FOLDERS
            for path in sorted((SOURCE / "lockstep" / folder).rglob("*.h"))
            if FOREIGN not in path.parts
        ]
        self.assertGreater(len(headers), 150)
        self.assertEqual([], [header for header in headers if not test_case.tests_of(header)], "name the tests in tests/tests_of_headers.toml")

    def test_the_table_names_what_exists(self):
        for entry in tomllib.loads((SOURCE / "tests/tests_of_headers.toml").read_text())["tests"]:
            with self.subTest(headers=entry["headers"]):
                self.assertTrue(any(SOURCE.glob(entry["headers"])), "no header fits")
                self.assertEqual([], [file for file in entry["files"] if not (SOURCE / file).exists()])

    def test_where_it_looks(self):
        self.assertEqual(test_case.tests_of("lockstep/shm/areas.h"), ["tests/comm/shm_areas_test.cpp"])
        self.assertIn("tests/comm/overlap_cases.cpp", test_case.tests_of("lockstep/comm/memory_overlap.h"))
        self.assertEqual(test_case.tests_of("lockstep/shm/wait.h"), ["tests/comm/shm_engine_test.cpp"])
        self.assertEqual(test_case.tests_of("zoo/text/pad_batch.h"), ["tests/data/pad_batch_test.cpp"])  # included as lockstep/zoo/
        self.assertEqual(test_case.tests_of("lockstep/nowhere/x.h"), [])

    def test_a_name_counts_in_the_folder_of_the_modules_tests_only(self):
        foreign = {
            "lockstep/shm/paths/paths.h": "tests/docs/paths_test.py",
            "lockstep/comm/uplink/wire.h": "tests/launcher/wire_test.cpp",
            "lockstep/comm/joining/join.h": "tests/parallel/join_cases.cpp",
            "lockstep/comm/process_group/messages.h": "tests/launcher/messages_test.cpp",
            "lockstep/comm/process_group/parts.h": "tests/text/parts_test.cpp",
            "lockstep/trainer/run/passes.h": "tests/data/passes_test.cpp",
        }
        for header, file in foreign.items():
            with self.subTest(header):
                self.assertNotIn(file, test_case.tests_of(header))
        # tests/comm has the tests of two modules.
        self.assertEqual(test_case.tests_of("lockstep/shm/engine.h"), ["tests/comm/shm_engine_test.cpp"])
        self.assertEqual(test_case.tests_of("lockstep/comm/uplink/engine.h"), ["tests/comm/engine_test.cpp"])
        # The table has the tests that lie elsewhere.
        self.assertEqual(test_case.tests_of("lockstep/comm/debug_level.h"), ["tests/parallel/debug_level_test.py"])


if __name__ == "__main__":
    unittest.main()
