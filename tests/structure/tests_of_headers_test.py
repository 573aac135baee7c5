"""Every header of the core has tests that can be found: by its name, by an include, or in tests/tests_of_headers.toml."""

import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "scripts"))
import test_case  # noqa: E402

FOLDERS = ("shm", "comm", "parallel", "checkpoint", "trainer")
FOREIGN = "gloo_abi"  # headers of Gloo
MOST_UNTESTED = 3


def headers():
    return [
        str(path.relative_to(SOURCE))
        for folder in FOLDERS
        for path in sorted((SOURCE / "lockstep" / folder).rglob("*.h"))
        if FOREIGN not in path.parts
    ]


class TestsOfHeaders(unittest.TestCase):
    def test_each_header_has_tests(self):
        self.assertGreater(len(headers()), 150)
        self.assertEqual([], [header for header in headers() if not test_case.tests_of(header)], "name the tests in tests/tests_of_headers.toml")

    def test_the_table_names_what_exists(self):
        for row, files in test_case.rows().items():
            with self.subTest(row):
                self.assertTrue(any(SOURCE.glob(row)), "no header fits")
                if isinstance(files, str):
                    self.assertRegex(files, "^untested: .")
                else:
                    self.assertEqual([], [file for file in files if not (SOURCE / file).exists()])

    def test_few_are_untested(self):
        untested = [row for row, files in test_case.rows().items() if isinstance(files, str)]
        self.assertEqual([], [row for row in untested if "*" in row], "name each header")
        self.assertLessEqual(len(untested), MOST_UNTESTED, untested)

    def test_each_row_decides(self):
        """A row that an earlier one, a name or an include always precedes says what is not so."""
        deciding = {test_case.find_tests(header)[1] for header in headers()}
        self.assertEqual(
            [], [row for row in test_case.rows() if row not in deciding], "rows that decide for no header: move them up or take them out"
        )

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
