"""bert_nli as its users meet it: the four strategies do the same, tables of MultiNLI's two forms, mistakes told once."""

import csv
import json
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import unittest

import pyarrow
import pyarrow.parquet
import tiny

LABELS = ("entailment", "neutral", "contradiction")


def make_pairs(count, seed):
    """The label is what the two texts say together."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        premise, hypothesis = draw.choice(("good great fine", "bad awful dull")), draw.choice(("good", "bad", "plot"))
        label = 1 if hypothesis == "plot" else 0 if hypothesis in premise else 2
        rows.append((f"a film {premise}", f"the actor {hypothesis}", label))
    return rows


class NliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_nli_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.model = tiny.make_model(cls.dir / "model")
        cls.train, cls.validation = cls.dir / "train.csv", cls.dir / "validation.csv"
        for path, rows in ((cls.train, make_pairs(200, 1)), (cls.validation, make_pairs(45, 2))):
            with open(path, "w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(("premise", "hypothesis", "label"))
                writer.writerows((premise, hypothesis, LABELS[label]) for premise, hypothesis, label in rows)

    def run_it(self, strategy, ranks=None, **changes):
        flags = {
            "--strategy": strategy,
            "--model-name-or-path": self.model,
            "--train-file": self.train,
            "--validation-file": self.validation,
            "--batch-size": 12,
            "--learning-rate": 3e-3,
            "--num-train-epochs": 2,
            "--logging-steps": 8,
            "--ignore-mismatched-sizes": True,
            "--hidden-dropout": 0,
            "--attention-dropout": 0,
            **{"--" + name.replace("_", "-"): value for name, value in changes.items()},
        }
        command = [str(tiny.BIN / "bert_nli")]
        if ranks:
            command = [str(tiny.BIN / "lockrun"), "--standalone", "--prefix", "off", "--nproc-per-node", str(ranks), *command]
        words = [str(word) for flag in flags.items() if flag[1] is not None for word in flag if word is not True]
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=120)

    def figures(self, strategy, ranks=None, **changes):
        file = self.dir / "result.json"
        done = self.run_it(strategy, ranks, result_file=file, **changes)
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = re.findall(r"^step:(\d+), loss:([\d.e-]+)$", done.stdout, re.M)
        result = json.loads(file.read_text())
        self.assertEqual(result["strategy"], strategy)
        self.assertIn(f"{result['accuracy']:.4f}", done.stdout)
        self.assertIn("precision {precision:.4f}, recall {recall:.4f}, macro F1 {macro_f1:.4f}".format(**result), done.stdout)
        return [int(step) for step, _ in losses], [float(loss) for _, loss in losses], result

    def test_the_strategies_do_the_same(self):
        steps, losses, alone = self.figures("single")
        self.assertEqual(steps, [0, 8, 16, 24])
        self.assertEqual((alone["steps"], alone["parts"]), (32, 1))
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertGreater(alone["accuracy"], 0.8)
        for strategy, ranks, changes in (
            ("dp", None, {"replicas": 2}),
            ("dp", None, {"replicas": 3}),
            ("dp-loss", None, {"replicas": 4}),
            ("ddp", 2, {}),
            ("ddp", 3, {}),
        ):
            with self.subTest(strategy=strategy, ranks=ranks, **changes):
                _, theirs, result = self.figures(strategy, ranks, **changes)
                for ours, their in zip(losses, theirs, strict=True):
                    self.assertAlmostEqual(ours, their, delta=1e-3)
                self.assertAlmostEqual(result["accuracy"] * 45, round(result["accuracy"] * 45), places=6)
                self.assertAlmostEqual(result["accuracy"], alone["accuracy"], delta=1 / 45 + 1e-9)
                for score in ("precision", "recall", "macro_f1"):
                    self.assertAlmostEqual(result[score], alone[score], delta=0.05)
                self.assertEqual(result["parts"], ranks or changes["replicas"])
                if strategy == "ddp" and ranks == 2:  # 23 and 22 pairs: the mean of the ranks' means counts them alike
                    self.assertAlmostEqual(result["mean_of_ranks"], result["accuracy"], delta=0.03)

    def test_dropout_repeats(self):
        runs = [self.figures("dp-loss", replicas=3, hidden_dropout=0.2)[1] for _ in range(2)]
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], self.figures("dp-loss", replicas=3, hidden_dropout=0.2, seed=43)[1])

    def test_multinlis_files(self):
        _, expected, _ = self.figures("single")
        rows = make_pairs(200, 1)
        lines = self.dir / "multinli_1.0_train.jsonl"
        with open(lines, "w") as file:
            for number, (premise, hypothesis, label) in enumerate(rows):
                file.write(
                    json.dumps(
                        {
                            "annotator_labels": [LABELS[label]],
                            "genre": "fiction",
                            "gold_label": LABELS[label],
                            "pairID": str(number),
                            "sentence1": premise,
                            "sentence2": hypothesis,
                        }
                    )
                    + "\n"
                )
                if number % 50 == 0:  # nobody's label
                    file.write(
                        json.dumps({"annotator_labels": [], "genre": "fiction", "gold_label": "-", "pairID": "x", "sentence1": "a", "sentence2": "b"})
                        + "\n"
                    )
        columns = {"premise_column": "sentence1", "hypothesis_column": "sentence2", "label_column": "gold_label"}
        self.assertEqual(self.figures("single", train_file=lines, validation_file=lines, **columns)[1], expected)
        parquet = self.dir / "train-00000-of-00001.parquet"
        premise, hypothesis, label = map(list, zip(*rows, ("a", "b", -1)))
        pyarrow.parquet.write_table(
            pyarrow.table({"promptID": [1] * len(label), "premise": premise, "hypothesis": hypothesis, "label": label}), parquet
        )
        self.assertEqual(self.figures("single", train_file=parquet, validation_file=parquet)[1], expected)

    def test_a_trained_head_keeps_the_order_of_its_labels(self):
        """Numbers in the data are entailment, neutral, contradiction, whatever the head's order is."""
        numbers = self.dir / "numbers.csv"
        with open(numbers, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("premise", "hypothesis", "label"))
            writer.writerows(make_pairs(200, 1))
        model = self.dir / "three"
        shutil.copytree(self.model, model)
        config = json.loads((model / "config.json").read_text())
        order = ("contradiction", "entailment", "neutral")
        (model / "config.json").write_text(
            json.dumps({**config, "id2label": dict(enumerate(order)), "num_labels": 3, "label2id": {name: i for i, name in enumerate(order)}})
        )
        changes = dict(model_name_or_path=model, max_steps=3, logging_steps=1)
        self.assertEqual(self.figures("single", **changes)[1], self.figures("single", train_file=numbers, **changes)[1])
        done = self.run_it("single", ignore_mismatched_sizes=None, **changes)
        self.assertRegex(
            done.stderr,
            r"classifier.weight has shape \[2, 32\], the 3 labels \(contradiction, entailment, neutral\) "
            r"need \[3, 32\]",
        )

    def test_from_scratch(self):
        _, losses, _ = self.figures(
            "dp", model_name_or_path=None, model_config="small", output_dir=self.dir / "deep" / "out", max_steps=3, logging_steps=1
        )
        self.assertEqual(len(losses), 3)
        self.assertTrue((self.dir / "deep" / "out" / "vocab.txt").exists())

    def test_a_label_may_be_missing_from_the_validation_set(self):
        file = self.dir / "two_labels.csv"
        with open(file, "w", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(("premise", "hypothesis", "label"))
            writer.writerows((premise, hypothesis, LABELS[label]) for premise, hypothesis, label in make_pairs(45, 2) if label)
        self.figures("single", validation_file=file, max_steps=2)

    def test_mistakes_are_told_once(self):
        for strategy, ranks, changes, expected in (
            ("all", None, {}, "--strategy is all; it must be single, dp, dp-loss or ddp"),
            ("dp", 2, {}, "--strategy dp runs in one process: start it without lockrun, or take ddp"),
            ("ddp", 2, {"batch_size": 7}, "--batch-size 7 does not divide among 2 ranks"),
            ("single", None, {"batch_size": 400}, "train.csv has 200 pairs, fewer than --batch-size 400"),
            ("ddp", 2, {"validation_file": "absent.csv"}, "absent.csv"),
            ("single", None, {"premise_column": "sentence1"}, "sentence1"),
            (
                "single",
                None,
                {"ignore_mismatched_sizes": None},
                'label "entailment" is unknown; expected one of LABEL_0, LABEL_1 or a number from 0 to 1, for which the head in ',
            ),
            ("single", None, {"model_name_or_path": None, "model_config": "small"}, "--model-config needs --output-dir"),
        ):
            with self.subTest(expected):
                done = self.run_it(strategy, ranks, **changes)
                self.assertNotEqual(done.returncode, 0)
                said = [line for line in done.stderr.splitlines() if "bert_nli: error: " in line]
                self.assertEqual(len(said), 1, done.stderr)
                self.assertIn(expected, said[0])


if __name__ == "__main__":
    unittest.main()
