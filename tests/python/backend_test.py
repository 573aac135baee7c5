"""torch.distributed on the lockstep backend: under lockrun and torchrun, from mp.spawn, and together with C++ ranks."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]
HERE = os.path.dirname(os.path.abspath(__file__))
RANK = os.path.join(HERE, "backend_rank.py")


def run(command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def lockrun(ranks, *command):
    return run([f"{BIN}/lockrun", "--standalone", "--nproc-per-node", str(ranks), *command])


def spawned(rank, size, file):
    import lockstep  # noqa: F401

    dist.init_process_group("lockstep", init_method=f"file://{file}", rank=rank, world_size=size)
    tensor = torch.full((3,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size * (size + 1) / 2] * 3, tensor
    dist.destroy_process_group()


class Backend(unittest.TestCase):
    def succeeds(self, result):
        self.assertEqual(result[0], 0, result[1])

    def test_collectives(self):
        for ranks in (1, 2, 3):
            self.succeeds(lockrun(ranks, sys.executable, RANK, "collectives"))

    def test_groups(self):
        self.succeeds(lockrun(3, sys.executable, RANK, "groups"))

    def test_ddp(self):
        self.succeeds(lockrun(2, sys.executable, RANK, "ddp"))

    def test_deadlines_that_are_changed(self):
        self.succeeds(lockrun(2, sys.executable, RANK, "timeouts"))

    def test_monitored_barriers(self):
        self.succeeds(lockrun(2, sys.executable, RANK, "monitored_barriers"))

    def test_buckets_that_a_hook_resizes(self):
        self.succeeds(lockrun(2, sys.executable, RANK, "resized_buckets"))

    def test_profiler(self):
        self.succeeds(lockrun(2, sys.executable, RANK, "profiled"))

    def test_init_after_destroy(self):
        self.succeeds(lockrun(2, sys.executable, RANK, "twice"))

    def test_training_gives_what_gloo_gives(self):
        """The same script on both; under torchrun too. Two numbers have one sum, so the bits are the same."""
        script = os.path.join(HERE, "train_script.py")
        with tempfile.TemporaryDirectory() as directory:
            def train(launch, backend):
                out = os.path.join(directory, "trained")
                code, output = run([*launch, script, "--backend", backend, "--out", out])
                if backend == "lockstep":
                    self.assertEqual((code, output), (0, ""))
                trained = torch.load(out)  # Gloo may abort after it has written
                os.remove(out)
                return trained
            under_lockrun = [f"{BIN}/lockrun", "--standalone", "--nproc-per-node", "2", sys.executable]
            under_torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            expected = train(under_lockrun, "gloo")
            for launch in (under_lockrun, under_torchrun):
                got = train(launch, "lockstep")
                self.assertEqual(got["losses"], expected["losses"])
                self.assertEqual(list(got["model"]), list(expected["model"]))
                for name, tensor in got["model"].items():
                    self.assertTrue(torch.equal(tensor, expected["model"][name]), name)

    def test_spawn_with_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(spawned, args=(3, os.path.join(directory, "store")), nprocs=3)

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
        os.environ["PROGRAM"] = python
        self.succeeds(lockrun(3, "bash", "-c", program))

    def test_timeline(self):
        """What the ranks' groups do is in one file, whoever started them."""
        program = """
import os, torch, torch.distributed as dist, lockstep
from torch import nn
dist.init_process_group("lockstep")
assert "LOCKSTEP_TIMELINE" not in os.environ and "LOCKSTEP_TIMELINE_PARTS" not in os.environ
rank, tensor = dist.get_rank(), torch.ones(1000)
for _ in range(3):
    dist.all_reduce(tensor)
dist.broadcast(tensor, src=1, group=dist.new_group([0, 1]))
dist.recv(tensor, 0) if rank else dist.send(tensor, 1)
ddp = nn.parallel.DistributedDataParallel(nn.Linear(100, 100))
ddp(torch.ones(4, 100)).sum().backward()
dist.destroy_process_group()
"""
        options = ["--standalone", "--nproc-per-node", "2"]
        for launch in ([f"{BIN}/lockrun", *options, sys.executable],
                       [sys.executable, "-m", "torch.distributed.run", *options]):
            with tempfile.TemporaryDirectory() as directory:
                script, file = os.path.join(directory, "rank.py"), os.path.join(directory, "t.json")
                with open(script, "w") as out:
                    out.write(program)
                self.succeeds(run([*launch, script], LOCKSTEP_TIMELINE=file))
                self.assertEqual(sorted(os.listdir(directory)), ["rank.py", "t.json"])
                with open(file) as text:
                    trace = json.load(text)
            self.assertEqual([p["finished"] for p in trace["otherData"]["processes"]], [True, True])
            for rank in (0, 1):
                spans = [(e["name"], e["args"].get("bytes")) for e in trace["traceEvents"]
                         if e.get("cat") == "reduce" and e["pid"] == rank]
                self.assertEqual(spans.count(("all_reduce", 4000)), 3)
                self.assertEqual(spans.count(("broadcast", 4000)), 1)
                self.assertEqual(spans.count(("recv" if rank else "send", 4000)), 1)
                self.assertEqual(spans.count(("all_reduce", 40400)), 1)

    def test_killed_rank_is_named(self):
        code, output = run([sys.executable, "-c", f"""
import subprocess, sys, os, tempfile
with tempfile.TemporaryDirectory() as directory:
    ranks = [subprocess.Popen([sys.executable, "-c", '''
import sys; sys.argv = ["x", "killed"]
import torch.distributed as dist, lockstep
dist.init_process_group("lockstep", init_method="file://" + {{!r}}, rank={{}}, world_size=3)
sys.path.insert(0, {HERE!r})
import backend_rank; backend_rank.killed()
'''.format(directory + "/store", r)]) for r in range(3)]
    codes = [rank.wait(timeout=60) for rank in ranks]
    assert codes == [0, -9, 0], codes
"""])
        self.assertEqual(code, 0, output)
        self.assertIn("rank 0 saw", output)
        self.assertIn("rank 2 saw", output)


if __name__ == "__main__":
    unittest.main()
