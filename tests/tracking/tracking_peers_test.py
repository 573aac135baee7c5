"""Trackers' files as their own programs read them: TensorBoard's event loader and hparams plugin, wandb's datastore, Python's json
and csv. The runs of Weights & Biases are made by its client."""

import csv
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import unittest

import wandb_server
from extent import first_of

sys.path.insert(0, str(pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "lockstep/tracking"))
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
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WANDB_")},
            "WANDB_MODE": "offline",
            "PYTHON_EXEC": sys.executable,
            "HOME": str(self.dir),
        }

    def command(self, **given):
        return [RUNNER, *(f"{name}={value}" for name, value in {"dir": self.dir, "id": "first", "to": LAST, **given}.items())]

    def run_tracked(self, environment=(), **given):
        return subprocess.run(
            self.command(**given),
            capture_output=True,
            text=True,
            timeout=100,
            env={name: value for name, value in {**self.environment, **dict(environment)}.items() if value is not None},
        )

    def track(self, expect=0, environment=(), **given):
        done = self.run_tracked(environment, **given)
        self.assertEqual((done.returncode, done.stderr), (expect, ""))
        if expect < 0:
            self.wait_for_the_follower()

    def followers(self):
        """The processes that follow files below this test's folder, and those that they have started."""
        found, parents = [], {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if str(self.dir / "wandb/wandb_follower.py").encode() in words:
                found.append(int(entry.name))
        return found + [process for process, parent in parents.items() if parent in found]

    def wait_until(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def wait_for_the_follower(self):
        self.wait_until(lambda: not self.followers(), "a follower is left")

    def wandb_file(self, run="first", folder=None):
        (path,) = (folder or self.dir).glob(f"wandb/offline-run-*-{run}/run-{run}.wandb")
        self.assertRegex(path.parent.name, rf"^offline-run-\d{{8}}_\d{{6}}-{run}$")
        return path

    def run_record(self, run="first", folder=None):
        (found,) = [record.run for record in records_of(self.wandb_file(run, folder)) if record.WhichOneof("record_type") == "run"]
        return found

    def exit_codes(self, run="first"):
        return [record.exit.exit_code for record in records_of(self.wandb_file(run)) if record.WhichOneof("record_type") == "exit"]

    def events(self, run="first"):
        from tensorboard.backend.event_processing import event_file_loader

        (path,) = (self.dir / "tensorboard" / run).iterdir()
        return list(event_file_loader.LegacyEventFileLoader(str(path)).Load())

    def accumulated(self, run="first"):
        from tensorboard.backend.event_processing import event_accumulator

        loaded = event_accumulator.EventAccumulator(
            str(self.dir / "tensorboard" / run),
            size_guidance={event_accumulator.TENSORS: 0, event_accumulator.SCALARS: 0, event_accumulator.HISTOGRAMS: 0},
        )
        loaded.Reload()
        return loaded

    def steps_of(self, kind):
        """The steps of train/loss, in the file's order."""
        if kind == "jsonl":
            lines = [json.loads(line) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]
            return [line["step"] for line in lines if "train/loss" in line]
        if kind == "csv":
            with open(self.dir / "metrics.csv", newline="") as file:
                return [int(row["step"]) for row in csv.DictReader(file) if row["train/loss"]]
        if kind == "wandb":
            return [row["global_step"] for row in rows_of(records_of(self.wandb_file())) if "train/loss" in row]
        return [event.step for event in self.events() for value in event.summary.value if value.tag == "train/loss"]

    def assert_steps(self, steps, kinds=("jsonl", "csv", "wandb", "tensorboard")):
        self.assertEqual({kind: self.steps_of(kind) for kind in kinds}, dict.fromkeys(kinds, list(steps)))

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
        from tensorboard.plugins.hparams import api_pb2, backend_context, metadata

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
            request,
            "",
            include_metrics=True,
            hparams_run_to_tag_to_content=tags,
            data_provider_hparams=context.hparams_from_data_provider(request, "", limit=None),
        )
        self.assertEqual({info.name for info in experiment.hparam_infos}, {"learning_rate", "optim", "bf16", "max_steps"})
        self.assertIn("train/loss", {info.name.tag for info in experiment.metric_infos})
        found = {run: metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG]) for run, content in tags.items()}
        self.assertEqual(set(found), {"first", "second"})
        values = {name: getattr(value, value.WhichOneof("kind")) for name, value in found["first"].hparams.items()}
        self.assertEqual(values, {"learning_rate": 5e-5, "optim": "sgd", "bf16": True, "max_steps": 20})
        status = {run: metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG]).status for run, content in tags.items()}
        self.assertEqual(status, {"first": api_pb2.STATUS_SUCCESS, "second": api_pb2.STATUS_FAILURE})

    def test_wandb_has_every_record(self):
        self.track(kinds="wandb", rank=1, ranks=2)
        records = records_of(self.wandb_file("first-rank1"))
        run = self.run_record("first-rank1")
        self.assertEqual((run.run_id, run.display_name, run.run_group, run.project), ("first-rank1", "a run-rank1", "a run", "a project"))
        self.assertEqual(self.exit_codes("first-rank1"), [0])
        config = {}
        for record in records:
            config.update(values_of(record.config.update))
        self.assertLessEqual({"learning_rate": 5e-5, "optim": "sgd", "bf16": True, "max_steps": 20}.items(), config.items())
        summary = {}
        for record in records:
            summary.update(values_of(record.summary.update))
        self.assertEqual(
            (summary["train/loss"], summary["eval/accuracy"], summary["global_step"], summary["best"], summary["verdict"], summary["endless"]),
            ({"min": 1 / LAST}, 0.2, LAST, 0.25, "good", math.inf),
        )
        rows = rows_of(records)
        self.assertEqual([row["_step"] for row in rows], sorted({row["_step"] for row in rows}))
        self.assertEqual([row["train/loss"] for row in rows if "train/loss" in row], [1 / step for step in range(1, LAST + 1)])
        self.assertTrue(all(abs(row["_timestamp"] - time.time()) < 600 for row in rows))
        (odd,) = [row for row in rows if "odd" in row]
        self.assertTrue(math.isnan(odd["odd"]) and odd["endless"] == math.inf)
        (text,) = [row for row in rows if "sample" in row]
        self.assertEqual((text["sample"], text["global_step"]), ('a "quoted"\ntext, naïve', 2))
        (histogram,) = [row for row in rows if "weights/fc/_type" in row]
        self.assertEqual((histogram["weights/fc/values"], histogram["weights/fc/bins"]), ([1, 1, 1, 1], [0, 0.25, 0.5, 0.75, 1]))
        metrics = {record.metric.name or record.metric.glob_name: record.metric for record in records if record.WhichOneof("record_type") == "metric"}
        self.assertEqual(metrics["eval/accuracy"].step_metric, "global_step")
        self.assertTrue(metrics["train/loss"].summary.min)

    def test_many_rows_arrive_in_order(self):
        self.track(kinds="wandb", to=3000)
        rows = rows_of(records_of(self.wandb_file()))
        self.assertEqual([row["global_step"] for row in rows if "train/loss" in row], list(range(1, 3001)))
        self.assertEqual(len(rows), 3000 + 600 + 3)

    def test_the_exit_code_is_the_runs(self):
        self.track(kinds="wandb", end="fail", to=3)
        self.assertEqual(self.exit_codes(), [1])

    def test_variables_of_the_client_count(self):
        elsewhere = self.dir / "elsewhere"
        elsewhere.mkdir()
        self.track(
            kinds="wandb",
            to=3,
            environment={
                "WANDB_PROJECT": "other",
                "WANDB_NAME": "named",
                "WANDB_RUN_GROUP": "grouped",
                "WANDB_TAGS": "one,two",
                "WANDB_DIR": str(elsewhere),
            },
        )
        run = self.run_record(folder=elsewhere)
        self.assertEqual(
            (run.run_id, run.project, run.display_name, run.run_group, list(run.tags)), ("first", "other", "named", "grouped", ["one", "two"])
        )

    def test_without_a_login_the_run_is_written_offline(self):
        done = self.run_tracked({"WANDB_MODE": None}, kinds="wandb")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"^\[lockstep\] warning: nobody is logged in to Weights & Biases, .*\n$")
        self.assertIn(f"wandb sync {self.wandb_file().parent}`", done.stderr)
        self.assertEqual(len(rows_of(records_of(self.wandb_file()))), LAST + 4 + 3)

    def test_what_it_says_to_type_is_quoted(self):
        self.dir = self.dir / "my runs' folder"
        self.dir.mkdir()
        done = self.run_tracked({"WANDB_MODE": None}, kinds="wandb")
        self.assertEqual(done.returncode, 0, done.stderr)
        words = shlex.split(re.search("`(wandb sync .*)` uploads it", done.stderr)[1])
        self.assertEqual(words, ["wandb", "sync", str(self.wandb_file().parent)])

    def test_python_may_be_a_wrapper(self):
        wrapper = self.dir / "my python"  # it stays, as the parent of Python
        wrapper.write_text(f'#!/bin/sh\n{shlex.quote(sys.executable)} "$@"\nexit $?\n')
        wrapper.chmod(0o700)
        self.track(kinds="wandb", environment={"PYTHON_EXEC": str(wrapper)})
        self.assertEqual(len(rows_of(records_of(self.wandb_file()))), LAST + 4 + 3)
        self.assertEqual(self.exit_codes(), [0])
        self.wait_for_the_follower()
        self.environment["PYTHON_EXEC"] = str(wrapper)
        process, _ = self.start_and_log(id="killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        process.communicate()
        self.wait_for_the_follower()
        self.assertEqual(self.exit_codes("killed"), [1])

    def test_without_the_package_the_run_does_not_start(self):
        bare = self.dir / "bare"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o700)
        done = self.run_tracked({"PYTHON_EXEC": str(bare)}, kinds="wandb")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(
            done.stderr,
            r"error: the tracker wandb needs Python 3 with the package wandb, and .* cannot import wandb \(No module "
            r"named 'wandb'\); install it there \(python3 -m pip install wandb\)",
        )
        self.wait_for_the_follower()
        # A folder of that name, such as the client makes itself, is no package.
        (self.dir / "wandb").mkdir(exist_ok=True)
        done = self.run_tracked({"PYTHON_EXEC": str(bare), "PYTHONPATH": str(self.dir)}, kinds="wandb")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("cannot import wandb", done.stderr)

    def start_and_log(self, **given):
        process = subprocess.Popen(
            self.command(kinds="wandb", end="wait", **given),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            start_new_session=True,
        )
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "logged\n")
        self.wait_until(lambda: len(self.followers()) > 1, "the client has not started its service")
        return process, self.followers()

    def test_a_training_that_is_killed_leaves_no_process(self):
        for stop in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
            process, followers = self.start_and_log()
            os.killpg(process.pid, stop)
            self.assertEqual(process.wait(60), -stop)
            process.communicate()
            self.wait_for_the_follower()
            for follower in followers:
                self.assertFalse(pathlib.Path(f"/proc/{follower}/exe").exists())
            self.assertEqual(self.exit_codes(), [1])
            self.assertEqual(len(rows_of(records_of(self.wandb_file()))), LAST + 4 + 3)

    def test_what_a_dead_or_blocked_client_has_not_sent_can_be_sent_later(self):
        for stop, said in ((signal.SIGKILL, "its client was ended by signal 9"), (signal.SIGSTOP, "its client has not sent all within 2 s")):
            process, followers = self.start_and_log(patience=2)
            os.kill(followers[0], stop)
            _, errors = process.communicate("\n", timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            lines = [line for line in errors.splitlines() if "Weights & Biases" in line]
            self.assertEqual(len(lines), 1, errors)
            self.assertIn(said, lines[0])
            self.wait_for_the_follower()
            command = lines[0].split("to send them later: ")[1].split()
            self.assertEqual(command[1:], [str(self.dir / "wandb/wandb_follower.py"), str(self.dir / "wandb/first.jsonl")])
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=self.environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(rows_of(records_of(self.wandb_file()))), LAST + 4 + 3)
            self.assertEqual(self.exit_codes(), [0])

    def test_a_server_that_does_not_answer_costs_a_warning(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for port in (9, silent.getsockname()[1]):  # nobody listens at the first
                done = self.run_tracked(
                    {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": f"http://127.0.0.1:{port}"}, kinds="wandb", patience=2
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("warning: Weights & Biases gets no more of this run: ", done.stderr)
                self.assertIn("to send them later: ", done.stderr)
                self.assertEqual(len((self.dir / "wandb/first.jsonl").read_text().splitlines()), 1 + 2 + LAST + 4 + 3 + 2)
                self.wait_for_the_follower()

    def test_an_online_run_goes_on_where_the_server_has_it(self):
        server = wandb_server.Server()
        self.addCleanup(server.close)
        self.track(kinds="wandb", to=8, end="kill", expect=-9, environment=server.environment)
        self.wait_until(lambda: server.exit_codes == [1], "the killed run is not finished")
        # Steps 6 to 8 are there, step 5 has another record.
        self.track(kinds="wandb", **{"from": 6}, to=12, resume=5, environment=server.environment)
        self.assertEqual(server.exit_codes, [1, 0])
        self.assertEqual([row["_step"] for row in server.rows], list(range(1, 12 + 2 + 3 + 1)))
        self.assertEqual(
            [(row["global_step"], row["train/loss"]) for row in server.rows if "train/loss" in row], [(step, 1 / step) for step in range(1, 13)]
        )
        # A run that begins anew replaces it.
        self.track(kinds="wandb", to=2, environment=server.environment)
        self.assertEqual([row["global_step"] for row in server.rows][:3], [1, 2, 2])
        # By hand, to a server that has nothing.
        other = wandb_server.Server()
        self.addCleanup(other.close)
        done = subprocess.run(
            [sys.executable, self.dir / "wandb/wandb_follower.py", self.dir / "wandb/first.jsonl"],
            capture_output=True,
            text=True,
            timeout=100,
            env={**self.environment, **other.environment},
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(([row["global_step"] for row in other.rows], other.exit_codes), ([1, 2, 2], [0]))

    def test_an_online_run_gets_no_row_twice(self):
        import wandb_follower

        rows = []
        run = types.SimpleNamespace(starting_step=12, log=lambda row, step, commit: rows.append((step, row["global_step"], row["a"])))
        sender = wandb_follower.Sender(None, run, None)
        for step, value in ((10, 1), (10, 2), (10, 3), (11, 4), (20, 5)):
            sender.send({"step": step, "time": 1.5, "a": value})
        self.assertEqual(rows, [(12, 10, 3), (13, 11, 4), (20, 20, 5)])

    def test_long_histograms_are_put_together(self):
        import wandb
        import wandb_follower

        for bins in (512, 513, 1000, 5000):
            made = wandb_follower.histogram(wandb, [float(edge) for edge in range(bins + 1)], [1] * bins)
            self.assertLessEqual(len(made.histogram), 512)
            self.assertEqual((sum(made.histogram), made.bins[0], made.bins[-1]), (bins, 0, bins))
            self.assertEqual([right - left for left, right in zip(made.bins, made.bins[1:])], made.histogram)

    def test_other_runs_in_the_folder_are_left_alone(self):
        for run in ("a-b", "b", "b"):  # "b" is also the end of "a-b"
            self.track(kinds="wandb", id=run, to=2)
        self.assertEqual(len(list(self.dir.glob("wandb/offline-run-*"))), 2)
        self.assertEqual([self.run_record(run).run_id for run in ("a-b", "b")], ["a-b", "b"])

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
            if path.suffix in (".csv", ".jsonl") and path.parent == self.dir:
                self.assertTrue(path.read_bytes().startswith(content), path)
        rows = rows_of(records_of(self.wandb_file()))
        for name in ("_step", "_timestamp"):
            self.assertEqual([row[name] for row in rows], sorted({row[name] for row in rows}))

    def test_what_lies_behind_the_resumed_step_is_cut_off(self):
        self.track(end="kill", expect=-9, to=15)
        for resume in first_of((10, 0, 3), 2):
            self.track(**{"from": resume + 1}, resume=resume, end="kill", expect=-9, to=resume + 9)
            self.assert_steps(range(1, resume + 10))
        self.track(**{"from": 9}, resume=8)
        self.assert_steps(range(1, LAST + 1))
        # A run that has ended may go on too, from any step.
        self.track(**{"from": 16}, resume=15)
        self.assert_steps(range(1, LAST + 1))
        records = records_of(self.wandb_file())
        self.assertEqual((self.run_record().run_id, self.exit_codes()), ("first", [0]))
        self.assertEqual(sum("best" in values_of(record.summary.update) for record in records), 1)
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
            if path.suffix in (".jsonl", ".csv") or "tfevents" in path.name:
                os.truncate(path, path.stat().st_size - 3)
                cut += 1
        self.assertEqual(cut, 4)
        self.track(**{"from": 11}, resume=10)
        self.assert_steps(range(1, LAST + 1))

    def test_the_files_can_be_read_while_the_run_goes(self):
        with subprocess.Popen(self.command(end="wait"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment) as process:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "logged\n")
            lines = [json.loads(line) for line in (self.dir / "wandb/first.jsonl").read_text().splitlines()]
            self.assertEqual([line["step"] for line in lines if "train/loss" in line], list(range(1, LAST + 1)))
            # wandb's client writes its file by blocks.
            self.assert_steps(range(1, LAST + 1), kinds=("jsonl", "csv", "tensorboard"))
            process.communicate("\n", timeout=60)
        self.assertEqual(process.returncode, 0)

    def test_each_rank_has_files_of_its_own(self):
        for rank in (0, 1):
            self.track(rank=rank, ranks=2, to=3)
        names = {str(path.relative_to(self.dir)) for path in self.dir.rglob("*") if path.is_file()}
        self.assertLessEqual({"metrics.jsonl", "metrics.csv", "metrics-rank1.jsonl", "metrics-rank1.csv"}, names)
        for rank in (0, 1):
            self.assertEqual([event.step for event in self.accumulated(f"first-rank{rank}").Scalars("train/loss")], [1, 2, 3])
            run = self.run_record(f"first-rank{rank}")
            self.assertEqual((run.display_name, run.run_group), (f"a run-rank{rank}", "a run"))


if __name__ == "__main__":
    unittest.main()
