"""lockrun --spares: a process that waits takes the place of a rank that dies, and the weights end with the bits of an undisturbed job."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from extent import first_of

LOCKRUN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockrun"
PROGRAMS = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"])
KILL, SEGV = int(signal.SIGKILL), int(signal.SIGSEGV)
LONGEST = 600  # seconds: a job, or a wait in one, on a machine that does much else
references = {}


class Job:
    """A job with spares, of which the test learns by lockrun's event log."""

    def __init__(self, ranks, kills="", *flags, spares=1, replacements=20, steps=12, optimizer="adam", waits=True, program=None, **environment):
        self.folder = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.folder.name) / "events.jsonl"
        healing = ["--max-replacements", replacements] if replacements else []
        healing += ["--event-log", self.log, *(["--spares", spares] if spares else [])]
        words = program or [PROGRAMS / "healed_training", "--steps", steps, "--optimizer", optimizer]
        command = [LOCKRUN, "--standalone", "--nproc-per-node", ranks, *healing, *flags, *words]
        environment = {
            **os.environ,
            "LOCKSTEP_REPLACEMENT_TIMEOUT": str(LONGEST),
            **environment,
            "HEAL_KILLS": kills,
            "HEAL_DIR": self.folder.name,
            "OMP_NUM_THREADS": "1",
            **({"HEAL_EVENTS": str(self.log)} if spares and waits else {}),
        }
        self.process = subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self):
        self.out, self.err = self.process.communicate(timeout=LONGEST)
        self.events = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        self.folder.cleanup()
        self.told = self.out + self.err
        return self.process.returncode

    def hashes(self):
        return sorted(re.findall(r"rank (\d+) of \d+: steps (\d+) hash (\w+)$", self.out, re.M))

    def count(self, pattern):
        return len(re.findall(pattern, self.err))

    def wait_for(self, condition):
        deadline = time.monotonic() + LONGEST
        while time.monotonic() < deadline:
            has_ended = self.process.poll() is not None
            found = self.log.exists() and condition([json.loads(line) for line in self.log.read_text().splitlines()])
            if found:
                return found
            if has_ended:
                raise AssertionError(f"the job has ended before: {self.end()} {self.told}")
            time.sleep(0.005)
        self.process.kill()
        raise AssertionError(f"nothing has come within {LONGEST} s: {self.end()} {self.told}")

    def wait_for_spare(self, number=1):
        """Its pid, once so many have waited."""
        waiting = self.wait_for(lambda events: [event for event in events if event["event"] == "spare"][number - 1 :])
        return waiting[0]["pid"]


BY_SPARE = r"replaced by spare \d+ in [\d.]+ s, no step lost"
NEW = r"replaced in [\d.]+ s, no step lost"


def is_there(pid):
    try:
        return (pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]) != "Z"
    except OSError:
        return False


class Spares(unittest.TestCase):
    def reference(self, ranks, **options):
        key = (ranks, *sorted(options.items()))
        if key not in references:
            job = Job(ranks, spares=0, replacements=0, **options)
            self.assertEqual(job.end(), 0, job.told)
            references[key] = job.hashes()
        return references[key]

    def test_each_place(self):
        places = ["data", "forward", "backward", "before", "after", "between"]
        for optimizer, ranks in first_of((("our_adamw", 2), ("fused_zero", 3))):
            kills = " ".join(f"{number % ranks}:{2 + number}:{place}:{[KILL, SEGV, 'exit'][number % 3]}" for number, place in enumerate(places))
            with self.subTest(optimizer=optimizer):
                job = Job(ranks, kills, optimizer=optimizer)
                self.assertEqual(job.end(), 0, job.told)
                self.assertEqual(job.hashes(), self.reference(ranks, optimizer=optimizer), job.told)
                self.assertEqual(job.count(BY_SPARE), 6, job.told)
                self.assertIn("lockrun: 6 ranks were replaced (6 by spares), no step lost", job.err)
                replaced = [event for event in job.events if event["event"] == "replace"]
                self.assertEqual([event["spare"] for event in replaced], [0] * 6, job.events)
                waited = [event["pid"] for event in job.events if event["event"] == "spare"]
                self.assertEqual([event["pid"] for event in replaced], waited[:6], job.events)
                self.assertFalse([pid for pid in waited if is_there(pid)])

    def test_lines_are_those_of_the_rank(self):
        # A process that has taken the place of rank 1 writes where rank 1 has written.
        job = Job(2, f"1:4:backward:{KILL}", "--prefix", "on")
        self.assertEqual(job.end(), 0, job.told)
        self.assertEqual(len(re.findall(r"^\[rank 1\]: rank 1 of 2: steps 12 hash", job.out, re.M)), 1, job.told)
        self.assertEqual(job.count(BY_SPARE), 1, job.told)

    def test_more_deaths_than_spares(self):
        kills = f"1:5:data:{KILL} 2:5:forward:{KILL} 3:5:backward:{KILL}"
        job = Job(4, kills, spares=1, waits=False)
        self.assertEqual(job.end(), 0, job.told)
        self.assertEqual(job.hashes(), self.reference(4), job.told)
        self.assertEqual(job.count(BY_SPARE) + job.count(NEW), 3, job.told)
        two = Job(4, "", spares=2, steps=1000000)
        two.wait_for_spare(2)
        pids = {event["pid"] for event in two.wait_for(lambda events: [event for event in events if event["event"] == "spare"])}
        self.assertEqual(len(pids), 2)
        two.process.send_signal(signal.SIGTERM)
        self.assertEqual(two.end(), 143, two.told)
        self.assertFalse([pid for pid in pids if is_there(pid)])

    def test_a_spare_dies_while_it_waits(self):
        job = Job(2, f"1:60000:data:{KILL}", steps=1000000)
        first = job.wait_for_spare()
        os.kill(first, signal.SIGKILL)
        second = job.wait_for_spare(2)
        self.assertNotEqual(first, second)
        os.kill(second, signal.SIGKILL)
        os.kill(job.wait_for_spare(3), signal.SIGKILL)
        job.wait_for(lambda events: len([event for event in events if event["event"] == "exit" and "spare" in event]) == 3)
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.end(), 130, job.told)
        self.assertIn(f"lockrun: spare 0 (pid {first}) was killed by SIGKILL while it waited; another one is started", job.err)
        self.assertIn("while it waited, the 3rd in a row, and no more are started", job.err)

    def test_a_spare_dies_while_it_takes_over(self):
        job = Job(2, f"1:4:backward:{KILL} 1:0:again:{KILL}", spares=2)
        self.assertEqual(job.end(), 0, job.told)
        self.assertEqual(job.hashes(), self.reference(2), job.told)
        self.assertEqual(job.count(BY_SPARE), 1, job.told)

    def test_a_spare_and_a_rank_die_at_once(self):
        for after in (0, 0.004):
            with self.subTest(after=after):
                job = Job(2, steps=60, HEAL_HOLDS="yes")  # the rank that is killed waits for it
                spare = job.wait_for_spare()
                ranks = [int(pid) for pid in children_of(job.process.pid) if int(pid) != spare]
                os.kill(ranks[-1], signal.SIGKILL)
                time.sleep(after)
                os.kill(spare, signal.SIGKILL)
                self.assertEqual(job.end(), 0, job.told)
                self.assertEqual(job.hashes(), self.reference(2, steps=60), job.told)
                self.assertGreaterEqual(job.count(BY_SPARE) + job.count(NEW), 1, job.told)

    def test_as_many_as_replacements_are_left(self):
        job = Job(2, f"1:4:backward:{KILL} 0:6:data:{KILL}", spares=4, replacements=2)
        self.assertEqual(job.end(), 0, job.told)
        self.assertEqual(job.hashes(), self.reference(2), job.told)
        self.assertEqual(len([event for event in job.events if event["event"] == "spare"]), 2, job.events)

    def test_a_program_that_reads_its_rank_before_init(self):
        job = Job(
            2,
            waits=False,
            steps=2000,
            program=["sh", "-c", 'case $RANK in spare) echo no rank; exit 3;; *) exec "$0" --steps 2000;; esac', PROGRAMS / "healed_training"],
        )
        self.assertEqual(job.end(), 0, job.told)
        self.assertEqual(job.count(r"spare 0 \(pid \d+\) ended with exit code 3 before it waited in init\(\), and no more are started"), 1, job.told)
        self.assertIn("[spare 0]: no rank", job.out)

    def test_a_program_without_recovery(self):
        job = Job(2, "", program=["true"])
        self.assertEqual(job.end(), 0, job.told)
        self.assertIn("warning: --spares 1: none was started, because the program has not reached lockstep::Recovery", job.err)

    def test_ctrl_c_ends_spares_too(self):
        job = Job(2, steps=1000000)
        spare = job.wait_for_spare()
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.end(), 130, job.told)
        self.assertFalse(is_there(spare))

    def test_a_killed_lockrun_leaves_no_spare(self):
        job = Job(2, steps=1000000)
        spare = job.wait_for_spare()
        job.process.kill()
        job.end()
        deadline = time.monotonic() + LONGEST
        while is_there(spare) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(is_there(spare))

    def test_a_spare_that_waits_is_not_hung(self):
        """Twice the hang watch's time passes after it has begun to wait."""
        job = Job(2, "", "--hang-timeout", "3", steps=1000000)
        job.wait_for_spare()
        time.sleep(6)
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.end(), 130, job.told)
        names = [event["event"] for event in job.events]
        self.assertNotIn("hang", names[names.index("spare") :], job.told)


class CtrlC(unittest.TestCase):
    def test_during_a_replacement(self):
        """The exit code is that of Ctrl-C, whatever the ranks make of the loss of the new process."""
        trainer = {"program": [PROGRAMS / "healed_trainer"], "kills": "1:4:forward:9"}
        for how in ({"kills": f"1:4:forward:{KILL}"}, trainer):
            with self.subTest(**how):
                folder = tempfile.TemporaryDirectory()
                arguments = pathlib.Path(folder.name) / "args.json"
                arguments.write_text(json.dumps({"num_train_epochs": 2, "per_device_train_batch_size": 5, "output_dir": folder.name + "/out"}))
                # The signal waits for half of that.
                job = Job(
                    2,
                    how["kills"],
                    "--shutdown-timeout",
                    "6",
                    spares=0,
                    HEAL_STUCK="yes",
                    program=[*how["program"], arguments] if "program" in how else None,
                )
                job.wait_for(lambda events: [event for event in events if event["event"] == "exit"])
                job.process.send_signal(signal.SIGINT)
                self.assertEqual(job.end(), 130, job.told)
                folder.cleanup()


def children_of(pid):
    """The pids of a lockrun's ranks and spares: children of its guardian, in the order of their start."""
    guardians = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        child
        for guardian in guardians
        for child in pathlib.Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
        if "healed" in pathlib.Path(f"/proc/{child}/comm").read_text()
    ]


if __name__ == "__main__":
    unittest.main()
