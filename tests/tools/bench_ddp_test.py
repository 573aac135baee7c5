"""`lockstep bench ddp`: what it prints and what it refuses."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep")


def bench(*arguments):
    return subprocess.run([LOCKSTEP, "bench", *arguments], capture_output=True, text=True, timeout=200)


class BenchDdpTest(unittest.TestCase):
    def test_measures_all_four(self):
        done = bench("ddp", "--model", "toy", "--steps", "200", "--rounds", "1", "--python", sys.executable, "--timeline")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("Lockstep, without DDP", "Lockstep, DDP", "Python, without DDP", "Python, DDP on Gloo"):
            self.assertRegex(done.stdout, name + r" +\d+\.\d+ \(\d+\.\d+ to \d+\.\d+\) ms a step")
        self.assertRegex(done.stdout, r"Recording a timeline adds -?[\d.]+ us a step, -?[\d.]+ % \(least to most: .*; 2 comp")
        # Forward, backward, a bucket's gradients, its reduction, perhaps a wait, and the optimizer.
        events = float(re.search(r"by the count: ([\d.]+) events a step", done.stdout)[1])
        self.assertTrue(5 <= events <= 6.1, done.stdout)
        self.assertRegex(done.stdout, r"DDP adds -?[\d.]+ us a step, -?[\d.]+ % \(least to most: .*; 2 comparisons")
        self.assertRegex(done.stdout, r"DDP adds -?\d+ \(-?\d+ to -?\d+\) KiB to a rank's memory \(PSS\); its gradients have 0.6 KiB")

    def test_one_object_per_line(self):
        done = bench("ddp", "--steps", "100", "--rounds", "2", "--hook", "noop", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        steps = {line["contestant"]: line["step_seconds"] for line in lines if "contestant" in line}
        self.assertEqual(list(steps), ["Lockstep, without DDP", "Lockstep, DDP", "Hook noop"])
        for step in steps.values():
            self.assertTrue(0 < step["min"] <= step["median"] <= step["max"] < 1, step)
        adds = next(line["ddp_adds"] for line in lines if "ddp_adds" in line)
        self.assertEqual(adds["comparisons"], 2)
        self.assertTrue(adds["seconds_low"] <= adds["seconds"] <= adds["seconds_high"], adds)
        self.assertTrue(all(line["model"] == "toy" and line["rounds"] == 2 for line in lines))
        memory = next(line for line in lines if "gradient_bytes" in line)
        self.assertEqual(memory["gradient_bytes"], 660)

    def test_a_signal_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as scratch:
            process = subprocess.Popen(
                [LOCKSTEP, "bench", "ddp", "--steps", "10000000"],
                text=True,
                env=dict(os.environ, TMPDIR=scratch),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            deadline = time.monotonic() + 60
            while not os.listdir(scratch) and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertNotEqual(os.listdir(scratch), [])
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=60), 128 + signal.SIGTERM)
            self.assertEqual(os.listdir(scratch), [])

    def test_what_is_wrong_is_named(self):
        done = bench("ddp", "--model", "vgg")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("vgg", done.stderr)
        done = bench("ddp", "--hook", "noop,zip")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("zip", done.stderr)
        done = bench("ddp", "--steps", "99")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--steps must be at least 100", done.stderr)
        done = bench("ddp", "--rounds", "1", "--steps", "100", "--python", "/no/such/python")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--python /no/such/python: it cannot be run", done.stderr)
        self.assertNotEqual(bench().returncode, 0)

    def test_a_missing_part_is_named_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            bare = os.path.join(folder, "bare interpreter")  # with a space in its path, and without packages
            pathlib.Path(bare).write_text(f"#!/bin/sh\nexec '{sys._base_executable}' -I -S \"$@\"\n")
            os.chmod(bare, 0o755)
            for model, packages in (("toy", "torch"), ("bert", "torch transformers")):
                done = bench("ddp", "--model", model, "--rounds", "1", "--steps", "100", "--python", bare)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(f"{bare}: it lacks {packages}, which the peer of --model {model} needs; run ", done.stderr)
                self.assertIn("scripts/setup --test", done.stderr)
            # A build of which only `lockstep` and lockrun were made.
            for name in ("lockstep", "lockrun"):
                shutil.copy(os.path.join(os.path.dirname(LOCKSTEP), name), folder)
            for words, program in (
                (["ddp"], "lockstep-bench-ddp-rank"),
                (["optimizer"], "lockstep-bench-optimizer-rank"),
                (["all-reduce"], "lockstep-bench-rank"),
            ):
                done = subprocess.run([os.path.join(folder, "lockstep"), "bench", *words], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(len([line for line in done.stderr.splitlines() if "warning: " not in line]), 1, done.stderr)
                self.assertIn(f"{program} is missing; in a clone, run scripts/build release {program}", done.stderr)


if __name__ == "__main__":
    unittest.main()
