"""Jobs inside jobs, jobs after jobs, attempts after attempts: the ranks of one never meet those of another."""

import functools
import os
import re
import subprocess
import sys
import tempfile
import unittest

import starts

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs_rank.py")


def lockrun(*cases, **environment):
    done = subprocess.run(
        [f"{BIN}/lockrun", "--standalone", "--nproc-per-node", "2", sys.executable, RANK, *cases],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=400,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout


class Job:
    """Cases of jobs_rank.py that a job of two ranks runs, and the lines that tell of their groups."""

    def __init__(self, start, *cases):
        self.lines = []
        self.cases = starts.Cases(lambda *names: self.listen(*start(*names)), 2, cases)

    def listen(self, code, output):
        self.lines += re.findall(r"^(?:\[rank \d+\]: )*(\w+: .* ok)$", output, re.M)
        return code, output


class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name

    @classmethod
    @functools.cache
    def under_lockrun(cls):
        return Job(lambda *cases: lockrun(*cases, FOLDER=cls.folder), "nested", "nested_launcher", "nested_after_init", "again", "many_groups")

    @classmethod
    @functools.cache
    def with_a_progress_thread(cls):
        return Job(lambda *cases: lockrun(*cases, LOCKSTEP_PROGRESS_THREAD="1"), "progress_thread", "again")

    @classmethod
    @functools.cache
    def under_torchrun(cls):
        return Job(lambda *cases: starts.torchrun("--max-restarts", "1", RANK, *cases), "again", "many_groups", "restarted")

    def check(self, job, case, *names):
        self.assertEqual(job.cases.failures[case], "")
        self.assertEqual(
            sorted(line for line in job.lines if line.startswith(f"{case}:")),
            sorted(f"{case}: {name} rank {r} of 2 ok" for name in names for r in (0, 1)),
        )

    def test_a_job_inside_a_job(self):
        self.check(self.under_lockrun(), "nested", "inner 0", "inner 1")

    def test_a_job_inside_a_job_that_has_begun(self):
        self.check(self.under_lockrun(), "nested_after_init", "inner 0", "inner 1", "outer")

    def test_torchrun_inside_a_rank_of_lockrun(self):
        self.check(self.under_lockrun(), "nested_launcher", "inner 0", "inner 1")

    def test_init_and_destroy_four_times(self):
        for job in (self.under_lockrun(), self.under_torchrun(), self.with_a_progress_thread()):
            self.check(job, "again", *(f"turn {t}" for t in range(4)))

    def test_hundreds_of_groups(self):
        for job in (self.under_lockrun(), self.under_torchrun()):
            self.check(job, "many_groups", *(f"turn {t}" for t in range(3)))

    def test_a_progress_thread_completes_futures(self):
        self.check(self.with_a_progress_thread(), "progress_thread", "progress")

    def test_a_restart_with_the_store_of_the_first_attempt(self):
        self.check(self.under_torchrun(), "restarted", "attempt 0", "attempt 1")

    def test_cpp_and_python_ranks_under_torchrun(self):
        python = (
            "import torch, torch.distributed as dist, lockstep; dist.init_process_group('lockstep'); "
            "t = torch.full((1000,), 5.0); dist.all_reduce(t); dist.broadcast(t, src=0); "
            "assert t.tolist() == [0.5] * 1000; print('from C++ ok'); dist.destroy_process_group()"
        )
        both = f'if [ $RANK = 0 ]; then exec {TESTS}/cpp_rank with_python; else exec {sys.executable} -c "{python}"; fi'
        code, output = starts.torchrun("--no-python", "bash", "-c", both)
        self.assertEqual(code, 0, output)
        self.assertEqual([line for line in output.splitlines() if line.endswith(" ok")], ["from C++ ok"])


if __name__ == "__main__":
    unittest.main()
