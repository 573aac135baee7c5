"""The peer of `lockstep bench ddp`: the same training in Python, with DistributedDataParallel on Gloo.

lockstep-bench-ddp-peer.py MODEL ddp|alone STEPS OUTPUT_DIRECTORY
"""

import os
import re
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.net1(x).relu())


class BasicBlock(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or inputs != channels:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        h = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
        h += x if self.downsample is None else self.downsample(x)
        return h.relu_()


def layer(inputs, channels, stride):
    return nn.Sequential(BasicBlock(inputs, channels, stride), BasicBlock(channels, channels, 1))


def resnet18():
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        layer(64, 64, 1),
        layer(64, 128, 2),
        layer(128, 256, 2),
        layer(256, 512, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


def training(name):
    """The model, its optimizer, and what computes a loss by calling it."""
    if name == "toy":
        model, x, y = ToyModel(), torch.randn(20, 10), torch.randn(20, 5)
        return model, torch.optim.SGD(model.parameters(), 0.001, fused=True), lambda f: nn.functional.mse_loss(f(x), y)
    if name == "mlp":
        model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 64))
        x, y = torch.randn(64, 1024), torch.randint(64, (64,))
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
        return model, optimizer, lambda f: nn.functional.cross_entropy(f(x), y)
    if name == "resnet18":
        model, x, y = resnet18(), torch.randn(64, 3, 32, 32), torch.randint(1000, (64,))
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
        return model, optimizer, lambda f: nn.functional.cross_entropy(f(x), y)
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024))
    ids, y = torch.randint(1000, 30000, (16, 64)), torch.randint(2, (16,))
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    return model, optimizer, lambda f: nn.functional.cross_entropy(f(input_ids=ids, attention_mask=mask, token_type_ids=types).logits, y)


def main():
    name, mode, steps, output = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model, optimizer, loss = training(name)
    model.train()
    call = nn.parallel.DistributedDataParallel(model) if mode == "ddp" else model

    def step():
        optimizer.zero_grad()
        loss(call).backward()
        optimizer.step()

    for _ in range(min(max(steps // 4, 3), 200)):
        step()
    dist.barrier()
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    with open("/proc/self/smaps_rollup") as file:
        pss = int(re.search(r"^Pss:\s+(\d+)", file.read(), re.M).group(1)) * 1024
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    with open(os.path.join(output, str(rank)), "w") as file:
        file.write(f"{pss} {gradients}\n" + "".join(f"{s:.9f}\n" for s in seconds))
    dist.barrier()
    os._exit(0)  # Gloo's tear-down aborts now and then


main()
