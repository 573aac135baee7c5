"""ResNet-18 on tiny images under DistributedDataParallel, two ranks, beside Python's on Gloo."""

import subprocess
import unittest

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gloo_ranks
from ddp_parity_test import BIN, TESTS

CLASSES = 10


class Block(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        if stride != 1 or inputs != channels:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        else:
            self.downsample = None

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for number, channels in enumerate((64, 128, 256, 512), 1):
            setattr(self, f"layer{number}", nn.Sequential(Block(inputs, channels, 1 if number == 1 else 2), Block(channels, channels, 1)))
            inputs = channels
        self.fc = nn.Linear(512, CLASSES)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def train(rank, size):
    model = ResNet18()
    torch.manual_seed(5 + rank)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:  # He's initialization
                parameter.copy_(torch.randn(parameter.shape) * (2 / parameter[0].numel()) ** 0.5)
            else:
                parameter.fill_(name.endswith("weight"))
    # Rounding grows a hundred thousand times in three steps of such a network, whoever computes it.
    model = model.double()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    lines = {}
    for step in range(3):
        optimizer.zero_grad()
        phase = 100 * step + 10 * rank
        loss = nn.functional.cross_entropy(ddp(torch.randn(16, 3, 32, 32).double()), (torch.arange(16) + phase) % CLASSES)
        loss.backward()
        optimizer.step()
        lines[f"loss{step}"] = [loss.item()]
    for name, tensor in model.state_dict().items():
        values = tensor.double().flatten()
        lines[name] = [values.sum().item(), values.abs().sum().item(), *values[:64].tolist()]
    return lines


class ResNetParityTest(unittest.TestCase):
    def test_two_ranks(self):
        expected = gloo_ranks.results(train, 2)[0]
        output = subprocess.run(
            [f"{BIN}/lockrun", "--standalone", "--prefix", "off", "--nproc-per-node", "2", f"{TESTS}/ddp_parity_runs", "resnet18_parity"],
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout
        found = {name: [float(v) for v in values] for name, *values in map(str.split, output.splitlines())}
        self.assertEqual(set(found), set(expected))
        for name, values in expected.items():
            with self.subTest(name=name):
                # A sum of many numbers of both signs is known to the rounding of their absolute sum.
                torch.testing.assert_close(torch.tensor(found[name][1:] or found[name]), torch.tensor(values[1:] or values), rtol=1e-5, atol=1e-6)
                if len(values) > 1:
                    self.assertAlmostEqual(found[name][0], values[0], delta=1e-6 * max(values[1], 1))


if __name__ == "__main__":
    unittest.main()
