"""scripts/soak: a short run with a fixed seed succeeds, and a round that fails ends it with the command that repeats it."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]).parent


def soak(*args, build=BUILD):
    return subprocess.run([sys.executable, SOURCE / "scripts/soak", *args, "--build", build], capture_output=True, text=True, timeout=300)


class Soak(unittest.TestCase):
    def test_steps(self):
        run = soak("steps", "--rounds", "100", "--seed", "7", "--seconds", "8")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn(": right", run.stdout)

    def test_the_others(self):
        for name in ("collectives", "queue", "overlap", "engine"):
            run = soak(name, "--rounds", "1", "--seed", "7")
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertRegex(run.stdout, r"^1/1: .*[1-9]\d* cases passed\n$")

    def test_a_missing_program_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            run = soak("engine", build=folder)
        self.assertEqual(run.returncode, 1)
        self.assertIn("tests/shm_test is missing; run scripts/build", run.stderr)

    def test_a_round_that_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            lockrun = pathlib.Path(folder) / "bin/lockrun"
            lockrun.parent.mkdir()
            lockrun.write_text("#!/bin/sh\necho wrong weights >&2\nexit 3\n")
            lockrun.chmod(0o755)
            run = soak("steps", "--rounds", "2", "--seed", "7", build=folder)
        self.assertEqual(run.returncode, 1)
        self.assertIn("wrong weights", run.stdout)
        self.assertIn("round 1 failed with exit code 3", run.stderr)
        self.assertIn("--seed", run.stderr.splitlines()[-1])

    def test_an_unknown_name(self):
        run = soak("everything")
        self.assertEqual(run.returncode, 2)
        self.assertIn("steps", run.stderr)


if __name__ == "__main__":
    unittest.main()
