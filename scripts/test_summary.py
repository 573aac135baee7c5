"""Names the tests that did not pass and ends with "N passed, N failed", and how many were skipped; exits 1 if any failed.

Usage: test_summary.py [--no-skips] [--selected] [--second-try XML] CTEST_JUNIT_XML [CHECK=passed | CHECK=failed ...]
       test_summary.py --count-failed CTEST_JUNIT_XML
  --no-skips      a skipped test counts as failed
  --selected      not all tests were to run
  --second-try    what CTest wrote of the tests that failed at first and ran once more: these results count, and those that passed are
                  named
  --count-failed  print only how many of CTest's tests failed

A test that runs many cases leaves their verdicts in tests/results/NAME.xml beside CTEST_JUNIT_XML (tests/ranks/run_cases.py):
each case counts, in the place of the test. A case that every run of its program has left out counts as failed.
"""

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree as xml


def reason_of_skip(case):
    """Why CTest's test was skipped, by what it printed."""
    output = case.findtext("system-out") or ""
    # Ours; GoogleTest's, in the line after the place.
    reasons = re.findall(r"^skipped: (.*)", output, re.M) or re.findall(r": Skipped\n(.+)", output)
    return "; ".join(dict.fromkeys(reasons)) or "it gave no reason"


def outcome_of(case):
    """("passed" | "failed" | "skipped", details) of one of CTest's results."""
    status = case.get("status")
    if status == "run":
        return "passed", ""
    if status == "fail":
        return "failed", ""
    skipped = case.find("skipped")
    message = "" if skipped is None else skipped.get("message", "")
    # Only what said so itself was skipped. A program that is missing, or a test that is disabled, is a failure.
    if status == "notrun" and message.startswith("SKIP_"):
        return "skipped", reason_of_skip(case)
    return "failed", f"not run: {message or status}"


def cases_in(path):
    """{case: (status, details)} that a test with many cases left, or None: "run", "fail", "skipped" or "left out"."""
    try:
        return {
            case.get("name"): (case.get("status"), case.find("skipped").get("message") if case.find("skipped") is not None else "")
            for case in xml.parse(path).getroot().iter("testcase")
        }
    except (OSError, xml.ParseError):
        return None


def of_cases(name, outcome, cases):
    """The results of a test's cases, or its own where it left none or they do not explain its outcome."""
    outcomes = {"run": "passed", "skipped": "skipped"}
    told = {f"{name}/{case}": (outcomes.get(status, "failed"), details) for case, (status, details) in (cases or {}).items() if status != "left out"}
    if not told or (outcome[0] != "passed" and all(each[0] != "failed" for each in told.values())):
        told[name] = outcome
    return told


def nowhere(runs):
    """{program/case: failure} of the cases that all runs of their program left out. runs: {test name: cases}."""
    left_out, ran = set(), set()
    for name, cases in runs.items():
        for case, (status, _) in cases.items():
            (left_out if status == "left out" else ran).add(f"{name.split('.')[0]}/{case}")
    return {case: ("failed", "every run of its program leaves it out") for case in left_out - ran}


def read_tests(path):
    """{name: its element} of CTest's tests; throws if there are none."""
    tests = {test.get("name"): test for test in xml.parse(path).getroot().iter("testcase")}
    if not tests:
        raise ValueError("no test ran")
    return tests


def read_results(path, selected, second_try=None):
    """{name of a test or case: (outcome, details)} of what CTest and tests with many cases wrote, and the names of the tests that
    passed at the second try only."""
    try:
        tests = read_tests(path)
        again = read_tests(second_try) if second_try else {}
    except ValueError as error:
        return {"ctest": ("failed", str(error))}, []
    except (OSError, xml.ParseError) as error:
        return {"ctest": ("failed", f"it left no results ({error})")}, []
    runs, results = {}, {}
    for name, test in {**tests, **again}.items():
        # The second run of a test with many cases has replaced their verdicts too.
        cases = cases_in(pathlib.Path(path).parent / "tests" / "results" / f"{name}.xml")
        results.update(of_cases(name, outcome_of(test), cases))
        runs[name] = cases or {}
    late = [name for name, test in again.items() if outcome_of(test)[0] == "passed"]
    return {**results, **({} if selected else nowhere(runs))}, late


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-skips", action="store_true")
    parser.add_argument("--selected", action="store_true")
    parser.add_argument("--second-try")
    parser.add_argument("--count-failed", action="store_true")
    parser.add_argument("path")
    parser.add_argument("checks", nargs="*")
    options = parser.parse_args(arguments)
    if options.count_failed:
        try:
            print(sum(outcome_of(test)[0] == "failed" for test in read_tests(options.path).values()))
        except (OSError, ValueError, xml.ParseError):
            print(0)  # the summary says what is wrong with the file
        return 0
    results, late = read_results(options.path, options.selected, options.second_try)
    for check in options.checks:
        name, outcome = check.split("=")
        results[name] = (outcome, "")
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for name, (outcome, details) in sorted(results.items()):
        count["failed" if options.no_skips and outcome == "skipped" else outcome] += 1
        if outcome != "passed":
            print(f"{outcome}: {name}" + (f": {details}" if details else ""))
    for name in sorted(late):
        print(f"passed at the second try only, alone: {name}")
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    print(f"{count['passed']} passed, {count['failed']} failed{skipped}")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
