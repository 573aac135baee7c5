"""bert_classify as real processes: equal to transformers' Trainer, whatever the number of ranks."""

import fcntl
import json
import math
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import tempfile
import termios
import unittest

import tiny
from ports import free_port


class RecipeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_recipe_"))
        cls.model = tiny.make_model(cls.dir / "model")
        cls.train = tiny.write_csv(cls.dir / "train.csv", tiny.make_rows(75, seed=1))
        cls.validation = tiny.write_csv(cls.dir / "validation.csv", tiny.make_rows(41, seed=2))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)

    def arguments(self, name, **more):
        """Three epochs of 5 steps, the last of 11 samples; exact, as nothing is dropped out."""
        flags = {
            "--model-name-or-path": self.model,
            "--train-file": self.train,
            "--output-dir": self.dir / name,
            "--label-names": "positive,negative",
            "--per-device-train-batch-size": 16,
            "--learning-rate": 1e-3,
            "--warmup-steps": 0.2,
            "--weight-decay": 0.01,
            "--logging-steps": 1,
            "--hidden-dropout": 0,
            "--attention-dropout": 0,
            "--max-seq-length": 32,
        }
        flags.update({"--" + key.replace("_", "-"): value for key, value in more.items()})
        return flags

    def train_run(self, name, ranks=None, **more):
        done = tiny.run(self.arguments(name, **more), ranks)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return tiny.history(self.dir / name)

    def assert_same_history(self, left, right, tolerance=1e-4, leave_out=()):
        keys = {
            "loss",
            "grad_norm",
            "learning_rate",
            "epoch",
            "step",
            "eval_loss",
            "eval_accuracy",
            "eval_f1",
            "eval_precision",
            "eval_recall",
            "eval_macro_f1",
            "train_loss",
        } - set(leave_out)
        self.assertEqual(len(left), len(right))
        for a, b in zip(left, right):
            self.assertEqual(set(a), set(b))
            for key in keys & set(a):
                self.assertAlmostEqual(a[key], b[key], delta=tolerance * max(1, abs(b[key])), msg=(key, a, b))

    def history_equals_that_of_transformers_trainer(self):
        """Run by transformers_test.py."""
        import torch
        import transformers

        ours = self.train_run("ours", validation_file=self.validation, eval_strategy="epoch")

        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
        model = transformers.BertForSequenceClassification.from_pretrained(self.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

        def dataset(seed, count):
            rows = tiny.make_rows(count, seed=seed, labels=(0, 1))
            return [dict(tokenizer(text, truncation=True, max_length=32), label=label) for text, label in rows]

        def metrics(prediction):
            guess, truth = prediction.predictions.argmax(-1), prediction.label_ids
            right = [float(((guess == label) & (truth == label)).sum()) for label in (0, 1)]
            guessed, true = ([float((labels == label).sum()) for label in (0, 1)] for labels in (guess, truth))
            f1 = [2 * both / (some + all_) for both, some, all_ in zip(right, guessed, true)]
            return {
                "accuracy": float((guess == truth).mean()),
                "precision": right[1] / guessed[1] if guessed[1] else 0.0,
                "recall": right[1] / true[1],
                "f1": f1[1],
                "macro_f1": sum(f1) / 2,
            }

        arguments = transformers.TrainingArguments(
            output_dir=str(self.dir / "theirs"),
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            warmup_steps=0.2,
            weight_decay=0.01,
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            optim="adamw_torch_fused",
        )
        peer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=dataset(1, 75),
            eval_dataset=dataset(2, 41),
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
            compute_metrics=metrics,
        )
        torch.set_num_threads(1)
        train_metrics = peer.train().metrics
        theirs = peer.state.log_history
        self.assert_same_history(ours, theirs, tolerance=2e-6)
        self.assertLess(ours[-2]["eval_loss"], ours[5]["eval_loss"])

        # The files of results have transformers' keys, its splits in all_results.json, and a line each in the summary.
        peer.save_metrics("train", train_metrics)
        peer.save_metrics("eval", peer.evaluate())
        for split in ("train", "eval", "all"):
            mine, their = (json.loads((self.dir / run / f"{split}_results.json").read_text()) for run in ("ours", "theirs"))
            self.assertEqual(set(mine), set(their), split)
            self.assertAlmostEqual(mine["epoch"], their["epoch"])
            for key in {"train_loss", "eval_loss", "eval_accuracy"} & set(mine):
                self.assertAlmostEqual(mine[key], their[key], delta=1e-4)

        # The file is read by transformers' own class, and has every key that the peer writes.
        peer.state.save_to_json(str(self.dir / "theirs.json"))
        written = json.loads((self.dir / "ours/trainer_state.json").read_text())
        self.assertEqual(set(written), set(json.loads((self.dir / "theirs.json").read_text())))
        state = transformers.TrainerState.load_from_json(str(self.dir / "ours/trainer_state.json"))
        self.assertEqual((state.global_step, state.max_steps, state.epoch), (15, 15, 3.0))
        self.assertEqual(tiny.json_lines(self.dir / "ours/log.jsonl"), ours)

        # transformers loads what was saved, and finds the same logits.
        saved = transformers.AutoModelForSequenceClassification.from_pretrained(self.dir / "ours").eval()
        self.assertEqual(saved.config.id2label, {0: "positive", 1: "negative"})
        saved_tokenizer = transformers.AutoTokenizer.from_pretrained(self.dir / "ours")
        done = tiny.run(
            {"--model-name-or-path": self.dir / "ours", "--do-predict": True, "--test-file": self.validation, "--output-dir": self.dir / "predicted"}
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        predictions = tiny.json_lines(self.dir / "predicted/predictions.jsonl")
        self.assertEqual([line["index"] for line in predictions], list(range(41)))
        for line, (text, label) in zip(predictions, tiny.make_rows(41, seed=2)):
            with torch.no_grad():
                logits = saved(**saved_tokenizer(text, return_tensors="pt")).logits[0]
            torch.testing.assert_close(torch.tensor(line["logits"]), logits, atol=1e-4, rtol=1e-4)
            self.assertEqual(line["label"], saved.config.id2label[int(logits.argmax())])
        test_results = json.loads((self.dir / "predicted/test_results.json").read_text())
        self.assertAlmostEqual(test_results["test_accuracy"], ours[-2]["eval_accuracy"])

    def test_a_short_run_shows_its_loss_and_ends_with_a_summary(self):
        flags = self.arguments("short", validation_file=self.validation, per_device_train_batch_size=4)
        del flags["--logging-steps"]
        done = tiny.run(flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreaterEqual(len(re.findall(r"^step \d+/57 .*loss ", done.stderr, re.M)), 10)
        self.assertRegex(
            done.stdout,
            r"\n57 steps, 3 epochs in 0:\d\d\n"
            r" +loss  accuracy +f1 +macro_f1 +precision +recall  samples/s\n"
            r"  train  \d\.\d{4} +\d+\.\d\n"
            r"  eval   \d\.\d{4}( +\d\.\d{4}){5} +\d+\.\d\n"
            r"model saved in \S+\n$",
        )

        done = tiny.run({**flags, "--logging-steps": 500, "--overwrite-output-dir": True})
        self.assertNotRegex(done.stderr, r"step \d+/57 ")

    def test_more_ranks_train_the_same(self):
        alone = self.train_run(
            "alone", per_device_train_batch_size=12, validation_file=self.validation, eval_strategy="epoch", log_sample_ids=self.dir / "alone.jsonl"
        )
        expected = {line["step"]: sorted(line["ids"]) for line in tiny.json_lines(self.dir / "alone.jsonl")}
        # 75 = 6 x 12 + 3: the last step of an epoch has one sample for each of three ranks, and one rank of four none.
        for ranks, backend in ((2, "lockstep"), (3, "lockstep"), (4, "lockstep"), (2, "gloo")):
            name = f"{backend}{ranks}"
            log = self.dir / f"{name}.jsonl"
            together = self.train_run(
                name,
                ranks=ranks,
                per_device_train_batch_size=12 // ranks,
                ddp_backend=backend,
                validation_file=self.validation,
                eval_strategy="epoch",
                log_sample_ids=log,
            )
            self.assert_same_history(together, alone)
            ids = {}
            for line in tiny.json_lines(log):
                ids.setdefault(line["step"], []).extend(line["ids"])
            self.assertEqual({step: sorted(rows) for step, rows in ids.items()}, expected)

    def test_accumulation_equals_a_large_batch(self):
        large = self.train_run("large")
        # Half-way through an epoch, "epoch" counts micro-batches, and the last step has fewer of them.
        for name, ranks, batch, steps in (("accumulated", None, 4, 4), ("accumulated2", 2, 4, 2)):
            accumulated = self.train_run(name, ranks=ranks, per_device_train_batch_size=batch, gradient_accumulation_steps=steps)
            self.assert_same_history(accumulated, large, leave_out=["epoch"])
            self.assertEqual([entry["epoch"] for entry in accumulated[4:15:5]], [1.0, 2.0, 3.0])

    def test_kept_labels_and_a_split_are_those_of_python(self):
        """Rows with other labels leave, then the rest is divided: the runs equal those on files that NumPy's generator has divided."""
        import numpy

        rows = tiny.make_rows(75, seed=1)
        mixed = rows[:]
        for at in range(0, 90, 9):
            mixed.insert(at, ("a plot and a scene.", "neutral"))
        order = numpy.random.default_rng(2**32 + 7).permutation(len(rows))
        count = math.ceil(0.25 * len(rows))
        expected = self.train_run(
            "divided",
            train_file=tiny.write_csv(self.dir / "rest.csv", [rows[i] for i in order[count:]]),
            validation_file=tiny.write_csv(self.dir / "part.csv", [rows[i] for i in order[:count]]),
            eval_strategy="epoch",
        )
        flags = self.arguments(
            "kept",
            train_file=tiny.write_csv(self.dir / "mixed.csv", mixed),
            keep_labels="positive,negative",
            validation_split=0.25,
            split_seed=2**32 + 7,
            eval_strategy="epoch",
        )
        del flags["--label-names"]
        for more, ranks, tolerance in (({}, None, 0), ({"--pad-to-max-length": True}, None, 1e-5), ({"--per-device-train-batch-size": 8}, 2, 1e-4)):
            done = tiny.run({**flags, **more, "--overwrite-output-dir": True}, ranks)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("labels positive, negative (75 of 85 rows)", done.stdout)
            self.assert_same_history(tiny.history(self.dir / "kept"), expected, tolerance=tolerance)
        self.assertEqual(json.loads((self.dir / "kept/config.json").read_text())["id2label"], {"0": "positive", "1": "negative"})

    def test_numbers_keep_the_order_of_a_trained_classifier(self):
        """In whichever order they are named: the head is kept, and would say the opposite. A new head takes the order."""
        import safetensors.numpy

        numbered = tiny.write_csv(self.dir / "numbered.csv", [(text, int(label == "positive")) for text, label in tiny.make_rows(60, seed=4)])
        encoder = self.dir / "encoder"
        shutil.copytree(self.model, encoder)
        weights = safetensors.numpy.load_file(encoder / "model.safetensors")
        safetensors.numpy.save_file(
            {name: value for name, value in weights.items() if not name.startswith("classifier.")}, encoder / "model.safetensors", {"format": "pt"}
        )
        config = json.loads((encoder / "config.json").read_text())
        for key in ("id2label", "label2id"):
            config.pop(key, None)
        (encoder / "config.json").write_text(json.dumps(config))
        flags = {
            "--train-file": numbered,
            "--validation-file": numbered,
            "--save-strategy": "no",
            "--max-seq-length": 32,
            "--hidden-dropout": 0,
            "--attention-dropout": 0,
        }

        def trained(model, name, **more):
            output = self.dir / name
            done = tiny.run(
                {
                    **flags,
                    "--model-name-or-path": model,
                    "--output-dir": output,
                    **{"--" + key.replace("_", "-"): value for key, value in more.items()},
                }
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            labels = json.loads((output / "config.json").read_text())["id2label"]
            return output, [labels["0"], labels["1"]], json.loads((output / "eval_results.json").read_text())["eval_accuracy"]

        still = dict(max_steps=1, learning_rate=0)
        for keep, named, other in (({"keep_labels": "1,0"}, ["1", "0"], {}), ({}, ["LABEL_0", "LABEL_1"], {"keep_labels": "1,0"})):
            model, labels, accuracy = trained(encoder, "first" + "".join(named), learning_rate=3e-3, num_train_epochs=10, **keep)
            self.assertEqual(labels, named)
            self.assertGreater(accuracy, 0.7)
            for number, flag in enumerate((keep, other)):
                again = trained(model, f"again{number}" + "".join(named), **still, **flag)
                self.assertEqual(again[1:], (named, accuracy), flag)

    def test_group_by_length_and_workers_see_every_sample_once(self):
        log = self.dir / "grouped.jsonl"
        self.train_run(
            "grouped",
            ranks=2,
            per_device_train_batch_size=8,
            train_sampling_strategy="group_by_length",
            dataloader_num_workers=2,
            num_train_epochs=1,
            log_sample_ids=log,
        )
        rows = [row for line in tiny.json_lines(log) for row in line["ids"]]
        self.assertEqual(sorted(rows), list(range(75)))

    def test_distributed_predictions_keep_the_order(self):
        flags = {"--model-name-or-path": self.model, "--do-predict": True, "--test-file": self.validation, "--label-names": "positive,negative"}
        found = []
        for ranks in (None, 3):
            output = self.dir / f"predict{ranks}"
            done = tiny.run({**flags, "--output-dir": output}, ranks)
            self.assertEqual(done.returncode, 0, done.stderr)
            found.append((tiny.json_lines(output / "predictions.jsonl"), json.loads((output / "test_results.json").read_text())))
        for a, b in zip(found[0][0], found[1][0]):
            self.assertEqual((a["index"], a["label"]), (b["index"], b["label"]))
            for x, y in zip(a["logits"], b["logits"]):
                self.assertAlmostEqual(x, y, places=5)
        for key in ("test_accuracy", "test_precision", "test_recall", "test_f1", "test_macro_f1", "test_loss"):
            self.assertAlmostEqual(found[0][1][key], found[1][1][key], places=5)
        right = sum(line["label"] == label for line, (_, label) in zip(found[0][0], tiny.make_rows(41, seed=2)))
        self.assertAlmostEqual(found[0][1]["test_accuracy"], right / 41)

    def test_a_test_file_with_labels_that_the_model_does_not_know(self):
        for name, labels in (("glue", ("-1", "-1")), ("other", ("positive", "neutral"))):
            path = self.dir / f"{name}.csv"
            path.write_text("text,label\n" + "".join(f"a plot and a scene.,{label}\n" for label in labels))
            done = tiny.run(
                {
                    "--model-name-or-path": self.model,
                    "--label-names": "positive,negative",
                    "--do-predict": True,
                    "--test-file": path,
                    "--output-dir": self.dir / f"predicted_{name}",
                }
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("predicted, not measured", done.stdout)
            lines = tiny.json_lines(self.dir / f"predicted_{name}/predictions.jsonl")
            self.assertEqual([line["index"] for line in lines], [0, 1])

    def test_bf16_is_close(self):
        exact = self.train_run("fp32", max_steps=5)
        rounded = self.train_run("bf16", ranks=2, per_device_train_batch_size=8, max_steps=5, bf16=True)
        self.assertNotEqual(exact[0]["loss"], rounded[0]["loss"])
        self.assert_same_history(rounded, exact, tolerance=0.05)

    def test_gradient_checkpointing_changes_no_digit(self):
        same = dict(ranks=2, per_device_train_batch_size=8, max_steps=4, hidden_dropout=0.3, attention_dropout=0.2)
        kept = self.train_run("activations", **same)
        again = self.train_run("checkpointing", gradient_checkpointing=True, **same)
        self.assert_same_history(again, kept, tolerance=0)
        self.assertEqual((self.dir / "checkpointing/model.safetensors").read_bytes(), (self.dir / "activations/model.safetensors").read_bytes())

    def test_dropout_differs_between_ranks(self):
        # Two ranks that see the same sample (twice in the file) lose differently only through dropout.
        rows = tiny.make_rows(1, seed=5) * 2 + [("dull awful film", "negative")] * 2
        train = tiny.write_csv(self.dir / "twins.csv", rows)
        same = dict(train_file=train, per_device_train_batch_size=1, train_sampling_strategy="sequential", max_steps=1, learning_rate=0)
        no_dropout = self.train_run("twins0", ranks=2, **same)[0]["loss"]
        losses = [self.train_run(f"twins{ranks}", ranks=ranks, hidden_dropout=0.5, **same)[0]["loss"] for ranks in (None, 2)]
        self.assertNotAlmostEqual(losses[0], losses[1], places=5)
        self.assertNotAlmostEqual(losses[1], no_dropout, places=5)

    def test_live_bar_on_a_terminal(self):
        columns = 60
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        job = subprocess.Popen(
            tiny.command(self.arguments("live", per_device_train_batch_size=8), ranks=2),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(slave)
        shown = b""
        while True:
            try:
                shown += os.read(master, 65536)
            except OSError:  # the terminal has no writer left
                break
        os.close(master)
        self.assertEqual(job.wait(timeout=60), 0, shown)
        bars = [text for text in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())) if "%" in text]
        self.assertGreater(len(bars), 1)
        for bar in bars:
            self.assertLess(len(bar), columns)
        self.assertRegex(bars[-1], r"^100% \|\S+\|  step 15/15  loss \d")

        plain = tiny.run(self.arguments("plain", per_device_train_batch_size=8), ranks=2)
        self.assertNotIn("\r", plain.stderr)
        self.assertEqual(len(re.findall(r"^\[rank 0\]: step \d+/15 .*loss .*samples/s", plain.stderr, re.M)), 15)

    def test_each_node_shows_progress_on_request(self):
        """Two nodes of one rank each, as a launcher describes them."""
        port = free_port()
        for asked in (False, True):
            flags = self.arguments(
                f"nodes-{asked}", per_device_train_batch_size=8, ddp_backend="gloo", **({"log_on_each_node": True} if asked else {})
            )
            ranks = [
                subprocess.Popen(
                    tiny.command(flags),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={
                        **os.environ,
                        "RANK": str(rank),
                        "WORLD_SIZE": "2",
                        "LOCAL_RANK": "0",
                        "LOCAL_WORLD_SIZE": "1",
                        "GROUP_RANK": str(rank),
                        "GROUP_WORLD_SIZE": "2",
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                        "OMP_NUM_THREADS": "1",
                    },
                )
                for rank in range(2)
            ]
            shown = [rank.communicate(timeout=120)[1] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], shown)
            self.assertEqual(["step 15/15" in text for text in shown], [True, asked], shown)

    def test_training_from_scratch_makes_its_vocabulary(self):
        output = self.dir / "scratch"
        done = tiny.run(
            {
                "--model-config": "small",
                "--train_file": self.train,
                "--validation_file": self.validation,
                "--output_dir": output,
                "--per_device_train_batch_size": 8,
                "--max_steps": 30,
                "--learning_rate": 3e-4,
            },
            ranks=2,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("great\n", (output / "vocab.txt").read_text())
        self.assertGreater(json.loads((output / "eval_results.json").read_text())["eval_accuracy"], 0.7)
        # Labels came in the order of their names; the saved model keeps it.
        self.assertEqual(json.loads((output / "config.json").read_text())["id2label"], {"0": "negative", "1": "positive"})


if __name__ == "__main__":
    unittest.main()
