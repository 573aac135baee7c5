"""ZeroRedundancyOptimizer divides, steps and consolidates as Python's does on Gloo."""

import math
import os
import subprocess
import tempfile
import unittest

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.optim import ZeroRedundancyOptimizer

import gloo_ranks

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]
SHAPES = [(7, 5), (5000,), (40, 30), (3,), (30,), (1,), (64, 33)]
RUNS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.05), False),
    "fused_sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.05, fused=True), True),
    "adam": (torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6), True),
    "fused_adamw": (torch.optim.AdamW, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, amsgrad=True, fused=True), False),
}


def wave(sizes, phase):
    values = torch.arange(math.prod(sizes), dtype=torch.float64) * 0.37 + phase
    return values.sin().mul_(0.3).float().view(sizes)


def steps(optimizer, parameters, begin, end):
    for step in range(begin, end):
        for i, parameter in enumerate(parameters):
            gradient = None if i == 3 and step % 2 == 1 else wave(parameter.shape, 10 * step + i)
            parameter.grad = gradient
        optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)
        optimizer.step()


def run(out, name, kind, options, view):
    to = 1 % dist.get_world_size()
    parameters = [wave(shape, i).requires_grad_() for i, shape in enumerate(SHAPES)]

    def make(groups):
        return ZeroRedundancyOptimizer(groups, optimizer_class=kind, parameters_as_bucket_view=view, **options)

    optimizer = make([{"params": parameters[:4]}, {"params": parameters[4:], "weight_decay": 0.2}])
    steps(optimizer, parameters, 0, 3)
    parameters.append(wave((20, 10), 50).requires_grad_())
    optimizer.add_param_group({"params": [parameters[-1]]})
    steps(optimizer, parameters, 3, 5)
    parameters[2].requires_grad_(False)
    optimizer.consolidate_state_dict(to)
    saved = [None]
    if dist.get_rank() == to:
        saved = [optimizer.state_dict()]
        for i, state in saved[0]["state"].items():
            for key, value in state.items():
                if value is not None:
                    out[f"{name}/state.{i}.{key}"] = torch.as_tensor(value).clone()  # the next optimizer steps on it
    dist.broadcast_object_list(saved, src=to)
    loaded = make([{"params": parameters[:4]}, {"params": parameters[4:7], "weight_decay": 0.2}, {"params": parameters[7:]}])
    loaded.load_state_dict(saved[0])
    steps(loaded, parameters, 5, 7)
    for i, parameter in enumerate(parameters):
        out[f"{name}/p.{i}"] = parameter.detach().clone()
    for rank, groups in enumerate(loaded._partition_parameters()):
        for g, group in enumerate(groups):
            numbers = [next(i for i, p in enumerate(parameters) if p is q) for q in group["params"]]
            out[f"{name}/partition.{rank}.{g}"] = torch.tensor(numbers, dtype=torch.int64)


def run_all(rank, size):
    out = {}
    for name, (kind, options, view) in RUNS.items():
        run(out, name, kind, options, view)
    return out


class ZeroParityTest(unittest.TestCase):
    def check(self, size):
        everybodys = gloo_ranks.results(run_all, size)
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(
                [f"{BIN}/lockrun", "--standalone", "--nproc-per-node", str(size), f"{TESTS}/zero_parity_runs", directory],
                check=True,
                capture_output=True,
                text=True,
                timeout=100,
            )
            for rank, expected in enumerate(everybodys):
                found = load_file(f"{directory}/{rank}")
                self.assertEqual(set(found), set(expected))
                for name, value in expected.items():
                    with self.subTest(size=size, rank=rank, name=name):
                        if "partition" in name:
                            self.assertEqual(found[name].tolist(), value.tolist())
                            continue
                        torch.testing.assert_close(found[name], value, rtol=2e-6, atol=2e-7)

    def test_two_ranks(self):
        self.check(2)

    def test_three_ranks(self):
        self.check(3)


if __name__ == "__main__":
    unittest.main()
