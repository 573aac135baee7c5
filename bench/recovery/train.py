"""A small DDP training for bench/recovery/run, a rank of lockrun or torchrun. `replace`: lockstep.Recovery. `checkpoint`: all ranks load
the newest checkpoint, and rank 0 writes one at every step. `replica`: each rank is a replica group of torchft (bench/recovery/replicas.py
starts them). Rank 0 prints "step N" when a step has ended."""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist


def make_net(width):
    return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))


def inputs_of(step, world_size, rank):
    return torch.randn(32, 64, generator=torch.Generator().manual_seed(step * world_size + rank))


def train_as_replica(options):
    import torchft

    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    net = make_net(options.width)
    plain = torch.optim.Adam(net.parameters())

    def load(state):
        net.load_state_dict(state["net"])
        plain.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=load,
        min_replica_size=1,
        rank=0,
        world_size=1,
        state_dict=lambda: {"net": net.state_dict(), "optimizer": plain.state_dict()},
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica{rank}",
        hostname="127.0.0.1",
    )
    ddp, optimizer = torchft.DistributedDataParallel(manager, net), torchft.Optimizer(manager, plain)
    while True:
        optimizer.zero_grad()
        ddp(inputs_of(manager.current_step(), world_size, rank)).square().mean().backward()
        optimizer.step()
        if rank == 0:
            os.write(1, f"step {manager.current_step()}\n".encode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["replace", "checkpoint", "replica"])
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--file", type=pathlib.Path)
    options = parser.parse_args()
    if options.way == "replica":
        return train_as_replica(options)
    if options.backend == "lockstep":
        import lockstep
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net = make_net(options.width)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters())

    def train_step(step):
        optimizer.zero_grad()
        ddp(inputs_of(step, world_size, rank)).square().mean().backward()
        optimizer.step()

    def tell(step):
        if rank == 0:
            os.write(1, f"step {step}\n".encode())

    if options.way == "replace":
        recovery = lockstep.Recovery({"model": ddp, "optimizer": optimizer})
        while recovery.steps() >= 0:  # for ever; a new process asks where it is
            lockstep.step(recovery, lambda: train_step(recovery.steps()))
            tell(recovery.steps())
    step = 0
    if options.file.exists():
        state = torch.load(options.file)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while True:
        train_step(step)
        step += 1
        if rank == 0:
            new = options.file.with_suffix(".new")
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
            new.replace(options.file)
        tell(step)


main()
