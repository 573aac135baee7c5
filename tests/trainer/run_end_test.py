"""How a run has ended stands in its files and in `lockstep report`: finished, stopped, failed, killed, nothing left to train."""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import tiny
from extent import first_of

TIMEOUT = 120
TRACKERS = "jsonl,tensorboard,csv"
ENDLESS = {"--max-steps": 1_000_000, "--save-steps": 1_000_000}


class RunEndTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_run_end_"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.out = self.dir / "out"
        tiny.write_csv(self.dir / "train.csv", tiny.make_rows(40, seed=1))
        tiny.write_csv(self.dir / "validation.csv", tiny.make_rows(20, seed=2))

    def flags(self, **changes):
        flags = {
            "model_name_or_path": tiny.prepared_model(),
            "train_file": self.dir / "train.csv",
            "output_dir": self.out,
            "validation_file": self.dir / "validation.csv",
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
            "disable_tqdm": True,
        }
        flags = {"--" + name.replace("_", "-"): value for name, value in flags.items()}
        return {**flags, **{name if name.startswith("--") else "--" + name.replace("_", "-"): value for name, value in changes.items()}}

    def train(self, code=0, ranks=2, **changes):
        done = tiny.run(self.flags(**changes), ranks, timeout=TIMEOUT)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def stop(self, number, code, ranks=2, **changes):
        """The step after which a training without an end stops, when it is signaled."""
        job = subprocess.Popen(tiny.command(self.flags(**ENDLESS, **changes), ranks), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: job.poll() is None and job.kill())
        deadline = time.monotonic() + TIMEOUT
        while not ((self.out / "log.jsonl").exists() and len((self.out / "log.jsonl").read_text().splitlines()) >= 3):
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        job.send_signal(number)
        out, _ = job.communicate(timeout=TIMEOUT)
        self.assertEqual(job.returncode, code, out)
        found = re.search(rf"stopped by {signal.Signals(number).name} after step (\d+);", out)
        return int(found.group(1)) if found else None

    def report(self, *directories):
        done = subprocess.run(
            [str(tiny.BIN / "lockstep"), "report", *map(str, directories or [self.out]), "--output", str(self.dir / "page.html")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r": \d+ values, \d+ kB; open it in a browser: file:///\S+/page\.html\n$")
        text = (self.dir / "page.html").read_text()
        return json.loads(re.search(r'id="data">\n(.*?)\n</script>', text, re.DOTALL).group(1))["runs"]

    def status(self):
        (run,) = self.report()
        return run["status"], run["detail"], run["kind"]

    def facts(self, name="metrics"):
        return json.loads((self.out / f"{name}.run.json").read_text())

    def check_exit_code(self, code, ranks=1):
        """What each tracker was told."""
        from tensorboard.backend.event_processing import event_accumulator
        from tensorboard.plugins.hparams import api_pb2, metadata

        names = ["metrics", *(f"metrics-rank{rank}" for rank in range(1, ranks))]
        self.assertEqual([self.facts(name)["exit_code"] for name in names], [code] * ranks)
        statuses = []
        for folder in (self.out / "tensorboard").iterdir():
            board = event_accumulator.EventAccumulator(str(folder))
            board.Reload()
            content = board.PluginTagToContent(metadata.PLUGIN_NAME)
            statuses.append(metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG]).status)
        expected = api_pb2.STATUS_SUCCESS if code == 0 else api_pb2.STATUS_UNKNOWN if code == 75 or code > 128 else api_pb2.STATUS_FAILURE
        self.assertEqual(statuses, [expected] * ranks)

    def test_a_run_that_finishes(self):
        done = self.train(num_train_epochs=1, report_to=TRACKERS)
        self.assertRegex(done.stdout, r"5 steps, 1 epoch in 0:\d\d\n")
        self.check_exit_code(0)
        self.assertFalse((self.out / "run_end.json").exists())
        (run,) = self.report()
        self.assertEqual((run["status"], run["detail"], run["kind"], run["error"]), ("finished", "", "good", ""))
        self.assertEqual((run["ranks"], run["steps"], run["max_steps"]), (2, 5, 5))
        self.assertGreater(run["duration"], 0)
        self.assertGreater(run["results"]["train_samples_per_second"], 0)

    def test_a_run_that_finishes_without_a_tracker(self):
        for ranks in (1, 2, 3):
            self.train(ranks=ranks, num_train_epochs=1, overwrite_output_dir=True)
            (run,) = self.report()
            self.assertEqual((run["status"], run["ranks"], run["source"]), ("finished", ranks, "log.jsonl"))
            self.assertAlmostEqual(run["duration"], json.loads((self.out / "all_results.json").read_text())["train_runtime"], delta=1e-3)

    def test_several_runs_have_their_own_ends_and_ranks(self):
        self.train(num_train_epochs=1)
        first, self.out = self.out, self.dir / "second"
        self.train(code=1, ranks=3, learning_rate=1e30, max_grad_norm=0, optim="sgd")
        self.assertEqual([(run["status"], run["ranks"]) for run in self.report(first, self.out)], [("finished", 2), ("failed", 3)])

    def test_a_run_that_is_stopped(self):
        signals = ((signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130))
        every = [(*one, trackers, ranks) for trackers, ranks in ((TRACKERS, 2), ("none", None), (TRACKERS, None), ("none", 2)) for one in signals]
        for number, code, trackers, ranks in first_of(every, 4):
            with self.subTest(number=number, trackers=trackers, ranks=ranks):
                shutil.rmtree(self.out, ignore_errors=True)
                step = self.stop(number, code, ranks, report_to=trackers)
                if trackers == TRACKERS:
                    self.check_exit_code(code)
                self.assertEqual(json.loads((self.out / "run_end.json").read_text())["exit_code"], code)
                self.assertEqual(self.status(), (f"stopped at step {step}", "can be resumed", "wait"))
                (run,) = self.report()
                self.assertEqual((run["steps"], run["max_steps"], run["error"]), (step, 1_000_000, ""))

    def test_all_ranks_that_track_tell_it(self):
        self.stop(signal.SIGTERM, 75, report_to=TRACKERS, report_ranks="all")
        self.check_exit_code(75, ranks=2)
        self.train(code=1, learning_rate=1e30, max_grad_norm=0, optim="sgd", report_to=TRACKERS, report_ranks="all", overwrite_output_dir=True)
        self.assertEqual([self.facts(name)["exit_code"] for name in ("metrics", "metrics-rank1")], [1, 1])

    def test_a_run_that_is_stopped_and_cannot_be_resumed(self):
        step = self.stop(signal.SIGTERM, 143, report_to="jsonl", save_only_model=True)
        self.assertEqual(self.facts()["exit_code"], 143)
        self.assertEqual(self.status(), (f"stopped at step {step}", "exit code 143", "wait"))
        shutil.rmtree(self.out)
        step = self.stop(signal.SIGINT, 130, report_to="jsonl", save_only_model=True)
        self.assertEqual(self.status(), (f"stopped at step {step}", "exit code 130", "wait"))

    def test_a_stopped_run_that_goes_on_is_finished(self):
        step = self.stop(signal.SIGTERM, 75, report_to=TRACKERS)
        done = self.train(max_steps=step + 2, report_to=TRACKERS, resume_from_checkpoint="auto")
        self.assertRegex(done.stdout, rf"{step + 2} steps, [\d.]+ epochs?; steps {step + 1} to {step + 2} in 0:\d\d\n")
        self.check_exit_code(0)
        self.assertFalse((self.out / "run_end.json").exists())
        self.assertEqual(self.status(), ("finished", "", "good"))

    def test_a_run_that_fails(self):
        for trackers in (TRACKERS, "none"):
            done = self.train(code=1, learning_rate=1e30, max_grad_norm=0, optim="sgd", report_to=trackers, overwrite_output_dir=True)
            self.assertRegex(done.stderr, "the loss is -?(nan|inf)")
            if trackers == TRACKERS:
                self.check_exit_code(1)
            (run,) = self.report()
            self.assertEqual((run["status"], run["detail"], run["kind"]), ("failed", "exit code 1", "bad"))
            self.assertRegex(run["error"], "the loss is -?(nan|inf)")
            self.assertEqual(run["error"].count("\n"), 0)
        # The next run in the directory does not end so.
        self.train(num_train_epochs=1, overwrite_output_dir=True)
        self.assertEqual(self.status(), ("finished", "", "good"))

    def test_a_run_that_its_time_limit_ends(self):
        for trackers in (TRACKERS, "none"):
            with self.subTest(trackers):
                shutil.rmtree(self.out, ignore_errors=True)
                self.train(max_time=1, report_to=trackers, **ENDLESS)
                end = json.loads((self.out / "run_end.json").read_text())
                self.assertEqual((end["exit_code"], end["error"], end["stopped_by"]), (0, "", "max_time"))
                if trackers == TRACKERS:
                    self.check_exit_code(0)
                (run,) = self.report()
                step = run["steps"]
                self.assertGreater(step, 0)
                self.assertEqual(
                    (run["status"], run["detail"], run["kind"], run["error"]),
                    (f"stopped at step {step}", "max_time has passed, can be resumed", "wait", ""),
                )
                self.train(max_steps=step + 2, max_time=100, report_to=trackers, resume_from_checkpoint="auto")
                self.assertFalse((self.out / "run_end.json").exists())
                self.assertEqual(self.status(), ("finished", "", "good"))

    def test_a_run_that_fails_before_its_first_entry(self):
        for trackers in (TRACKERS, "none"):
            with self.subTest(trackers):
                shutil.rmtree(self.out, ignore_errors=True)
                self.train(code=1, learning_rate=1e30, max_grad_norm=0, optim="sgd", report_to=trackers, logging_steps=1000)
                (run,) = self.report()
                self.assertEqual((run["status"], run["detail"], run["kind"], run["steps"]), ("failed", "exit code 1", "bad", 0))
                self.assertRegex(run["error"], "the loss is -?(nan|inf)")
                self.assertEqual((run["series"], run["arguments"]["learning_rate"]), ([], "1e+30"))

    def test_a_run_that_fails_after_its_training(self):
        # Nobody can write what the program writes last.
        job = subprocess.Popen(
            tiny.command(self.flags(max_steps=200, report_to=TRACKERS, do_predict=True, test_file=self.dir / "validation.csv"), 2),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(lambda: job.poll() is None and job.kill())
        deadline = time.monotonic() + TIMEOUT
        while not (self.out / "metrics.jsonl").exists():
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        (self.out / "predictions.jsonl").mkdir()
        out, _ = job.communicate(timeout=TIMEOUT)
        self.assertEqual(job.returncode, 1, out)
        self.check_exit_code(1)
        (run,) = self.report()
        self.assertEqual((run["status"], run["detail"]), ("failed", "exit code 1"))
        self.assertIn("predictions.jsonl", run["error"])

    def test_a_run_that_is_killed_has_no_end(self):
        job = subprocess.Popen(
            tiny.command(self.flags(max_steps=1_000_000, save_steps=5, report_to="jsonl"), 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.addCleanup(lambda: job.poll() is None and job.kill())
        deadline = time.monotonic() + TIMEOUT
        while not (self.out / "checkpoint-10").exists():
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        job.kill()
        job.wait()
        time.sleep(0.5)  # its ranks end with it
        self.assertIsNone(self.facts()["exit_code"])
        status, detail, kind = self.status()
        self.assertEqual((status, kind), ("not finished", "wait"))
        self.assertRegex(detail, r"^checkpoint-\d+ can be resumed$")

    def test_nothing_left_to_train(self):
        self.train(num_train_epochs=1, report_to=TRACKERS)
        rates = [entry["train/samples_per_second"] for entry in tiny.json_lines(self.out / "metrics.jsonl") if "train/samples_per_second" in entry]
        self.assertEqual(rates, [])  # without --report-performance the report has the times of the records
        done = self.train(num_train_epochs=1, report_to=TRACKERS, resume_from_checkpoint="auto")
        self.assertRegex(
            done.stderr, r"resuming from \S+/checkpoint-5, step 5/5\n(\[rank 0\]: )?warning: nothing left to train: \S+/checkpoint-5 is after step 5"
        )
        self.assertIn("5 steps, 1 epoch; nothing was left to train\n", done.stdout)
        self.assertRegex(done.stdout, r" train  \d\.\d{4} +-\n")
        for name in ("train_results.json", "all_results.json"):
            results = json.loads((self.out / name).read_text())
            self.assertIn("train_runtime", results)
            self.assertEqual([key for key in results if key.startswith("train_") and key.endswith("_per_second")], [])
        self.check_exit_code(0)
        (run,) = self.report()
        self.assertEqual((run["status"], run["steps"]), ("finished", 5))
        self.assertEqual([key for key in run["results"] if key.startswith("train_") and key.endswith("_per_second")], [])
        self.assertGreater(max(value for each in run["series"] if each["name"] == "steps_per_second" for value in each["mean"]), 0)

    def test_nothing_left_to_train_without_a_tracker(self):
        for _ in range(2):
            self.train(num_train_epochs=1, resume_from_checkpoint="auto")
        (run,) = self.report()
        self.assertEqual((run["status"], run["steps"], run["duration"]), ("finished", 5, None))  # nobody knows how long it was


if __name__ == "__main__":
    unittest.main()
