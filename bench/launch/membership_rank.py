"""A rank for bench/launch/membership: ten steps a second, each an all-reduce on Gloo. Rank 0 saves each step, from which the next world goes on,
and appends a line to `ledger`: when (monotonic seconds), a number of the world, how many ranks it has, the step."""

import os
import pathlib
import time

import torch
import torch.distributed as dist


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    saved = pathlib.Path("step")
    begin = torch.zeros(1, dtype=torch.int64)
    if rank == 0 and saved.exists():
        begin[0] = int(saved.read_text())
    dist.broadcast(begin, 0)
    step, world = begin.item(), time.time_ns()
    while True:
        step += 1
        total = torch.full((1,), step)
        dist.all_reduce(total)
        if total.item() != size * step:
            raise RuntimeError(f"step {step} of {size} ranks sums to {total.item()}")
        if rank == 0:
            new = pathlib.Path(f"step.{world}")
            new.write_text(str(step))
            new.replace(saved)
            ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(ledger, f"{time.monotonic():.3f} {world} {size} {step}\n".encode())
            os.close(ledger)
        time.sleep(0.1)


main()
