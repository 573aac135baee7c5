"""lockrun --max-replacements: a rank that dies is replaced, and the weights end with the bits of an undisturbed job."""

import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import unittest

LOCKRUN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockrun"
TRAINING = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "healed_training"
KILL, SEGV = int(signal.SIGKILL), int(signal.SIGSEGV)
PLACES = ["data", "forward", "backward", "before", "after", "between"]
OPTIMIZERS = ["sgd", "momentum", "adam", "our_adamw", "our_sgd"]
references = {}


def run(ranks, kills="", *flags, optimizer="adam", steps=12, replacements=20, width=32):
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HEAL_KILLS": kills, "HEAL_DIR": folder, "OMP_NUM_THREADS": "1"}
        healing = ["--max-replacements", str(replacements)] if replacements else []
        command = [LOCKRUN, "--standalone", "--nproc-per-node", str(ranks), "--prefix", "off", *healing, *map(str, flags),
                   TRAINING, "--steps", str(steps), "--optimizer", optimizer, "--width", str(width)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


def hashes(job):
    return sorted(re.findall(r"^rank (\d+) of \d+: steps (\d+) hash (\w+)$", job.stdout, re.M))


class Heal(unittest.TestCase):
    def reference(self, ranks, **options):
        key = (ranks, *sorted(options.items()))
        if key not in references:
            job = run(ranks, replacements=0, **options)
            self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
            self.assertEqual(len({line[2] for line in hashes(job)}), 1, job.stdout)
            references[key] = hashes(job)
        return references[key]

    def heals(self, ranks, kills, deaths=None, **options):
        job = run(ranks, kills, **options)
        told = f"{ranks} ranks, {options}, HEAL_KILLS='{kills}'\n{job.stdout}{job.stderr}"
        self.assertEqual(job.returncode, 0, told)
        self.assertEqual(hashes(job), self.reference(ranks, **options), told)
        count = len(kills.split()) if deaths is None else deaths
        self.assertEqual(len(re.findall(r"replaced in [\d.]+ s, no step lost", job.stderr)), count, told)
        return job

    def test_without_a_death(self):
        self.heals(2, "")

    def test_each_place(self):
        for number, place in enumerate(PLACES):
            ranks, rank = 2 + number % 2, number % 2
            how = [KILL, SEGV, "exit"][number % 3]
            with self.subTest(place=place, rank=rank, how=how):
                self.heals(ranks, f"{rank}:{3 + number}:{place}:{how}", optimizer=["adam", "our_adamw", "momentum"][number % 3])

    def test_random_deaths(self):
        """A round of `scripts/soak heal`: any rank, place and way, one to four times."""
        draw = random.Random(int(os.environ.get("LOCKSTEP_TEST_SEED", "20")))
        for _ in range(int(os.environ.get("LOCKSTEP_TEST_RUNS", "4"))):
            ranks, optimizer = draw.choice([2, 2, 3, 4]), draw.choice(OPTIMIZERS)
            kills = []
            for _ in range(draw.choice([1, 2, 2, 3, 4])):
                place = draw.choice([*PLACES, *[f"us={draw.randrange(5000)}"] * 4])
                kills.append(f"{draw.randrange(ranks)}:{draw.randrange(12)}:{place}:{draw.choice([KILL, SEGV, 'exit'])}")
            with self.subTest(ranks=ranks, optimizer=optimizer, kills=kills):
                job = run(ranks, " ".join(kills), optimizer=optimizer, width=256)
                told = f"{ranks} ranks, {optimizer}, HEAL_KILLS='{' '.join(kills)}'\n{job.stdout}{job.stderr}"
                self.assertEqual(job.returncode, 0, told)
                self.assertEqual(hashes(job), self.reference(ranks, optimizer=optimizer, width=256), told)
                print(f"healed: {ranks} ranks, {optimizer}, {job.stderr.count('no step lost')} deaths", flush=True)

    def test_two_ranks_at_once(self):
        self.heals(4, f"1:5:data:{KILL} 2:5:forward:{KILL}")

    def test_the_first_and_the_last_step(self):
        self.heals(2, f"0:0:data:{KILL} 1:11:after:exit")

    def test_the_same_rank_again_and_again(self):
        self.heals(2, " ".join(f"1:{step}:backward:{KILL}" for step in range(2, 10, 2)))

    def test_a_new_process_dies_before_it_has_come_back(self):
        self.heals(3, f"2:4:backward:{KILL} 2:0:again:{KILL}", deaths=1)


class Fallback(unittest.TestCase):
    def test_a_rank_that_dies_in_the_same_step_again_and_again(self):
        job = run(2, "1:4:backward:exit*")
        self.assertEqual(job.returncode, 1, job.stdout + job.stderr)
        self.assertIn("is not replaced: ranks have died", job.stderr)

    def test_used_up(self):
        job = run(2, f"1:4:backward:{KILL} 0:6:data:{KILL}", replacements=1)
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("is not replaced: --max-replacements 1 are used up", job.stderr)
        self.assertIn("was killed by SIGKILL", job.stderr)

    def test_a_death_before_recovery_restarts_all(self):
        job = run(2, f"1:0:setup:{KILL}", "--max-restarts", 1)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertIn("is not replaced: the program has not reached lockstep::Recovery", job.stderr)
        self.assertIn("starting all ranks again", job.stderr)
        self.assertEqual(len(hashes(job)), 2)

    def test_without_the_flag(self):
        job = run(2, f"1:4:backward:{KILL}", replacements=0)
        self.assertEqual(job.returncode, 137, job.stdout + job.stderr)
        self.assertNotIn("replaced", job.stderr)


if __name__ == "__main__":
    unittest.main()
