"""The "lockstep" backend for torch.distributed: collectives between the processes of one machine, in shared memory.

    import lockstep
    torch.distributed.init_process_group("lockstep")

CPU tensors only. Ranks of one machine use shared memory; lockrun or torchrun may start them on several machines.

With another backend the import lets lockrun see the ranks, too, and the lines that they are at if they hang.
"""

import atexit
import datetime
import functools
import os
import sys

import torch
import torch.distributed as dist

if torch.__version__.split(".")[:2] != "@LOCKSTEP_TORCH_VERSION@".split(".")[:2]:
    raise ImportError(
        f"this lockstep-torch was built for torch @LOCKSTEP_TORCH_VERSION@, but torch {torch.__version__} "
        "is installed; install the one that belongs to the other"
    )

from lockstep import _C  # noqa: E402  (needs torch's libraries in the process)


def _wait_for_place():
    """A spare (lockrun --spares) waits here until it takes the place of a rank."""
    if "LOCKSTEP_SPARE_FD" not in os.environ:
        return
    # The constructor of DistributedDataParallel imports it, which takes longer than all the rest of a replacement.
    import torch._dynamo.utils  # noqa: F401, PLC0415

    sys.stdout.flush()
    for change in _C.wait_for_place():
        name, is_set, value = change.partition("=")
        if is_set:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


_wait_for_place()

from lockstep import groups, recovery, watch  # noqa: E402
from lockstep.groups import cpu_backend  # noqa: E402
from lockstep.recovery import Recovery, step  # noqa: E402

__all__ = ["Recovery", "step"]

__version__ = "@PROJECT_VERSION@"


_handed_down = {}  # the launcher's memory for the job, until the group of all ranks asks for it


def _create(options, _backend_options):
    ranks = options.global_ranks_in_group  # empty for the group of all ranks
    # What this rank starts, a job of its own for one, is no rank of this job.
    for name in "LOCKSTEP_SEGMENT_FD", "LOCKSTEP_SEGMENT_OWNER":
        if name in os.environ:
            _handed_down[name] = os.environ.pop(name)
    segment = {}
    if not ranks:
        segment = dict(_handed_down)
        _handed_down.clear()
    fd = segment.get("LOCKSTEP_SEGMENT_FD")
    backend = _C.create_backend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout.total_seconds(),
        ranks,
        None if fd is None else int(fd),
        segment.get("LOCKSTEP_SEGMENT_OWNER"),
    )
    if not ranks and os.environ.pop("LOCKSTEP_TIMELINE", None) is not None:
        os.environ.pop("LOCKSTEP_TIMELINE_PARTS", None)  # what this rank starts is no rank
        atexit.register(_C.end_timeline)
    return backend


def _instead_of(name):
    """Puts a function that also knows this backend in the place of one that asks for Gloo or NCCL by name."""
    original = getattr(dist.distributed_c10d, name)

    def replace(function):
        replacement = functools.wraps(original)(functools.partial(function, original))
        for module in dist, dist.distributed_c10d:
            if getattr(module, name, None) is original:
                setattr(module, name, replacement)

    return replace


def _register():
    dist.Backend.register_backend("lockstep", _create, extended_api=True, devices=["cpu"])

    @_instead_of("monitored_barrier")
    def monitored_barrier(original, group=None, timeout=None, wait_all_ranks=False):
        if cpu_backend(group) is None:
            return original(group, timeout, wait_all_ranks)
        group = group or dist.group.WORLD
        if timeout is None:
            return group.monitored_barrier(wait_all_ranks=wait_all_ranks)
        if not isinstance(timeout, datetime.timedelta):
            timeout = datetime.timedelta(seconds=timeout)
        return group.monitored_barrier(timeout, wait_all_ranks)

    @_instead_of("batch_isend_irecv")
    def batch_isend_irecv(original, p2p_op_list):
        if not isinstance(p2p_op_list, list) or not all(isinstance(op, dist.P2POp) for op in p2p_op_list):
            return original(p2p_op_list)  # which says what is wrong
        # The operations start one after the other: what a receive writes must not be what a later send reads.
        received = {
            op.tensor.untyped_storage().data_ptr()
            for op in p2p_op_list
            if op.op is dist.irecv and op.tensor.is_cpu and cpu_backend(op.group) is not None
        }
        return original(
            [
                dist.P2POp(dist.isend, op.tensor.clone(), op.peer, op.group, op.tag)
                if op.op is dist.isend and op.tensor.untyped_storage().data_ptr() in received
                else op
                for op in p2p_op_list
            ]
        )

    @_instead_of("_set_pg_timeout")
    def _set_pg_timeout(original, timeout, group=None):
        backend = cpu_backend(group)
        if backend is not None:
            backend.set_timeout(timeout)
        if backend is None or len((group or dist.group.WORLD)._device_types) > 1:
            original(timeout, group)


if not hasattr(dist.Backend, "LOCKSTEP"):
    _register()
    watch.register(_C, _instead_of)
    groups.register(_instead_of, recovery.give_up)
    # DDP's buckets then come from allocateTensor, in shared memory, and are reduced in place.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
