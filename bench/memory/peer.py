"""The peer of memory_rank, with its arguments: PyTorch's DDP (ddp), ZeroRedundancyOptimizer (zero) and FSDP2 (fsdp2) on Gloo."""

import ctypes
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def proportional_memory():
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("Pss:"))


def sum_over_ranks(value):
    dist.barrier()
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def make_model(name):
    """A model, those of its modules that FSDP2 divides one by one, and an input."""
    if name == "bert-base":
        from transformers import BertConfig, BertForSequenceClassification

        model = BertForSequenceClassification(BertConfig())
        return model, model.bert.encoder.layer, torch.randint(1, 30000, (2, 16))
    layers, width = map(int, name.split("x"))
    model = torch.nn.Sequential()
    for _ in range(layers):
        model.append(torch.nn.Linear(width, width))
        model.append(torch.nn.Tanh())
    return model, model[::2], torch.randn(8, width)


def main():
    way, name = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    before = sum_over_ranks(proportional_memory())
    model, layers, x = make_model(name)
    elements = sum(parameter.numel() for parameter in model.parameters())
    if way == "fsdp2":
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        wrapped = model
    else:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if way == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        output = wrapped(x)
        getattr(output, "logits", output).square().mean().backward()
        optimizer.step()
    after = sum_over_ranks(proportional_memory())
    if dist.get_rank() == 0:
        print(json.dumps({"mib": after - before, "parameters_mib": elements * 4 / 2**20}))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # the end of Gloo's group waits with Python's lock for threads that want it, and may never come (torch 2.13)


if __name__ == "__main__":
    main()
