"""Short trainings on the backend "lockstep", one for each argument, whose ranks die where HEAL_KILLS says: RANK:STEP:PLACE:HOW, with
spaces between, each once (a file in HEAL_DIR remembers). PLACE: data, forward, backward, before (the optimizer), after (it), between
(two steps). HOW: a signal's number, or exit, or raise. Only in the first training a rank can be replaced. An argument is words with "+"
between, or "plain": batch_norm (statistics are sent around), own_batch_norm (each rank keeps its own), a communication hook (fp16,
built_in, power), loader (a DataLoader with two worker processes), twice (another Recovery is made, too), accumulate (two passes a step),
slow (rank 1 takes its time in Recovery's constructor), swallow (the body catches what a backward throws), gloo_before (a group of Gloo is
made before Recovery), late (a group after it). HEAL_BACKEND: that of the job, "lockstep" where it is not set.
Where HEAL_EVENTS names lockrun's event log, a death waits until a spare waits. After a training each rank prints
"ARGUMENT: rank R: steps S hash H began N"."""

import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

if "HEAL_EVENTS" not in os.environ:  # spares have it, as users' ranks do
    import without_dynamo  # noqa: F401

import lockstep  # noqa: E402

STEPS = 10


def wait_for_spare():
    deadline = time.monotonic() + 600
    while log := os.environ.get("HEAL_EVENTS"):
        events = [json.loads(line) for line in open(log)]
        ended = [event for event in events if event["event"] == "exit"]
        if len([event for event in events if event["event"] == "spare"]) > len(ended):
            return
        if time.monotonic() > deadline:
            raise TimeoutError("no spare waits")
        time.sleep(0.002)


def die(rank, step, place):
    for number, death in enumerate(os.environ.get("HEAL_KILLS", "").split()):
        wanted_rank, wanted_step, wanted_place, how = death.split(":")
        if (rank, step, place) != (int(wanted_rank), int(wanted_step), wanted_place):
            continue
        try:
            (pathlib.Path(os.environ["HEAL_DIR"]) / f"death{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        wait_for_spare()
        if how == "exit":
            sys.exit(3)
        if how == "raise":
            raise ValueError("planned")
        os.kill(os.getpid(), int(how))


def make_slow():
    """Between what the ranks tell each other in Recovery's constructor and its end: until a rank has died, for a second at most."""
    keep_own = lockstep.Recovery._keep_own

    def slowly(recovery):
        keep_own(recovery)
        deadline = time.monotonic() + 1
        while not (pathlib.Path(os.environ["HEAL_DIR"]) / "death0").exists() and time.monotonic() < deadline:
            time.sleep(0.002)

    lockstep.Recovery._keep_own = slowly


class Net(torch.nn.Module):
    def __init__(self, at, words):
        super().__init__()
        self.at = at
        self.first, self.second = torch.nn.Linear(8, 64), torch.nn.Linear(64, 4)
        self.norm = torch.nn.BatchNorm1d(64) if {"batch_norm", "own_batch_norm"} & words else torch.nn.LayerNorm(64)
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, x):
        h = self.dropout(torch.relu(self.norm(self.first(x))))
        self.at("forward")
        if h.requires_grad:
            h.register_hook(lambda gradient: self.at("backward"))
        return self.second(h)


def batch_of(number):
    return torch.sin(torch.arange(number * 32, (number + 1) * 32, dtype=torch.float32).view(4, 8) * 0.37)


def train(name):
    words = set(name.split("+"))
    rank = dist.get_rank()
    torch.manual_seed(rank)  # rank 0's weights count
    step = 0
    net = Net(lambda place: die(rank, step, place), words)
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.001, broadcast_buffers="own_batch_norm" not in words)
    if "fp16" in words:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if "built_in" in words:
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    if "power" in words:
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    if "slow" in words and rank == 1:
        make_slow()
    if "gloo_before" in words:
        dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=40))
    recovery = lockstep.Recovery({"model": ddp, "optimizer": optimizer, "scheduler": scheduler}, seed=3)
    if "twice" in words:
        lockstep.Recovery({"model": ddp, "optimizer": optimizer}).close()
    group = dist.new_group(timeout=datetime.timedelta(seconds=60)) if "late" in words else None
    began_at = recovery.steps()
    batches = iter(())
    if "loader" in words:
        rows = [batch_of(number * dist.get_world_size() + rank) for number in range(began_at, STEPS)]
        batches = iter(torch.utils.data.DataLoader(rows, batch_size=None, num_workers=2))
    while recovery.steps() < STEPS:
        step = recovery.steps()
        die(rank, step, "between")
        batch = next(batches, None)  # outside of the step, which may be repeated

        def body():
            nonlocal step
            step = recovery.steps()
            die(rank, step, "data")
            x = batch_of(step * dist.get_world_size() + rank) if batch is None else batch
            optimizer.zero_grad()
            if "accumulate" in words:
                with ddp.no_sync():
                    torch.nn.functional.mse_loss(ddp(x * 0.5), torch.cos(x[:, :4])).backward()
            loss = torch.nn.functional.mse_loss(ddp(x), torch.cos(x[:, :4]))
            went_well = False
            with contextlib.suppress(RuntimeError) if "swallow" in words else contextlib.nullcontext():
                loss.backward()
                went_well = True
            die(rank, step, "before")
            if group is not None:
                told = torch.tensor(float(step))
                dist.broadcast(told, 0, group=group)
                assert told == step, told
            if went_well:
                optimizer.step()
                die(rank, step, "after")
                scheduler.step()

        lockstep.step(recovery, body)
    recovery.close()
    digest = hashlib.sha256(repr(scheduler.last_epoch).encode())
    for tensor in net.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print(f"{name}: rank {rank}: steps {recovery.steps()} hash {digest.hexdigest()[:16]} began {began_at}", flush=True)


dist.init_process_group(os.environ.get("HEAL_BACKEND", "lockstep"))
for argument in sys.argv[1:]:
    train(argument)
