"""A rank of parallel_programs_test.py: small programs for FSDP2, DTensor, tensor parallelism and distributed checkpoint.

Arguments: the backend, a folder, and names of programs (none: all). Each program returns tensors, the same on both backends;
rank 0 saves what each gave, or its error, in FOLDER/results.
"""

import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import tensor as dt
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module

import lockstep  # noqa: F401  (registers the backend)

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def wave(*sizes, shift=0.0):
    return torch.sin(torch.arange(torch.Size(sizes).numel(), dtype=torch.float32) + shift).reshape(sizes)


def network(bias=True):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 14, bias=bias), nn.ReLU(), nn.Linear(14, 7, bias=bias))


def train(model, steps=3, optimizer=torch.optim.AdamW, before_step=lambda model: None, **options):
    optimizer = optimizer(model.parameters(), lr=0.05, **options)
    for step in range(steps):
        optimizer.zero_grad()
        model(wave(6, 10, shift=step + 10 * dist.get_rank())).square().mean().backward()
        before_step(model)
        optimizer.step()
    return optimizer


def whole(model):
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in (p.detach() for p in model.parameters())]


# ----------------------------------------------------------------------------------------------------- FSDP2


@program
def fsdp_of_a_module():
    model = fully_shard(network())
    train(model)
    return whole(model)


@program
def fsdp_of_each_layer():
    model = network()
    for layer in model:
        fully_shard(layer)
    train(fully_shard(model))
    return whole(model)


@program
def fsdp_that_keeps_parameters_between_forward_and_backward():
    model = fully_shard(network(), reshard_after_forward=False)
    train(model)
    return whole(model)


@program
def fsdp_in_mixed_precision():
    model = fully_shard(network(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    train(model)
    return whole(model)


@program
def fsdp_that_accumulates():
    model = fully_shard(network())
    for last in (False, False, True):
        model.set_requires_gradient_sync(last)
        model(wave(6, 10, shift=dist.get_rank())).sum().backward()
    return [p.grad.full_tensor() for p in model.parameters()]


@program
def fsdp_that_clips():
    model, norms = fully_shard(network()), []
    train(model, before_step=lambda m: norms.append(nn.utils.clip_grad_norm_(m.parameters(), 0.01).full_tensor()))
    return norms + whole(model)


@program
def fsdp_with_odd_sizes():
    torch.manual_seed(5)
    model = fully_shard(nn.Linear(10, 1))  # fewer rows than ranks
    train(model)
    return whole(model)


@program
def fsdp_over_replicas():
    model = fully_shard(network(), mesh=init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("r", "s")))
    train(model)
    return whole(model)


# ---------------------------------------------------------------------------------------------------- DTensor


@program
def dtensor_there_and_back():
    return [distribute_tensor(wave(8, 6), mesh(), [placement]).full_tensor() for placement in (Shard(0), Shard(1), Replicate())]


@program
def dtensor_uneven():
    return [distribute_tensor(wave(rows, 5), mesh(), [Shard(0)]).full_tensor() for rows in (1, 3, 7)]


@program
def dtensor_redistributed():
    tensor, steps = distribute_tensor(wave(9, 7), mesh(), [Shard(0)]), []
    for placement in (Shard(1), Replicate(), Shard(0), Shard(1)):
        tensor = tensor.redistribute(placements=[placement])
        steps.append(tensor.full_tensor())
    return steps


@program
def dtensor_partial_sums():
    local = wave(4, 6, shift=dist.get_rank())
    partial = DTensor.from_local(local, mesh(), [Partial()])
    return [
        partial.full_tensor(),
        partial.redistribute(placements=[Shard(0)]).full_tensor(),
        DTensor.from_local(local, mesh(), [Partial("max")]).full_tensor(),
    ]


@program
def dtensor_products():
    a, b = wave(8, 6), wave(6, 4)
    return [
        (distribute_tensor(a, mesh(), [left]) @ distribute_tensor(b, mesh(), [right])).full_tensor()
        for left, right in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0)))
    ]


@program
def dtensor_reductions():
    tensor = distribute_tensor(wave(8, 6), mesh(), [Shard(0)])
    return [
        result.full_tensor()
        for result in (tensor.sum(), tensor.sum(0), tensor.mean(1), tensor.max(), torch.softmax(tensor, 1), torch.linalg.vector_norm(tensor))
    ]


@program
def dtensor_gradients():
    weight = nn.Parameter(distribute_tensor(wave(8, 6), mesh(), [Shard(0)]))
    inputs = distribute_tensor(wave(5, 6), mesh(), [Replicate()])
    (inputs @ weight.t()).square().sum().backward()
    return [weight.grad.full_tensor()]


@program
def dtensor_factories():
    made = [
        dt.ones(6, 4, device_mesh=mesh(), placements=[Shard(0)]),
        dt.zeros(5, 4, device_mesh=mesh(), placements=[Shard(1)]),
        dt.full((6, 4), 2.5, device_mesh=mesh(), placements=[Replicate()]),
    ]
    return [tensor.full_tensor() for tensor in made]


@program
def functional_collectives():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = wave(size * 2, 3, shift=rank)
    return [
        torch.as_tensor(functional.wait_tensor(result)).clone()
        for result in (
            functional.all_reduce(tensor, "sum", mesh()),
            functional.all_gather_tensor(tensor, 0, mesh()),
            functional.all_gather_tensor(functional.reduce_scatter_tensor(tensor, "sum", 0, mesh()), 0, mesh()),
        )
    ]


# -------------------------------------------------------------------------------------------- tensor parallelism


@program
def columns_then_rows():
    model = parallelize_module(network(), mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    loss = model(wave(6, 10)).square().sum()
    loss.backward()
    return [loss, *(p.grad.full_tensor() for p in model.parameters())]


@program
def columns_that_are_gathered():
    model = parallelize_module(network(), mesh(), {"2": ColwiseParallel(output_layouts=Replicate())})
    return [model(wave(6, 10))]


@program
def sequence_parallel():
    torch.manual_seed(3)
    model = nn.Sequential(nn.LayerNorm(10), nn.Linear(10, 8), nn.Linear(8, 10))
    parallelize_module(
        model,
        mesh(),
        {"0": SequenceParallel(sequence_dim=0), "1": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Replicate())},
    )
    return [model(distribute_tensor(wave(6, 10), mesh(), [Shard(0)]))]


@program
def an_embedding_by_rows():
    torch.manual_seed(3)
    model = parallelize_module(nn.Embedding(12, 6), mesh(), RowwiseParallel(input_layouts=Replicate()))
    result = model(torch.arange(12).reshape(3, 4))
    result.sum().backward()
    return [result, model.weight.grad.full_tensor()]


@program
def a_loss_over_divided_classes():
    model = parallelize_module(network(), mesh(), {"2": ColwiseParallel(use_local_output=False)})
    with loss_parallel():
        loss = nn.functional.cross_entropy(model(wave(6, 10)), torch.tensor([0, 1, 2, 3, 4, 6]))
        loss.backward()
    return [loss.full_tensor(), *(whole_gradient(p) for p in model.parameters())]


def whole_gradient(parameter):
    return parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad


@program
def rows_in_and_rows_out():
    model = parallelize_module(network(), mesh(), {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))})
    return [model(wave(6, 10).chunk(dist.get_world_size())[dist.get_rank()])]


# ------------------------------------------------------------------------------- checkpoints, divided optimizers


def folder(name):
    return os.path.join(sys.argv[2], name)


@program
def a_checkpoint_of_dtensors():
    saved = {"a": distribute_tensor(wave(8, 6), mesh(), [Shard(0)]), "b": wave(3), "step": 7}
    dcp.save(saved, checkpoint_id=folder("dtensors"))
    loaded = {"a": dt.zeros(8, 6, device_mesh=mesh(), placements=[Shard(1)]), "b": torch.zeros(3), "step": 0}
    dcp.load(loaded, checkpoint_id=folder("dtensors"))
    return [loaded["a"].full_tensor(), loaded["b"], torch.tensor(loaded["step"])]


@program
def a_checkpoint_of_a_training():
    def state(model, optimizer):
        of_model, of_optimizer = states.get_state_dict(model, optimizer)
        return {"model": of_model, "optimizer": of_optimizer}

    model = fully_shard(network())
    optimizer = train(model)
    dcp.save(state(model, optimizer), checkpoint_id=folder("training"))
    other = fully_shard(copy.deepcopy(network()))
    resumed = torch.optim.AdamW(other.parameters(), lr=0.05)
    loaded = state(other, resumed)
    dcp.load(loaded, checkpoint_id=folder("training"))
    states.set_state_dict(other, resumed, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    other(wave(6, 10, shift=dist.get_rank())).sum().backward()
    resumed.step()
    return whole(other)


@program
def a_whole_state_dict():
    model = fully_shard(network())
    optimizer = train(model)
    options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    of_model, of_optimizer = states.get_state_dict(model, optimizer, options=options)
    found = [*of_model.values(), *(value for entry in of_optimizer.get("state", {}).values() for value in entry.values())]
    return [torch.as_tensor(value) for value in found]


@program
def a_state_dict_from_rank_0():
    model = fully_shard(network())
    given = {name: wave(*p.shape, shift=1) for name, p in network().named_parameters()} if dist.get_rank() == 0 else {}
    states.set_model_state_dict(model, given, options=states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return whole(model)


@program
def a_divided_optimizer():
    model = nn.parallel.DistributedDataParallel(network())
    train(model, optimizer=ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam)
    return whole(model)


def run(function):
    try:
        return [torch.as_tensor(t).detach().clone() for t in function()]
    except Exception as error:  # compared too: both backends must fail alike
        return f"{type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    dist.init_process_group(sys.argv[1])
    results = {name: run(PROGRAMS[name]) for name in sys.argv[3:] or PROGRAMS}
    if dist.get_rank() == 0:
        torch.save(results, folder("results"))
    dist.barrier()
    os._exit(0)  # Gloo may abort while it is torn down
