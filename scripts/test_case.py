"""scripts/test --case SUITE.NAME: builds and runs cases of C++ tests by name, on their ranks.

SUITE.NAME may be a header instead, such as lockstep/shm/wait.h: then all C++ cases of its tests run
(tests/tests_of_headers.toml). The cases are found in the sources, so that only the programs that have them are built.
`*` stands for any text. A case of several ranks runs under lockrun on each number of ranks for which its program
is registered; --ranks chooses one.
"""

import argparse
import difflib
import fnmatch
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASE = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
PROGRAM = re.compile(r"lockstep_(?:rank_test|rank_program|test)\((\w+)\b([^)]*)\)")


def cases():
    """{case: its source} of all of tests/."""
    return {f"{suite}.{name}": source for source in sorted((ROOT / "tests").rglob("*.cpp")) for suite, name in CASE.findall(source.read_text())}


def programs():
    """{source: the programs that it is compiled into}."""
    found = {}
    for lists in sorted((ROOT / "tests").rglob("CMakeLists.txt")):
        for name, arguments in PROGRAM.findall(lists.read_text()):
            for word in arguments.split():
                if word.endswith(".cpp"):
                    found.setdefault((lists.parent / word).resolve(), []).append(name)
    return found


def runs(build, targets):
    """The registered runs of these programs: {name of the test: command}."""
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, stdout=subprocess.PIPE, check=True, text=True)
    commands = {
        test["name"]: (test["command"], environment_of(test))
        for test in json.loads(shown.stdout)["tests"]
        if any(word.endswith("run_cases.py") for word in test.get("command", []))
    }
    chosen = {name: run for name, run in commands.items() if pathlib.Path(run[0][-1]).name in targets}
    # A program without LibTorch has an entry for each of its cases: here it runs by itself.
    for name in set(targets) - {pathlib.Path(command[-1]).name for command, _ in chosen.values()}:
        chosen[name] = ([str(build / "tests" / name)], {"LOCKSTEP_BIN_DIR": str(build / "bin")})
    return chosen


def environment_of(test):
    values = next((entry["value"] for entry in test["properties"] if entry["name"] == "ENVIRONMENT"), [])
    return dict(value.split("=", 1) for value in values)


@functools.cache
def test_files():
    """{test file, relative to the repository: its text}."""
    files = (path for path in sorted((ROOT / "tests").rglob("*")) if re.search(r"_(?:test|cases)\.(?:cpp|py)$", path.name))
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


@functools.cache
def rows():
    """{headers: their test files, or "untested: REASON"}: the table, in its order."""
    return tomllib.loads((ROOT / "tests/tests_of_headers.toml").read_text())["tests"]


def named_as(header):
    """The names of test files that are called as the header is, in the folder of its module's tests."""
    parts = pathlib.PurePath(header).parts
    module = parts[1] if parts[0] in ("lockstep", "zoo") else parts[0]
    # The tests of shm lie beside those of comm, which have files of the same names.
    folder, prefix = ("comm", "shm_") if module == "shm" else (module, "")
    return re.compile(rf"tests/{folder}/{prefix}{re.escape(pathlib.PurePath(header).stem)}s?_(?:test|cases)\.\w+")


def find_tests(header):
    """The test files of a header, relative to the repository, or "untested: REASON"; and the row of the table that says so, or None.

    A header that the table names in full has the tests of that row. Others have the files of their name, or those that include
    them, or those of the first pattern that fits.
    """
    if header in rows():
        return rows()[header], header
    named = named_as(header)
    found = [name for name in test_files() if named.fullmatch(name)]
    # The headers of zoo/ are included as lockstep/zoo/.
    include = re.compile(rf'#include "(?:lockstep/)?{re.escape(header)}"')
    found = found or [name for name, text in test_files().items() if include.search(text)]
    row = None if found else next((row for row in rows() if fnmatch.fnmatchcase(header, row)), None)
    return found if row is None else rows()[row], row


def tests_of(header):
    """The test files of a header, relative to the repository, or "untested: REASON"."""
    return find_tests(header)[0]


def similar(pattern, known):
    """Names that share a word with `pattern`, whatever its case, or are spelled nearly so."""
    words = [word.lower() for word in re.findall(r"\w{3,}", pattern)]
    shared = [name for name in known if all(word in name.lower() for word in words)]
    shared = shared or [name for name in known if any(word in name.lower().split(".") for word in words)]
    return (shared or difflib.get_close_matches(pattern, known, 5, 0.5) or sorted(known))[:8]


def main():
    parser = argparse.ArgumentParser(prog="scripts/test --case", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--ranks", type=int, help="only with so many ranks (default: all numbers that are registered)")
    args = parser.parse_args()
    known = cases()
    chosen = {name: source for name, source in known.items() if fnmatch.fnmatchcase(name, args.pattern)}
    if args.pattern.endswith(".h"):
        if not (ROOT / args.pattern).exists():
            sys.exit(f"test: error: there is no header {args.pattern}; give its path in the repository")
        files = tests_of(args.pattern)
        if isinstance(files, str):
            sys.exit(f"test: error: {args.pattern} has no tests ({files.removeprefix('untested: ')})")
        print(f"The tests of {args.pattern}: {', '.join(files) or 'none'}", flush=True)
        chosen = {name: source for name, source in known.items() if str(source.relative_to(ROOT)) in files}
        if not chosen:
            sys.exit(f"test: error: {args.pattern} has no C++ cases; scripts/test -R runs tests in Python")
    if not chosen:
        sys.exit(f"test: error: no C++ case is called {args.pattern}; did you mean {', '.join(similar(args.pattern, known))}?")
    of_source = programs()
    targets = sorted({target for source in chosen.values() for target in of_source.get(source.resolve(), [])})
    if not targets:
        sys.exit(f"test: error: {', '.join(chosen)} is in no program that runs by itself; its test starts it")
    print(f"{', '.join(list(chosen)[:5])}{' ...' if len(chosen) > 5 else ''} in {', '.join(targets)}", flush=True)
    subprocess.run([ROOT / "scripts/build", args.preset, *targets, "lockrun"], check=True, stdout=sys.stderr)
    build = ROOT / ("build" if args.preset == "release" else f"build-{args.preset}")
    passed = failed = 0
    # A case with parameters is called INSTANCE/SUITE.NAME/NUMBER.
    chosen_filter = ":".join(text for name in chosen for text in (name, f"{name}/*", f"*/{name}/*"))
    for name, (command, environment) in runs(build, targets).items():
        if name.endswith(".rest"):  # other cases of a run that is there
            continue
        ranks = int(command[command.index("--ranks") + 1]) if "--ranks" in command else None
        if args.ranks and ranks is not None and ranks != args.ranks:
            continue
        if "--results" in command:
            where = command.index("--results") + 1
            command[where] = str(build / "tests/case.xml")
            command[:] = [word for word in command if not word.startswith("--cases=")]  # of a run over machines
            command[where + 1 : where + 1] = ["--cases", chosen_filter]
        else:
            command.append(f"--gtest_filter={chosen_filter}")
        run = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
        print(f"{name}: {run.stdout}", end="", flush=True)
        counts = re.search(r"^(\d+) cases passed, (\d+) failed", run.stdout, re.MULTILINE)
        if counts:
            passed, failed = passed + int(counts[1]), failed + int(counts[2])
        else:
            passed += len(re.findall(r"^\[       OK \]", run.stdout, re.MULTILINE))
            failed += len(set(re.findall(r"^\[  FAILED  \] (\S+)$", run.stdout, re.MULTILINE))) or int(run.returncode != 0)
    if passed + failed == 0:
        sys.exit(f"test: error: no case ran with {args.ranks} ranks" if args.ranks else "test: error: no case ran")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
