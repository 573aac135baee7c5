"""Names the tests that did not pass and ends with "N passed, N failed"; exits 1 unless all passed.

Usage: test_summary.py CTEST_JUNIT_XML [CHECK=passed | CHECK=failed ...]
"""

import sys
import xml.etree.ElementTree as xml


def read_results(path):
    """Returns {test name: "run", or why it did not pass} as CTest wrote it."""
    try:
        cases = xml.parse(path).getroot().iter("testcase")
    except (OSError, xml.ParseError) as error:
        return {"ctest": f"left no results ({error})"}
    return {case.get("name"): case.get("status") for case in cases}


def main():
    results = read_results(sys.argv[1])
    if not results:
        results = {"ctest": "no test ran"}
    for check in sys.argv[2:]:
        name, outcome = check.split("=")
        results[name] = "run" if outcome == "passed" else outcome
    words = {"fail": "failed", "notrun": "skipped or not run", "disabled": "disabled"}
    failed = {name: status for name, status in results.items() if status != "run"}
    for name, status in sorted(failed.items()):
        print(f"{words.get(status, status)}: {name}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
