"""FSDP2, DTensor, tensor parallelism and distributed checkpoint give on the lockstep backend what they give on Gloo.

Two numbers have one sum, so with 2 ranks the bits are the same.
"""

import os
import subprocess
import sys
import tempfile
import unittest

import torch

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parallel_programs.py")
LOCKRUN = [os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun"), "--standalone", "--nproc-per-node", "2"]


def results(backend):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*LOCKRUN, sys.executable, PROGRAMS, backend, folder], capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return torch.load(os.path.join(folder, "results"))


class ParallelPrograms(unittest.TestCase):
    def test_the_same_on_both_backends(self):
        expected, got = results("gloo"), results("lockstep")
        self.assertGreaterEqual(len(expected), 20)
        self.assertEqual(list(got), list(expected))
        for name, wanted in expected.items():
            with self.subTest(name):
                self.assertIsInstance(wanted, list, wanted)  # no program fails on Gloo
                self.assertIsInstance(got[name], list, got[name])
                self.assertEqual(len(got[name]), len(wanted))
                for ours, gloos in zip(got[name], wanted):
                    self.assertTrue(torch.equal(ours, gloos), f"{ours} differs from {gloos}")


if __name__ == "__main__":
    unittest.main()
