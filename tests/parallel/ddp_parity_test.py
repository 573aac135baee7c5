"""Training under DistributedDataParallel gives what Python's gives on Gloo, from the same values."""

import math
import os
import subprocess
import unittest

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gloo_ranks

BIN = os.environ["LOCKSTEP_BIN_DIR"]
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]


def wave(sizes, phase):
    values = torch.arange(math.prod(sizes), dtype=torch.float64) * 0.37 + phase
    return values.sin().mul_(0.3).float().view(sizes)


def fill_by_name(model):
    with torch.no_grad():
        for i, (_, parameter) in enumerate(sorted(model.named_parameters())):
            parameter.copy_(wave(parameter.shape, i + 1))


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.net1(x).relu())


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU()
        )
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class SmallTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0)
        self.head = nn.Linear(8, 5)

    def forward(self, ids):
        return self.head(self.layer(self.words(ids)).mean(0))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        h = self.body(x)
        return self.left(h), self.right(h)


def batch(model, step, rank):
    if isinstance(model, Toy):
        x = wave((20, 10), 100 * step + 10 * rank + 3)
    elif isinstance(model, Cnn):
        x = wave((20, 3, 8, 8), 100 * step + 10 * rank + 3)
    else:
        x = (torch.arange(7 * 20) * (7 * step + 3 * rank + 1)).remainder(30).view(7, 20)
    return x, wave((20, 5), 100 * step + 10 * rank + 7)


def train(rank, kind, optimizer, accumulate, **options):
    model = kind()
    fill_by_name(model)
    ddp = DistributedDataParallel(model, **options)
    if optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        for micro in range(accumulate):
            index = step * accumulate + micro
            x, y = batch(model, index, rank)

            def backward():
                loss = nn.functional.mse_loss(ddp(x), y)
                loss.backward()
                losses.append(loss.item())

            if micro + 1 < accumulate:
                with ddp.no_sync():
                    backward()
            else:
                backward()
        optimizer.step()
    return {"losses": torch.tensor(losses), **model.state_dict()}


def train_with_unused_parameters(rank):
    model = TwoHeads()
    fill_by_name(model)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        optimizer.zero_grad(step % 2 == 0)
        left, right = ddp(wave((6, 4), 10 * step + rank))
        uses_right = step % 3 == 0 or (step % 3 == 1 and rank == 0)
        ((left + right) if uses_right else left).square().sum().backward()
        optimizer.step()
    return model.state_dict()


def train_with_join(rank, initial):
    model = Cnn()
    fill_by_name(model)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddp.join(divide_by_initial_world_size=initial):
        for step in range(4 + rank):
            optimizer.zero_grad()
            x, y = batch(model, step, rank)
            nn.functional.mse_loss(ddp(x), y).backward()
            optimizer.step()
    return model.state_dict()


def run_all(rank, size):
    return {
        "toy": train(rank, Toy, "sgd", 1, bucket_cap_mb=0.0001),
        "toy_no_sync": train(rank, Toy, "sgd", 3),
        "toy_beside": train(rank, Toy, "sgd", 3),
        "toy_adamw": train(rank, Toy, "adamw", 1),
        "cnn": train(rank, Cnn, "sgd", 1, bucket_cap_mb=0.0005),
        "cnn_own_buffers": train(rank, Cnn, "sgd", 1, broadcast_buffers=False),
        "transformer": train(rank, SmallTransformer, "sgd", 1),
        "transformer_adamw": train(rank, SmallTransformer, "adamw", 1, static_graph=True),
        "unused": train_with_unused_parameters(rank),
        "join": train_with_join(rank, True),
        "join_by_active": train_with_join(rank, False),
    }


class DdpParityTest(unittest.TestCase):
    def expected(self, size):
        return gloo_ranks.results(run_all, size)[0]

    def found(self, size, backend):
        output = subprocess.run(
            [f"{BIN}/lockrun", "--standalone", "--prefix", "off", "--nproc-per-node", str(size), f"{TESTS}/ddp_parity_runs", "parity"],
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
        return output, runs

    def compare(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for run, tensors in expected.items():
            self.assertEqual(set(found[run]), set(tensors), run)
            for name, value in tensors.items():
                with self.subTest(run=run, name=name):
                    # AdamW divides by the root of tiny squares: losses are what must agree.
                    if "adamw" in run and name != "losses":
                        continue
                    torch.testing.assert_close(found[run][name], value.flatten().float(), rtol=1e-6, atol=1e-6)

    def test_two_ranks(self):
        expected = self.expected(2)
        first, found = self.found(2, "lockstep")
        self.compare(found, expected)
        again, _ = self.found(2, "lockstep")
        self.assertEqual(first, again)  # to the last printed digit
        self.compare(self.found(2, "gloo")[1], expected)

    def test_three_ranks(self):
        self.compare(self.found(3, "lockstep")[1], self.expected(3))

    def test_four_ranks(self):
        self.compare(self.found(4, "lockstep")[1], self.expected(4))


if __name__ == "__main__":
    unittest.main()
