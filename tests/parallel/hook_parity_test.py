"""Training with each communication hook gives what Python's own hooks give on Gloo, from the same values.

Python refuses or breaks some of its hooks on CPU (torch 2.13). They run here all the same: bf16_compress_hook under
another name, which is all that is checked; the quantization hooks with gathers that return what they index; and
batched_powerSGD_hook with the third dimension that its own orthogonalization asks for. Hooks that wait inside a
callback get one bucket: those of several would block all of Gloo's threads.
"""

import math
import os
import subprocess
import unittest
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook, quantization_hooks
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.nn.parallel import DistributedDataParallel

import gloo_ranks

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]
TINY = 1e-6


def wave(sizes, phase):
    values = torch.arange(math.prod(sizes), dtype=torch.float64) * 0.37 + phase
    return values.sin().mul_(0.3).float().view(sizes)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 24), nn.Linear(24, 24)
        self.third, self.head = nn.Linear(24, 24), nn.Linear(24, 5)

    def forward(self, x):
        return self.head(self.third(self.second(self.first(x).relu()).relu()).relu())


def train(rank, bucket_cap_mb, state, hook, after=lambda model: None):
    model = Stack()
    with torch.no_grad():
        for i, (_, parameter) in enumerate(sorted(model.named_parameters())):
            parameter.copy_(wave(parameter.shape, i + 1))
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(8):
        optimizer.zero_grad()
        x, y = wave((12, 20), 100 * step + 10 * rank + 3), wave((12, 5), 100 * step + 10 * rank + 7)
        nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        after(model)
    return model.state_dict()


def power_sgd(**options):
    return powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5, **options)


def bf16_compress(state, bucket):
    return default_hooks.bf16_compress_hook(state, bucket)


class Backwards:
    """A bucket with its gradients in the opposite order."""

    def __init__(self, bucket):
        self.sizes = [gradient.numel() for gradient in bucket.gradients()]
        self.flat = torch.cat([gradient.reshape(-1) for gradient in reversed(bucket.gradients())])

    def buffer(self):
        return self.flat

    def restore(self, future):
        return torch.cat(list(reversed(future.value().split(list(reversed(self.sizes))))))


def perchannel():
    """Before Python has rebuilt its buckets, the first one's gradients lie forwards, Lockstep's backwards."""
    passes = []

    def hook(state, bucket):
        passes.append(1)
        if len(passes) > 1:
            return quantization_hooks.quantization_perchannel_hook(state, bucket)
        backwards = Backwards(bucket)
        return quantization_hooks.quantization_perchannel_hook(state, backwards).then(backwards.restore)

    return hook


class Gathered:
    """The work of an all_gather whose future's value is a list with one tensor, [rank, ...]."""

    def __init__(self, work):
        self.work = work

    def get_future(self):
        return self.work.get_future().then(lambda future: [torch.stack(list(future.value()))])


class GatheringDist:
    def __getattr__(self, name):
        return getattr(dist, name)

    @staticmethod
    def all_gather(*args, **kwargs):
        return Gathered(dist.all_gather(*args, **kwargs))


def repair():
    quantization_hooks.dist = GatheringDist()
    orthogonalize = powerSGD_hook._orthogonalize
    powerSGD_hook._orthogonalize = lambda matrices, epsilon=0: orthogonalize(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


def run_all(rank, size):
    repair()
    runs = {
        "allreduce": train(rank, TINY, None, default_hooks.allreduce_hook),
        "fp16_compress": train(rank, TINY, None, default_hooks.fp16_compress_hook),
        "bf16_compress": train(rank, TINY, None, bf16_compress),
        "fp16_wrapper": train(rank, 25, None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
        "power_sgd": train(rank, 25, power_sgd(matrix_approximation_rank=2), powerSGD_hook.powerSGD_hook),
        "power_sgd_qr": train(
            rank, 25, power_sgd(matrix_approximation_rank=4, random_seed=5, batch_tensors_with_same_shape=True), powerSGD_hook.powerSGD_hook
        ),
        "power_sgd_cold": train(
            rank, 25, power_sgd(use_error_feedback=False, warm_start=False, orthogonalization_epsilon=1e-8), powerSGD_hook.powerSGD_hook
        ),
        "batched_power_sgd": train(rank, 25, power_sgd(), powerSGD_hook.batched_powerSGD_hook),
        "pertensor": train(rank, 25, None, quantization_hooks.quantization_pertensor_hook),
        "perchannel": train(rank, 25, None, perchannel()),
    }
    for allreduce in (True, False):
        subgroup, _ = dist.new_subgroups(1)
        state = post_localSGD_hook.PostLocalSGDState(None, subgroup, 3, allreduce)
        averager = PeriodicModelAverager(2, 3)
        runs["post_local_sgd" if allreduce else "post_local_sgd_local"] = train(
            rank, TINY, state, post_localSGD_hook.post_localSGD_hook, lambda model, averager=averager: averager.average_parameters(model.parameters())
        )
    averager = HierarchicalModelAverager(OrderedDict([(2, 1), (3, size)]), warmup_steps=3)
    runs["hierarchical"] = train(
        rank,
        25,
        post_localSGD_hook.PostLocalSGDState(None, None, 3, False),
        post_localSGD_hook.post_localSGD_hook,
        lambda model: averager.average_parameters(model.parameters()),
    )
    return runs


# Fractions of the largest change that training made to a tensor. Sums in another order may be rounded to the next number with few bits.
# PowerSGD's matrices are worse conditioned than sums.
TOLERANCES = {
    "fp16_compress": 1e-2,
    "fp16_wrapper": 1e-2,
    "bf16_compress": 5e-2,
    "pertensor": 1e-2,
    "perchannel": 1e-2,
    "power_sgd": 1e-3,
    "power_sgd_qr": 1e-3,
    "power_sgd_cold": 1e-3,
    "batched_power_sgd": 1e-3,
}


class HookParityTest(unittest.TestCase):
    def expected(self, size):
        return gloo_ranks.results(run_all, size)[0]

    def found(self, size, backend):
        output = subprocess.run(
            [f"{BIN}/lockrun", "--standalone", "--prefix", "off", "--nproc-per-node", str(size), f"{TESTS}/ddp_parity_runs", "hook_parity"],
            env={**os.environ, "LOCKSTEP_BACKEND": backend},
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout
        runs = {}
        for line in output.splitlines():
            run, name, *values = line.split()
            runs.setdefault(run, {})[name] = torch.tensor([float(v) for v in values])
        return runs

    def compare(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for run, tensors in expected.items():
            self.assertEqual(set(found[run]), set(tensors), run)
            for i, (name, value) in enumerate(sorted(tensors.items())):
                with self.subTest(run=run, name=name):
                    change = (value - wave(value.shape, i + 1)).abs().max().item()
                    self.assertGreater(change, 0)
                    torch.testing.assert_close(found[run][name], value.flatten(), rtol=0, atol=TOLERANCES.get(run, 1e-4) * change)

    def test_two_ranks(self):
        expected = self.expected(2)
        self.compare(self.found(2, "lockstep"), expected)
        self.compare(self.found(2, "gloo"), expected)

    def test_three_ranks(self):
        self.compare(self.found(3, "lockstep"), self.expected(3))


if __name__ == "__main__":
    unittest.main()
