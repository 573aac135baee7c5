"""The parameters after ten SGD steps equal those of Python's DistributedDataParallel on Gloo."""

import math
import os
import subprocess
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]


def wave(sizes, phase):
    values = torch.arange(math.prod(sizes), dtype=torch.float64) * 0.37 + phase
    return values.sin().mul_(0.3).float().view(sizes)


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(wave(parameter.shape, i + 1))

    def forward(self, x):
        return self.net2(self.net1(x).relu())


def train(rank, size, accumulate, store, result):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    model = Toy()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(10):
        optimizer.zero_grad()
        for micro in range(accumulate):
            index = step * accumulate + micro
            x = wave((20, 10), 100 * index + 10 * rank + 3)
            y = wave((20, 5), 100 * index + 10 * rank + 7)
            if micro + 1 < accumulate:
                with ddp.no_sync():
                    nn.functional.mse_loss(ddp(x), y).backward()
            else:
                nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
    if rank == 0:
        torch.save({k: v.detach() for k, v in model.named_parameters()}, result)
    dist.barrier()
    # Gloo's tear-down aborts now and then ("terminate called without an active exception"): it is not what is tested.
    os._exit(0)


class DdpParityTest(unittest.TestCase):
    def check(self, size, accumulate, backend="lockstep"):
        with tempfile.TemporaryDirectory() as directory:
            result = os.path.join(directory, "result.pt")
            mp.spawn(train, (size, accumulate, os.path.join(directory, "store"), result), nprocs=size)
            expected = torch.load(result)
        output = subprocess.run(
            [f"{BIN}/lockrun", "--standalone", "--prefix", "off", "--nproc-per-node", str(size), f"{TESTS}/ddp_cases", "parity"],
            env={**os.environ, "ACCUMULATE": str(accumulate), "LOCKSTEP_BACKEND": backend},
            check=True, capture_output=True, text=True, timeout=100).stdout
        found = {}
        for line in output.splitlines():
            name, *values = line.split()
            found[name] = torch.tensor([float(v) for v in values])
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value.flatten(), rtol=0, atol=1e-6)

    def test_two_ranks(self):
        self.check(2, 1)

    def test_three_ranks(self):
        self.check(3, 1)

    def test_accumulation_with_no_sync(self):
        self.check(2, 3)

    def test_on_gloo(self):
        self.check(2, 1, backend="gloo")


if __name__ == "__main__":
    unittest.main()
