"""bert_by_hand as its users meet it: the same losses and accuracies with any number of ranks, mistakes told once."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import tiny

EPOCHS = 6  # after fewer the random model may not have learned a thing


class ByHandTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_by_hand_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.model = tiny.make_model(cls.dir / "model")
        config = json.loads((cls.model / "config.json").read_text())
        config.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        (cls.model / "config.json").write_text(json.dumps(config))
        cls.train = tiny.write_csv(cls.dir / "train.csv", tiny.make_rows(96, seed=1))
        cls.validation = tiny.write_csv(cls.dir / "validation.csv", tiny.make_rows(41, seed=2))

    def run_it(self, ranks, **changes):
        flags = {
            "--model-name-or-path": self.model,
            "--train-file": self.train,
            "--validation-file": self.validation,
            "--num-train-epochs": EPOCHS,
            "--per-device-train-batch-size": 12 // (ranks or 1),
            "--learning-rate": 3e-3,
            "--logging-steps": 8,
            **{"--" + name.replace("_", "-"): value for name, value in changes.items()},
        }
        command = [str(tiny.BIN / "bert_by_hand")]
        if ranks:
            command = [str(tiny.BIN / "lockrun"), "--standalone", "--prefix", "off", "--nproc-per-node", str(ranks), *command]
        return subprocess.run([*command, *(str(word) for flag in flags.items() for word in flag)], capture_output=True, text=True, timeout=120)

    def figures(self, ranks):
        done = self.run_it(ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        losses = [re.fullmatch(rf"epoch (\d) / {EPOCHS}: global step: (\d+), loss: ([\d.e-]+)", line) for line in lines[0::2]]
        accuracies = [re.fullmatch(r"epoch: (\d) : acc: ([\d.]+)", line) for line in lines[1::2]]
        self.assertEqual([found.groups()[:2] for found in losses], [(str(epoch + 1), str(8 * epoch)) for epoch in range(EPOCHS)], done.stdout)
        self.assertEqual([found[1] for found in accuracies], [str(epoch) for epoch in range(EPOCHS)], done.stdout)
        return [float(found[3]) for found in losses], [float(found[2]) for found in accuracies]

    def test_the_number_of_ranks_changes_nothing(self):
        losses, accuracies = self.figures(None)
        self.assertLess(losses[-1], losses[0])
        self.assertGreater(accuracies[-1], 0.8)
        for accuracy in accuracies:
            self.assertAlmostEqual(accuracy * 41, round(accuracy * 41), places=9)  # each text once
        for ranks in (2, 3):
            theirs = self.figures(ranks)
            for ours, their in zip(losses, theirs[0]):
                self.assertAlmostEqual(ours, their, delta=1e-4)
            self.assertEqual(accuracies, theirs[1])

    def test_mistakes_are_told_once(self):
        bad = tiny.write_csv(self.dir / "bad.csv", [("a good film", "positive"), ("so so", "neutral")])
        for ranks in (None, 2):
            for expected, changes in (
                (r'bad\.csv:3: label "neutral" in column label', {"train_file": bad}),
                (r"absent\.csv", {"validation_file": "absent.csv"}),
                ("unknown flag --lr", {"lr": 1}),
            ):
                done = self.run_it(ranks, **changes)
                self.assertNotEqual(done.returncode, 0)
                said = [line for line in done.stderr.splitlines() if "bert_by_hand: error: " in line]
                self.assertEqual(len(said), 1, done.stderr)
                self.assertRegex(said[0], expected)


if __name__ == "__main__":
    unittest.main()
