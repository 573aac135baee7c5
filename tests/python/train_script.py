"""A training script as people write them for torch.distributed; knows no backend but by the name it is given.

train_script.py --backend NAME --out FILE: trains, keeps a checkpoint, starts again from it, writes the parameters.
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    return ddp, optimizer


def train_epoch(ddp, optimizer, loader, accumulate):
    for i, (inputs, targets) in enumerate(loader):
        last = (i + 1) % accumulate == 0
        with contextlib.nullcontext() if last else ddp.no_sync():
            loss = torch.nn.functional.cross_entropy(ddp(inputs), targets) / accumulate
            loss.backward()
        if last:
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    total = torch.tensor([loss.item(), 1.0])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.backend == "lockstep":
        import lockstep  # noqa: F401

    dist.init_process_group(args.backend)
    rank = dist.get_rank()
    data_random = torch.Generator().manual_seed(5)
    dataset = TensorDataset(torch.randn(256, 12, generator=data_random), torch.randint(3, (256,), generator=data_random))
    sampler = DistributedSampler(dataset, shuffle=True, seed=3)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)

    ddp, optimizer = build(seed=rank)  # rank 0's parameters are everybody's
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        losses.append(train_epoch(ddp, optimizer, loader, accumulate=2))
    checkpoint = args.out + ".checkpoint"
    if rank == 0:
        torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}, checkpoint)
    dist.barrier()

    ddp, optimizer = build(seed=100 + rank)
    state = torch.load(checkpoint, map_location="cpu")
    ddp.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    dist.barrier()
    sampler.set_epoch(2)
    state["losses"].append(train_epoch(ddp, optimizer, loader, accumulate=1))

    everybodys = [None] * dist.get_world_size()
    dist.all_gather_object(everybodys, state["losses"])
    assert all(losses == everybodys[0] for losses in everybodys), everybodys
    settings = [{"losses": state["losses"]} if rank == 0 else None]
    dist.broadcast_object_list(settings, src=0)
    assert settings[0]["losses"] == state["losses"]
    pair = dist.new_group([0, 1])
    if rank < 2:
        gathered = [None, None] if rank == 0 else None
        dist.gather_object(rank, gathered, dst=0, group=pair)
        assert gathered in (None, [0, 1])
    if rank == 0:
        os.remove(checkpoint)
        torch.save({"model": ddp.module.state_dict(), "losses": state["losses"]}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
