"""Jobs inside jobs, jobs after jobs, attempts after attempts: the ranks of one never meet those of another."""

import os
import subprocess
import sys
import tempfile
import unittest

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs_rank.py")
LOCKRUN = [f"{BIN}/lockrun", "--standalone", "--nproc-per-node", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


class Jobs(unittest.TestCase):
    def told(self, command):
        """The lines that the ranks of a job that succeeds print, sorted."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [line.removeprefix(f"[rank {r}]: ") for line in done.stdout.splitlines() for r in (0, 1)
                 if line.startswith(f"[rank {r}]: ") or (r == 0 and not line.startswith("[rank"))]
        return sorted(line for line in lines if line.endswith(" ok"))

    def expected(self, *names):
        return sorted(f"{name} rank {r} of 2 ok" for name in names for r in (0, 1))

    def test_a_job_inside_a_job(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(self.told([*LOCKRUN, sys.executable, RANK, "nested", directory]),
                             self.expected("inner 0", "inner 1"))

    def test_a_job_inside_a_job_that_has_begun(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(self.told([*LOCKRUN, sys.executable, RANK, "nested_after_init", directory]),
                             self.expected("inner 0", "inner 1", "outer"))

    def test_torchrun_inside_a_rank_of_lockrun(self):
        self.assertEqual(self.told([*LOCKRUN, sys.executable, RANK, "nested_launcher"]),
                         self.expected("inner 0", "inner 1"))

    def test_init_and_destroy_four_times(self):
        for launch in ([*LOCKRUN, sys.executable], TORCHRUN):
            self.assertEqual(self.told([*launch, RANK, "again"]), self.expected(*(f"turn {t}" for t in range(4))))

    def test_a_restart_with_the_store_of_the_first_attempt(self):
        self.assertEqual(self.told([*TORCHRUN, "--max-restarts", "1", RANK, "restarted"]),
                         self.expected("attempt 0", "attempt 1"))

    def test_cpp_and_python_ranks_under_torchrun(self):
        python = ("import torch, torch.distributed as dist, lockstep; dist.init_process_group('lockstep'); "
                  "t = torch.full((1000,), 5.0); dist.all_reduce(t); dist.broadcast(t, src=0); "
                  "assert t.tolist() == [0.5] * 1000; print('from C++ ok'); dist.destroy_process_group()")
        both = f'if [ $RANK = 0 ]; then exec {TESTS}/cpp_rank with_python; else exec {sys.executable} -c "{python}"; fi'
        self.assertEqual(self.told([*TORCHRUN, "--no-python", "bash", "-c", both]), ["from C++ ok"])


if __name__ == "__main__":
    unittest.main()
