"""What the tests of bert_ner and bert_qa share: a tiny random BERT whose words have several tokens, and runs of a recipe."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import random_bert

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
STARTS = ["anna", "otto", "rome", "oslo", "bank", "union", "met", "saw", "in", "of", "the", "and", "who", "where", "is", "did", "it", "."]
ENDS = ["##s", "##ville", "##ton", "##a"]


def write_model(directory, model_class):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *STARTS, *ENDS, *"0123456789", *("##" + c for c in "0123456789")]
    return random_bert.write(directory, model_class, tokens)


def json_lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def history(output_dir):
    return json.loads((pathlib.Path(output_dir) / "trainer_state.json").read_text())["log_history"]


class RecipeCase(unittest.TestCase):
    recipe = ""

    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix=f"lockstep_{cls.recipe}_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)

    def command(self, flags, ranks=None):
        line = [str(BIN / self.recipe)]
        if ranks is not None:
            line = [str(BIN / "lockrun"), "--standalone", "--nproc-per-node", str(ranks), *line]
        for flag, value in flags.items():
            line += ["--" + flag.replace("_", "-")] + ([] if value is True else [str(value)])
        return line

    def start(self, flags, ranks=None):
        return subprocess.run(self.command(flags, ranks), capture_output=True, text=True, timeout=120)

    def run_it(self, flags, ranks=None):
        done = self.start(flags, ranks)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def refuses(self, message, flags, ranks=None):
        done = self.start(flags, ranks)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(message, done.stderr)
        self.assertEqual(done.stderr.count("error:"), 1, done.stderr)

    def assert_same_history(self, left, right, tolerance, leave_out=()):
        unequal = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}
        self.assertEqual(len(left), len(right))
        for a, b in zip(left, right):
            self.assertEqual(set(a), set(b))
            for key in set(a) - unequal - set(leave_out):
                if not key.endswith(("_runtime", "_per_second")):
                    self.assertAlmostEqual(a[key], b[key], delta=tolerance * max(1, abs(b[key])), msg=(key, a, b))

    def check_kill_and_resume(self, flags):
        """A rank is killed behind a checkpoint; the resumed run gives the bits of one that was not disturbed."""
        whole, killed = (self.dir / name for name in ("undisturbed", "killed"))
        flags = {**flags, "save_steps": 5, "save_strategy": "steps", "logging_steps": 1, "lr_scheduler_type": "constant"}
        self.run_it({**flags, "output_dir": whole}, ranks=2)
        segments = set(os.listdir("/dev/shm"))
        job = subprocess.Popen(
            self.command({**flags, "output_dir": killed, "max_steps": 100000}, ranks=2), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.addCleanup(lambda: job.poll() is None and job.kill())
        deadline = time.monotonic() + 60
        while not (killed / "checkpoint-5").exists():
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(job.poll())
            time.sleep(0.02)
        victims = [int(path.parent.name) for path in pathlib.Path("/proc").glob("[0-9]*/environ") if self.is_rank_1(path, killed)]
        self.assertEqual(len(victims), 1)
        os.kill(victims[0], signal.SIGKILL)
        output, _ = job.communicate(timeout=60)
        self.assertNotEqual(job.returncode, 0)
        self.assertRegex(output, r"rank 1 .*SIGKILL")
        self.assertEqual(set(os.listdir("/dev/shm")) - segments, set())
        for path in killed.glob("checkpoint-*"):  # it may have come further
            if path.name != "checkpoint-5":
                shutil.rmtree(path)
        (killed / "latest").write_text("checkpoint-5\n")
        done = self.run_it({**flags, "output_dir": killed, "resume_from_checkpoint": "auto"}, ranks=2)
        self.assertIn("checkpoint-5", done.stdout + done.stderr)
        self.assertEqual((killed / "model.safetensors").read_bytes(), (whole / "model.safetensors").read_bytes())

    @staticmethod
    def is_rank_1(environ, output_dir):
        try:
            return b"\0RANK=1\0" in b"\0" + environ.read_bytes() and str(output_dir).encode() in (environ.parent / "cmdline").read_bytes()
        except OSError:
            return False
