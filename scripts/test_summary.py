"""Names the tests that did not pass and ends with "N passed, N failed", and how many were skipped; exits 1 if any failed.

Usage: test_summary.py [--no-skips] [--selected] CTEST_JUNIT_XML [CHECK=passed | CHECK=failed ...]
  --no-skips  a skipped test counts as failed
  --selected  not all tests were to run

A test that runs many cases leaves their verdicts in tests/results/NAME.xml beside CTEST_JUNIT_XML (tests/ranks/run_cases.py):
each case counts, in the place of the test. A case that every run of its program has left out counts as failed.
"""

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
        return {case.get("name"): (case.get("status"), case.find("skipped").get("message") if case.find("skipped") is not None else "")
                for case in xml.parse(path).getroot().iter("testcase")}
    except (OSError, xml.ParseError):
        return None


def of_cases(name, outcome, cases):
    """The results of a test's cases, or its own where it left none or they do not explain its outcome."""
    outcomes = {"run": "passed", "skipped": "skipped"}
    told = {f"{name}/{case}": (outcomes.get(status, "failed"), details)
            for case, (status, details) in (cases or {}).items() if status != "left out"}
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


def read_results(path, selected):
    """{name of a test or case: (outcome, details)} of what CTest and tests with many cases wrote."""
    try:
        tests = list(xml.parse(path).getroot().iter("testcase"))
    except (OSError, xml.ParseError) as error:
        return {"ctest": ("failed", f"it left no results ({error})")}
    if not tests:
        return {"ctest": ("failed", "no test ran")}
    runs, results = {}, {}
    for test in tests:
        name = test.get("name")
        cases = cases_in(pathlib.Path(path).parent / "tests" / "results" / f"{name}.xml")
        results.update(of_cases(name, outcome_of(test), cases))
        runs[name] = cases or {}
    return {**results, **({} if selected else nowhere(runs))}


def main(arguments):
    skips_fail = "--no-skips" in arguments
    path, *checks = [argument for argument in arguments if argument not in ("--no-skips", "--selected")]
    results = read_results(path, selected="--selected" in arguments)
    for check in checks:
        name, outcome = check.split("=")
        results[name] = (outcome, "")
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for name, (outcome, details) in sorted(results.items()):
        count["failed" if skips_fail and outcome == "skipped" else outcome] += 1
        if outcome != "passed":
            print(f"{outcome}: {name}" + (f": {details}" if details else ""))
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    print(f"{count['passed']} passed, {count['failed']} failed{skipped}")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
