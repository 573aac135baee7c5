"""The same bits on any number of processes: a job of logical ranks is run as 1, 2, 4 and 8 processes.

    LOCKSTEP_TEST_STEPS=200 logical_ranks_test.py LogicalRanksTest.test_models_on_any_number_of_processes

trains for so many steps instead of 2.
"""

import os
import subprocess
import unittest

from extent import first_of

BIN = os.environ["LOCKSTEP_BIN_DIR"]
RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "logical_ranks_runner")
STEPS = int(os.environ.get("LOCKSTEP_TEST_STEPS", 2))
GLOO = {"LOCKSTEP_BACKEND": "gloo"}


def run(processes, *jobs, steps=STEPS, environment=None, before=()):
    command = [*before, RUNNER, str(steps), *jobs]
    if processes:
        command = [f"{BIN}/lockrun", "--standalone", "--prefix", "off", "--nproc-per-node", str(processes), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})


class LogicalRanksTest(unittest.TestCase):
    maxDiff = None

    def traces(self, processes, *jobs, steps=STEPS, environment=None):
        """By job, norm of the gradients and hash of parameters and buffers, step by step."""
        done = run(processes, *jobs, steps=steps, environment=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = {}
        for line in done.stdout.splitlines():
            if line.startswith("job "):
                lines = found.setdefault(line.removeprefix("job "), [])
            else:
                lines.append(line)
        self.assertEqual(list(found), list(jobs), done.stdout)
        for job, lines in found.items():
            self.assertEqual(len(lines), steps, job)
            self.assertEqual(len(set(lines)), steps, job)
        return found

    def trace(self, processes, job, environment=None):
        return self.traces(processes, job, environment=environment)[job]

    def fails(self, expected, processes, job, steps=STEPS):
        done = run(processes, job, steps=steps)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stderr, expected)

    def test_models_on_any_number_of_processes(self):
        jobs = ("toy:8:adamw", "odd:8:adamw", "synced:8:adamw", "bert:8:adamw", "resnet18:8:adamw")
        alone = self.traces(1, *jobs)
        for count in first_of((8, 2, 4), 2):
            with self.subTest(count):
                self.assertEqual(self.traces(count, *jobs), alone)
        # Gloo moves the same buckets, whatever fills them.
        for count, some in first_of(((2, jobs[:4]), (8, jobs[:3]))):
            with self.subTest(count, backend="gloo"):
                self.assertEqual(self.traces(count, *some, environment=GLOO), {job: alone[job] for job in some})

    def test_ways_to_train(self):
        """A divided optimizer, autocast, and batches of pictures normalized over all logical ranks."""
        jobs = ("odd:4:zero", "synced:4:zero", "odd:4:sgd", "bert:4:adamw:bf16", "synced:4:adamw:bf16", "bert:4:adamw", "resnet18:4:adamw:sync")
        alone = self.traces(None, *jobs)
        for count in first_of((4, 2, 1), 2):
            with self.subTest(count):
                self.assertEqual(self.traces(count, *jobs), alone)
        self.assertNotEqual(alone["bert:4:adamw:bf16"], alone["bert:4:adamw"])

    def test_more_than_one_thread(self):
        jobs = ("bert:2:adamw", "synced:2:adamw")
        threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
        self.assertEqual(self.traces(1, *jobs, environment=threads), self.traces(2, *jobs, environment=threads))

    def test_as_many_processes_give_what_ddp_gives(self):
        plain = self.traces(2, "bert:2:adamw:plain", "resnet18:2:adamw:sync,plain")
        ours = self.traces(2, "bert:2:adamw", "resnet18:2:adamw:sync")
        self.assertEqual(list(ours.values()), list(plain.values()))

    def test_sums_are_those_of_the_tree(self):
        written_out = self.traces(None, "toy:8:adamw:reference", "bert:8:adamw:reference")
        self.assertEqual(list(self.traces(None, "toy:8:adamw", "bert:8:adamw").values()), list(written_out.values()))

    def test_the_number_of_logical_ranks_counts(self):
        few, many = self.traces(None, "toy:4:adamw", "toy:8:adamw").values()
        self.assertNotEqual(few, many)

    def test_an_error_in_a_logical_rank_ends_the_others(self):
        for processes in (None, 2):
            with self.subTest(processes):
                self.fails("no more samples", processes, "synced:4:adamw:throws", steps=3)
                self.fails(
                    "logical rank 3 is at the backward of SyncBatchNorm first, but logical rank [02] at the forward of "
                    "SyncBatchNorm last; all must run the same SyncBatchNorm layers in the same order",
                    processes,
                    "synced:4:adamw:apart",
                )
                self.fails("logical rank 3 ended micro-batch 1 of step 0 without a backward pass", processes, "synced:4:adamw:no_backward")

    def test_processes_that_differ_are_refused(self):
        for setting, what in (
            ("OMP_NUM_THREADS=2", "threads 1 .*threads 2"),
            ("ATEN_CPU_CAPABILITY=default", "vector instructions .*vector instructions DEFAULT"),
        ):
            with self.subTest(setting):
                before = ("bash", "-c", f'[ "$RANK" = 0 ] || export {setting}; exec "$@"', "bash")
                done = run(2, "toy:2:adamw", before=before)
                self.assertNotEqual(done.returncode, 0, done.stdout)
                self.assertRegex(done.stderr, f"rank 0 has {what}")

    def test_what_cannot_be_is_refused(self):
        self.fails("3 processes cannot share 8 logical ranks; start a power of two of processes, at most 8", 3, "toy:8:adamw")
        self.fails("2 processes cannot share 1 logical ranks", 2, "toy:1:adamw")
        self.fails("size is 6; it must be a power of two", None, "toy:6:adamw")
        self.fails("logical rank 3 ended micro-batch 1 of step 0 without a backward pass", None, "toy:4:adamw:no_backward")


if __name__ == "__main__":
    unittest.main()
