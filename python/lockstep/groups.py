"""What a process group of torch.distributed consists of, and when one is made."""

import torch
import torch.distributed as dist

from lockstep import _C


def cpu_backend(group=None):
    """That of CPU tensors, if this process is in the group and it is this package's; otherwise None. The group may have another
    backend for other devices ("cpu:lockstep,cuda:nccl"), and a wrapper around each (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""
    group = dist.group.WORLD if group is None else group
    if dist.get_rank(group) < 0:
        return None
    try:
        backend = group._get_backend(torch.device("cpu"))
        return backend if backend.name() == "lockstep" else None
    except (AttributeError, RuntimeError):  # none for the CPU
        return None


def _has_other_backends(group):
    """Whether it has lockstep for one kind of device and another backend for another: cpu:lockstep,cuda:nccl."""
    backends = {part.rpartition(":")[2] for part in dist.get_backend_config(group).split(",")}
    return "lockstep" in backends and len(backends) > 1


def register(instead_of, give_up):
    """give_up: is called when no rank can be replaced from here on, with a text that says why."""

    @instead_of("_new_process_group_helper")  # all functions that make groups call it
    def new_process_group(original, group_size, group_rank, global_ranks_in_group, *args, **kwargs):
        is_world = len(global_ranks_in_group) == 0
        if not is_world and _C.note_subgroup():
            give_up(
                "the program has made a process group after Recovery, which a new process could not join. Use the group of all ranks instead",
                min(global_ranks_in_group),
            )
        made = original(group_size, group_rank, global_ranks_in_group, *args, **kwargs)
        if is_world and dist.get_debug_level() == dist.DebugLevel.DETAIL:
            _C.refuse_replacement("TORCH_DISTRIBUTED_DEBUG=DETAIL makes a Gloo group beside each one, which a new process could not join")
        if is_world and _has_other_backends(made[0]):
            _C.refuse_replacement("the group of all ranks has another backend for other devices, whose connections a new process could not join")
        return made
