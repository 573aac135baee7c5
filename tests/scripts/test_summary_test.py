"""scripts/test's closing lines, from what CTest itself says of tests that pass, fail, are skipped and are not there."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"], "scripts", "test_summary.py")
TESTS = {
    "good": 'add_test(good sh -c "exit 0")',
    "bad": 'add_test(bad sh -c "exit 1")',
    "skipped": "add_test(skipped sh -c \"printf 'skipped: no tools\\n\\nOK (skipped=1)\\n'\")\n"
    'set_tests_properties(skipped PROPERTIES SKIP_REGULAR_EXPRESSION "OK .skipped=")',
    "failed_and_skipped": "add_test(failed_and_skipped sh -c \"echo skipped: no tools; echo 'FAILED (failures=1, skipped=1)'; exit 1\")\n"
    'set_tests_properties(failed_and_skipped PROPERTIES SKIP_REGULAR_EXPRESSION "OK .skipped=")',
    "mute": 'add_test(mute sh -c "exit 77")\nset_tests_properties(mute PROPERTIES SKIP_RETURN_CODE 77)',
    "missing": "add_test(missing /no/such/program)",
    "disabled": 'add_test(disabled sh -c "exit 0")\nset_tests_properties(disabled PROPERTIES DISABLED ON)',
}


class TestSummary(unittest.TestCase):
    def summary(self, *names, options=(), cases=None):
        """(exit code, lines) for a run of these tests. cases: {test: {case: status}} of those that have many."""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory)
            (path / "CTestTestfile.cmake").write_text("\n".join(TESTS[name] for name in names))
            (path / "tests" / "results").mkdir(parents=True)
            for test, statuses in (cases or {}).items():
                lines = [
                    f'<testcase name="{case}" status="{status}">' + ('<skipped message="no GPU"/>' if status == "skipped" else "") + "</testcase>"
                    for case, status in statuses.items()
                ]
                (path / "tests" / "results" / f"{test}.xml").write_text(f"<testsuite>{''.join(lines)}</testsuite>")
            subprocess.run(["ctest", "--output-junit", "results.xml"], cwd=path, capture_output=True, timeout=60)
            run = subprocess.run([sys.executable, SUMMARY, *options, path / "results.xml"], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.stderr, "")
        return run.returncode, run.stdout.splitlines()

    def test_all_passed(self):
        self.assertEqual(self.summary("good"), (0, ["1 passed, 0 failed"]))

    def test_what_is_skipped_is_named_with_the_reason(self):
        self.assertEqual(
            self.summary("good", "skipped", "mute"),
            (0, ["skipped: mute: it gave no reason", "skipped: skipped: no tools", "1 passed, 0 failed, 2 skipped"]),
        )

    def test_no_skips(self):
        self.assertEqual(self.summary("good", "skipped", options=["--no-skips"]), (1, ["skipped: skipped: no tools", "1 passed, 1 failed"]))

    def test_what_is_missing_or_disabled_is_not_skipped(self):
        code, lines = self.summary("good", "bad", "missing", "disabled", "failed_and_skipped")
        self.assertEqual((code, lines[-1]), (1, "1 passed, 4 failed"))
        self.assertEqual([line.split(":")[1].strip() for line in lines[:-1]], ["bad", "disabled", "failed_and_skipped", "missing"])

    def test_cases_count_in_the_place_of_their_test(self):
        cases = {"good": {"A.One": "run", "A.Two": "left out", "A.Three": "skipped"}, "bad": {"A.One": "run", "A.Two": "fail"}}
        self.assertEqual(
            self.summary("good", "bad", "mute", options=["--selected"], cases=cases),
            (1, ["failed: bad/A.Two", "skipped: good/A.Three: no GPU", "skipped: mute: it gave no reason", "2 passed, 1 failed, 2 skipped"]),
        )
        # A test that fails although its cases passed.
        self.assertEqual(self.summary("bad", cases={"bad": {"A.One": "run"}}), (1, ["failed: bad", "1 passed, 1 failed"]))

    def test_a_case_that_no_run_has_is_a_failure(self):
        left_out = {"good": {"A.One": "run", "A.Two": "left out"}}
        self.assertEqual(
            self.summary("good", cases=left_out), (1, ["failed: good/A.Two: every run of its program leaves it out", "1 passed, 1 failed"])
        )
        self.assertEqual(self.summary("good", cases=left_out, options=["--selected"]), (0, ["1 passed, 0 failed"]))

    def test_a_second_try(self):
        """Of CTest's own --rerun-failed: what passes then counts as passed and is named; what fails again has failed."""
        tests = {"good": "exit 0", "bad": "exit 1", "late": "[ -f once ] || { touch once; exit 1; }"}
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory)
            (path / "CTestTestfile.cmake").write_text("\n".join(f'add_test({name} sh -c "{command}")' for name, command in tests.items()))
            counts = []
            for options, results in (((), "1.xml"), (("--rerun-failed",), "2.xml")):
                subprocess.run(["ctest", *options, "--output-junit", results], cwd=path, capture_output=True, timeout=60)
                run = subprocess.run([sys.executable, SUMMARY, "--count-failed", path / results], capture_output=True, text=True, timeout=60)
                counts.append(run.stdout)
            self.assertEqual(counts, ["2\n", "1\n"])
            run = subprocess.run(
                [sys.executable, SUMMARY, "--second-try", path / "2.xml", path / "1.xml"], capture_output=True, text=True, timeout=60
            )
        self.assertEqual(
            (run.returncode, run.stdout.splitlines()), (1, ["failed: bad", "passed at the second try only, alone: late", "2 passed, 1 failed"])
        )

    def test_no_results(self):
        run = subprocess.run([sys.executable, SUMMARY, "/no/such/file", "format=passed"], capture_output=True, text=True, timeout=60)
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (1, "1 passed, 1 failed"))
        code, lines = self.summary()
        self.assertEqual((code, lines), (1, ["failed: ctest: no test ran", "0 passed, 1 failed"]))


if __name__ == "__main__":
    unittest.main()
