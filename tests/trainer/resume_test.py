"""Checkpoints of a training: killed at any moment and resumed, it ends with the bits of an undisturbed run.

`scripts/soak resume` does so with drawn seeds, and scripts/test with fixed ones. LOCKSTEP_TEST_SEED is the first of
LOCKSTEP_TEST_RUNS seeds; LOCKSTEP_TEST_MODEL names another model than a tiny one. Half of the kills are aimed at steps, the
others at saves and evaluations. A preemption comes up to LOCKSTEP_TEST_SECONDS after a job's first step.
With LOCKSTEP_TEST_REFERENCE=FOLDER runs from start to end leave their digest and log there, which later
starts of this script read.
"""

import collections
import hashlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import extent
import namespaces
import tiny
from killed_rank_test import processes_with

TIMEOUT = 120
RUNS = int(os.environ.get("LOCKSTEP_TEST_RUNS", 3 if extent.ALL else 2))
FIRST = int(os.environ.get("LOCKSTEP_TEST_SEED", 0))
REFERENCE = os.environ.get("LOCKSTEP_TEST_REFERENCE")
PREEMPTED_AFTER = float(os.environ.get("LOCKSTEP_TEST_SECONDS", 0.2))
EVAL_STEPS = 10
STEPS = 78  # 203 samples, 2 ranks of 4, 3 epochs


def without_times(entries):
    return [{name: value for name, value in entry.items() if "runtime" not in name and "per_second" not in name} for entry in entries]


def log(output):
    return without_times(tiny.json_lines(output / "log.jsonl"))


def digest(output):
    return hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()


def checkpoints(output):
    return sorted((int(path.name.split("-")[1]) for path in output.glob("checkpoint-*")), reverse=True)


class ResumeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_resume_"))
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        given = os.environ.get("LOCKSTEP_TEST_MODEL")
        if given:
            (cls.shared / "model").symlink_to(pathlib.Path(given).resolve())
        else:
            tiny.make_model(cls.shared / "model")
        cls.hits = collections.Counter()
        cls.addClassCleanup(lambda: print("killed:", dict(cls.hits)))
        tiny.write_csv(cls.shared / "train.csv", tiny.make_rows(203, 1))
        tiny.write_csv(cls.shared / "validation.csv", tiny.make_rows(61, 2))
        cls.undisturbed = {}

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_resume_"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.output = self.directory / "out"

    def flags(self, output=None, **changes):
        flags = {
            "model_name_or_path": self.shared / "model",
            "train_file": self.shared / "train.csv",
            "validation_file": self.shared / "validation.csv",
            "output_dir": output or self.output,
            "num_train_epochs": 3,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "eval_strategy": "steps",
            "eval_steps": EVAL_STEPS,
            "logging_steps": 1,
            "save_steps": 7,
            "disable_tqdm": True,
            **changes,
        }
        return {"--" + name.replace("_", "-"): value for name, value in flags.items() if value is not None}

    def run_to_end(self, ranks=2, **changes):
        done = tiny.run(self.flags(**changes), ranks, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def fails(self, expected, ranks=2, code=2, **changes):
        done = tiny.run(self.flags(**changes), ranks, timeout=TIMEOUT)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertRegex(done.stderr, expected)
        self.assertEqual(done.stderr.count("error:"), 1, done.stderr)

    def undisturbed_run(self, ranks=2, **changes):
        """(digest, log) of a run from start to end."""
        key = json.dumps([ranks, *sorted(changes.items())])
        kept = pathlib.Path(REFERENCE, "undisturbed.json") if REFERENCE else None
        if kept and kept.exists():
            self.undisturbed.update(json.loads(kept.read_text()))
        if key not in self.undisturbed:
            output = self.shared / f"undisturbed{len(self.undisturbed)}"
            self.run_to_end(ranks, output=output, **changes)
            self.undisturbed[key] = [digest(output), log(output)]
            if kept:
                kept.write_text(json.dumps(self.undisturbed))
        return self.undisturbed[key]

    def start(self, ranks=2, **changes):
        marker = f"LOCKSTEP_TEST_MARKER={self.directory.name}"
        job = subprocess.Popen(
            tiny.command(self.flags(**changes), ranks),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, marker.split("=")[0]: marker.split("=")[1]},
        )
        self.addCleanup(lambda: job.poll() is None and job.kill())
        return job, marker

    def written_log(self):
        """What the running job has logged so far. One that begins at the start removes the log of the run before at any moment."""
        try:
            return (self.output / "log.jsonl").read_text()
        except FileNotFoundError:
            return ""

    def wait_for_step(self, job, step):
        """Until the log of the running job has an entry of that step, or the job has ended."""
        deadline = time.monotonic() + TIMEOUT
        while job.poll() is None:
            self.assertLess(time.monotonic(), deadline)
            if re.search(rf'"step":({"|".join(map(str, range(step, STEPS + 1)))})}}\n', self.written_log()):
                return
            time.sleep(0.002)

    def situation(self):
        """Where the job is: a checkpoint is being written (beside the steps), an evaluation runs, or a step."""
        if any(self.output.glob(".checkpoint-*")):
            return "save"
        lines = self.written_log().splitlines()
        last = json.loads(lines[-1]) if lines and lines[-1].endswith("}") else {}
        return "evaluation" if "loss" in last and last["step"] % EVAL_STEPS == 0 else "step"

    def wait_for(self, job, situation):
        deadline = time.monotonic() + TIMEOUT
        while job.poll() is None and self.situation() != situation:
            self.assertLess(time.monotonic(), deadline)

    def kill_something(self, job, marker, what):
        if what == "lockrun":
            return job.kill()
        ours = processes_with(marker)
        ranks = [pid for pid, environment in ours.items() if any(entry.startswith(b"RANK=") for entry in environment)]
        guardians = [pid for pid in ours if pid not in ranks and pid != job.pid]
        for pid in (guardians if what == "guardian" else ranks)[:1]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def check_same_bits(self, **changes):
        weights, entries = self.undisturbed_run(**changes)
        self.assertEqual(digest(self.output), weights)
        self.assertEqual(log(self.output), entries)
        self.assertEqual([path.name for path in self.output.iterdir() if path.name.startswith(".")], [])

    def killed_and_resumed(self, draw, **changes):
        step = 0
        while True:
            job, marker = self.start(resume_from_checkpoint="auto", **changes)
            step = min(STEPS, step + draw.randrange(3, 40, 3))
            self.wait_for_step(job, step)
            if step < STEPS:
                self.wait_for(job, draw.choice(("step", "step", "save", "evaluation")))
                time.sleep(draw.uniform(0, 0.02))
            if job.poll() is None and step < STEPS:
                target = draw.choice(("rank", "rank", "lockrun", "guardian"))
                self.hits[target] += 1
                self.hits["situation: " + self.situation()] += 1
                self.kill_something(job, marker, target)
            out, _ = job.communicate(timeout=TIMEOUT)
            if job.returncode == 0:
                return
            self.assertNotRegex(out, "damaged|cannot be resumed|could not be saved")

    def test_killed_at_any_moment(self):
        for seed in range(FIRST, FIRST + RUNS):
            with self.subTest(seed=seed):
                shutil.rmtree(self.output, ignore_errors=True)
                self.killed_and_resumed(random.Random(seed))
                self.check_same_bits()

    def test_killed_with_a_divided_optimizer_an_average_and_accumulation(self):
        for changes in (
            {"zero_redundancy_optimizer": True},
            {"ema_decay": 0.9, "save_total_limit": 2},
            {
                "gradient_accumulation_steps": 3,
                "save_strategy": "epoch",
                "eval_strategy": "epoch",
                "eval_steps": None,
                "lr_scheduler_type": "reduce_lr_on_plateau",
                "optim": "sgd",
                "optim_args": "momentum=0.9",
            },
        ):
            with self.subTest(**changes):
                shutil.rmtree(self.output, ignore_errors=True)
                self.killed_and_resumed(random.Random(7), **changes)
                self.check_same_bits(**changes)

    def stop(self, number, code, step=12, **changes):
        """Signals lockrun when that step has been logged."""
        job, _ = self.start(**changes)
        self.wait_for_step(job, step)
        job.send_signal(number)
        out, _ = job.communicate(timeout=TIMEOUT)
        self.assertEqual(job.returncode, code, out)
        (step,) = re.findall(rf"stopped by {signal.Signals(number).name} after step (\d+); checkpoint-\1 is saved", out)
        self.assertEqual(checkpoints(self.output)[0], int(step))
        self.assertEqual((self.output / "latest").read_text(), f"checkpoint-{step}\n")
        return out

    def test_pre_empted_again_and_again(self):
        for number, step in ((signal.SIGTERM, 12), (signal.SIGUSR1, 30)):
            out = self.stop(number, 75, step, resume_from_checkpoint="auto", save_steps=1000)
            self.assertEqual(out.count("is saved"), 1)
            self.assertNotIn("failed", out)
        self.run_to_end(resume_from_checkpoint="auto", save_steps=1000)
        self.check_same_bits()

    def test_pre_empted_every_moment_until_done(self):
        for seed in range(FIRST, FIRST + RUNS):
            with self.subTest(seed=seed):
                shutil.rmtree(self.output, ignore_errors=True)
                draw = random.Random(seed)
                job, _ = self.start(resume_from_checkpoint="auto", save_steps=1000)
                while self.pre_empted(job, draw):
                    job, _ = self.start(resume_from_checkpoint="auto", save_steps=1000)
                self.check_same_bits()

    def pre_empted(self, job, draw):
        """Ends the job soon after its first step, as a cluster does that wants the machine back; False where it is done."""
        saved = max(checkpoints(self.output), default=0)
        if saved < STEPS:
            self.wait_for_step(job, saved + 1)
            time.sleep(draw.uniform(0, PREEMPTED_AFTER))
        if job.poll() is None and saved < STEPS:
            self.hits["preempted"] += 1
            job.send_signal(draw.choice((signal.SIGTERM, signal.SIGUSR1)))
        out, _ = job.communicate(timeout=TIMEOUT)
        self.assertIn(job.returncode, (0, 75), out)
        if job.returncode == 75:
            self.assertGreater(checkpoints(self.output)[0], saved)
        return job.returncode == 75

    def test_interrupted(self):
        self.stop(signal.SIGINT, 130)

    def test_stopped_where_only_the_model_is_saved(self):
        out = self.stop(signal.SIGTERM, 143, save_only_model=True)
        self.assertIn("from which training cannot be resumed", out)

    def test_alone_without_a_launcher(self):
        job, _ = self.start(ranks=None)
        self.wait_for_step(job, 12)
        job.send_signal(signal.SIGTERM)
        out, _ = job.communicate(timeout=TIMEOUT)
        self.assertEqual(job.returncode, 75, out)
        self.run_to_end(ranks=None, resume_from_checkpoint="latest")
        self.check_same_bits(ranks=None)

    def test_a_rank_whose_peer_has_died_neither_agrees_nor_saves(self):
        job, marker = self.start(save_steps=1000, num_train_epochs=1000)
        self.wait_for_step(job, 12)
        stopped, killed = [pid for pid, environment in processes_with(marker).items() if any(entry.startswith(b"RANK=") for entry in environment)]
        os.kill(killed, signal.SIGKILL)
        out, _ = job.communicate(timeout=20)  # far below lockrun's 30 s for ranks that are saving
        self.assertEqual(job.returncode, 137, out)
        self.assertEqual(checkpoints(self.output), [])
        self.assertNotIn("is saved", out)

    def test_another_number_of_ranks(self):
        # Without dropout, whose random numbers belong to the ranks.
        model = shutil.copytree(self.shared / "model", self.directory / "model")
        config = json.loads((model / "config.json").read_text())
        config.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        (model / "config.json").write_text(json.dumps(config))
        samples = self.directory / "samples"
        changes = {"model_name_or_path": model, "log_sample_ids": samples}
        self.run_to_end(output=self.directory / "whole", **changes)
        expected = self.steps_of(samples)
        for ranks, divided in ((1, None), (4, True)):
            with self.subTest(ranks=ranks):
                shutil.rmtree(self.output, ignore_errors=True)
                self.stop(signal.SIGTERM, 75, zero_redundancy_optimizer=True, **changes)
                done = self.steps_of(samples)
                changes_now = {
                    "zero_redundancy_optimizer": divided,
                    "resume_from_checkpoint": "latest",
                    "per_device_train_batch_size": 4 if ranks == 1 else 2,
                }
                out = self.run_to_end(ranks, **{**changes, **changes_now})
                if ranks == 1:
                    self.assertIn("1 rank instead of 2: gradient_accumulation_steps is 2, so that a step has 8 samples as before", out)
                resumed = self.steps_of(samples)
                self.assertEqual(set(done) & set(resumed), set())
                self.assertEqual({**done, **resumed}, expected)
                for ours, whole in zip(log(self.output), log(self.directory / "whole")):
                    self.assertEqual(ours["step"], whole["step"])
                    for name in ours.keys() & {"loss", "eval_loss"}:
                        self.assertAlmostEqual(ours[name], whole[name], delta=1e-3)

    def steps_of(self, path):
        """Step -> the samples of all ranks in it."""
        steps = {}
        for line in tiny.json_lines(path):
            steps.setdefault(line["step"], set()).update(line["ids"])
        return steps

    def test_what_cannot_be_resumed_is_refused_by_name(self):
        self.fails(
            r"--resume-from-checkpoint latest: \S+/out has no complete checkpoint; give auto to begin at the start", resume_from_checkpoint="latest"
        )
        self.run_to_end(max_steps=14, num_train_epochs=None)
        self.fails(r"--output-dir \S+/out holds another run \(checkpoint-14\); .* or --resume-from-checkpoint latest to continue it")
        resume = {"resume_from_checkpoint": "latest"}
        self.fails(r"the checkpoint's steps have 8 samples; 3 ranks with .* make 12; choose", ranks=3, **resume)
        self.fails(r"the checkpoint's steps have 8 samples; 2 ranks with .* make 16", gradient_accumulation_steps=2, **resume)
        other = tiny.write_csv(self.directory / "other.csv", tiny.make_rows(64, 1))
        before = self.contents()
        self.fails(r"is of another run: .*203 in the checkpoint, now 64.* --resume-anyway data", train_file=other, **resume)
        self.assertEqual(self.contents(), before)
        self.fails(r"/nosuch does not exist; expected the directory of a checkpoint", resume_from_checkpoint=self.directory / "nosuch", code=1)
        self.fails(r"/nosuch", resume_from_checkpoint=self.directory / "nosuch", output=self.directory / "new", code=1)
        self.run_to_end(output=self.directory / "model_only", save_only_model=True, max_steps=7, num_train_epochs=None)
        self.fails(
            r"checkpoint-7 cannot be resumed from: it holds the model alone",
            resume_from_checkpoint=self.directory / "model_only/checkpoint-7",
            output=self.directory / "new",
        )
        self.assertEqual(checkpoints(self.output), [14, 7])

    def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(self):
        self.stop(signal.SIGTERM, 75)
        newest, before = checkpoints(self.output)[:2]
        with open(self.output / f"checkpoint-{newest}/optimizer.safetensors", "r+b") as file:
            file.seek(3000)
            byte = file.read(1)
            file.seek(3000)
            file.write(bytes([byte[0] ^ 1]))
        out = self.run_to_end(resume_from_checkpoint="latest", learning_rate=2e-3)
        self.assertRegex(out, rf"checkpoint-{newest} is not used: .*optimizer.safetensors is damaged")
        self.assertIn(f"resuming from {self.output}/checkpoint-{before}, step {before}/{STEPS}", out)
        self.assertIn("the old value takes effect: learning_rate 0.001 (not 0.002)", out)
        self.check_same_bits()  # the optimizer's learning rate is the checkpoint's

    def contents(self):
        return {path: path.read_bytes() for path in self.output.rglob("*") if path.is_file()}

    def test_a_second_job_in_the_same_output_dir_is_refused(self):
        first, _ = self.start(num_train_epochs=1000)
        self.wait_for_step(first, 12)
        self.fails(r"--output-dir \S+/out is in use by another job: process \d+ on \S+, since", resume_from_checkpoint="auto", ranks=None)
        first.send_signal(signal.SIGKILL)  # lockrun: its guardian ends the ranks
        first.communicate(timeout=TIMEOUT)
        self.run_to_end(resume_from_checkpoint="True", max_steps=checkpoints(self.output)[0] + 1, num_train_epochs=None)
        out = self.run_to_end(resume_from_checkpoint="True", max_steps=7, num_train_epochs=None)
        self.assertIn("warning: nothing left to train", out)

    def test_the_best_model_at_the_end(self):
        out = self.run_to_end(
            load_best_model_at_end=True, metric_for_best_model="accuracy", save_total_limit=1, save_steps=1000, max_steps=45, num_train_epochs=None
        )
        evaluations = {entry["step"]: entry["eval_accuracy"] for entry in log(self.output) if "eval_accuracy" in entry}
        evaluations.pop(None, None)
        training = {step: value for step, value in evaluations.items() if step % 10 == 0 or step == 45}
        best = max(training, key=lambda step: (training[step], -step))  # the first of equal ones
        self.assertIn(f"loaded the best model, {self.output}/checkpoint-{best}: eval_accuracy", out)
        self.assertEqual(digest(self.output), digest(self.output / f"checkpoint-{best}"))
        self.assertEqual(checkpoints(self.output), sorted({best, 45}, reverse=True)[:2])
        state = json.loads((self.output / "trainer_state.json").read_text())
        self.assertEqual(
            (state["best_global_step"], state["best_metric"], state["best_model_checkpoint"]),
            (best, training[best], str(self.output / f"checkpoint-{best}")),
        )

    def test_only_the_best(self):
        self.run_to_end(save_strategy="best", max_steps=45, num_train_epochs=None)
        best, saved = None, []
        for entry in log(self.output):
            if "eval_loss" in entry and (best is None or entry["eval_loss"] < best):
                best = entry["eval_loss"]
                saved.append(entry["step"])
        self.assertEqual(checkpoints(self.output), sorted(set(saved), reverse=True))

    def test_a_full_disk(self):
        mount = self.directory / "small"
        mount.mkdir()
        prefix = namespaces.in_namespaces("-m")
        for policy, code in (("stop", 1), ("continue", 74)):
            with self.subTest(policy):
                line = " ".join(tiny.command(self.flags(output=mount / "out", save_failure=policy), 2))
                done = subprocess.run(
                    [*prefix, "sh", "-c", f"mount -t tmpfs -o size=1200k none {mount} && {line}; code=$?;ls -a {mount}/out; exit $code"],
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT,
                )
                out = done.stdout + done.stderr
                self.assertEqual(done.returncode, code, out)
                self.assertRegex(out, r"checkpoint-\d+ could not be saved: .*No space left on device")
                self.assertEqual("training goes on" in out, policy == "continue", out)
                self.assertEqual(out.count("error: "), 1, out)
                self.assertNotRegex(out, r"(?m)^\.checkpoint")
                if policy == "continue":
                    self.assertRegex(out, "error: checkpoint-78 could not be saved: .*; what the program has saved")
                    self.assertRegex(out, r"(?m)^model.safetensors$")
                    self.assertRegex(out, r"(?m)^train_results.json$")

    def test_a_full_disk_leaves_the_finished_run_whole(self):
        """A resume of a finished run, with more steps, which gets ever more room on the disk."""
        mount, saved, states = self.directory / "small", self.directory / "saved", self.directory / "states"
        for folder in (mount, saved, states):
            folder.mkdir()
        flags = {
            "output": mount / "out",
            "ranks": None,
            "max_steps": 4,
            "num_train_epochs": None,
            "save_steps": 2,
            "eval_strategy": None,
            "eval_steps": None,
            "validation_file": None,
        }

        def line(**changes):
            named = {**flags, **changes}
            return shlex.join(tiny.command(self.flags(named.pop("output"), **named), named.pop("ranks")))

        rooms = (0, 8, 40, 80, 100, 120, 200, 400)  # KiB; 120 are enough for the model, 400 for the checkpoint
        script = f"""
            mount -t tmpfs -o size=40m none {mount} && {line()} >/dev/null 2>&1 && cp -a {mount}/out {saved} || exit 1
            used=$(df -k --output=used {mount} | tail -1)
            for room in {" ".join(map(str, rooms))}; do
              rm -rf {mount}/out; cp -a {saved}/out {mount}/out; mount -o remount,size=$((used + room))k {mount}
              {line(max_steps=6, resume_from_checkpoint="auto", save_failure="continue")} >{states}/$room.txt 2>&1; echo $? >{states}/$room.code
              mount -o remount,size=40m {mount}; cp -a {mount}/out {states}/$room
            done"""
        done = subprocess.run([*namespaces.in_namespaces("-m"), "sh", "-c", script], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stderr)
        before = saved / "out"
        ends = collections.Counter()
        for room in rooms:
            with self.subTest(room=room):
                out, text, code = states / str(room), (states / f"{room}.txt").read_text(), int((states / f"{room}.code").read_text())
                ends[code] += 1
                self.assertIn(code, (0, 1, 74), text)
                self.assertEqual("No space left on device" in text, code != 0, text)
                for path in before.glob("checkpoint-*/*"):
                    self.assertEqual(path.read_bytes(), (out / path.relative_to(before)).read_bytes(), path)
                self.assertIn((out / "latest").read_text().strip(), [path.name for path in out.glob("checkpoint-*")])
                self.assertEqual([path.name for path in out.iterdir() if path.name.startswith(".")], [])
                for name in ("model.safetensors", "config.json", "vocab.txt"):
                    is_old = (out / name).read_bytes() == (before / name).read_bytes()
                    self.assertTrue(is_old or name == "model.safetensors" and code in (0, 74), (name, text))
        self.assertGreater(ends[1], 0)
        self.assertGreater(ends[74], 0)


if __name__ == "__main__":
    unittest.main()
