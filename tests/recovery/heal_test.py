"""lockrun --max-replacements: a rank that dies is replaced, and the weights end with the bits of an undisturbed job."""

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
TRAINING = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "healed_training"
KILL, SEGV = int(signal.SIGKILL), int(signal.SIGSEGV)
NOBODY = "no rank is left that has the job's state"
PLACES = ["data", "forward", "backward", "before", "after", "between"]
OPTIMIZERS = ["sgd", "momentum", "adam", "our_adamw", "our_sgd", "fused_zero", "zero", "shared_zero"]
FUSED = ("fused_zero", "shared_zero")  # they have a communication hook
RANKS = [int(ranks) for ranks in os.environ.get("LOCKSTEP_TEST_RANKS", "2 2 3 4").split()]
LONGEST = "600"  # seconds: a job, or the start of a process, on a machine that does much else
references = {}


def run(
    ranks,
    kills="",
    *flags,
    optimizer="adam",
    steps=12,
    replacements=20,
    width=32,
    times="no",
    norm="",
    models=1,
    hook="",
    logical=0,
    subgroups="no",
    accumulate="no",
    recoveries=1,
    **environment,
):
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "LOCKSTEP_REPLACEMENT_TIMEOUT": LONGEST,
            **environment,
            "HEAL_KILLS": kills,
            "HEAL_DIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        healing = ["--max-replacements", str(replacements)] if replacements else []
        command = [
            LOCKRUN,
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            "--prefix",
            "off",
            *healing,
            *map(str, flags),
            TRAINING,
            "--steps",
            str(steps),
            "--optimizer",
            optimizer,
            "--width",
            str(width),
            "--times",
            times,
            "--models",
            str(models),
            "--logical",
            str(logical),
            "--subgroups",
            subgroups,
            "--accumulate",
            accumulate,
            "--recoveries",
            str(recoveries),
            *(["--norm", norm] if norm else []),
            *(["--hook", hook] if hook else []),
        ]
        job = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=int(LONGEST))
        # Deaths that come at once say when.
        job.deaths = [
            (int(kill.split(":")[0]), float(path.read_text()))
            for number, kill in enumerate(kills.split())
            if (path := pathlib.Path(folder) / f"death{number}").exists() and path.read_text()
        ]
        return job


def milliseconds_lost(job):
    """From each death to the end of the first step of the process in its place; of a job with --times yes."""
    ends = [(int(rank), float(end)) for rank, end in re.findall(r"rank (\d+) ended a step at ([\d.]+)", job.stdout)]
    later = [[end - death for of, end in ends if of == rank and end > death] for rank, death in job.deaths]
    return [1000 * min(waits) for waits in later if waits]


def died_behind_the_end(job):
    """Of a job with --times yes: has a death that was to come in the last steps come when a rank was through with them?"""
    return "no longer hands its state over" in job.stderr and "ended a step at" in job.stdout


def hashes(job):
    return sorted(re.findall(r"^rank (\d+) of \d+: steps (\d+) hash (\w+)$", job.stdout, re.M))


def until(condition, what):
    deadline = time.monotonic() + 60
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.01)
    return found


def is_there(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid, count):
    """The pids of at least so many children of a process."""

    def look():
        found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in found] if len(found) >= count else []

    return until(look, f"{pid} has not {count} children")


class Jobs(unittest.TestCase):
    def reference(self, ranks, **options):
        key = (ranks, *sorted(options.items()))
        if key not in references:
            job = run(ranks, replacements=0, **options)
            self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
            # Statistics of a rank's own batches differ.
            have_own = options.get("norm") and not options.get("logical")
            self.assertEqual(len({line[2] for line in hashes(job)}), ranks if have_own else 1, job.stdout)
            references[key] = hashes(job)
        return references[key]

    def heals(self, ranks, kills, *flags, deaths=None, **options):
        job = run(ranks, kills, *flags, **options)
        told = f"{ranks} ranks, {options}, HEAL_KILLS='{kills}'\n{job.stdout}{job.stderr}"
        self.assertEqual(job.returncode, 0, told)
        self.assertEqual(hashes(job), self.reference(ranks, **options), told)
        count = len(kills.split()) if deaths is None else deaths
        self.assertEqual(len(re.findall(r"replaced (?:by spare \d+ )?in [\d.]+ s, no step lost", job.stderr)), count, told)
        return job


class Heal(Jobs):
    def test_without_a_death(self):
        self.heals(2, "")

    def test_each_place(self):
        for optimizer, ranks in first_of((("adam", 2), ("our_adamw", 3), ("momentum", 2))):
            kills = " ".join(f"{number % ranks}:{3 + number}:{place}:{[KILL, SEGV, 'exit'][number % 3]}" for number, place in enumerate(PLACES))
            with self.subTest(optimizer=optimizer, ranks=ranks):
                self.heals(ranks, kills, optimizer=optimizer)

    def test_an_exception_and_a_death_in_one_step(self):
        for rank, where in ((0, "data"), (1, "before")):
            job = run(3, f"{rank}:4:{where}:throw 2:4:{where}:{KILL}", HEAL_CATCHES="yes")
            self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
            self.assertEqual(len({line[2] for line in hashes(job)}), 1, job.stdout + job.stderr)

    def test_random_deaths(self):
        """A round of `scripts/soak heal`: any rank, place and way, one to four times."""
        draw = random.Random(int(os.environ.get("LOCKSTEP_TEST_SEED", "20")))
        for _ in range(int(os.environ.get("LOCKSTEP_TEST_RUNS", "4" if extent.ALL else "2"))):
            ranks, optimizer, norm = draw.choice(RANKS), draw.choice(OPTIMIZERS), draw.choice(["", "", "own", "rank0"])
            spares, models = draw.choice([0, 0, 1, 2]), draw.choice([1, 1, 2])
            hook = draw.choice(["", "power", "batched"]) if optimizer not in FUSED else ""
            more = {"hook": hook, "subgroups": draw.choice(["no", "no", "yes"])}
            if ranks in (2, 4) and not hook and norm != "own" and optimizer not in FUSED and draw.random() < 0.3:
                models, more = 1, {"logical": 4}
            flags = ["--spares", spares] if spares else []
            kills = []
            for _ in range(draw.choice([1, 2, 2, 3, 4])):
                place = draw.choice([*PLACES, *[f"us={draw.randrange(5000)}"] * 4])
                kills.append(f"{draw.randrange(ranks)}:{draw.randrange(12)}:{place}:{draw.choice([KILL, SEGV, 'exit'])}")
            with self.subTest(ranks=ranks, optimizer=optimizer, norm=norm, spares=spares, kills=kills):
                job = run(ranks, " ".join(kills), *flags, optimizer=optimizer, width=256, times="yes", norm=norm, models=models, **more)
                told = f"{ranks} ranks, {spares} spares, {models} models, {optimizer}, {norm}, {more}, HEAL_KILLS='{' '.join(kills)}'\n{job.stdout}{job.stderr}"
                ending = "until all were dead" if NOBODY in job.stderr else "until one behind the end" if died_behind_the_end(job) else ""
                if ending:
                    self.assertNotEqual(job.returncode, 0, told)
                    print(f"healed: {ranks} ranks, {job.stderr.count(' s, no step lost')} deaths, {ending}", flush=True)
                    continue
                self.assertEqual(job.returncode, 0, told)
                self.assertEqual(hashes(job), self.reference(ranks, optimizer=optimizer, width=256, norm=norm, models=models, **more), told)
                lost = ", ".join(f"{ms:.0f} ms" for ms in milliseconds_lost(job))
                print(
                    f"healed: {ranks} ranks, {optimizer}, {models} model{'s' * (models > 1)}, {job.stderr.count(' s, no step lost')} deaths, {spares} spares"
                    + (f"; from a kill to the next step: {lost}" if lost else ""),
                    flush=True,
                )

    def test_an_exception_in_the_body_is_no_death(self):
        # What the program counts itself is not taken back, so that the ranks differ in the end.
        job = run(2, "1:4:data:throw 0:9:before:throw", HEAL_CATCHES="yes")
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertEqual([line[:2] for line in hashes(job)], [("0", "12"), ("1", "12")], job.stdout + job.stderr)
        self.assertNotIn(" s, no step lost", job.stderr)

    def test_two_ranks_at_once(self):
        self.heals(4, f"1:5:data:{KILL} 2:5:forward:{KILL}")

    def test_all_but_one_rank_at_once(self):
        """Four deaths at one step, but one of each rank."""
        self.heals(5, f"0:5:data:{KILL} 1:5:forward:{KILL} 3:5:forward:{SEGV} 4:5:data:exit")

    def test_the_first_and_the_last_step(self):
        self.heals(2, f"0:0:data:{KILL} 1:11:after:exit")

    def test_the_same_rank_again_and_again(self):
        self.heals(2, " ".join(f"1:{step}:backward:{KILL}" for step in range(2, 10, 2)))

    def test_a_new_process_dies_before_it_has_come_back(self):
        self.heals(3, f"2:4:backward:{KILL} 2:0:again:{KILL}", deaths=1)

    def test_a_rank_dies_when_another_one_has_the_state_again(self):
        # In that moment the last one that has had it all the time; with two ranks, too.
        for ranks in first_of((2, 3)):
            with self.subTest(ranks=ranks):
                self.heals(ranks, f"1:4:backward:{KILL} 0:4:healed:{KILL} 0:7:after:{KILL} 1:7:healed:{SEGV}")

    def test_a_death_while_another_rank_is_in_the_constructor(self):
        self.heals(2, f"0:0:data:{KILL}", HEAL_COMES_LATE="yes")


class KindsOfTrainings(Jobs):
    def test_divided_optimizers(self):
        for optimizer, ranks in first_of((("fused_zero", 3), ("zero", 2), ("shared_zero", 2), ("shared_zero", 3)), 3):
            kills = " ".join(
                f"{number % ranks}:{1 + number}:{place}:{[KILL, SEGV, 'exit'][number % 3]}"
                for number, place in enumerate([*PLACES, *first_of(["before", "after"], 0)])
            )
            with self.subTest(optimizer=optimizer, ranks=ranks):
                self.heals(ranks, kills, optimizer=optimizer)

    def test_operations_before_recovery_that_nobody_waits_for(self):
        self.heals(3, f"1:2:forward:{KILL} 0:4:between:{KILL} 2:6:after:exit", HEAL_UNWAITED="yes")

    def test_two_models(self):
        self.heals(2, f"0:2:data:{KILL} 1:4:backward:{SEGV} 0:5:before:exit 1:7:after:{KILL} 0:9:between:{KILL}", models=2, optimizer="fused_zero")

    def test_between_the_steps_of_two_optimizers(self):
        # The others wait in the second one's step(), and cannot take back what the first one wrote.
        for ranks, optimizer in first_of(((2, "momentum"), (3, "adam"), (3, "our_adamw"), (4, "fused_zero"), (2, "zero"))):
            kills = f"0:2:updated:{KILL} 1:5:updated:exit {ranks - 1}:{5 if ranks > 2 else 6}:updated:{SEGV} 0:9:updated:{KILL}"
            with self.subTest(ranks=ranks, optimizer=optimizer):
                self.heals(ranks, kills, models=2, optimizer=optimizer)

    def test_running_statistics_of_own_batches(self):
        for norm, ranks in (("own", 2), ("rank0", 3)):
            kills = " ".join(
                f"{number % ranks}:{1 + number}:{place}:{[KILL, SEGV, 'exit'][number % 3]}"
                for number, place in enumerate([*PLACES, *first_of(["backward", "after"], 0)])
            )
            with self.subTest(norm=norm, ranks=ranks):
                self.heals(ranks, kills, norm=norm, optimizer=["adam", "our_sgd"][ranks % 2])

    def test_process_groups_of_some_ranks(self):
        for ranks in first_of((3, 4)):
            kills = " ".join(f"{number % ranks}:{1 + number}:{place}:{[KILL, SEGV, 'exit'][number % 3]}" for number, place in enumerate(PLACES))
            with self.subTest(ranks=ranks):
                self.heals(ranks, kills, subgroups="yes", optimizer=["momentum", "fused_zero"][ranks % 2])

    def test_a_communication_hook_with_a_state(self):
        # Until the third step gradients are not compressed; it begins with random matrices.
        for hook, ranks, norm in (("power", 3, "own"), ("batched", 2, "")):
            kills = f"0:0:after:{KILL} 1:1:before:exit 0:3:backward:{KILL} 1:4:data:{SEGV} " + " ".join(
                f"{number % ranks}:{5 + number}:{place}:{KILL}" for number, place in enumerate(["forward", "backward", "before", "after", "between"])
            )
            with self.subTest(hook=hook):
                self.heals(ranks, kills, hook=hook, norm=norm, optimizer=["adam", "our_sgd"][ranks % 2])

    def test_a_skipped_step_changes_no_state_of_a_hook(self):
        kills = f"0:3:data:{KILL} 1:6:backward:{SEGV} 0:9:forward:exit"
        self.heals(2, kills, hook="power", optimizer="our_sgd", HEAL_SKIPS="yes")

    def test_logical_ranks(self):
        for ranks, norm, optimizer in first_of(((2, "rank0", "adam"), (4, "", "our_adamw"))):
            kills = " ".join(
                f"{number % ranks}:{1 + number}:{place}:{[KILL, SEGV, 'exit'][number % 3]}"
                for number, place in enumerate([*PLACES, "backward", "updated"])
            )
            with self.subTest(ranks=ranks, norm=norm):
                self.heals(ranks, kills, logical=4, norm=norm, optimizer=optimizer)

    def test_accumulated_gradients(self):
        kills = " ".join(f"{number % 2}:{1 + number}:{place}:{KILL}" for number, place in enumerate([*PLACES, "forward"]))
        self.heals(2, kills, accumulate="yes", norm="own")

    def test_another_recovery(self):
        for recoveries in first_of((2, 3)):
            with self.subTest(recoveries=recoveries):
                # Between two optimizers' steps only the first Recovery can help.
                job = self.heals(2, f"1:3:backward:{KILL} 0:6:updated:{KILL}", recoveries=recoveries, models=2)
                self.assertIn("Recovery: only the first one of a program replaces ranks that die", job.stderr)

    def test_an_evaluation_that_is_a_step(self):
        kills = f"0:3:evaluation:{KILL} 1:3:evaluated:exit 1:7:evaluation:{SEGV} 0:11:evaluated:{KILL}"
        for spares in (0, 1):
            with self.subTest(spares=spares):
                self.heals(2, kills, *(["--spares", spares] if spares else []), HEAL_EVALUATES="yes")


class Fallback(unittest.TestCase):
    def test_a_rank_that_dies_in_the_same_step_again_and_again(self):
        job = run(2, "1:4:backward:exit*")
        self.assertEqual(job.returncode, 1, job.stdout + job.stderr)
        self.assertIn("rank 1 ended with exit code 1 and is not replaced: it has died 4 times since step 4 has ended", job.stderr)

    def test_new_processes_that_die_at_once(self):
        for kills, environment in ((" 1:0:again:exit*", {}), ("", {"HEAL_REFUSES": "yes"})):
            job = run(2, f"1:4:backward:{KILL}" + kills, **environment)
            with self.subTest(**environment):
                self.assertEqual(job.returncode, 1, job.stdout + job.stderr)
                self.assertIn("rank 1 ended with exit code 1 and is not replaced: it has died 4 times since step 4 has ended", job.stderr)

    def test_a_hook_whose_state_was_not_named(self):
        job = run(2, f"1:4:data:{KILL}", hook="power", HEAL_FORGETS="compression")
        self.assertEqual(job.returncode, 137, job.stdout + job.stderr)
        self.assertIn("Recovery: ranks that die are not replaced, because of rank 0: a PowerSGDState is not named in Recovery", job.stderr)

    def test_a_message_before_recovery_that_comes_later(self):
        job = run(2, f"1:4:data:{KILL}", HEAL_UNWAITED="message")
        self.assertEqual(job.returncode, 137, job.stdout + job.stderr)
        self.assertRegex(
            job.stderr, "ranks that die are not replaced, because of rank 0: it has started recv.*, which has not ended: wait for its Work before"
        )

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

    def test_a_death_after_recovery_restarts_all(self):
        job = run(2, f"1:0:end:{KILL}", "--max-restarts", 1, HEAL_LINGERS="yes")
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertIn("rank 1 was killed by SIGKILL and is not replaced: rank 1 no longer hands its state over", job.stderr)
        self.assertIn("starting all ranks again", job.stderr)
        self.assertIn("rank 1 of 2: steps 12", job.stdout)

    def test_a_collective_behind_the_optimizer(self):
        job = run(2, f"1:4:late:{KILL}", "--max-restarts", 1, HEAL_LATE="yes")
        self.assertIn("Recovery: a rank died when all others had updated their weights and were not at the end of the step", job.stderr)
        self.assertIn("starting all ranks again", job.stderr)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertEqual(len(hashes(job)), 2)

    def test_lockrun_or_its_guardian(self):
        """The job ends, and nothing of it is left."""
        for victim in ("lockrun", "guardian"):
            with self.subTest(victim=victim), tempfile.TemporaryDirectory() as folder:
                job = subprocess.Popen(
                    [
                        LOCKRUN,
                        "--standalone",
                        "--nproc-per-node",
                        "2",
                        "--max-replacements",
                        "3",
                        "--event-log",
                        f"{folder}/log",
                        TRAINING,
                        "--steps",
                        "1000000",
                    ],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                guardian = children(job.pid, 1)[0]
                ranks = children(guardian, 2)
                os.kill(job.pid if victim == "lockrun" else guardian, signal.SIGKILL)
                _, err = job.communicate(timeout=60)
                self.assertEqual(job.returncode, -9 if victim == "lockrun" else 1, err)
                for pid in (guardian, *ranks):
                    until(lambda: not is_there(pid), f"{pid} is left")

    def test_a_collective_outside_of_steps(self):
        job = run(2, f"1:4:outside:{KILL}", HEAL_OUTSIDE="yes")
        self.assertNotEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertIn("which has died and was replaced; only lockstep::step(recovery, ...) goes on", job.stderr)

    def test_a_new_process_that_never_arrives(self):
        job = run(2, f"1:4:forward:{KILL}", HEAL_STUCK="yes", LOCKSTEP_REPLACEMENT_TIMEOUT="1")
        self.assertNotEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertIn("the process in its place has not reached init() within 1 s", job.stderr)

    def test_a_state_that_was_not_named(self):
        job = run(2, f"1:6:forward:{KILL}", HEAL_FORGETS="schedule")
        self.assertNotEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertIn("Recovery: optimizer differs between rank 0 and rank 1 after step 7; a rank was replaced after step 6", job.stderr)

    def test_without_the_flag(self):
        job = run(2, f"1:4:backward:{KILL}", replacements=0)
        self.assertEqual(job.returncode, 137, job.stdout + job.stderr)
        self.assertNotIn("replaced", job.stderr)


if __name__ == "__main__":
    unittest.main()
