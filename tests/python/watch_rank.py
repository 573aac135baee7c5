"""A rank that lockrun's hang watch looks at: watch_rank.py BACKEND WHO CASE...

WHO imports our package: `all`, `rank_0`. To each CASE rank 1 comes late, as long as there is a file late.CASE.
"""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

if sys.argv[2] == "all" or (sys.argv[2] == "rank_0" and os.environ["RANK"] == "0"):
    import lockstep  # noqa: F401


def hold_all_up(case):
    while dist.get_rank() == 1 and pathlib.Path(f"late.{case}").exists():
        time.sleep(0.02)


def all_reduce():
    tensor = torch.ones(10)
    hold_all_up("all_reduce")
    with torch.inference_mode():
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
    if tensor[9].item() != 2:
        raise SystemExit("the wrong sum")


def ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10, bias=False))
    loss = model(torch.ones(1, 10)).sum()
    hold_all_up("ddp")
    loss.backward()


def recv():
    tensor = torch.ones(10)
    hold_all_up("recv")
    dist.send(tensor, 0) if dist.get_rank() == 1 else dist.recv(tensor, 1)


dist.init_process_group(sys.argv[1])
dist.all_reduce(torch.ones(3))
for name in sys.argv[3:]:
    globals()[name]()
dist.destroy_process_group()
print("done")
