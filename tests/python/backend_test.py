"""torch.distributed on the lockstep backend: under lockrun and torchrun, from mp, and together with C++ ranks."""

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import starts

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]
HERE = os.path.dirname(os.path.abspath(__file__))
RANK = os.path.join(HERE, "backend_rank.py")


def lockrun(ranks, *command, **environment):
    done = subprocess.run(
        [f"{BIN}/lockrun", "--standalone", "--nproc-per-node", str(ranks), *command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=200,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout


def python_ranks(ranks, *cases, **environment):
    return starts.Cases(lambda *names: lockrun(ranks, sys.executable, RANK, *names, **environment), ranks, cases)


def init_with_file(rank, size, file):
    import lockstep  # noqa: F401

    dist.init_process_group("lockstep", init_method=f"file://{file}", rank=rank, world_size=size)


def spawned(rank, size, file):
    init_with_file(rank, size, file)
    tensor = torch.full((3,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size * (size + 1) / 2] * 3, tensor
    dist.destroy_process_group()


def killed(rank, size, file):
    init_with_file(rank, size, file)
    import backend_rank

    backend_rank.killed()


def without_memory(rank, file):
    os.environ["LOCKSTEP_ARENA_BYTES"] = "0"
    begin = time.monotonic()
    try:
        init_with_file(rank, 2, file)
    except (RuntimeError, ValueError) as error:  # the value is rank 0's
        assert "LOCKSTEP_ARENA_BYTES=0" in str(error) and time.monotonic() - begin < 60, error
        os._exit(0)
    os._exit(1)


class Backend(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name

    # What several tests look at runs in one start of the ranks.

    @classmethod
    @functools.cache
    def two_ranks(cls):
        return python_ranks(
            2,
            "collectives",
            "averages_of_integers",
            "overlapping_tensors",
            "messages_to_oneself",
            "ddp",
            "timeouts",
            "monitored_barriers",
            "named_for_a_device",
            "resized_buckets",
            "profiled",
            "twice",
            "futures_and_threads",
            "unwaited",
            "trained",
            "trained_on_gloo",
            TRAINED=cls.folder,
        )

    @classmethod
    @functools.cache
    def three_ranks(cls):
        return python_ranks(3, "collectives", "averages_of_integers", "overlapping_tensors", "groups", "unwaited", "other_members_in_a_later_job")

    @classmethod
    @functools.cache
    def under_torchrun(cls):
        os.mkdir(f"{cls.folder}/torchrun")
        os.mkdir(f"{cls.folder}/timeline")
        return starts.Cases(
            lambda *names: starts.torchrun(RANK, *names, TRAINED=f"{cls.folder}/torchrun", LOCKSTEP_TIMELINE=f"{cls.folder}/timeline/t.json"),
            2,
            ("timeline", "trained"),
        )

    def succeeds(self, result):
        self.assertEqual(result[0], 0, result[1])

    def passes(self, job, case):
        self.assertEqual(job.failures[case], "")

    def test_collectives(self):
        for job in (python_ranks(1, "collectives"), self.two_ranks(), self.three_ranks()):
            self.passes(job, "collectives")

    def test_averages_of_integers(self):
        for job in (self.two_ranks(), self.three_ranks()):
            self.passes(job, "averages_of_integers")

    def test_tensors_that_overlap(self):
        for job in (self.two_ranks(), self.three_ranks()):
            self.passes(job, "overlapping_tensors")

    def test_messages_to_oneself(self):
        self.passes(self.two_ranks(), "messages_to_oneself")

    def test_groups(self):
        self.passes(self.three_ranks(), "groups")

    def test_ddp(self):
        self.passes(self.two_ranks(), "ddp")

    def test_deadlines_that_are_changed(self):
        self.passes(self.two_ranks(), "timeouts")

    def test_monitored_barriers(self):
        self.passes(self.two_ranks(), "monitored_barriers")

    def test_the_name_for_a_device(self):
        self.passes(self.two_ranks(), "named_for_a_device")

    def test_buckets_that_a_hook_resizes(self):
        self.passes(self.two_ranks(), "resized_buckets")

    def test_profiler(self):
        self.passes(self.two_ranks(), "profiled")

    def test_init_after_destroy(self):
        self.passes(self.two_ranks(), "twice")
        self.passes(python_ranks(2, "group_after_a_world_that_is_held"), "group_after_a_world_that_is_held")
        self.passes(self.three_ranks(), "other_members_in_a_later_job")
        self.passes(python_ranks(3, "world_after_a_group_of_some"), "world_after_a_group_of_some")

    def test_futures_leave_the_interpreter_to_other_threads(self):
        self.passes(self.two_ranks(), "futures_and_threads")

    def test_operations_that_nobody_waits_for(self):
        job = python_ranks(2, "unwaited", LOCKSTEP_PROGRESS_THREAD="1")
        for each in (self.two_ranks(), self.three_ranks(), job):
            self.passes(each, "unwaited")

    def test_no_memory_is_told_to_all(self):
        def ranks():
            started = [starts.FORK.Process(target=without_memory, args=(r, f"{self.folder}/none")) for r in range(2)]
            for process in started:
                process.start()
            for process in started:
                process.join(60)
            codes = [process.exitcode for process in started]
            assert codes == [0, 0], codes

        self.succeeds(starts.in_copy(ranks))

    def test_training_gives_what_gloo_gives(self):
        """The same script on both; under torchrun too. Two numbers have one sum, so the bits are the same."""
        self.passes(self.two_ranks(), "trained_on_gloo")
        expected = torch.load(f"{self.folder}/gloo")
        for job, file in ((self.two_ranks(), "lockstep"), (self.under_torchrun(), "torchrun/lockstep")):
            self.passes(job, "trained")
            self.assertEqual(job.said["trained"], ["", ""])
            got = torch.load(f"{self.folder}/{file}")
            self.assertEqual(got["losses"], expected["losses"])
            self.assertEqual(list(got["model"]), list(expected["model"]))
            for name, tensor in got["model"].items():
                self.assertTrue(torch.equal(tensor, expected["model"][name]), name)

    def test_spawn_with_a_file(self):
        mp.start_processes(spawned, (3, f"{self.folder}/spawned"), nprocs=3, start_method="fork")

    def test_with_cpp_ranks(self):
        program = f'if [ $RANK = 0 ]; then exec {TESTS}/cpp_rank; else exec {sys.executable} -c "$PROGRAM"; fi'
        python = """
import torch, torch.distributed as dist, lockstep
dist.init_process_group("lockstep")
tensor = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert tensor.tolist() == [6.0] * 1000
dist.broadcast(tensor, src=0)
assert tensor.tolist() == [0.5] * 1000
dist.destroy_process_group()
"""
        self.succeeds(lockrun(3, "bash", "-c", program, PROGRAM=python))

    def test_timeline(self):
        """What the ranks' groups do is in one file, whoever started them."""
        os.mkdir(f"{self.folder}/lockrun")
        file = f"{self.folder}/lockrun/t.json"
        own = python_ranks(2, "timeline_of_two_threads", LOCKSTEP_TIMELINE=f"{self.folder}/threads.json")
        self.passes(own, "timeline_of_two_threads")
        with open(f"{self.folder}/threads.json") as text:
            ended = [e["pid"] for e in json.load(text)["traceEvents"] if e.get("name") == "recv" and e.get("cat") == "reduce"]
        self.assertEqual((ended.count(0), ended.count(1)), (4000, 4000))
        for job, file in ((python_ranks(2, "timeline", LOCKSTEP_TIMELINE=file), file), (self.under_torchrun(), f"{self.folder}/timeline/t.json")):
            self.passes(job, "timeline")
            self.assertEqual(os.listdir(os.path.dirname(file)), ["t.json"])
            with open(file) as text:
                trace = json.load(text)
            self.assertEqual([p["finished"] for p in trace["otherData"]["processes"]], [True, True])
            for rank in (0, 1):
                spans = [(e["name"], e.get("args", {}).get("bytes")) for e in trace["traceEvents"] if e.get("cat") == "reduce" and e["pid"] == rank]
                self.assertEqual(spans.count(("all_reduce", 4000)), 3)
                self.assertEqual(spans.count(("broadcast", 4000)), 1)
                self.assertEqual(spans.count(("recv" if rank else "send", 4000)), 1)
                self.assertEqual(spans.count(("all_reduce", 40400)), 1)

    def test_killed_rank_is_named(self):
        def ranks():
            started = [starts.FORK.Process(target=killed, args=(rank, 3, f"{self.folder}/killed")) for rank in range(3)]
            for process in started:
                process.start()
            for process in started:
                process.join(60)
            codes = [process.exitcode for process in started]
            assert codes == [0, -9, 0], codes

        code, output = starts.in_copy(ranks)
        self.assertEqual(code, 0, output)
        self.assertIn("rank 0 saw", output)
        self.assertIn("rank 2 saw", output)


if __name__ == "__main__":
    unittest.main()
