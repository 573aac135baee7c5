"""A training tells the trackers that --report-to names what it logs, as rank 0 or as all ranks."""

import csv
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tiny


class TrackingTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_tracked_training_"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.out = self.dir / "out"
        tiny.write_csv(self.dir / "train.csv", tiny.make_rows(40, seed=1))
        tiny.write_csv(self.dir / "validation.csv", tiny.make_rows(20, seed=2))

    def run_training(self, flags, ranks=None, **environment):
        return tiny.run(
            {
                "--model-name-or-path": tiny.prepared_model(),
                "--train-file": self.dir / "train.csv",
                "--validation-file": self.dir / "validation.csv",
                "--output-dir": self.out,
                "--num-train-epochs": 1,
                "--eval-strategy": "epoch",
                "--logging-steps": 1,
                **flags,
            },
            ranks,
            {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "PYTHON_EXEC": sys.executable, **environment},
        )

    def train(self, flags, ranks=None, **environment):
        done = self.run_training(flags, ranks, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)

    def files(self):
        """All files of trackers, run ids replaced."""
        kinds = (".csv", ".wandb")
        return sorted(
            str(path.relative_to(self.out))
            for path in self.out.rglob("*")
            if path.suffix in kinds or path.name.startswith(("metrics", "events", "run_id"))
        )

    def run_file(self, name="metrics"):
        return json.loads((self.out / f"{name}.run.json").read_text())

    def expected(self):
        """[(step, {name: value})] by the log."""
        entries = []
        for entry in tiny.json_lines(self.out / "log.jsonl"):
            step, epoch = entry.pop("step"), entry.pop("epoch")
            names = {name: "eval/" + name[5:] if name.startswith("eval_") else "train/" + name for name in entry}
            entries.append((step, {**{names[name]: value for name, value in entry.items()}, "train/epoch": epoch}))
        return entries

    def lines(self):
        return [(line.pop("step"), line) for line in tiny.json_lines(self.out / "metrics.jsonl") if line.pop("time") > 0]

    def rows(self):
        with open(self.out / "metrics.csv", newline="") as file:
            return [
                (int(row["step"]), {name: float(value) for name, value in row.items() if value and name not in ("step", "time")})
                for row in csv.DictReader(file)
            ]

    def test_a_run_that_is_overwritten_leaves_no_metrics(self):
        self.train({"--report-to": "jsonl,csv", "--report-ranks": "all"}, ranks=2)
        self.assertEqual(len(self.files()), 7, self.files())
        self.train({"--overwrite-output-dir": True, "--learning-rate": 0.25})
        self.assertEqual([name for name in self.files() if name.startswith("metrics")], [])
        done = subprocess.run([str(tiny.BIN / "lockstep"), "report", self.out], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"source":"log.jsonl"', (self.out / "report.html").read_text())

    def test_a_resumed_training_has_every_entry_once(self):
        flags = {"--report-to": "all", "--save-steps": 2, "--eval-steps": 2, "--eval-strategy": "steps"}
        self.train(flags)
        run = self.run_file()["id"]
        expected = self.expected()
        self.assertEqual((self.lines(), self.rows()), (expected, expected))
        saved = sorted(int(path.name.split("-")[1]) for path in self.out.glob("checkpoint-*"))
        self.assertGreaterEqual(len(saved), 2)
        for step in (saved[-1], saved[0]):
            self.train({**flags, "--resume-from-checkpoint": self.out / f"checkpoint-{step}"})
            expected = self.expected()
            self.assertEqual((self.lines(), self.rows()), (expected, expected), step)
            self.assertEqual(self.run_file()["id"], run)
            self.assertEqual([step for step, values in expected if "train/loss" in values], [1, 2, 3, 4, 5])
        self.assertEqual(len(list(self.out.glob("tensorboard/*/events*")) + list(self.out.glob("wandb/offline-run-*/*.wandb"))), 2)

    def test_without_wandb_no_rank_trains(self):
        for ranks in (None, 2):
            done = self.run_training({"--report-to": "wandb,jsonl"}, ranks, PYTHON_EXEC="/bin/false")
            self.assertEqual(done.returncode, 2, done.stderr)
            errors = [
                line for line in done.stderr.splitlines() if re.search("bert_classify: error: .*the tracker wandb needs Python 3 with the", line)
            ]
            self.assertEqual(len(errors), 1, done.stderr)
            self.assertFalse((self.out / "model.safetensors").exists())
            shutil.rmtree(self.out)

    def test_all_trackers_are_those_that_are_installed(self):
        self.train({"--report-to": "all"}, PYTHON_EXEC="/bin/false")
        expected = self.expected()
        self.assertEqual((self.lines(), self.rows()), (expected, expected))
        self.assertEqual(list(self.out.glob("wandb/offline-run-*")), [])

    def test_every_entry_of_the_log_arrives_everywhere(self):
        from tensorboard.backend.event_processing import event_accumulator
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal import datastore

        self.train({"--report-to": "all", "--run-name": "a name", "--run-id": "my-run", "--project": "mine"})
        expected = self.expected()
        # Steps of 8 samples, two evaluations (after the epoch and at the end, unless the first will do) and the summary.
        self.assertGreaterEqual(len(expected), 7)

        self.assertEqual(self.lines(), expected)
        self.assertEqual(self.rows(), expected)
        board = event_accumulator.EventAccumulator(str(self.out / "tensorboard/my-run"))
        board.Reload()
        losses = [(step, values["train/loss"]) for step, values in expected if "train/loss" in values]
        self.assertEqual(len(losses), 5)
        for event, (step, loss) in zip(board.Scalars("train/loss"), losses, strict=True):
            self.assertEqual(event.step, step)
            self.assertAlmostEqual(event.value, loss, delta=1e-6)

        (path,) = self.out.glob("wandb/offline-run-*-my-run/run-my-run.wandb")
        store = datastore.DataStore()
        store.open_for_scan(str(path))
        history = []
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                self.assertEqual((record.run.display_name, record.run.project, record.run.run_group), ("a name", "mine", ""))
            if record.WhichOneof("record_type") == "history":
                row = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                history.append((row["global_step"], {name: value for name, value in row.items() if "/" in name}))
        store.close()
        self.assertEqual(history, expected)

        run = self.run_file()
        self.assertEqual((run["id"], run["name"], run["exit_code"], run["world_size"]), ("my-run", "a name", 0, 1))
        arguments = json.loads((self.out / "training_args.json").read_text())
        for name in ("learning_rate", "logging_steps", "optim", "bf16", "eval_strategy"):
            self.assertEqual(run["config"][name], arguments[name])
        self.assertGreater(run["config"]["parameters"], 1000)
        self.assertIn("train_loss", run["summary"])

    def test_all_ranks_track_on_request(self):
        self.train({"--report-to": "jsonl,tensorboard", "--report-ranks": "all", "--run-id": "both"}, ranks=2)
        for rank, name in enumerate(("metrics", "metrics-rank1")):
            run = self.run_file(name)
            self.assertEqual(
                (run["id"], run["name"], run["group"], run["rank"], run["world_size"]), (f"both-rank{rank}", f"out-rank{rank}", "out", rank, 2)
            )
            lines = tiny.json_lines(self.out / f"{name}.jsonl")
            self.assertTrue(all(line["rank/peak_memory_mb"] > 1 and line["rank/cpu_load"] >= 0 for line in lines))
            self.assertEqual(len(list(self.out.glob(f"tensorboard/both-rank{rank}/events*"))), 1)
        self.assertEqual(len(self.files()), 7, self.files())

    def test_rank_0_tracks_by_default_and_nobody_without_the_flag(self):
        self.train({"--report-to": "jsonl"}, ranks=2)
        run = self.run_file()
        self.assertEqual((run["name"], run["rank"], run["world_size"]), ("out", 0, 2))
        self.assertEqual(run["id"], (self.out / "run_id").read_text().strip())
        self.assertEqual(self.files(), ["metrics.jsonl", "metrics.run.json", "run_id"])
        shutil.rmtree(self.out)
        self.train({})
        self.assertEqual(self.files(), [])

    def test_performance_is_logged_if_asked(self):
        self.train({"--report-to": "jsonl", "--report-performance": True, "--report-ranks": "all", "--gradient-accumulation-steps": 2}, ranks=2)
        parts = [f"train/time_{part}_ms" for part in ("data", "forward", "backward", "optimizer", "communication", "other")]
        by_rank = []
        for name in ("metrics", "metrics-rank1"):
            lines = [line for line in tiny.json_lines(self.out / f"{name}.jsonl") if "train/loss" in line]
            self.assertEqual(len(lines), 2)  # 40 samples, 2 ranks, 2 micro-batches of 8
            for line in lines:
                self.assertTrue(all(line[part] >= 0 for part in parts), line)
                for part in ("forward", "backward", "optimizer"):
                    self.assertGreater(line[f"train/time_{part}_ms"], 0)
                # The parts are the whole.
                self.assertAlmostEqual(
                    sum(line[part] for part in parts), 1000 / line["train/steps_per_second"], delta=1e-6 * 1000 / line["train/steps_per_second"]
                )
                # Each text has 6 tokens or more, [CLS] and [SEP] among them.
                self.assertGreater(line["train/tokens_per_second"], 5 * line["train/samples_per_second"])
                self.assertGreater(line["train/memory_mb_rank1"], 1)
                self.assertGreaterEqual(line["train/cpu_load_rank0"], 0)
            by_rank.append(lines)
        for first, second in zip(*by_rank):  # what is of all ranks is equal
            for name in ("cpu_load_rank0", "memory_mb_rank0", "memory_mb_rank1"):
                self.assertEqual(first["train/" + name], second["train/" + name])
        self.assertNotEqual([line[parts[1]] for line in by_rank[0]], [line[parts[1]] for line in by_rank[1]])
        done = subprocess.run([str(tiny.BIN / "lockstep"), "report", self.out], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        shutil.rmtree(self.out)
        self.train({"--report-to": "jsonl", "--report-performance": True})
        lines = [line for line in tiny.json_lines(self.out / "metrics.jsonl") if "train/loss" in line]
        self.assertTrue(all(line["train/time_forward_ms"] > 0 and "train/cpu_load_rank0" in line for line in lines))

    def test_a_restarted_job_keeps_its_run(self):
        self.train({"--report-to": "jsonl"})
        first = self.run_file()["id"]
        self.train({"--report-to": "jsonl"}, TORCHELASTIC_RESTART_COUNT="1")
        self.assertEqual(self.run_file()["id"], first)
        steps = [line["step"] for line in tiny.json_lines(self.out / "metrics.jsonl") if "train/loss" in line]
        self.assertEqual(steps, [1, 2, 3, 4, 5])
        self.train({"--report-to": "jsonl", "--overwrite-output-dir": True})
        self.assertNotEqual(self.run_file()["id"], first)


if __name__ == "__main__":
    unittest.main()
