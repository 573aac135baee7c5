"""Names the tests that did not pass and ends with "N passed, N failed", and how many were skipped; exits 1 if any failed.

Usage: test_summary.py [--no-skips] CTEST_JUNIT_XML [CHECK=passed | CHECK=failed ...]
  --no-skips  a skipped test counts as failed
"""

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


def read_results(path):
    """{test name: (outcome, details)} of what CTest wrote."""
    try:
        cases = xml.parse(path).getroot().iter("testcase")
    except (OSError, xml.ParseError) as error:
        return {"ctest": ("failed", f"it left no results ({error})")}
    return {case.get("name"): outcome_of(case) for case in cases} or {"ctest": ("failed", "no test ran")}


def main(arguments):
    skips_fail = "--no-skips" in arguments
    path, *checks = [argument for argument in arguments if argument != "--no-skips"]
    results = read_results(path)
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
