"""Trackers' files as their own programs read them: TensorBoard's event loader and hparams plugin, wandb's datastore and sync,
Python's json and csv."""

import csv
import json
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

RUNNER = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "tracking_runner"
LAST = 20


def records_of(path):
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal import datastore

    store = datastore.DataStore()
    store.open_for_scan(str(path))
    records = []
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        records.append(record)
    store.close()
    return records


def values_of(items):
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def rows_of(records):
    return [values_of(record.history.item) for record in records if record.WhichOneof("record_type") == "history"]


class TrackingTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_tracking_"))
        self.addCleanup(shutil.rmtree, self.dir)

    def command(self, **given):
        return [RUNNER, *(f"{name}={value}" for name, value in {"dir": self.dir, "id": "first", "to": LAST, **given}.items())]

    def track(self, expect=0, **given):
        done = subprocess.run(self.command(**given), capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (expect, ""))

    def wandb_file(self, run="first"):
        (path,) = self.dir.glob(f"wandb/offline-run-*-{run}/run-{run}.wandb")
        self.assertRegex(path.parent.name, rf"^offline-run-\d{{8}}_\d{{6}}-{run}$")
        return path

    def events(self, run="first"):
        from tensorboard.backend.event_processing import event_file_loader

        (path,) = (self.dir / "tensorboard" / run).iterdir()
        return list(event_file_loader.LegacyEventFileLoader(str(path)).Load())

    def accumulated(self, run="first"):
        from tensorboard.backend.event_processing import event_accumulator

        loaded = event_accumulator.EventAccumulator(str(self.dir / "tensorboard" / run), size_guidance={
            event_accumulator.TENSORS: 0, event_accumulator.SCALARS: 0, event_accumulator.HISTOGRAMS: 0})
        loaded.Reload()
        return loaded

    def steps_everywhere(self):
        """{kind: the steps of train/loss, in the file's order}"""
        lines = [json.loads(line) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]
        with open(self.dir / "metrics.csv", newline="") as file:
            table = list(csv.DictReader(file))
        rows = rows_of(records_of(self.wandb_file()))
        return {"jsonl": [line["step"] for line in lines if "train/loss" in line],
                "csv": [int(row["step"]) for row in table if row["train/loss"]],
                "wandb": [row["global_step"] for row in rows if "train/loss" in row],
                "tensorboard": [event.step for event in self.events() for value in event.summary.value if value.tag == "train/loss"]}

    def assert_steps(self, steps):
        self.assertEqual(self.steps_everywhere(), dict.fromkeys(("jsonl", "csv", "wandb", "tensorboard"), list(steps)))

    def test_tensorboard_reads_everything(self):
        from tensorboard.util import tensor_util

        self.track(kinds="tensorboard")
        loaded = self.accumulated()
        self.assertEqual(set(loaded.Tags()["scalars"]), {"train/loss", "train/learning_rate", "eval/accuracy", "odd", "endless"})
        loss = loaded.Scalars("train/loss")
        self.assertEqual([event.step for event in loss], list(range(1, LAST + 1)))
        for event in loss:
            self.assertAlmostEqual(event.value, 1 / event.step, delta=1e-7)
        self.assertLess(max(event.wall_time for event in loss) - min(event.wall_time for event in loss), 60)
        self.assertTrue(math.isnan(loaded.Scalars("odd")[0].value))
        self.assertEqual(loaded.Scalars("endless")[0].value, math.inf)
        (text,) = loaded.Tensors("sample")
        self.assertEqual(text.step, 2)
        self.assertEqual(tensor_util.make_ndarray(text.tensor_proto).tolist(), ['a "quoted"\ntext, naïve'.encode()])
        (result,) = loaded.Tensors("summary")
        self.assertIn(b"| best | 0.25 |", tensor_util.make_ndarray(result.tensor_proto)[0])
        (histogram,) = loaded.Histograms("weights/fc")
        value = histogram.histogram_value
        self.assertEqual((histogram.step, value.min, value.max, value.num, value.sum), (3, 0, 1, 4, 1.75))
        self.assertEqual((list(value.bucket_limit), list(value.bucket)), ([0, 0.25, 0.5, 0.75, 1], [0, 1, 1, 1, 1]))

    def test_tensorboard_shows_the_settings_as_hyperparameters(self):
        from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
        from tensorboard.context import RequestContext
        from tensorboard.plugins import base_plugin
        from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups, metadata

        self.track(kinds="tensorboard")
        self.track(kinds="tensorboard", id="second", end="fail")
        multiplexer = plugin_event_multiplexer.EventMultiplexer()
        multiplexer.AddRunsFromDirectory(str(self.dir / "tensorboard"))
        multiplexer.Reload()
        provider = data_provider.MultiplexerDataProvider(multiplexer, str(self.dir))
        context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
        request = RequestContext()
        tags = context.hparams_metadata(request, "")
        experiment = context.experiment_from_metadata(
            request, "", include_metrics=True, hparams_run_to_tag_to_content=tags,
            data_provider_hparams=context.hparams_from_data_provider(request, "", limit=None))
        self.assertEqual({info.name for info in experiment.hparam_infos}, {"learning_rate", "optim", "bf16", "max_steps"})
        self.assertIn("train/loss", {info.name.tag for info in experiment.metric_infos})
        found = {run: metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
                 for run, content in tags.items()}
        self.assertEqual(set(found), {"first", "second"})
        values = {name: getattr(value, value.WhichOneof("kind")) for name, value in found["first"].hparams.items()}
        self.assertEqual(values, {"learning_rate": 5e-5, "optim": "sgd", "bf16": True, "max_steps": 20})
        status = {run: metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG]).status
                  for run, content in tags.items()}
        self.assertEqual(status, {"first": api_pb2.STATUS_SUCCESS, "second": api_pb2.STATUS_FAILURE})

    def test_wandb_reads_every_record(self):
        self.track(kinds="wandb", rank=1, ranks=2)
        records = records_of(self.wandb_file("first-rank1"))
        self.assertEqual([record.num for record in records], list(range(1, len(records) + 1)))
        self.assertEqual({record._info.stream_id for record in records}, {"first-rank1"})
        kinds = [record.WhichOneof("record_type") for record in records]
        self.assertEqual(kinds[:4], ["header", "run", "environment", "telemetry"])
        self.assertEqual(kinds[-2:], ["telemetry", "exit"])
        run = records[1].run
        self.assertEqual((run.run_id, run.display_name, run.run_group, run.project),
                         ("first-rank1", "a run-rank1", "a run", "a project"))
        self.assertTrue(records[-2].telemetry.feature.finish and records[3].telemetry.feature.offline)
        self.assertEqual(records[-1].exit.exit_code, 0)
        config = {}
        for record in records:
            config.update(values_of(record.config.update))
        self.assertEqual(config, {"learning_rate": 5e-5, "optim": "sgd", "bf16": True, "max_steps": 20})
        summary = {}
        for record in records:
            summary.update(values_of(record.summary.update))
        self.assertEqual((summary["train/loss"], summary["eval/accuracy"], summary["global_step"], summary["best"],
                          summary["verdict"], summary["endless"]), ({"min": 1 / LAST}, 0.2, LAST, 0.25, "good", math.inf))
        rows = rows_of(records)
        self.assertEqual([row["_step"] for row in rows], sorted({row["_step"] for row in rows}))
        self.assertEqual([row["train/loss"] for row in rows if "train/loss" in row], [1 / step for step in range(1, LAST + 1)])
        (text,) = [row for row in rows if "sample" in row]
        self.assertEqual((text["sample"], text["global_step"]), ('a "quoted"\ntext, naïve', 2))
        (histogram,) = [row for row in rows if "weights/fc" in row]
        self.assertEqual(histogram["weights/fc"], {"_type": "histogram", "values": [1, 1, 1, 1], "bins": [0, 0.25, 0.5, 0.75, 1]})
        metrics = {record.metric.name or record.metric.glob_name: record.metric for record in records
                   if record.WhichOneof("record_type") == "metric"}
        self.assertEqual(metrics["eval/accuracy"].step_metric, "global_step")
        self.assertTrue(metrics["eval/accuracy"].expanded_from_glob and metrics["train/loss"].summary.min)
        self.assertEqual(set(metrics), {"global_step", "*", "train/loss", "train/learning_rate", "eval/accuracy", "sample",
                                        "weights/fc", "odd", "endless"})

    def test_a_long_wandb_file_crosses_its_blocks(self):
        self.track(kinds="wandb", to=3000)
        path = self.wandb_file()
        self.assertGreater(path.stat().st_size, 10 * 32768)
        self.assertEqual(len(rows_of(records_of(path))), 3000 + 600 + 3)

    def test_the_real_sync_accepts_the_file(self):
        """`wandb sync` up to the network: its reader takes every record, and its sender's handlers work on them."""
        self.track(kinds="wandb")
        self.track(kinds="wandb", **{"from": 11}, resume=10)
        code = """if True:
            import sys, os
            os.environ["WANDB_SILENT"] = "true"
            from wandb.sync import sync
            from wandb.sdk.internal import sender
            sent = []
            class Sender(sender.SendManager):
                def send_run(self, record, file_dir=None):
                    self._run = record.run
                    self._consolidated_config.update_from_proto(record.run.config)
                def _update_config(self): pass
                def _debounce_config(self): pass
                def _save_file(self, *_, **__): pass
                def send(self, record):
                    record.control.req_resp = False
                    sent.append(record.WhichOneof("record_type"))
                    super().send(record)
                def finish(self):
                    print("summary", dict(self._consolidated_summary))
                    config = self._consolidated_config.non_internal_config()
                    print("config", {name: config[name] for name in ("optim", "max_steps")})
            sender.SendManager = Sender
            thread = sync.SyncThread([sys.argv[1]], mark_synced=True, app_url="")
            thread.run()
            print("sent", {kind: sent.count(kind) for kind in sent})
        """
        environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(self.dir), "HOME": str(self.dir),
                       "WANDB_API_KEY": "0" * 40}
        path = self.wandb_file()
        done = subprocess.run([os.sys.executable, "-c", code, path.parent], capture_output=True, text=True, timeout=300,
                              env=environment, cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("'train/loss': {'min': 0.05}", done.stdout)
        self.assertIn("config {'optim': 'sgd', 'max_steps': 20}", done.stdout)
        self.assertIn(f"'history': {LAST + 4 + 3}", done.stdout)
        self.assertTrue(path.with_name(path.name + ".synced").exists(), done.stdout)
        # A resumed run is to be uploaded again.
        self.track(kinds="wandb", **{"from": 21}, to=22, resume=20)
        self.assertFalse(path.with_name(path.name + ".synced").exists())

    def test_wandb_sync_lists_the_records(self):
        self.track(kinds="wandb")
        environment = {**os.environ, "HOME": str(self.dir), "WANDB_API_KEY": "0" * 40, "WANDB_DIR": str(self.dir)}
        done = subprocess.run([os.sys.executable, "-m", "wandb", "sync", "--view", "--no-mark-synced", self.wandb_file().parent],
                              capture_output=True, text=True, timeout=300, env=environment, cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines.count("Record: history"), LAST + 4 + 3, done.stdout + done.stderr)
        self.assertEqual((lines.count("Record: run"), lines.count("Record: exit"), lines[-1]), (1, 1, "done."))

    def test_json_lines_and_csv(self):
        self.track(kinds="jsonl,csv")
        lines = [json.loads(line, parse_constant=self.fail) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["train/loss"] for line in lines if "train/loss" in line], [1 / step for step in range(1, LAST + 1)])
        (odd,) = [line for line in lines if "odd" in line]
        self.assertEqual((odd["odd"], odd["endless"]), (None, None))
        self.assertEqual([line["sample"] for line in lines if "sample" in line], ['a "quoted"\ntext, naïve'])
        self.assertEqual([line["weights/fc"]["counts"] for line in lines if "weights/fc" in line], [[1, 1, 1, 1]])
        run = json.loads((self.dir / "metrics.run.json").read_text())
        self.assertEqual((run["id"], run["name"], run["exit_code"]), ("first", "a run", 0))
        self.assertEqual(run["config"], {"learning_rate": 5e-5, "optim": "sgd", "bf16": True, "max_steps": 20})
        self.assertEqual(run["summary"], {"best": 0.25, "verdict": "good"})
        self.assertLessEqual(run["started"], run["ended"])
        with open(self.dir / "metrics.csv", newline="") as file:
            rows = list(csv.reader(file))
        self.assertEqual(rows[0], ["step", "time", "train/learning_rate", "train/loss", "endless", "odd", "eval/accuracy"])
        self.assertEqual({len(row) for row in rows}, {7})
        self.assertEqual([float(row[3]) for row in rows[1:] if row[3]], [1 / step for step in range(1, LAST + 1)])
        self.assertIn(["4", "inf", "nan"], [[row[0], row[4], row[5]] for row in rows])

    def test_a_resumed_run_goes_on_in_one_file(self):
        self.track(end="kill", expect=-9, to=12)
        self.assert_steps(range(1, 13))
        first = {path: path.read_bytes() for path in self.dir.rglob("*") if path.is_file()}
        self.track(**{"from": 13}, resume=12)
        self.assert_steps(range(1, LAST + 1))
        for path, content in first.items():
            if path.name != "metrics.run.json" and "tfevents" not in path.name:
                self.assertTrue(path.read_bytes().startswith(content), path)
        rows = rows_of(records_of(self.wandb_file()))
        self.assertEqual([row["_step"] for row in rows], sorted({row["_step"] for row in rows}))
        self.assertEqual([row["_runtime"] for row in rows], sorted(row["_runtime"] for row in rows))

    def test_what_lies_behind_the_resumed_step_is_cut_off(self):
        self.track(end="kill", expect=-9, to=15)
        for resume in (10, 3, 0):
            self.track(**{"from": resume + 1}, resume=resume, end="kill", expect=-9, to=resume + 9)
            self.assert_steps(range(1, resume + 10))
        self.track(**{"from": 9}, resume=8)
        self.assert_steps(range(1, LAST + 1))
        # A run that has ended may go on too, from any step.
        self.track(**{"from": 16}, resume=15)
        self.assert_steps(range(1, LAST + 1))
        records = records_of(self.wandb_file())
        kinds = [record.WhichOneof("record_type") for record in records]
        self.assertEqual((kinds.count("run"), kinds.count("exit"), kinds.count("header")), (1, 1, 1))
        self.assertEqual(sum("best" in values_of(record.summary.update) for record in records), 1)
        self.assertEqual([record.num for record in records], sorted({record.num for record in records}))
        loaded = self.accumulated()
        self.assertEqual([event.step for event in loaded.Scalars("eval/accuracy")], [5, 10, 15, 20])
        tags = [value.tag for event in self.events() for value in event.summary.value]
        self.assertEqual((tags.count("_hparams_/session_start_info"), tags.count("_hparams_/session_end_info")), (1, 1))

    def test_of_the_resumed_steps_records_only_those_stay_that_the_checkpoint_has(self):
        self.track(to=15, end="kill", expect=-9)
        # Step 10 has two records, of the loss and of the accuracy.
        for records, evaluated in ((2, [5, 10]), (1, [5]), (0, [5])):
            self.track(**{"from": 11}, to=10, resume=10, records=records, end="kill", expect=-9)
            lines = [json.loads(line) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]
            with open(self.dir / "metrics.csv", newline="") as file:
                table = list(csv.DictReader(file))
            rows = rows_of(records_of(self.wandb_file()))
            self.assertEqual([line["step"] for line in lines if "eval/accuracy" in line], evaluated)
            self.assertEqual([int(row["step"]) for row in table if row["eval/accuracy"]], evaluated)
            self.assertEqual([row["global_step"] for row in rows if "eval/accuracy" in row], evaluated)
            self.assertEqual([event.step for event in self.accumulated().Scalars("eval/accuracy")], evaluated)
            self.assert_steps(range(1, 11 if records > 0 else 10))

    def test_a_run_that_begins_anew_replaces_its_first_part(self):
        self.track(to=15)
        self.track(to=4)
        self.assert_steps(range(1, 5))

    def test_a_damaged_end_is_cut_off(self):
        self.track(to=15)
        cut = 0
        for path in self.dir.rglob("*"):
            if path.suffix in (".jsonl", ".csv", ".wandb") or "tfevents" in path.name:
                os.truncate(path, path.stat().st_size - 3)
                cut += 1
        self.assertEqual(cut, 4)
        self.track(**{"from": 11}, resume=10)
        self.assert_steps(range(1, LAST + 1))

    def test_the_files_can_be_read_while_the_run_goes(self):
        with subprocess.Popen(self.command(end="wait"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "logged\n")
            self.assert_steps(range(1, LAST + 1))
            process.communicate("\n", timeout=60)
        self.assertEqual(process.returncode, 0)

    def test_each_rank_has_files_of_its_own(self):
        for rank in (0, 1):
            self.track(rank=rank, ranks=2, to=3)
        names = {str(path.relative_to(self.dir)) for path in self.dir.rglob("*") if path.is_file()}
        self.assertLessEqual({"metrics.jsonl", "metrics.csv", "metrics-rank1.jsonl", "metrics-rank1.csv"}, names)
        for rank in (0, 1):
            self.assertEqual([event.step for event in self.accumulated(f"first-rank{rank}").Scalars("train/loss")], [1, 2, 3])
            run = records_of(self.wandb_file(f"first-rank{rank}"))[1].run
            self.assertEqual((run.display_name, run.run_group), (f"a run-rank{rank}", "a run"))


if __name__ == "__main__":
    unittest.main()
