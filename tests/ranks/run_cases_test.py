"""No failure of a case hides another case, and each is told with its cause."""

import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "failing_cases")


class RunCasesTest(unittest.TestCase):
    def test_every_case_has_its_verdict(self):
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results.xml")
            done = subprocess.run(
                [sys.executable, os.path.join(HERE, "run_cases.py"), "--ranks", "2", "--results", results, PROGRAM],
                capture_output=True,
                text=True,
                timeout=120,
            )
            cases = {case.get("name"): case for case in xml.parse(results).getroot().iter("testcase")}
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(
            {name.removeprefix("Cases."): case.get("status") for name, case in cases.items()},
            {
                "Pass": "run",
                "FailOnOneRankWhileOthersWait": "fail",
                "PassAfterAFailure": "run",
                "FailInAFunction": "fail",
                "FailOnAllRanks": "fail",
                "FailWithTheValues": "fail",
                "FailWithTheFirstDifference": "fail",
                "FailWithTheElementThatDiffers": "fail",
                "Crash": "fail",
                "LeaveTheRanksOutOfStep": "fail",
                "BreakTheirGroupAndLeave": "run",
                "JoinAgain": "run",
                "AreLeftOut": "left out",
                "AreSkipped": "skipped",
                "PassAtTheEnd": "run",
            },
        )
        causes = {name: case.find("failure").get("message") for name, case in cases.items() if case.get("status") == "fail"}
        for name, cause in {
            "FailOnOneRankWhileOthersWait": r"^rank 1: .*rank one had enough",
            "FailInAFunction": r"^rank 1: .*failing_cases\.cpp:\d+: [^$]*no rank 0",
            "FailOnAllRanks": r"rank [01]: .*failing_cases\.cpp:\d+",
            "FailWithTheValues": r"world\(\)\.size\(\) \+ 3 == 2: 5 != 2",
            "FailWithTheFirstDifference": r"Float \{ ?3, 4 ?\} differs in 5 of 12 elements, first at \{ ?1, 2 ?\}: "
            r"2\.5, expected 1",
            "FailWithTheElementThatDiffers": r"each element of found\.t\(\) is 7: Long \{ ?4, 3 ?\} differs in 1 of 12 elements, "
            r"first at \{ ?1, 2 ?\}: 8, expected 7",
            "Crash": r"SIGSEGV",
            "LeaveTheRanksOutOfStep": r"a case that breaks its group ends with destroy",
        }.items():
            self.assertRegex(causes[f"Cases.{name}"], cause)
        self.assertIn("in the case a check of 2", causes["Cases.FailWithTheValues"])
        self.assertIn("in the case dtype float32", causes["Cases.FailWithTheFirstDifference"])
        self.assertIn("5 cases passed, 8 failed, 1 skipped, 1 left out", done.stdout)

    def test_a_program_that_cannot_start_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results.xml")
            done = subprocess.run(
                [
                    sys.executable,
                    os.path.join(HERE, "run_cases.py"),
                    "--ranks",
                    "2",
                    "--results",
                    results,
                    "--environment",
                    "LOCKSTEP_BACKEND=glow",
                    "--",
                    PROGRAM,
                ],
                capture_output=True,
                text=True,
                timeout=120,
            )
            statuses = [case.get("status") for case in xml.parse(results).getroot().iter("testcase")]
        self.assertEqual((done.returncode, statuses), (1, ["fail"]), done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
