"""A rank of jobs_test.py: the cases named on the command line. Prints one line for each group that it has been in."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import lockstep  # noqa: F401  (registers the backend)
import starts

DEADLINE = datetime.timedelta(seconds=20)


def told(case, name):
    """The sum of the ranks' own numbers: one and the same only where the ranks are those of one job."""
    tensor = torch.tensor([float(os.getppid() if name.startswith("inner") else os.getpid())])
    ranks = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, tensor)
    if name.startswith("inner"):
        assert all(r == tensor for r in ranks), f"{name}: ranks of another job: {ranks}, not {tensor}"
    os.write(1, f"{case}: {name} rank {dist.get_rank()} of {dist.get_world_size()} ok\n".encode())  # a line whole


def inner(rank, case, directory):
    """A rank of a job that a rank has started; its number is its RANK too for two of the four."""
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    dist.init_process_group("lockstep", init_method=f"file://{directory}/{case}{os.environ['RANK']}", rank=rank, world_size=2, timeout=DEADLINE)
    told(case, f"inner {os.environ['RANK']}")
    dist.destroy_process_group()


def nested():
    mp.start_processes(inner, ("nested", os.environ["FOLDER"]), nprocs=2, start_method="fork")


def nested_after_init():
    dist.init_process_group("lockstep", timeout=DEADLINE)
    mp.spawn(inner, ("nested_after_init", os.environ["FOLDER"]), nprocs=2)
    told("nested_after_init", "outer")
    dist.destroy_process_group()


def launched():
    dist.init_process_group("lockstep", timeout=DEADLINE)
    told("nested_launcher", f"inner {os.environ['OUTER_RANK']}")
    dist.destroy_process_group()


def nested_launcher():
    """torchrun inside a rank: it inherits the outer job's variables."""
    code, output = starts.torchrun(__file__, "launched", OUTER_RANK=os.environ["RANK"])
    os.write(1, output.encode())
    assert code == 0, output


def again():
    """More than twice, and rank 0 comes last: what an earlier group has left must not be taken for this one's."""
    for turn in range(4):
        dist.init_process_group("lockstep", timeout=DEADLINE)
        told("again", f"turn {turn}")
        for _ in range(2):  # the same name both times
            group = dist.new_group([0, 1], use_local_synchronization=True, timeout=DEADLINE)
            if dist.get_rank() == 0:
                time.sleep(0.2)
            dist.barrier(group=group)
            dist.destroy_process_group(group)
        dist.destroy_process_group()
        if os.environ["RANK"] == "0":
            time.sleep(0.3)


def address_space():
    """Of this process, in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize:"))


def many_groups():
    """Hundreds of groups live at once in the job's own memory, and make room for as many others."""
    dist.init_process_group("lockstep", timeout=DEADLINE)
    ranks = list(range(dist.get_world_size()))
    for turn in range(3):
        before = address_space()
        groups = [dist.new_group([*ranks[turn:], *ranks[:turn]], timeout=DEADLINE) for _ in range(200)]
        assert address_space() - before < 1 << 30, "each group has mapped memory of its own"
        tensors = [torch.tensor([float(i + dist.get_rank())]) for i in range(len(groups))]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups)]
        for work in reversed(works):
            work.wait()
        assert [t.item() for t in tensors] == [2.0 * i + 1 for i in range(len(groups))]
        for group in groups:
            dist.destroy_process_group(group)
        del groups, works
        told("many_groups", f"turn {turn}")
    dist.destroy_process_group()


def progress_thread():
    """A rank that calls nothing serves its peers, and its futures are completed, where it has asked for that."""
    dist.init_process_group("lockstep", timeout=DEADLINE)
    tensor = torch.full((16 << 20,), 5.0 if dist.get_rank() == 0 else 0.0)
    work = dist.broadcast(tensor, src=0, async_op=True)
    ended = []
    future = work.get_future().then(lambda done: ended.append(done.value()[0][-1].item()))
    deadline = time.monotonic() + 60
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [5.0], ended
    future.wait()
    told("progress_thread", "progress")
    dist.destroy_process_group()


def restarted():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 1 and os.environ["RANK"] == "0":
        time.sleep(0.7)  # rank 1 finds what the first attempt has left
    dist.init_process_group("lockstep", timeout=DEADLINE)
    told("restarted", f"attempt {attempt}")
    dist.barrier()
    if attempt == 0:
        os._exit(7)
    dist.destroy_process_group()


if __name__ == "__main__":
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":  # the cases before it have passed
        del sys.argv[1 : sys.argv.index("restarted")]
    starts.run_cases(globals())
