"""The "lockstep" backend for torch.distributed: collectives between the processes of one machine, in shared memory.

    import lockstep
    torch.distributed.init_process_group("lockstep")

CPU tensors only. Every rank of a group must run on the same machine.
"""

import atexit
import os

import torch
import torch.distributed as dist

if torch.__version__.split("+")[0] != "@LOCKSTEP_TORCH_VERSION@":
    raise ImportError(f"this lockstep-torch was built for torch @LOCKSTEP_TORCH_VERSION@, but torch {torch.__version__} "
                      "is installed; install the one that belongs to the other")

from lockstep import _C  # noqa: E402  (needs torch's libraries in the process)

__version__ = "@PROJECT_VERSION@"


def _create(store, rank, size, timeout):
    # The first group of a job is that of all its ranks.
    is_default = not dist.is_initialized()
    backend = _C.create_backend(store, rank, size, timeout.total_seconds(), is_default)
    if is_default and os.environ.pop("LOCKSTEP_TIMELINE", None) is not None:
        os.environ.pop("LOCKSTEP_TIMELINE_PARTS", None)  # what this rank starts is no rank
        atexit.register(_C.end_timeline)
    return backend


if not hasattr(dist.Backend, "LOCKSTEP"):
    dist.Backend.register_backend("lockstep", _create, devices=["cpu"])
    # DDP's buckets then come from allocateTensor, in shared memory, and are reduced in place.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
