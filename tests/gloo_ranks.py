"""The peer's ranks: a Python function on torch's Gloo, in copies of this process, so that torch is imported once."""

import os
import tempfile

import torch
import torch._dynamo  # noqa: F401  (an optimizer imports it at its first step: seconds of processor time in each rank)
import torch.distributed as dist
import torch.multiprocessing as mp

torch.set_num_threads(1)  # before the ranks are forked: no pool of threads yet


def rank_of(rank, function, size, directory):
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size)
    torch.save(function(rank, size), f"{directory}/{rank}.pt")
    dist.barrier()
    # Gloo's tear-down aborts now and then ("terminate called without an active exception"): it is not what is tested.
    os._exit(0)


def results(function, size):
    """What function(rank, size) returns on each of `size` ranks. They may change this process's modules: theirs are copies."""
    with tempfile.TemporaryDirectory() as directory:
        mp.start_processes(rank_of, (function, size, directory), nprocs=size, start_method="fork")
        return [torch.load(f"{directory}/{rank}.pt") for rank in range(size)]
