"""toy_ddp by spawn, under lockrun and under torchrun, and its word about both at once."""

import os
import subprocess
import sys
import unittest

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TOY = os.path.join(BIN, "toy_ddp")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


class ToyDdpTest(unittest.TestCase):
    def check(self, done, ranks):
        self.assertEqual(done.returncode, 0, done.stderr)
        steps = [line for line in done.stdout.splitlines() if "loss" in line]
        self.assertEqual(len(steps), 10)
        losses = [float(line.split()[-1]) for line in steps]
        self.assertLess(losses[-1], losses[0])
        self.assertIn(f"{ranks} ranks, one model", done.stdout)
        return losses

    def test_all_ways_give_the_same(self):
        spawned = self.check(run(TOY, "3"), 3)
        launched = self.check(run(f"{BIN}/lockrun", "--standalone", "--prefix", "off", "--nproc-per-node", "3", TOY), 3)
        self.assertEqual(spawned, launched)

    def test_under_torchrun(self):
        self.check(run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2", TOY), 2)

    def test_spawning_under_a_launcher_is_refused(self):
        done = run(f"{BIN}/lockrun", "--standalone", "--nproc-per-node", "2", TOY, "2")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "already one of the ranks that a launcher .* it would start 2 more")
        self.assertEqual(done.stderr.count("error"), 1, done.stderr)
        self.assertNotIn("failed first", done.stderr)

    def test_under_mpirun(self):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", TOY]
        self.check(run(*mpirun), 2)
        done = run(*mpirun, "3")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("it would start 3 more", done.stderr + done.stdout)

    def test_a_rank_that_is_no_number(self):
        done = subprocess.run([TOY], capture_output=True, text=True, timeout=100, env=dict(os.environ, RANK="x", WORLD_SIZE="2"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("RANK", done.stderr)

    def test_a_wrong_number(self):
        for ranks in ("0", "two", "3x"):
            done = run(TOY, ranks)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr.count("\n"), 1)
            self.assertIn(f"RANKS {ranks}: expected a number from 1 to 256", done.stderr)

    def test_help(self):
        for name in ("toy_ddp", "messages"):
            done = run(os.path.join(BIN, name), "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, rf"^Usage: {name} \[flags\] \[RANKS\]\n(.|\n)*Default: ")


if __name__ == "__main__":
    unittest.main()
