"""A by-hand loop on two ranks is killed in steps and in saves, and continues to the bits of an undisturbed one."""

import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
LOOP = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "by_hand_loop")
STEPS = 14  # epochs have five

# Who is killed, and at which line of output.
KILLS = [
    ("rank 0", "saving 2"),
    ("rank 1", "saving 4"),
    ("rank 1", "step 5 "),
    ("lockrun", "saving 6"),
    ("rank 0", "step 9 "),
    ("lockrun", "step 11 "),
    ("rank 0", "saving 12"),
    ("rank 1", "step 13 "),
]


class KilledLoop(unittest.TestCase):
    def setUp(self):
        # On a disk, where a save takes long enough to be killed in it.
        folder = tempfile.TemporaryDirectory(dir="/var/tmp" if tempfile.gettempdir().startswith("/dev/shm") else None)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.used = {}  # by (step, rank): epoch and samples

    def run_loop(self, name, who=None, line=None):
        """Returns the exit code, or None where `who` was killed at `line`."""
        job = subprocess.Popen(
            [LOCKRUN, "--standalone", "--nproc-per-node", "2", LOOP, self.folder / name, str(STEPS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        pids, killed = {}, False
        for text in job.stdout:  # ends when the last process of the job has
            found = re.search(r"step (\d+) epoch (\d+) rank (\d+) pid (\d+) used ([\d,]+)", text)
            if found:
                step, epoch, rank, pid, samples = found.groups()
                pids[f"rank {rank}"] = int(pid)
                before = self.used.setdefault((int(step), int(rank)), (int(epoch), samples))
                self.assertEqual(before, (int(epoch), samples), f"step {step} of rank {rank}")
            if who and line in text and not killed and (who == "lockrun" or who in pids):
                os.kill(job.pid if who == "lockrun" else pids[who], signal.SIGKILL)
                killed = True
        code = job.wait(timeout=120)
        job.stdout.close()
        return None if killed else code

    def files(self, name):
        last = self.folder / name / f"checkpoint-{STEPS}"
        return {path.name: path.read_bytes() for path in last.iterdir()}

    def test_killed_anywhere_it_continues_to_the_same_bits(self):
        self.assertEqual(self.run_loop("undisturbed"), 0)
        expected = self.files("undisturbed")
        self.assertIn("optimizer-rank-1-of-2.safetensors", expected)
        kills = 0
        for who, line in KILLS:
            if self.run_loop("killed", who, line) is None:
                kills += 1
        self.assertEqual(kills, len(KILLS))
        self.assertEqual(self.run_loop("killed"), 0)
        self.assertEqual(self.files("killed"), expected)
        self.assertEqual(sorted(path.name for path in (self.folder / "killed").iterdir()), ["checkpoint-12", f"checkpoint-{STEPS}", "latest"])
        for epoch in (0, 1):
            used = [int(i) for (at_epoch, samples) in self.used.values() if at_epoch == epoch for i in samples.split(",")]
            self.assertEqual(sorted(used), list(range(50)), f"epoch {epoch}")


if __name__ == "__main__":
    unittest.main()
