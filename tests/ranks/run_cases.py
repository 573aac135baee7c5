"""Runs a program of GoogleTest cases, alone or as ranks under lockrun, and writes a verdict for each case.

    run_cases.py --results FILE.xml [--ranks N | --machines N N...] [--environment NAME=VALUE ...] [--seconds S] [--cases FILTER] PROGRAM

The program is started once. When it ends early, because a case failed, crashed or took too long, that case has failed,
and the program is started again for the cases after it: no failure hides another one. FILE.xml is JUnit's format;
scripts/test_summary.py counts its cases.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_port  # noqa: E402

LOCKRUN = os.path.join(os.environ.get("LOCKSTEP_BIN_DIR", ""), "lockrun")


class Journal:
    """What one process wrote down (journal.cpp)."""

    def __init__(self, path):
        self.cases, self.started, self.verdicts, self.messages, self.reasons = [], {}, {}, [], {}
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                kind, when, name, *text = line.rstrip("\n").split("\t", 3)
                if kind == "case":
                    self.cases.append(name)
                elif kind == "start":
                    self.started[name] = int(when)
                elif kind == "message":
                    self.messages.append((int(when), name, text[0] if text else ""))
                else:
                    self.verdicts[name] = (kind, int(when))
                    if text:
                        self.reasons[name] = text[0]


class Case:
    def __init__(self, status, seconds=0.0, message=""):
        self.status, self.seconds, self.message = status, seconds, message


def judge(name, journals, ending):
    """The verdict on one case, or None where it was not begun. All ranks must have passed it, or left it out."""
    if not any(name in journal.started for journal in journals):
        return None
    begin = min(journal.started[name] for journal in journals if name in journal.started)
    kinds = [journal.verdicts.get(name, ("unfinished", begin))[0] for journal in journals]
    seconds = (max(journal.verdicts.get(name, ("", begin))[1] for journal in journals) - begin) / 1000
    if all(kind == "passed" for kind in kinds):
        return Case("run", seconds)
    for kind in ("skipped", "left out"):
        if all(each == kind for each in kinds):
            return Case(kind, seconds, journals[0].reasons[name])
    # The earliest message is the cause; a rank that failed leaves, which the others then report.
    messages = sorted(
        (when, f"rank {rank}: {text}") for rank, journal in enumerate(journals) for when, case, text in journal.messages if case == name
    )
    told = [text for _, text in messages]
    if not told or "killed" in ending:
        told.insert(0, f"{ending} in this case; by rank: {', '.join(kinds)}")
    return Case("fail", seconds, "\n".join(text.replace("\\n", "\n") for text in told))


def describe(code):
    number = -code if code < 0 else code - 128
    if number not in set(signal.Signals):
        return f"exit code {code}"
    return "killed by " + signal.Signals(number).name + (", the deadline of a case" if number == signal.SIGALRM else "")


def run_once(options, names, folder, deadline):
    """Starts the program for `names` (all where empty). Returns the ranks' journals and how it ended."""
    prefix = os.path.join(folder, "journal")
    command = [options.program, *([f"--gtest_filter={':'.join(names)}"] if names else [])]
    environment = {**os.environ, **dict(item.split("=", 1) for item in options.environment), "LOCKSTEP_TEST_JOURNAL": prefix}
    code, ending = run_to_end(launch(options, command), environment, options, deadline)
    count = options.ranks or sum(options.machines)
    return [Journal(f"{prefix}{rank}") for rank in (range(count) if count else [""])], code, ending


def launch(options, command):
    """The commands that run it: one, or one for each machine."""
    if options.ranks:
        return [[LOCKRUN, "--standalone", "--nproc-per-node", str(options.ranks), "--shutdown-timeout", "3", *command]]
    if not options.machines:
        return [command]
    port = free_port()
    return [
        [
            LOCKRUN,
            "--nnodes",
            str(len(options.machines)),
            "--node-rank",
            str(node),
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            str(port),
            "--local-addr",
            "127.0.0.1",
            "--nproc-per-node",
            str(ranks),
            "--shutdown-timeout",
            "3",
            *command,
        ]
        for node, ranks in enumerate(options.machines)
    ]


def run_to_end(commands, environment, options, deadline):
    """The first exit code that is not 0, and how it ended."""
    processes = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for command in commands]
    codes, late = [], False
    for process in processes:
        try:
            codes.append(process.wait(max(deadline - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            late = True
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if late:
        return -1, f"the run of {options.seconds} s was over"
    code = next((code for code in codes if code != 0), 0)
    return code, describe(code)


def run_all(options):
    """{case: Case} of all cases, in their order."""
    deadline = time.monotonic() + options.seconds
    results, left = {}, [options.cases] if options.cases else []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            journals, code, ending = run_once(options, left, folder, deadline)
        order = next((journal.cases for journal in journals if journal.cases), [])
        if not order:
            return {**results, **{name: Case("fail", 0, f"not run: {ending}") for name in left or ["(start)"]}}
        left = list(order)
        for name in order:
            case = judge(name, journals, ending)
            if case is None:
                break
            results[name] = case
            left.remove(name)
            if case.status == "fail":
                break
        else:
            if code != 0:
                results["(end)"] = Case("fail", 0, f"after the last case: {ending}")
            return results
        if not left:
            return results
        if time.monotonic() >= deadline or left == order:
            return {**results, **{name: Case("fail", 0, f"not run: {ending}") for name in left}}


def write(path, results):
    suite = xml.Element("testsuite", tests=str(len(results)))
    for name, case in results.items():
        element = xml.SubElement(suite, "testcase", name=name, status=case.status, time=f"{case.seconds:.3f}")
        if case.message:
            xml.SubElement(element, "failure" if case.status == "fail" else "skipped", message=case.message)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    xml.ElementTree(suite).write(path, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", required=True)
    parser.add_argument("--ranks", type=int, help="under lockrun; without it the program runs by itself")
    parser.add_argument("--machines", type=int, nargs="+", default=[], metavar="N", help="ranks by machine, under one lockrun for each")
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seconds", type=float, default=800, help="for all cases together (default 800: a busy machine may need them)")
    parser.add_argument("--cases", metavar="FILTER", help="only these, as --gtest_filter names them")
    parser.add_argument("program")
    options = parser.parse_args()
    results = run_all(options)
    write(options.results, results)
    for name, case in results.items():
        if case.status == "fail":
            print(f"failed: {name}\n  " + case.message.replace("\n", "\n  "))
    failed = sum(case.status == "fail" for case in results.values())
    passed = sum(case.status == "run" for case in results.values())
    slowest = sorted(results.items(), key=lambda item: -item[1].seconds)[:5]
    skipped = sum(case.status == "skipped" for case in results.values())
    print(
        f"{passed} cases passed, {failed} failed, {skipped} skipped, {len(results) - passed - failed - skipped} left out; slowest: "
        + ", ".join(f"{name} {case.seconds:.1f} s" for name, case in slowest)
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
