"""Runs the distributed tests that PyTorch ships inside its wheel, on the lockstep backend.

    peer_tests.py --quick                       the choice of the ordinary test run
    peer_tests.py --world-size 2                every test; first with Gloo, to know which ones can pass here
    peer_tests.py --world-size 2 test_gather    only these

A test must pass when it passes with Gloo, or is one of the all_to_all tests that only MPI has on the CPU. EXCEPTIONS
lists what need not, with the reason; a listed test that passes is a failure of the run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

ON = os.environ.setdefault("LOCKSTEP_PEER_BACKEND", "lockstep")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

# The tests' decorators look at this name when they are imported. As "gloo" they skip nothing that runs on CPUs; the
# backend itself is set afterwards.
os.environ["BACKEND"] = "gloo"
import torch.testing._internal.distributed.distributed_test as shipped  # noqa: E402

import lockstep  # noqa: E402, F401

shipped.BACKEND = os.environ["BACKEND"] = ON

_BY_NAME = "Python's monitored_barrier refuses every backend that is not called gloo"
EXCEPTIONS = {
    "test_monitored_barrier_allreduce_hang": _BY_NAME,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": _BY_NAME,
    "test_monitored_barrier_failure_order": _BY_NAME,
    "test_monitored_barrier_gloo": _BY_NAME,
    "test_monitored_barrier_gloo_rank_0_timeout": _BY_NAME,
    "test_monitored_barrier_gloo_subgroup": _BY_NAME,
    "test_monitored_barrier_wait_all_ranks": _BY_NAME,
}

QUICK = """
test_all_gather test_all_reduce_coalesced_sum test_all_to_all_single_unequal_split test_monitored_barrier_gloo
test_send_recv_any_source
""".split()


class PeerTests(shipped.TestDistBackend, shipped.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


for name in dir(PeerTests):
    test = getattr(PeerTests, name)
    if ON == "lockstep" and "Only MPI supports" in getattr(test, "__unittest_skip_why__", ""):
        test.__unittest_skip__ = False


class Verdicts(unittest.TextTestResult):
    """Test -> passed, skipped: why, or failed: how."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.verdicts = {}

    def say(self, test, verdict):
        self.verdicts[test._testMethodName] = verdict

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say(test, f"skipped: {reason}")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say(test, f"failed: {err[1]}")

    def addError(self, test, err):
        super().addError(test, err)
        self.say(test, f"failed: {err[1]}")


def run_here(names, report):
    suite = unittest.TestSuite(PeerTests(name) for name in names)
    result = unittest.TextTestRunner(verbosity=2, resultclass=Verdicts).run(suite)
    with open(report, "w", encoding="utf-8") as file:
        json.dump(result.verdicts, file)


def run_on(backend, world_size, names):
    """In a process of its own, since the tests read the backend's name when they are imported."""
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.json")
        subprocess.run([sys.executable, os.path.abspath(__file__), "--report", report, *names], check=True,
                       env={**os.environ, "LOCKSTEP_PEER_BACKEND": backend, "WORLD_SIZE": str(world_size)})
        with open(report, encoding="utf-8") as file:
            return json.load(file)


def compare(world_size, names, against_gloo):
    expected = names
    if against_gloo:
        gloo = run_on("gloo", world_size, names)
        expected = [n for n in names if gloo[n] == "passed" or (n.startswith("test_all_to_all") and "cuda" not in n)]
    ours = run_on("lockstep", world_size, expected)
    wrong = {n: v for n, v in ours.items() if (v == "passed") == (n in EXCEPTIONS)}
    passed = sum(v == "passed" for v in ours.values())
    print(f"world size {world_size}: {len(expected)} tests can pass here; {passed} passed on lockstep, "
          f"{sum(n in EXCEPTIONS for n in expected)} are exceptions, {len(wrong)} wrong")
    for name, verdict in wrong.items():
        print(f"  {name}: {'passes, but is listed as an exception' if name in EXCEPTIONS else verdict.splitlines()[0]}")
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only a choice, at world size 2, without Gloo's run")
    parser.add_argument("--world-size", type=int, nargs="+", default=[2])
    parser.add_argument("--report", help=argparse.SUPPRESS)
    parser.add_argument("tests", nargs="*", help="names, of all")
    options = parser.parse_args()
    names = options.tests or (QUICK if options.quick else unittest.defaultTestLoader.getTestCaseNames(PeerTests))
    if options.report:
        run_here(names, options.report)
        return 0
    good = [compare(size, names, against_gloo=not (options.quick or options.tests)) for size in options.world_size]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
