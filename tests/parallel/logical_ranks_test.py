"""The same bits on any number of processes: a job of logical ranks is run as 1, 2, 4 and 8 processes.

    LOCKSTEP_TEST_STEPS=200 logical_ranks_test.py LogicalRanksTest.test_models

trains for so many steps instead of 2.
"""
import os
import subprocess
import unittest

BIN = os.environ["LOCKSTEP_BIN_DIR"]
RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "logical_ranks_runner")
STEPS = int(os.environ.get("LOCKSTEP_TEST_STEPS", 2))


def run(processes, model, size, optimizer="adamw", how=None, steps=STEPS, environment=None):
    command = [RUNNER, model, str(size), optimizer, str(steps), *([how] if how else [])]
    if processes:
        command = [f"{BIN}/lockrun", "--standalone", "--prefix", "off", "--nproc-per-node", str(processes), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=600,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})


class LogicalRanksTest(unittest.TestCase):
    def trace(self, *arguments, **more):
        """Norm of the gradients and hash of parameters and buffers, step by step."""
        done = run(*arguments, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), more.get("steps", STEPS), done.stdout)
        self.assertEqual(len(set(lines)), len(lines))
        return lines

    def fails(self, expected, *arguments, **more):
        done = run(*arguments, **more)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stderr, expected)

    def test_models(self):
        for model, size, processes in (("toy", 8, (8,)), ("odd", 8, (2, 4, 8)), ("bert", 8, (2, 8)), ("resnet18", 4, (2, 4))):
            alone = self.trace(1, model, size)
            for count in processes:
                with self.subTest(model=model, processes=count):
                    self.assertEqual(self.trace(count, model, size), alone)

    def test_without_a_launcher(self):
        self.assertEqual(self.trace(None, "toy", 8), self.trace(2, "toy", 8))

    def test_divided_optimizer(self):
        alone = self.trace(1, "odd", 4)
        for count in (2, 4):
            with self.subTest(count):
                self.assertEqual(self.trace(count, "odd", 4, "zero"), alone)

    def test_gloo(self):
        gloo = {"LOCKSTEP_BACKEND": "gloo"}
        alone = self.trace(1, "odd", 8)
        for count in (2, 8):
            with self.subTest(count):
                self.assertEqual(self.trace(count, "odd", 8, environment=gloo), alone)

    def test_batch_normalisation_over_all_logical_ranks(self):
        alone = self.trace(None, "synced", 8)
        for count in (2, 4, 8):
            with self.subTest(count):
                self.assertEqual(self.trace(count, "synced", 8), alone)
        self.assertEqual(self.trace(2, "synced", 8, environment={"LOCKSTEP_BACKEND": "gloo"}), alone)
        self.assertEqual(self.trace(4, "synced", 8, environment={"LOCKSTEP_BACKEND": "gloo"}), alone)
        self.assertEqual(self.trace(2, "synced", 4, "zero"), self.trace(None, "synced", 4, "zero"))
        # Processes alone, which know nothing of logical ranks.
        pictures = self.trace(None, "resnet18", 2, how="sync")
        self.assertEqual(self.trace(2, "resnet18", 2, how="sync,plain"), pictures)
        self.assertEqual(self.trace(2, "resnet18", 2, how="sync"), pictures)

    def test_threads_and_batch_normalisation_over_all(self):
        threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
        self.assertEqual(self.trace(1, "synced", 2, environment=threads), self.trace(2, "synced", 2, environment=threads))

    def test_bf16(self):
        for model in ("bert", "synced"):
            with self.subTest(model):
                alone = self.trace(None, model, 4, how="bf16")
                self.assertNotEqual(alone, self.trace(None, model, 4, how=""))
                for count in (2, 4):
                    self.assertEqual(self.trace(count, model, 4, how="bf16"), alone)

    def test_an_error_in_a_logical_rank_ends_the_others(self):
        for processes in (None, 2):
            with self.subTest(processes):
                self.fails("no more samples", processes, "synced", 4, how="throws", steps=3)
                self.fails("logical rank 3 is at the backward of SyncBatchNorm first, but logical rank [02] at the forward of "
                           "SyncBatchNorm last; all must run the same SyncBatchNorm layers in the same order", processes,
                           "synced", 4, how="apart")
                self.fails("logical rank 3 ended micro-batch 1 of step 0 without a backward pass", processes, "synced", 4,
                           how="no_backward")

    def test_more_than_one_thread(self):
        threads = {"OMP_NUM_THREADS": "2"}
        self.assertEqual(self.trace(1, "bert", 2, environment=threads), self.trace(2, "bert", 2, environment=threads))

    def test_sums_are_those_of_the_tree(self):
        for model in ("toy", "bert"):
            with self.subTest(model):
                self.assertEqual(self.trace(None, model, 8, how="reference"), self.trace(None, model, 8))

    def test_as_many_processes_give_what_ddp_gives(self):
        self.assertEqual(self.trace(2, "bert", 2, how="plain"), self.trace(2, "bert", 2))

    def test_the_number_of_logical_ranks_counts(self):
        self.assertNotEqual(self.trace(None, "toy", 4), self.trace(None, "toy", 8))

    def test_what_cannot_be_is_refused(self):
        self.fails("3 processes cannot share 8 logical ranks; start a power of two of processes, at most 8", 3, "toy", 8)
        self.fails("2 processes cannot share 1 logical ranks", 2, "toy", 1)
        self.fails("size is 6; it must be a power of two", None, "toy", 6)
        self.fails("logical rank 3 ended micro-batch 1 of step 0 without a backward pass", None, "toy", 4, how="no_backward")


if __name__ == "__main__":
    unittest.main()
