"""A rank of jobs_test.py: the case named on the command line. Prints one line for each group that it has been in."""

import datetime
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import lockstep  # noqa: F401  (registers the backend)

DEADLINE = datetime.timedelta(seconds=20)


def told(name):
    """The sum of the ranks' own numbers: one and the same only where the ranks are those of one job."""
    tensor = torch.tensor([float(os.getppid() if name.startswith("inner") else os.getpid())])
    ranks = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, tensor)
    if name.startswith("inner"):
        assert all(r == tensor for r in ranks), f"{name}: ranks of another job: {ranks}, not {tensor}"
    os.write(1, f"{name} rank {dist.get_rank()} of {dist.get_world_size()} ok\n".encode())  # a line whole


def inner(rank, directory):
    """A rank of a job that a rank has started; its number is its RANK too for two of the four."""
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    dist.init_process_group("lockstep", init_method=f"file://{directory}/inner{os.environ['RANK']}", rank=rank,
                            world_size=2, timeout=DEADLINE)
    told(f"inner {os.environ['RANK']}")
    dist.destroy_process_group()


def nested():
    mp.spawn(inner, (sys.argv[2],), nprocs=2)


def nested_after_init():
    dist.init_process_group("lockstep", timeout=DEADLINE)
    mp.spawn(inner, (sys.argv[2],), nprocs=2)
    told("outer")
    dist.destroy_process_group()


def launched():
    dist.init_process_group("lockstep", timeout=DEADLINE)
    told(f"inner {sys.argv[2]}")
    dist.destroy_process_group()


def nested_launcher():
    """torchrun inside a rank: it inherits the outer job's variables."""
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__,
                    "launched", os.environ["RANK"]], check=True, timeout=100)


def again():
    """More than twice, and rank 0 comes last: what an earlier group has left must not be taken for this one's."""
    for turn in range(4):
        dist.init_process_group("lockstep", timeout=DEADLINE)
        told(f"turn {turn}")
        for _ in range(2):  # the same name both times
            group = dist.new_group([0, 1], use_local_synchronization=True, timeout=DEADLINE)
            if dist.get_rank() == 0:
                time.sleep(0.2)
            dist.barrier(group=group)
            dist.destroy_process_group(group)
        dist.destroy_process_group()
        if os.environ["RANK"] == "0":
            time.sleep(0.3)


def restarted():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 1 and os.environ["RANK"] == "0":
        time.sleep(0.7)  # rank 1 finds what the first attempt has left
    dist.init_process_group("lockstep", timeout=DEADLINE)
    told(f"attempt {attempt}")
    dist.barrier()
    os._exit(7 if attempt == 0 else 0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
