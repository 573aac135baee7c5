"""A rank written for torchrun; it knows nothing of lockrun. Rank 1 fails in attempt FAIL_ATTEMPT."""

import os
import sys

import torch
import torch.distributed as dist

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
value = torch.full((3,), float(dist.get_rank() + 1))
dist.all_reduce(value)
if attempt == os.environ.get("FAIL_ATTEMPT") and dist.get_rank() == 1:
    sys.stdout.flush()
    os._exit(5)
dist.barrier()
print(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {value[0].item()} attempt {attempt}")
sys.stdout.flush()
# Gloo's tear-down aborts now and then ("terminate called without an active exception"): it is not what is tested.
os._exit(0)
