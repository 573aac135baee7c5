"""lockstep.Recovery: a Python rank that dies is replaced, and the weights of a DDP model end with the bits of an undisturbed job."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from extent import first_of

LOCKRUN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockrun"
RANK = pathlib.Path(__file__).parent / "recovery_rank.py"
undisturbed = {}  # jobs of two ranks without a death, by their words


class Job:
    def __init__(self, ranks, kills="", replacements=9, words=(), spares=0):
        self.folder = tempfile.TemporaryDirectory()
        environment = {**os.environ, "HEAL_KILLS": kills, "HEAL_DIR": self.folder.name, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
        healing = ["--max-replacements", str(replacements)] if replacements else []
        if spares:
            events = pathlib.Path(self.folder.name) / "events.jsonl"
            environment["HEAL_EVENTS"] = str(events)
            healing += ["--spares", str(spares), "--event-log", events]
        self.process = subprocess.Popen([LOCKRUN, "--standalone", "--nproc-per-node", str(ranks), "--prefix", "off", *healing, RANK, *words],
                                        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self):
        self.out, self.err = self.process.communicate(timeout=200)
        self.folder.cleanup()
        self.told = self.out + self.err
        return self.process.returncode

    def hashes(self):
        return sorted(re.findall(r"^rank (\d+): steps (\d+) hash (\w+)", self.out, re.M))


class PythonRecovery(unittest.TestCase):
    def test_the_bits_of_an_undisturbed_job(self):
        # Each place, both ranks, signals, exit and an exception. Never both ranks at once.
        kills = "1:2:data:9 0:3:backward:11 1:4:after:9 0:6:between:exit 1:7:before:raise 0:9:forward:9"
        killed, calm = Job(2, kills), self.calm()
        self.assertEqual(killed.end(), 0, killed.told)
        self.assertEqual([(rank, steps) for rank, steps, _ in calm.hashes()], [("0", "10"), ("1", "10")], calm.told)
        self.assertEqual(len({hashed for _, _, hashed in calm.hashes()}), 1, calm.told)
        self.assertEqual(killed.hashes(), calm.hashes(), killed.told)
        self.assertEqual(len(re.findall(r"replaced in [\d.]+ s, no step lost", killed.err)), 6, killed.told)
        self.assertIn("lockrun: 6 ranks were replaced, no step lost", killed.err)

    def test_a_spare_takes_the_place(self):
        killed, calm = Job(2, "1:2:data:9 0:5:after:9", spares=1), self.calm()
        self.assertEqual(killed.end(), 0, killed.told)
        self.assertEqual(killed.hashes(), calm.hashes(), killed.told)
        self.assertEqual(len(re.findall(r"replaced by spare 0 in [\d.]+ s, no step lost", killed.err)), 2, killed.told)
        self.assertIn("lockrun: 2 ranks were replaced (2 by spares), no step lost", killed.err)

    def calm(self, *words):
        if words not in undisturbed:
            undisturbed[words] = job = Job(2, replacements=0, words=words)
            self.assertEqual(job.end(), 0, job.told)
            self.assertEqual(len(job.hashes()), 2, job.told)
        return undisturbed[words]

    def heals(self, kills, *words):
        killed, calm = Job(2, kills, words=words), self.calm(*words)
        self.assertEqual(killed.end(), 0, killed.told)
        self.assertEqual(killed.hashes(), calm.hashes(), killed.told)
        self.assertEqual(len(re.findall(r"replaced in [\d.]+ s, no step lost", killed.err)), len(kills.split()), killed.told)
        return calm

    def test_running_statistics_of_own_batches(self):
        kills = first_of("1:2:data:9 0:3:backward:11 1:4:after:9 0:6:before:9 1:8:between:exit 0:9:forward:9".split(), 3)
        for word in ("own_batch_norm", "batch_norm"):
            with self.subTest(word):
                calm = self.heals(" ".join(kills), word)
                # Each rank has others.
                self.assertEqual(len({hashed for _, _, hashed in calm.hashes()}), 2, calm.told)

    def test_communication_hooks_without_a_state(self):
        for word in ("fp16", "built_in"):
            with self.subTest(word):
                self.heals(" ".join(first_of(("1:3:backward:9", "0:6:after:9"))), word)

    def test_a_loader_with_worker_processes(self):
        self.heals(" ".join(first_of(("1:3:backward:9", "0:6:after:9", "0:8:between:exit"))), "loader")
        loaded = Job(2, "1:5:data:11", words=["loader"])
        self.assertEqual(loaded.end(), 0, loaded.told)
        self.assertEqual(loaded.hashes(), self.calm().hashes(), loaded.told)

    def test_accumulated_gradients_and_another_recovery(self):
        self.heals(" ".join(first_of(("1:3:backward:9", "0:4:forward:11", "0:6:after:9"), 2)), "accumulate", "twice", "own_batch_norm")

    def test_what_cannot_be_handed_over_is_said(self):
        job = Job(2, "1:3:data:9", words=["power"])
        self.assertEqual(job.end(), 137, job.told)
        self.assertIn("Recovery: ranks that die are not replaced, because of rank 0: the communication hook powerSGD_hook of a", job.err)
        self.assertIn("rank 1 was killed by SIGKILL and is not replaced: rank 0 no longer hands its state over", job.err)


if __name__ == "__main__":
    unittest.main()
