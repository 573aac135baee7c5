"""`lockstep bench ddp`: what it prints and what it refuses."""
import os
import subprocess
import sys
import unittest

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep")


def bench(*arguments):
    return subprocess.run([LOCKSTEP, "bench", *arguments], capture_output=True, text=True, timeout=200)


class BenchDdpTest(unittest.TestCase):
    def test_measures_all_four(self):
        done = bench("ddp", "--model", "toy", "--steps", "20", "--rounds", "1", "--python", sys.executable)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("Lockstep, without DDP", "Lockstep, DDP", "Python, without DDP", "Python, DDP on Gloo"):
            self.assertRegex(done.stdout, name + r" +\d+\.\d+ \(\d+\.\d+ to \d+\.\d+\) ms a step")
        self.assertRegex(done.stdout, r"DDP adds -?[\d.]+ .* us, -?[\d.]+ .* %")
        self.assertRegex(done.stdout, r"times the gradients.* 660 bytes")

    def test_what_is_wrong_is_named(self):
        done = bench("ddp", "--model", "vgg")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("vgg", done.stderr)
        done = bench("ddp", "--rounds", "1", "--steps", "1", "--python", "/no/such/python")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such/python", done.stderr)
        self.assertNotEqual(bench().returncode, 0)


if __name__ == "__main__":
    unittest.main()
