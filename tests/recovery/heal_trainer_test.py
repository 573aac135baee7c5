"""The Trainer under lockrun --max-replacements: weights, log, trackers and checkpoints of a job in which ranks die are those of an
undisturbed one."""

import csv
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import time
import unittest

import extent
from extent import first_of

LOCKRUN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockrun"
PROGRAM = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "healed_trainer"
KILL, SEGV = int(signal.SIGKILL), int(signal.SIGSEGV)
# ARGUMENTS make 2 epochs of 9 steps on 2 ranks, with evaluations after each 4 steps and checkpoints after each 6.
STEPS = 18
ARGUMENTS = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 5,
    "learning_rate": 0.01,
    "logging_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "per_device_eval_batch_size": 4,
    "save_strategy": "steps",
    "save_steps": 6,
    "report_to": "csv,jsonl",
    "max_grad_norm": 1.0,
    "run_id": "healed",
}
PLACES = ["epoch_begin", "step_begin", "forward", "before", "after", "step_end", "log", "evaluation", "evaluated", "saved", "epoch_end"]
TIMES = re.compile(r"runtime|per_second|^time$|_timestamp$|^ts$")
RANKS = [int(ranks) for ranks in os.environ.get("LOCKSTEP_TEST_RANKS", "2 2 3").split()]
LONGEST = 600  # seconds: a job, or the start of a process, on a machine that does much else
references = {}


def without_times(row):
    return {name: value for name, value in row.items() if not TIMES.search(name)}


def results(folder):
    """What a job has left, without times."""
    found = {"folders": sorted(path.name for path in folder.iterdir() if path.name not in {"lockstep.lock"})}
    found["log"] = [without_times(json.loads(line)) for line in (folder / "log.jsonl").read_text().splitlines()]
    found["jsonl"] = [
        without_times(json.loads(line))
        for line in (folder / "metrics.jsonl").read_text().splitlines()
        if "train_runtime" not in line and "config" not in line
    ]
    with open(folder / "metrics.csv", newline="") as file:
        found["csv"] = [without_times(row) for row in csv.DictReader(file)]
    for path in sorted(
        [*folder.glob("checkpoint-*/*.safetensors"), *folder.glob("final/*.safetensors"), *folder.glob("checkpoint-*/scheduler.json")]
    ):
        found[str(path.relative_to(folder))] = path.read_bytes()
    for path in sorted(folder.glob("checkpoint-*/trainer_state.json")):
        state = json.loads(path.read_text())
        state["log_history"] = [without_times(row) for row in state["log_history"]]
        state["best_model_checkpoint"] = pathlib.Path(state["best_model_checkpoint"] or "").name
        found[str(path.relative_to(folder))] = state
    return found


class HealTrainer(unittest.TestCase):
    maxDiff = 4000

    def run_job(self, ranks, kills="", replacements=20, keeps=None, spares=0, during=None, **arguments):
        """during: called with the job's process and its folder."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_heal_"))
        self.addCleanup(subprocess.run, ["rm", "-rf", folder])
        out = keeps or folder / "out"
        (folder / "args.json").write_text(json.dumps({**ARGUMENTS, **arguments, "output_dir": str(out)}))
        healing = ["--max-replacements", str(replacements)] if replacements else []
        healing += ["--spares", str(spares)] if spares else []
        environment = {
            **os.environ,
            "LOCKSTEP_REPLACEMENT_TIMEOUT": str(LONGEST),
            "HEAL_KILLS": kills,
            "HEAL_DIR": str(folder),
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [LOCKRUN, "--standalone", "--nproc-per-node", str(ranks), "--prefix", "off", *healing, PROGRAM, folder / "args.json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if during:
            during(process, out)
        stdout, stderr = process.communicate(timeout=LONGEST)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr), out

    def reference(self, ranks, **arguments):
        key = (ranks, json.dumps(arguments, sort_keys=True))
        if key not in references:
            job, folder = self.run_job(ranks, replacements=0, **arguments)
            self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
            references[key] = (results(folder), self.lines(job))
        return references[key]

    @staticmethod
    def lines(job):
        """What the ranks have said, without times."""
        text = "\n".join(line for line in (job.stdout + job.stderr).splitlines() if not line.startswith("lockrun:"))
        text = re.sub(r"/\S*/out/", "OUT/", text)
        return sorted(re.sub(r"[\d.]+ s\b|[\d.]+ samples/s|\d+:\d\d(:\d\d)?|\d+%|[\d.]+/s", "T", text).splitlines())

    def heals(self, ranks, kills, deaths=None, spares=0, during=None, **arguments):
        with self.subTest(ranks=ranks, kills=kills, spares=spares, **arguments):
            job, folder = self.run_job(ranks, kills, spares=spares, during=during, **arguments)
            told = f"{ranks} ranks, {spares} spares, {arguments}, HEAL_KILLS='{kills}'\n{job.stdout}{job.stderr}"
            # Random deaths may leave nobody. And one that was to come in the last steps may come behind them.
            is_behind = "no longer hands its state over" in job.stderr and f"step {STEPS}/{STEPS}" in job.stderr
            if deaths == -1 and ("no rank is left that has the job's state" in job.stderr or is_behind):
                self.assertNotEqual(job.returncode, 0, told)
                return job
            self.assertEqual(job.returncode, 0, told)
            count = len(kills.split()) if deaths is None else deaths
            if count >= 0:
                self.assertEqual(len(re.findall(r"replaced (?:by spare \d+ )?in [\d.]+ s, no step lost", job.stderr)), count, told)
            expected, said = self.reference(ranks, **arguments)
            found = results(folder)
            self.assertEqual(found.keys(), expected.keys(), told)
            for name, value in expected.items():
                if isinstance(value, bytes):
                    self.assertTrue(found[name] == value, f"{name} differs\n{told}")
                else:
                    self.assertEqual(found[name], value, f"{name}\n{told}")
            self.assertEqual(self.lines(job), said, told)
            self.assertEqual(list(folder.glob(".checkpoint*")), [])
            return job

    def test_without_a_death(self):
        self.heals(2, "")

    def test_each_place(self):
        """Rank 0 and another one, three deaths a job."""
        at = {"log": 3, "evaluation": 8, "evaluated": 12, "saved": 6, "epoch_begin": 9, "epoch_end": 18}
        for number, place in enumerate(PLACES):
            at.setdefault(place, 2 + number % 5)
        for half in (PLACES[::2], PLACES[1::2]):
            places = sorted(half, key=at.get)
            for first in first_of((0, 1)):
                self.heals(
                    2,
                    " ".join(f"{(first + number) % 2}:{at[place]}:{place}:{[KILL, SEGV, 'exit'][number % 3]}" for number, place in enumerate(places)),
                )

    def test_random_deaths(self):
        """A round of `scripts/soak heal`: any rank, place, time and way, one to four times."""
        draw = random.Random(int(os.environ.get("LOCKSTEP_TEST_SEED", "20")))
        for _ in range(int(os.environ.get("LOCKSTEP_TEST_RUNS", "2" if extent.ALL else "1"))):
            ranks = draw.choice(RANKS)
            kills = []
            for _ in range(draw.choice([1, 2, 2, 3, 4])):
                place = draw.choice([*PLACES, *[f"us={draw.randrange(8000)}"] * 8])
                rank, step = draw.randrange(ranks), draw.randrange(STEPS)
                if place == "evaluation":
                    step = max(step, 1)  # before the first step there is one before Recovery, to look at the metrics' names
                kills.append(f"{rank}:{step}:{place}:{draw.choice([KILL, SEGV, 'exit'])}")
            spares = draw.choice([0, 0, 1, 2])
            job = self.heals(ranks, " ".join(kills), deaths=-1, spares=spares)
            print(
                f"healed: {ranks} ranks, Trainer, {job.stderr.count(' s, no step lost') if job else 0} deaths, {spares} spares, {kills}", flush=True
            )

    def test_while_a_checkpoint_is_written(self):
        """Rank 0 and another one die as soon as what is not yet a checkpoint is there, the first one or a later one of six."""
        for victim in (0, 1):

            def kill(process, folder, victim=victim):
                while process.poll() is None and not (folder.exists() and any(name.startswith(".checkpoint") for name in os.listdir(folder))):
                    time.sleep(0.0005)
                guardian = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
                os.kill(int(pathlib.Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()[victim]), signal.SIGKILL)

            self.heals(2, "", deaths=1, during=kill, num_train_epochs=4)  # 16 lines: from the 20th on time decides

    def test_a_line_is_there_once(self):
        """Rank 0 dies when it is about to write to the terminal, also behind another line of the same part."""
        self.heals(2, f"0:3:line:{KILL} 0:8:result:{KILL} 0:12:line:{KILL} 0:12:result:{KILL}")

    def test_a_spare(self):
        self.heals(2, f"0:3:after:{KILL} 1:9:forward:{KILL}", spares=1)

    def test_an_average_of_the_weights_and_the_best_model(self):
        self.heals(
            2,
            f"0:5:after:{KILL} 1:9:before:{SEGV} 0:12:saved:{KILL}",
            ema_decay=0.9,
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            save_steps=4,
            save_total_limit=2,
        )

    def test_a_deterministic_world(self):
        self.heals(2, f"0:3:after:{KILL} 1:5:forward:{SEGV} 1:6:saved:exit 0:8:evaluation:{KILL}", deterministic_world=4)

    def test_a_resumed_run(self):
        job, folder = self.run_job(2, replacements=0, max_steps=12)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        copies = []
        for kills in ("", f"0:14:forward:{KILL} 1:15:log:{KILL}"):
            copy = folder.parent / f"copy{len(copies)}"
            subprocess.run(["cp", "-r", folder, copy], check=True)
            job, _ = self.run_job(2, kills, keeps=copy, resume_from_checkpoint="latest", save_total_limit=1)
            self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
            copies.append(results(copy))
        self.assertEqual(len(re.findall("no step lost", job.stderr)), 3, job.stderr)
        # The checkpoint that it began with stays until the end.
        copies[1]["folders"].remove("checkpoint-12") if "checkpoint-12" in copies[1]["folders"] else None
        for name in ("log", "csv", "jsonl", "final/model.safetensors"):
            self.assertTrue(copies[0][name] == copies[1][name], name)


if __name__ == "__main__":
    unittest.main()
