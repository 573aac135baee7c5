"""`lockstep report` as users call it: a page that needs nothing else, of one run and of several.

LOCKSTEP_TEST_BROWSER=chromium also lets that browser draw it. No package of deps/ brings one.
"""

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BROWSER = os.environ.get("LOCKSTEP_TEST_BROWSER")

BIN = os.environ["LOCKSTEP_BIN_DIR"]
PAGE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "tools/report"


def report(*arguments):
    return subprocess.run([f"{BIN}/lockstep", "report", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def luminance(color):
    """Of "#rrggbb", by WCAG 2."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


class Page(html.parser.HTMLParser):
    """Elements and attributes of a page, and what #data holds."""

    def __init__(self, text):
        super().__init__()
        self.references, self.open, self.data = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "input", "link", "br", "img"):
            self.open.append((tag, dict(attributes)))
        self.references += [value for name, value in attributes if name in ("src", "href", "data", "srcset", "action")]
        assert tag not in ("link", "img", "iframe", "object", "embed"), tag

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag, tag

    def handle_data(self, text):
        if self.open and self.open[-1][1].get("id") == "data":
            self.data = json.loads(text)


class ReportCommand(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_report_"))
        self.addCleanup(shutil.rmtree, self.dir)

    def make_run(self, name, rate, steps=40, values=1):
        run = self.dir / name
        run.mkdir()
        with open(run / "metrics.jsonl", "w") as file:
            for step in range(1, steps + 1):
                extra = "".join(f', "train/value_{v}": {step % (v + 2)}' for v in range(values - 1))
                file.write(f'{{"step": {step}, "time": {1790000000 + step / 4}, "train/loss": {rate / step}{extra}}}\n')
                if step % 20 == 0:
                    file.write(f'{{"step": {step}, "time": {1790000000 + step / 4}, "eval/accuracy": {step / 100}}}\n')
        facts = {
            "id": f"{name}-id",
            "name": name,
            "world_size": 2,
            "started": 1790000000.0,
            "ended": 1790000100.0,
            "exit_code": 0,
            "config": {"learning_rate": rate, "optim": "sgd"},
            "summary": {"train_samples_per_second": 12.5},
            "environment": {"processor": "a processor"},
        }
        (run / "metrics.run.json").write_text(json.dumps(facts))
        return run

    def page_of(self, path):
        text = path.read_text()
        page = Page(text)
        self.assertTrue(all(reference.startswith("#") for reference in page.references), page.references)
        self.assertEqual(set(re.findall(r"https?://[^\s'\"<]*", text)), {"http://www.w3.org/2000/svg"})  # a name, not an address
        self.assertNotIn("@import", text)
        self.assertNotIn("url(http", text)
        self.assertLess(path.stat().st_size, 5_000_000)
        return page.data

    def test_one_run(self):
        run = self.make_run("first", 0.5)
        (run / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": "elsewhere/checkpoint-20"}))
        (run / "checkpoint-20").mkdir()
        (run / "checkpoint-20" / "model.safetensors").write_bytes(b"x" * 1000)
        done = report(run)
        self.assertEqual(done.returncode, 0, done.stderr)
        (data,) = self.page_of(run / "report.html")["runs"]
        self.assertEqual((data["name"], data["status"], data["ranks"], data["steps"]), ("first", "finished", 2, 40))
        self.assertEqual(data["arguments"], {"learning_rate": "0.5", "optim": "sgd"})
        self.assertEqual(data["environment"], {"processor": "a processor"})
        self.assertEqual(data["results"], {"train_samples_per_second": 12.5})
        series = {each["name"]: each for each in data["series"]}
        self.assertEqual(set(series), {"train/loss", "eval/accuracy", "steps_per_second"})
        self.assertEqual(series["train/loss"]["mean"][0], 0.5)
        self.assertEqual(data["axes"][series["train/loss"]["axis"]]["step"], list(range(1, 41)))
        self.assertEqual(series["eval/accuracy"]["greatest"], [0.4, 40])
        self.assertTrue(all(value == 4 for value in series["steps_per_second"]["mean"]))
        (saved,) = data["checkpoints"]
        self.assertEqual((saved["step"], saved["bytes"], saved["best"]), (20, 1000, True))
        self.assertIn("manifest.json", saved["problem"])  # an incomplete one is said to be so

    def test_how_a_loop_by_hand_has_ended(self):
        # The Trainer's ends are those of tests/trainer/run_end_test.py.
        run = self.make_run("by_hand", 0.5)
        facts = json.loads((run / "metrics.run.json").read_text())
        for code, expected in (
            (0, ("finished", "", "good")),
            (3, ("failed", "exit code 3", "bad")),
            (75, ("stopped at step 40", "exit code 75", "wait")),
            (130, ("stopped at step 40", "exit code 130", "wait")),
            (137, ("failed", "exit code 137", "bad")),
        ):
            (run / "metrics.run.json").write_text(json.dumps({**facts, "exit_code": code}))
            self.assertEqual(report(run).returncode, 0)
            (data,) = self.page_of(run / "report.html")["runs"]
            self.assertEqual((data["status"], data["detail"], data["kind"]), expected)
            self.assertEqual((data["duration"], data["max_steps"]), (100, None))
        (run / "metrics.run.json").write_text(json.dumps({**facts, "ended": None, "exit_code": None}))
        self.assertEqual(report(run).returncode, 0)
        (data,) = self.page_of(run / "report.html")["runs"]
        self.assertEqual((data["status"], data["detail"], data["kind"]), ("not finished", "", "wait"))
        # Without that file nothing tells, but for the results of a training.
        (run / "metrics.run.json").unlink()
        for results, expected in (({"eval_loss": 1}, ("", "", "")), ({"train_runtime": 7.5}, ("finished", "", "good"))):
            (run / "all_results.json").write_text(json.dumps(results))
            self.assertEqual(report(run).returncode, 0)
            (data,) = self.page_of(run / "report.html")["runs"]
            self.assertEqual((data["status"], data["detail"], data["kind"]), expected)

    def test_a_run_that_failed_before_it_logged_anything(self):
        error = {"ended": 1790000003.0, "exit_code": 1, "error": "rank 1 ran out of memory"}
        facts = {"id": "some-id", "name": "early", "world_size": 2, "started": 1790000000.0, "ended": 1790000004.0, "exit_code": 1}
        for case, files in (
            ("log", {"log.jsonl": "", "run_end.json": error}),
            ("end", {"run_end.json": error}),
            ("tracker", {"metrics.jsonl": "", "metrics.run.json": facts, "log.jsonl": "", "run_end.json": error}),
            ("table", {"metrics.csv": "step,time\n", "run_end.json": error}),
        ):
            with self.subTest(case):
                run = self.dir / case
                run.mkdir()
                for name, content in {**files, "training_args.json": {"learning_rate": 0.25}}.items():
                    (run / name).write_text(content if isinstance(content, str) else json.dumps(content))
                done = report(run)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(": 0 values, ", done.stdout)
                (data,) = self.page_of(run / "report.html")["runs"]
                self.assertEqual(
                    (data["status"], data["detail"], data["kind"], data["error"]), ("failed", "exit code 1", "bad", "rank 1 ran out of memory")
                )
                self.assertEqual((data["steps"], data["series"], data["axes"]), (0, [], []))
                self.assertEqual(data["arguments"], {"learning_rate": "0.25"})
                self.assertEqual(data["duration"], 4 if case == "tracker" else None)
        both = [self.dir / "log", self.make_run("other", 0.5)]
        self.assertEqual(report(*both, "--output", self.dir / "both.html").returncode, 0)
        self.assertEqual([run["status"] for run in self.page_of(self.dir / "both.html")["runs"]], ["failed", "finished"])

    def test_a_run_that_went_on_without_its_tracker(self):
        run = self.make_run("resumed", 0.5)  # 40 steps with the tracker
        facts = json.loads((run / "metrics.run.json").read_text())
        (run / "metrics.run.json").write_text(json.dumps({**facts, "exit_code": 75}))
        entries = [{"step": step, "loss": 1 / step} for step in range(1, 61)]
        (run / "log.jsonl").write_text(
            "".join(json.dumps(entry) + "\n" for entry in [*entries, {"step": 60, "train_runtime": 7.5, "train_steps_per_second": 8}])
        )
        for age, expected in ((0, ("stopped at step 40", 40, "metrics.jsonl")), (10, ("finished", 60, "log.jsonl"))):
            with self.subTest(age):  # seconds by which the tracker's file is older than the log
                now = (run / "log.jsonl").stat().st_mtime
                os.utime(run / "metrics.run.json", (now - age, now - age))
                self.assertEqual(report(run).returncode, 0)
                (data,) = self.page_of(run / "report.html")["runs"]
                self.assertEqual((data["status"], data["steps"], data["source"]), expected)
                self.assertEqual((data["name"], data["id"], data["ranks"]), ("resumed", "resumed-id", 2))
                self.assertEqual(data["duration"], 7.5 if age else 100)
        # One that failed later says why.
        (run / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        (run / "run_end.json").write_text(json.dumps({"ended": 1790000200.0, "exit_code": 1, "error": "the loss is nan"}))
        os.utime(run / "metrics.run.json", (now - 10, now - 10))
        self.assertEqual(report(run).returncode, 0)
        (data,) = self.page_of(run / "report.html")["runs"]
        self.assertEqual((data["status"], data["error"], data["steps"]), ("failed", "the loss is nan", 60))

    def test_a_run_that_its_time_limit_has_ended(self):
        run = self.make_run("limited", 0.5)
        (run / "run_end.json").write_text(json.dumps({"ended": 1790000100.0, "exit_code": 0, "error": "", "stopped_by": "max_time"}))
        self.assertEqual(report(run).returncode, 0)
        (data,) = self.page_of(run / "report.html")["runs"]
        self.assertEqual((data["status"], data["detail"], data["kind"]), ("stopped at step 40", "max_time has passed", "wait"))

    def test_the_number_of_ranks(self):
        run = self.make_run("ranks", 0.5)
        facts = json.loads((run / "metrics.run.json").read_text())
        for size, config, environment, variables, expected in (
            (2, {}, {}, {}, 2),
            (None, {}, {}, {}, 1),
            (None, {}, {}, {"WORLD_SIZE": "4"}, 4),
            (1, {}, {"WORLD_SIZE": "3"}, {}, 3),
            (1, {"world_size": 5}, {}, {}, 5),
            (2, {}, {"WORLD_SIZE": "8"}, {}, 2),
        ):  # a group of the job has tracked
            (run / "metrics.run.json").write_text(json.dumps({**facts, "world_size": size, "config": config, "environment": environment}))
            (run / "environment.json").write_text(json.dumps(variables))
            self.assertEqual(report(run).returncode, 0)
            (data,) = self.page_of(run / "report.html")["runs"]
            self.assertEqual(data["ranks"], expected)
        (run / "metrics.run.json").unlink()
        (run / "environment.json").write_text(json.dumps({"WORLD_SIZE": "2"}))
        other = self.make_run("other", 0.5)
        self.assertEqual(report(run, other, "--output", self.dir / "both.html").returncode, 0)
        self.assertEqual([each["ranks"] for each in self.page_of(self.dir / "both.html")["runs"]], [2, 2])

    def test_the_last_line_is_an_address(self):
        run = self.make_run("a run, 100 %", 0.5)
        done = report(run)
        self.assertRegex(
            done.stdout, r"^\S.*/report\.html: 42 values, \d\d kB; open it in a browser: file://\S+/a%20run,%20100%20%25/report\.html\n$"
        )

    def test_several_runs_side_by_side(self):
        runs = [self.make_run("first", 0.5), self.make_run("second", 0.25)]
        done = report(*runs, "--output", self.dir / "both.html", "--title", "two & more")
        self.assertEqual(done.returncode, 0, done.stderr)
        data = self.page_of(self.dir / "both.html")
        self.assertEqual([run["name"] for run in data["runs"]], ["first", "second"])
        self.assertEqual([run["arguments"]["learning_rate"] for run in data["runs"]], ["0.5", "0.25"])
        self.assertIn("<title>two &amp; more · Lockstep report</title>", (self.dir / "both.html").read_text())

    def test_a_million_points_are_less_than_5_mb(self):
        run = self.make_run("large", 1, steps=10_000, values=100)
        done = report(run)
        self.assertEqual(done.returncode, 0, done.stderr)
        (data,) = self.page_of(run / "report.html")["runs"]
        self.assertGreaterEqual(data["points"], 1_000_000)
        self.assertGreaterEqual(min(len(each["mean"]) for each in data["series"] if each["name"].startswith("train/")), 150)

    def test_ranks_that_track_have_curves_of_their_own(self):
        run = self.make_run("ranks", 1)
        for rank, name in ((0, "metrics.jsonl"), (1, "metrics-rank1.jsonl")):
            with open(run / name, "a") as file:
                for step in (50, 60):
                    file.write(json.dumps({"step": step, "time": 1790000020, "train/loss": 1, "rank/cpu_load": 0.5 + rank}) + "\n")
        self.assertEqual(report(run).returncode, 0)
        (data,) = self.page_of(run / "report.html")["runs"]
        self.assertEqual([(each["rank"], each["last"]) for each in data["series"] if each["name"] == "rank/cpu_load"], [(0, 0.5), (1, 1.5)])
        self.assertEqual(len([each for each in data["series"] if each["name"] == "train/loss"]), 1)

    def test_where_the_time_goes(self):
        run = self.make_run("timed", 1)
        spans = [("data", 0, 1000), ("forward", 1000, 2000), ("backward", 3000, 4000), ("wait", 6000, 1000), ("optimizer", 7000, 500)]
        events = [{"ph": "X", "pid": 0, "tid": 0, "cat": kind, "name": kind, "ts": begin, "dur": length} for kind, begin, length in spans]
        (run / "timeline.json").write_text(json.dumps({"traceEvents": events}))
        self.assertEqual(report(run).returncode, 0)
        (data,) = self.page_of(run / "report.html")["runs"]
        (parts,) = data["time"]
        self.assertEqual(dict(parts["parts"]), {"data": 1, "forward": 2, "backward": 3, "optimizer": 0.5, "communication": 1, "other": 0})

    def test_text_on_the_parts_of_a_step_can_be_read(self):
        self.assertAlmostEqual(contrast("#ffffff", "#000000"), 21)
        self.assertAlmostEqual(contrast("#777777", "#ffffff"), 4.48, places=2)
        script, style = (PAGE / "page.js").read_text(), (PAGE / "page.css").read_text()
        self.assertEqual(re.findall(r"\.bar i \{[^}]*[ ;]color: (#\w+);", style), ["#fff"])  # in both themes
        (parts,) = re.findall(r"const partColors = \{(.*)\};", script)
        colors = dict(re.findall(r"(\w+): '(#\w{6})'", parts))
        self.assertEqual(list(colors), ["data", "forward", "backward", "optimizer", "communication", "other"])
        (colors["unknown"],) = re.findall(r"const partColor = name => partColors\[name\] \|\| '(#\w{6})';", script)
        self.assertEqual(len(re.findall(r"\bpartColors\b", script)), 2, "partColor() chooses the colors")
        for part, color in colors.items():
            with self.subTest(part):
                self.assertGreaterEqual(contrast(color, "#ffffff"), 4.5)
        self.assertEqual(len(set(colors.values())), len(colors))

    def test_what_happened_to_the_job(self):
        lines = [
            {"time": 1790000000.5, "run_id": "none", "event": "start", "host": "a", "first_rank": 0, "ranks": 2, "world_size": 4, "restarts": 0},
            {"time": 1790000007, "run_id": "none", "event": "partition", "round": 1, "reason": "the machine a does not reach b </script>"},
            {"time": 1790000009, "run_id": "none", "event": "end", "code": 1, "restarts": 0, "reason": "a failed"},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        run, elsewhere = self.make_run("first", 0.5), self.dir / "elsewhere.jsonl"
        elsewhere.write_text(text + "damaged\n" + '{"time": 17900')
        alone = self.dir / "alone"  # a job without a tracker
        alone.mkdir()
        (alone / "events.jsonl").write_text(text)
        expected = [
            [1790000000.5, "start", "ranks 0 to 1 of 4 started on a", 0],
            [1790000007, "partition", "the machine a does not reach b </script>", 1],
            [1790000009, "end", "the job ended with exit code 1: a failed", 1],
        ]
        done = report(run, alone, "--event-log", elsewhere, "--output", self.dir / "both.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        tracked, bare = self.page_of(self.dir / "both.html")["runs"]
        self.assertEqual((tracked["events"], tracked["damaged_events"], tracked["status"]), (expected, 1, "finished"))
        self.assertEqual((bare["events"], bare["damaged_events"]), (expected, 0))
        self.assertEqual((bare["status"], bare["detail"], bare["duration"], bare["series"]), ("failed", "exit code 1", 8.5, []))
        self.assertEqual(report(run).returncode, 0)
        self.assertEqual(self.page_of(run / "report.html")["runs"][0]["events"], [])
        (alone / "events.jsonl").write_text("")
        self.assertIn("events.jsonl", report(alone).stderr)
        self.assertIn("nowhere.jsonl", report(run, "--event-log", "nowhere.jsonl").stderr)
        self.assertIn("--event-log names 2 files for 1 runs", report(run, "--event-log", elsewhere, elsewhere).stderr)

    def test_what_is_no_run_is_refused(self):
        for directory, expected in ((self.dir / "none", "no such directory"), (self.dir, "metrics.jsonl")):
            done = report(directory)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(str(directory), done.stderr)
            self.assertIn(expected, done.stderr)
        empty = self.dir / "empty"
        empty.mkdir()
        (empty / "metrics.jsonl").write_text("")
        self.assertIn("nothing has been logged yet", report(empty).stderr)
        run = self.make_run("first", 1)
        self.assertIn("--timeline", report("--timeline", "a", "b", "--", run).stderr)
        (run / "timeline.json").write_text("{")
        done = report(run)
        self.assertIn("timeline.json", done.stderr)
        self.assertFalse((run / "report.html").exists())

    if BROWSER:

        def test_a_browser_draws_the_curves(self):
            runs = [self.make_run("first", 0.5), self.make_run("second", 0.25)]
            page = self.dir / "both.html"
            self.assertEqual(report(*runs, "--output", page).returncode, 0)
            page.write_text(
                page.read_text().replace(
                    "<script>\n'use strict'", "<script>onerror = m => document.title = 'failed: ' + m</script><script>\n'use strict'"
                )
            )
            done = subprocess.run(
                [
                    BROWSER,
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    f"--user-data-dir={self.dir}/profile",
                    "--window-size=1280,3000",
                    "--virtual-time-budget=5000",
                    "--dump-dom",
                    f"file://{page}",
                ],
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertEqual(re.search("<title>(.*?)</title>", done.stdout).group(1), "first, second · Lockstep report")
            charts = re.findall('<div class="card chart">(.*?)</svg>', done.stdout, re.DOTALL)
            self.assertEqual([chart.count('<path d="M') for chart in charts], [2, 2, 2])
            self.assertNotIn("NaN", re.sub("<script.*?</script>", "", done.stdout, flags=re.DOTALL))
            self.assertIn("<small>1 of 2 differ</small>", re.sub("<style>.*?</style>", "", done.stdout, flags=re.DOTALL))

        def test_a_single_value_is_a_number_and_a_rate_of_no_step_is_none(self):
            run = self.make_run("one", 0.5, steps=25)  # one evaluation
            with open(run / "metrics.jsonl", "a") as file:
                file.write('{"step": 25, "time": 1790000008, "test/accuracy": 0.75}\n')
            facts = json.loads((run / "metrics.run.json").read_text())
            (run / "metrics.run.json").write_text(json.dumps({**facts, "summary": {"train_samples_per_second": 0}}))
            self.assertEqual(report(run).returncode, 0)
            done = subprocess.run(
                [
                    BROWSER,
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    f"--user-data-dir={self.dir}/profile",
                    "--window-size=1280,3000",
                    "--virtual-time-budget=5000",
                    "--dump-dom",
                    f"file://{run}/report.html",
                ],
                capture_output=True,
                text=True,
                timeout=60,
            )
            tiles = dict(re.findall(r'<div class="tile"><span>(.*?)</span><b>(.*?)</b>', done.stdout))
            self.assertEqual((tiles["eval/accuracy"], tiles["test/accuracy"], tiles["Throughput"]), ("0.2", "0.75", "4"))
            self.assertEqual(done.stdout.count('<div class="card chart">'), 2)  # loss and steps per second

        def test_axes_of_shares_stop_at_1(self):
            run = self.make_run("shares", 0.5)
            values = {
                "eval/precision": (0.99, 0.99),
                "eval/recall": (1, 1),
                "eval/f1": (0, 0),
                "eval/accuracy": (0.5, 0.999),
                "eval/spearman": (-0.2, 0.98),
                "eval/exact_match": (80, 99.5),
            }
            with open(run / "metrics.jsonl", "w") as file:
                for place, step in enumerate((20, 40)):
                    file.write(json.dumps({"step": step, "time": 1790000000 + step, **{name: pair[place] for name, pair in values.items()}}) + "\n")
            self.assertEqual(report(run).returncode, 0)
            done = subprocess.run(
                [
                    BROWSER,
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    f"--user-data-dir={self.dir}/profile",
                    "--window-size=1280,3000",
                    "--virtual-time-budget=5000",
                    "--dump-dom",
                    f"file://{run}/report.html",
                ],
                capture_output=True,
                text=True,
                timeout=60,
            )
            charts = {
                name: [float(mark) for mark in re.findall(r'text-anchor="end">(-?[\d.]+)</text>', marks)]
                for name, marks in re.findall(r'aria-label="(\S+?): [^"]*">(.*?)<line class="axis" ', done.stdout, re.DOTALL)
            }
            self.assertLessEqual(values.keys(), charts.keys())
            for name in values:
                with self.subTest(name):
                    self.assertGreater(len(charts[name]), 1)
                    self.assertLessEqual(max(charts[name]), 100 if name == "eval/exact_match" else 1)
                    self.assertGreaterEqual(min(charts[name]), -0.3 if name == "eval/spearman" else 0)


if __name__ == "__main__":
    unittest.main()
