"""scripts/demo-heal, with few steps of few texts: the same weights after kills, and a clean end after Ctrl-C."""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest

DEMO = pathlib.Path(__file__).resolve().parents[2] / "scripts/demo-heal"


class DemoHeal(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = pathlib.Path(folder.name)
        draw = random.Random(1)
        words = [[f"{kind}{i}" for i in range(8)] for kind in ("good", "bad")]
        rows = [f"{' '.join(draw.choice(words[i % 2]) for _ in range(6))},{('positive', 'negative')[i % 2]}" for i in range(64)]
        (self.directory / "train.csv").write_text("\n".join(["text,label", *rows, ""]))

    def start(self, *flags):
        command = [
            sys.executable,
            DEMO,
            "--bin-dir",
            os.environ["LOCKSTEP_BIN_DIR"],
            "--train-file",
            self.directory / "train.csv",
            "--output-dir",
            self.directory / "out",
            *map(str, flags),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_the_weights_are_the_same(self):
        job = self.start("--max-steps", 60, "--kills", 2, "--seed", 3)
        out, _ = job.communicate(timeout=150)
        self.assertEqual(job.returncode, 0, out)
        hashes = re.findall(r"  ([0-9a-f]{64})$", out, re.M)
        self.assertEqual((len(hashes), len(set(hashes))), (2, 1), out)
        self.assertEqual(len(re.findall(r"lockrun: rank \d \(pid \d+\) was killed by SIGKILL at step \d+; replaced in", out)), 2, out)
        self.assertIn("The same weights, bit for bit. 2 deaths cost", out)

    def test_ctrl_c_leaves_nothing(self):
        job = self.start("--max-steps", 10000, "--kills", 0)
        for line in job.stdout:
            if line.startswith("  step "):
                break
        job.send_signal(signal.SIGINT)  # of a terminal it would reach lockrun, too
        out, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 130, out)
        self.assertIn("demo-heal: stopped", out)
        left = [entry for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit() and self.is_left(entry)]
        self.assertEqual(left, [])

    def is_left(self, entry):
        try:
            return str(self.directory).encode() in (entry / "cmdline").read_bytes()
        except OSError:  # it has ended
            return False

    def test_mistakes_are_told(self):
        for flags, expected in (
            (["--kills", 9, "--max-steps", 10], "--kills 9 is too many"),
            (["--nproc-per-node", 1], "from 2 to 64"),
            (["--bin-dir", self.directory], "has no program lockrun"),
        ):
            job = self.start(*flags)
            out, _ = job.communicate(timeout=30)
            self.assertNotEqual(job.returncode, 0)
            self.assertIn(expected, out)


if __name__ == "__main__":
    unittest.main()
