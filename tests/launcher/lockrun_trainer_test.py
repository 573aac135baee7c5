"""Planned changes of membership while a Trainer trains: a machine joins, and leaves. No step is lost or made twice, and the bits are those of
an undisturbed training."""

import hashlib
import pathlib
import re
import signal
import sys
import unittest

from lockrun_support import TIMEOUT, wait_until
from nodes_support import AgentsTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "trainer"))
import tiny  # noqa: E402


class PlannedTrainerTest(AgentsTest):
    def setUp(self):
        super().setUp()
        tiny.make_model(self.directory / "model")
        tiny.write_csv(self.directory / "train.csv", tiny.make_rows(203, 1))
        self.output = self.directory / "out"

    def flags(self, output, steps):
        return {
            "--model-name-or-path": self.directory / "model",
            "--train-file": self.directory / "train.csv",
            "--output-dir": output,
            "--max-steps": steps,
            "--per-device-train-batch-size": 4,
            "--learning-rate": 1e-4,
            "--lr-scheduler-type": "constant",
            "--logging-steps": 1,
            "--save-steps": 1000000,
            "--deterministic-world": 2,
            "--disable-tqdm": True,
            "--resume-from-checkpoint": "auto",
        }

    def machine(self, name):
        with open(self.directory / name, "w") as output:
            return self.start(
                "--nnodes",
                "1:2",
                "--rdzv-backend",
                "c10d",
                "--rdzv-endpoint",
                f"127.0.0.1:{self.port}",
                "--rdzv-conf",
                self.token + ",last_call_timeout=0.5",
                *tiny.command(self.flags(self.output, 1000000)),
                stdout=output,
                stderr=output,
            )

    def said(self, name):
        return (self.directory / name).read_text()

    @staticmethod
    def losses(output):
        """The log's entries of training steps, without times."""
        if not (output / "log.jsonl").exists():
            return []
        text = (output / "log.jsonl").read_text()
        (output / "whole.jsonl").write_text(text[: text.rfind("\n") + 1])  # its last line may not be whole yet
        return [
            {name: entry[name] for name in ("step", "epoch", "loss", "grad_norm", "learning_rate") if name in entry}
            for entry in tiny.json_lines(output / "whole.jsonl")
            if "loss" in entry
        ]

    def wait_for_world(self, number):
        """Until it has made some steps."""

        def has_made_steps():
            begins = [0, *map(int, re.findall(r"resuming from \S+, step (\d+)/", self.said("first")))]
            return len(begins) > number and (steps := self.losses(self.output)) and steps[-1]["step"] >= begins[number] + 3

        self.assertTrue(wait_until(has_made_steps), self.said("first"))

    def leave(self, process, name):
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(TIMEOUT), 75, self.said(name))

    def test_a_machine_joins_and_leaves(self):
        first = self.machine("first")
        self.wait_for_world(0)
        second = self.machine("second")
        self.wait_for_world(1)
        self.leave(second, "second")
        self.wait_for_world(2)
        self.leave(first, "first")
        said = self.said("first")
        saved = re.findall(r"stopped by SIGTERM after step (\d+); checkpoint-\1 is saved", said)
        self.assertEqual(re.findall(r"resuming from \S+/checkpoint-(\d+), step \1/", said), saved[:2], said)
        self.assertRegex(said, r"(?s)machine 0 of 1, .*machine 0 of 2, .*machine 0 of 1, ")
        last = int(saved[2])
        made = self.losses(self.output)
        self.assertEqual([entry["step"] for entry in made], list(range(1, last + 1)))
        undisturbed = self.directory / "undisturbed"
        done = tiny.run(self.flags(undisturbed, last), env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(made, self.losses(undisturbed))
        weights = [
            hashlib.sha256((folder / f"checkpoint-{last}/model.safetensors").read_bytes()).hexdigest() for folder in (self.output, undisturbed)
        ]
        self.assertEqual(*weights)
        self.assertNotRegex(said + self.said("second"), "failed|was lost|error")


if __name__ == "__main__":
    unittest.main()
