"""Runs the distributed tests that PyTorch ships inside its wheel, on the lockstep backend.

    peer_tests.py --world-size 2                  every test that can run here
    peer_tests.py --world-size 2 4 --against-gloo the same, and first with Gloo, to know which ones can pass here
    peer_tests.py test_gather                     only these
    peer_tests.py --start-method spawn ...        ranks as PyTorch starts them: each imports torch anew, in seconds

With --against-gloo a test must pass when it passes with Gloo or is one of the all_to_all tests that only MPI has on the
CPU. Without it every test of the wheel must end as peer_verdicts.json says, which names all of them: a test that is new,
gone, or skipped for another reason is a failure of the run (--record writes the file). EXCEPTIONS lists what need not
pass, with the reason; a listed test that passes is a failure of the run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ON = os.environ.setdefault("LOCKSTEP_PEER_BACKEND", "lockstep")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's starts its threads when it is imported

# The tests' decorators look at this name when they are imported. As "gloo" they skip nothing that runs on CPUs; the
# backend itself is set afterwards.
os.environ["BACKEND"] = "gloo"
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.testing._internal.distributed.distributed_test as shipped  # noqa: E402

import lockstep  # noqa: E402, F401

shipped.BACKEND = os.environ["BACKEND"] = ON

VERDICTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_verdicts.json")
TOO_FEW_RANKS = "skipped: Skipped due to small world size."

# Test -> why it need not pass.
EXCEPTIONS = {}

# Bodies of tests that compare the backend's name where it does not matter -> the name that they are shown.
SHOWN_NAME = {
    # Prepares its model where the name is "gloo" or "mpi".
    "test_accumulate_gradients_no_sync": "gloo",
    "test_accumulate_gradients_no_sync_allreduce_hook": "gloo",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": "gloo",
    "test_accumulate_gradients_no_sync_grad_is_view": "gloo",
    # DDP's log calls every backend that PyTorch does not ship so.
    "test_ddp_logging_data_cpu": "custom",
}


def without_name_check(function):
    """Python's monitored_barrier refuses a backend that is not called gloo before it asks the backend."""

    def call(*args, **kwargs):
        with mock.patch.object(dist.distributed_c10d, "get_backend", return_value="gloo"):
            return function(*args, **kwargs)

    return call


dist.monitored_barrier = without_name_check(dist.monitored_barrier)


class PeerTests(shipped.TestDistBackend, shipped.DistributedTest._DistTestBase):
    start_method = "fork"

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self):
        # Importing all this takes seconds of processor time a rank. So the ranks are copies of this process, which has
        # done so and has no threads; what a test starts by itself is spawned, as in PyTorch's own way.
        if self.start_method == "spawn":
            return super()._spawn_processes()
        if len(os.listdir("/proc/self/task")) != 1:
            raise RuntimeError("this process has threads: ranks cannot be copies of it")
        torch.multiprocessing.set_start_method("spawn", force=True)
        return self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def run_test(self, test_name, parent_pipe):
        name = SHOWN_NAME.get(test_name)
        if ON != "lockstep" or name is None:
            return super().run_test(test_name, parent_pipe)
        with mock.patch.object(shipped, "BACKEND", name), mock.patch.object(dist, "get_backend", return_value=name):
            return super().run_test(test_name, parent_pipe)


ALL = unittest.defaultTestLoader.getTestCaseNames(PeerTests)
for name in ALL:
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


def run_some(names, report, log):
    if log:
        sys.stdout.flush()
        with open(log, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    suite = unittest.TestSuite(PeerTests(name) for name in names)
    result = unittest.TextTestRunner(verbosity=2, resultclass=Verdicts).run(suite)
    with open(report, "w", encoding="utf-8") as file:
        json.dump(result.verdicts, file)


def run_here(names, jobs, report, quiet):
    """A test mostly sleeps: PyTorch's barrier between its ranks is a file that they look at ten times a second."""
    context = torch.multiprocessing.get_context("fork")
    parts = [(names[j::jobs], f"{report}.{j}", f"{report}.{j}.log" if quiet else None) for j in range(jobs)]
    workers = [context.Process(target=run_some, args=part) for part in parts]
    for worker in workers:
        worker.start()
    verdicts = {}
    for worker, part in zip(workers, parts):
        worker.join()
        with open(part[1], encoding="utf-8") as file:
            verdicts.update(json.load(file))
    with open(report, "w", encoding="utf-8") as file:
        json.dump(verdicts, file)


def run_on(backend, world_size, names, options):
    """In a process of its own, since the tests read the backend's name when they are imported."""
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.json")
        command = [
            sys.executable,
            os.path.abspath(__file__),
            "--report",
            report,
            "--jobs",
            str(options.jobs),
            "--start-method",
            options.start_method,
            *(["--show-output"] if options.show_output else []),
            *names,
        ]
        subprocess.run(command, check=True, env={**os.environ, "LOCKSTEP_PEER_BACKEND": backend, "WORLD_SIZE": str(world_size)})
        with open(report, encoding="utf-8") as file:
            return json.load(file)


def is_right(name, verdict):
    """Of a test that must pass, or is an exception and must not."""
    return (verdict == "passed") != (name in EXCEPTIONS)


def read_verdicts():
    """{test: verdict} of all tests with two ranks."""
    with open(VERDICTS, encoding="utf-8") as file:
        return {name: verdict for verdict, names in json.load(file).items() for name in names}


def write_verdicts(verdicts):
    by_verdict = {}
    for name in sorted(verdicts):
        by_verdict.setdefault(verdicts[name], []).append(name)
    with open(VERDICTS, "w", encoding="utf-8") as file:
        json.dump(by_verdict, file, indent=1, sort_keys=True)
        file.write("\n")


def compare_with_record(world_size, names, options):
    """Every verdict is the recorded one; a name that only one side has is wrong too."""
    verdicts = run_on("lockstep", world_size, names, options)
    if options.record:
        write_verdicts(verdicts)
    recorded = read_verdicts()
    expected = recorded if names == ALL else {name: recorded.get(name, "(not recorded)") for name in names}
    wrong = {
        name: (expected.get(name, "(not recorded)"), verdicts.get(name, "(not in the wheel)"))
        for name in {**expected, **verdicts}
        if expected.get(name) != verdicts.get(name)
    }
    passed = sum(verdict == "passed" for verdict in verdicts.values())
    print(f"world size {world_size}: {len(verdicts)} tests, {passed} passed, {len(wrong)} not as recorded", flush=True)
    for name, (before, now) in sorted(wrong.items()):
        print(f"  {name}: {now}; recorded: {before}", flush=True)
    return not wrong and passed > 0


def compare(world_size, names, options):
    if not options.against_gloo and world_size == 2:
        return compare_with_record(world_size, names, options)
    if options.against_gloo:
        gloo = run_on("gloo", world_size, names, options)
        names = [n for n in names if gloo[n] == "passed" or (n.startswith("test_all_to_all") and "cuda" not in n)]
    verdicts = run_on("lockstep", world_size, names, options)
    # What only MPI has was not looked at with Gloo: some of it wants eight ranks.
    fits = (lambda v: v != TOO_FEW_RANKS) if options.against_gloo else (lambda v: not v.startswith("skipped"))
    verdicts = {n: v for n, v in verdicts.items() if fits(v) or n in EXCEPTIONS}
    wrong = {n: v for n, v in verdicts.items() if not is_right(n, v)}
    passed = sum(v == "passed" for v in verdicts.values())
    print(
        f"world size {world_size}: {len(verdicts)} tests can pass here; {passed} passed on lockstep, "
        f"{sum(n in EXCEPTIONS for n in verdicts)} are exceptions, {len(wrong)} wrong",
        flush=True,
    )
    for name, verdict in wrong.items():
        print(f"  {name}: {'passes, but is listed as an exception' if name in EXCEPTIONS else verdict}", flush=True)
    return not wrong and passed > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, nargs="+", default=[2])
    parser.add_argument("--against-gloo", action="store_true", help="run them with Gloo first")
    parser.add_argument("--record", action="store_true", help="write peer_verdicts.json from this run")
    parser.add_argument("--jobs", type=int, default=3, help="tests at a time (default 3)")
    parser.add_argument("--start-method", choices=["fork", "spawn"], default="fork", help="of the ranks")
    parser.add_argument("--show-output", action="store_true", help="what the tests print")
    parser.add_argument("--report", help=argparse.SUPPRESS)
    parser.add_argument("tests", nargs="*", help="names, of all")
    options = parser.parse_args()
    names = options.tests or ALL
    unknown = [n for n in names if n not in ALL]
    if unknown:
        parser.error(f"PyTorch's wheel has no distributed test called {unknown[0]}")
    if options.report:
        PeerTests.start_method = options.start_method
        run_here(names, options.jobs, options.report, quiet=not options.show_output)
        return 0
    return 0 if all([compare(size, names, options) for size in options.world_size]) else 1


if __name__ == "__main__":
    sys.exit(main())
