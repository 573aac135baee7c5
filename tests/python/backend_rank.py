"""A rank of backend_test.py: the cases named on the command line, over torch.distributed on the lockstep backend."""

import collections
import concurrent.futures
import datetime
import os
import runpy
import sys
import threading
import time
import warnings
from unittest import mock

import torch
import torch.distributed as dist

import lockstep  # noqa: F401  (registers the backend)
import starts


def each(make):
    """make(rank) of every rank: what others contribute, computed here."""
    return [make(r) for r in range(dist.get_world_size())]


def check(got, wanted, what):
    if not torch.equal(got, wanted):
        raise AssertionError(f"{what}: got {got}, expected {wanted}")


def values(rank, n=5, dtype=torch.float32):
    return (torch.arange(n) + 10 * rank + 1).to(dtype)


def collectives():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        mine = values(rank, dtype=dtype)
        for op, reduce in ((dist.ReduceOp.SUM, torch.sum), (dist.ReduceOp.MAX, torch.amax), (dist.ReduceOp.MIN, torch.amin)):
            tensor = mine.clone()
            dist.all_reduce(tensor, op=op)
            check(tensor, reduce(torch.stack(each(lambda r: values(r, dtype=dtype))), dim=0).to(dtype), f"all_reduce {op} {dtype}")
    tensor = values(rank, 300_000)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    check(tensor, sum(each(lambda r: values(r, 300_000))), "asynchronous all_reduce")

    tensor = values(rank)
    dist.broadcast(tensor, src=size - 1)
    check(tensor, values(size - 1), "broadcast")

    tensor = values(rank)
    dist.reduce(tensor, dst=0)
    if rank == 0:
        check(tensor, sum(each(values)), "reduce")

    gathered = [torch.empty(5) for _ in range(size)]
    dist.all_gather(gathered, values(rank))
    check(torch.stack(gathered), torch.stack(each(values)), "all_gather")
    into = torch.empty(size * 5)
    dist.all_gather_into_tensor(into, values(rank))
    check(into, torch.cat(each(values)), "all_gather_into_tensor")

    lists = [torch.empty(5) for _ in range(size)] if rank == 0 else None
    dist.gather(values(rank), lists, dst=0)
    if rank == 0:
        check(torch.stack(lists), torch.stack(each(values)), "gather")
    part = torch.empty(5)
    dist.scatter(part, each(values) if rank == 0 else None, src=0)
    check(part, values(rank), "scatter")

    part = torch.empty(5)
    dist.reduce_scatter(part, [values(rank) * (r + 1) for r in range(size)])
    check(part, sum(each(values)) * (rank + 1), "reduce_scatter")
    part = torch.empty(5)
    dist.reduce_scatter_tensor(part, torch.cat([values(rank) * (r + 1) for r in range(size)]))
    check(part, sum(each(values)) * (rank + 1), "reduce_scatter_tensor")

    swapped = [torch.empty(5) for _ in range(size)]
    dist.all_to_all(swapped, [values(rank) + 100 * r for r in range(size)])
    check(torch.stack(swapped), torch.stack(each(lambda r: values(r) + 100 * rank)), "all_to_all")
    one = torch.empty(size * 2)
    dist.all_to_all_single(one, torch.cat([values(rank, 2) + 100 * r for r in range(size)]))
    check(one, torch.cat(each(lambda r: values(r, 2) + 100 * rank)), "all_to_all_single")

    right, left = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        received = torch.empty(70_000)
        for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, values(rank, 70_000), right), dist.P2POp(dist.irecv, received, left)]):
            request.wait()
        check(received, values(left, 70_000), "batch_isend_irecv")
        in_place = values(rank, 70_000)
        time.sleep(0.1 * (rank == 0))  # the left neighbor's message is there when rank 0 begins
        for request in dist.batch_isend_irecv([dist.P2POp(dist.irecv, in_place, left), dist.P2POp(dist.isend, in_place, right)]):
            request.wait()
        check(in_place, values(left, 70_000), "batch_isend_irecv in place")
        if rank == 0:
            for _ in range(size - 1):
                source = dist.recv(received)
                check(received, values(source, 70_000), "recv from any source")
        else:
            dist.send(values(rank, 70_000), 0)

    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)], objects
    dist.barrier()


def refused(message, call):
    try:
        call()
    except ValueError as error:
        if message not in str(error):
            raise
        return
    raise AssertionError(f"no ValueError with {message!r}")


def averages_of_integers():
    """The sum divided with truncation, as NCCL documents; of bool none, as there."""
    rank, size, avg = dist.get_rank(), dist.get_world_size(), dist.ReduceOp.AVG

    def of(r, n, dtype):
        tensor = (torch.arange(n) * (r + 3)) % 127
        return (tensor if dtype == torch.uint8 else tensor * (1 - 2 * (torch.arange(n) % 2))).to(dtype)

    def mean(n, dtype):
        return torch.div(sum(each(lambda r: of(r, n, dtype).long())), size, rounding_mode="trunc").to(dtype)

    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        for n in (5, 50_000):
            for is_async in (False, True):
                tensor = of(rank, n, dtype)
                work = dist.all_reduce(tensor, op=avg, async_op=is_async)
                if is_async:
                    work.wait()
                check(tensor, mean(n, dtype), f"all_reduce AVG {dtype}")
            tensor = of(rank, n, dtype)
            dist.reduce(tensor, dst=size - 1, op=avg)
            if rank == size - 1:
                check(tensor, mean(n, dtype), f"reduce AVG {dtype}")
            part = torch.empty(n, dtype=dtype)
            wanted = mean(size * n, dtype)[rank * n : (rank + 1) * n]
            dist.reduce_scatter_tensor(part, of(rank, size * n, dtype), op=avg)
            check(part, wanted, f"reduce_scatter_tensor AVG {dtype}")
            dist.reduce_scatter(part.zero_(), list(of(rank, size * n, dtype).chunk(size)), op=avg)
            check(part, wanted, f"reduce_scatter AVG {dtype}")
    tensor = torch.sparse_coo_tensor([[0, rank % 2]], torch.tensor([-100, 90 + rank], dtype=torch.int8), (2,))
    wanted = torch.div(sum(each(lambda r: torch.sparse_coo_tensor([[0, r % 2]], [-100, 90 + r], (2,)).to_dense())), size, rounding_mode="trunc")
    dist.all_reduce(tensor, op=avg)
    check(tensor.to_dense(), wanted.to(torch.int8), "sparse all_reduce AVG")
    refused("cannot combine bool by AVG", lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), op=avg))
    dist.barrier()


def overlapping_tensors():
    """An output may lie over an input, of any size; outputs may not lie over each other."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for n in (3, 1000, 50_000):
        for shift in (0, 1):
            memory = torch.empty(size * n + shift)
            given, taken = memory[: size * n], memory[shift:]
            given.copy_(values(rank, size * n))
            dist.all_to_all_single(taken, given)
            check(taken, torch.cat(each(lambda r: values(r, size * n)[rank * n : (rank + 1) * n])), f"all_to_all_single over {n}")
        for first in (rank * n, (rank + 1) % size * n):
            memory = torch.empty(size * n)
            mine = memory[first : first + n].copy_(values(rank, n))
            dist.all_gather_into_tensor(memory, mine)
            check(memory, torch.cat(each(lambda r: values(r, n))), f"all_gather_into_tensor over {n}")
            memory = values(rank, size * n)
            mine = memory[first : first + n]
            dist.reduce_scatter_tensor(mine, memory)
            check(mine, sum(each(lambda r: values(r, size * n)))[rank * n : (rank + 1) * n], f"reduce_scatter_tensor over {n}")
            memory = values(7, size * n)
            mine = memory[first : first + n]
            dist.scatter(mine, list(memory.chunk(size)) if rank == 0 else None, src=0)
            check(mine, values(7, size * n)[rank * n : (rank + 1) * n], f"scatter over {n}")
        a, b = torch.empty(size * n), torch.empty(size * n)
        into = [block[rank * n : (rank + 1) * n].copy_(values(rank + 20 * i, n)) for i, block in enumerate((b, a))]
        with dist.distributed_c10d._coalescing_manager():
            dist.all_gather_into_tensor(a, into[0])
            dist.all_gather_into_tensor(b, into[1])
        for i, block in enumerate((a, b)):
            check(block, torch.cat(each(lambda r: values(r + 20 * i, n))), f"coalesced all_gather over {n}")
    twice = [torch.empty(3)] * size
    if size > 1:
        refused("the outputs overlap each other", lambda: dist.all_gather(twice, torch.ones(3)))
    refused("one place in memory", lambda: dist.all_reduce(torch.ones(1).expand(3)))
    dist.barrier()


def messages_to_oneself():
    rank, limit = dist.get_rank(), datetime.timedelta(seconds=60)
    group = dist.new_group(timeout=limit)
    own = group._get_backend(torch.device("cpu"))  # torch itself refuses to send to the own rank
    for n in (1, 1000, 300_000):
        tensor = torch.empty(n)
        begin = time.monotonic()
        refused("it has sent itself no such message", lambda: dist.recv(tensor, rank, group=group))
        assert time.monotonic() - begin < 30
        receive = dist.irecv(tensor, rank, group=group)
        send = own.send([values(rank, n)], rank, 0)
        receive.wait()
        send.wait()
        check(tensor, values(rank, n), "irecv before isend")
        send = own.send([values(rank + 1, n)], rank, 0)
        dist.recv(tensor, rank, group=group)
        send.wait()
        check(tensor, values(rank + 1, n), "recv after isend")
    dist.barrier()


def groups():
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(70):  # more than the areas of a segment, one after the other
        every = dist.new_group(list(range(size)))
        tensor = values(rank)
        dist.all_reduce(tensor, group=every)
        check(tensor, sum(each(values)), "all_reduce in a new group")
        dist.destroy_process_group(every)
    evens = dist.new_group(list(range(0, size, 2)))
    odds = dist.new_group(list(range(1, size, 2))) if size > 1 else None
    mine = evens if rank % 2 == 0 else odds
    tensor = values(rank)
    dist.all_reduce(tensor, group=mine)
    check(tensor, sum(values(r) for r in range(rank % 2, size, 2)), "all_reduce in every second rank")


def ddp():
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(10, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5))
    alone = torch.nn.Sequential(torch.nn.Linear(10, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5))
    alone.load_state_dict(model.state_dict())
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    ours = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(6):
        inputs = each(lambda r: torch.sin(torch.arange(200.0) * (r + 1) + step).reshape(20, 10))
        ours.zero_grad()
        wrapped(inputs[rank]).square().mean().backward()
        ours.step()
        reference.zero_grad()
        (sum(alone(x).square().mean() for x in inputs) / size).backward()
        reference.step()
    for (name, got), wanted in zip(model.named_parameters(), alone.parameters()):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")


def twice():
    dist.destroy_process_group()
    dist.init_process_group("lockstep")
    collectives()


def fails(message, call):
    try:
        call()
    except RuntimeError as error:
        if message not in str(error):
            raise
        return
    raise AssertionError(f"no error with {message!r}")


def timeouts():
    """Each of the two ways to change a group's deadline has effect."""
    rank = dist.get_rank()
    for change in (lambda group, limit: dist.distributed_c10d._set_pg_timeout(limit, group), lambda group, limit: group.set_timeout(limit)):
        group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=60))
        dist.barrier(group=group)
        change(group, datetime.timedelta(milliseconds=700))
        if rank == 0:
            fails("waited 700 ms for rank 1", lambda: dist.all_reduce(torch.ones(3), group=group))
        dist.barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=50))


def monitored_barriers():
    rank = dist.get_rank()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=30), wait_all_ranks=True)
    group = dist.new_group([0, 1])
    if rank == 0:
        fails(
            "Rank 1 failed to pass monitoredBarrier in 500 ms",
            lambda: dist.monitored_barrier(group, datetime.timedelta(milliseconds=500), wait_all_ranks=True),
        )
    dist.barrier()
    gloo = dist.new_group([0, 1], backend="gloo")  # its own way, as before
    dist.monitored_barrier(gloo)


def named_for_a_device():
    """Another name for the same backend."""
    dist.destroy_process_group()
    dist.init_process_group("cpu:lockstep")
    collectives()
    timeouts()
    monitored_barriers()


def resized_buckets():
    """A hook may resize the bucket that it is given, as PyTorch's batched PowerSGD does."""

    def hook(state, bucket):
        buffer = bucket.buffer()
        count = buffer.numel()
        buffer.resize_(count + 100)[count:].fill_(0)
        dist.all_reduce(buffer)
        buffer.resize_(count).div_(dist.get_world_size())
        future = torch.futures.Future()
        future.set_result(buffer)
        return future

    torch.manual_seed(1)
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 60))
    wrapped.register_comm_hook(None, hook)
    for _ in range(3):
        wrapped.zero_grad()
        wrapped(torch.full((2, 50), float(dist.get_rank() + 1))).sum().backward()
        check(
            wrapped.module.weight.grad,
            torch.full((60, 50), sum(each(lambda r: 2.0 * (r + 1))) / dist.get_world_size()),
            "gradient through a hook that resizes",
        )


def profiled():
    rank, tensor = dist.get_rank(), torch.ones(1000)
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(3):
            dist.all_reduce(tensor)
        dist.broadcast(tensor, src=1)
        dist.recv(tensor, 0) if rank else dist.send(tensor, 1)
        dist.barrier()
    counts = collections.Counter(event.name for event in profiler.events() if event.name.startswith("lockstep:"))
    expected = {"lockstep:all_reduce": 3, "lockstep:broadcast": 1, "lockstep:barrier": 1, "lockstep:recv" if rank else "lockstep:send": 1}
    assert counts == expected, counts


def killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        print(f"rank {dist.get_rank()} saw: {error}", flush=True)
        os._exit(0 if "rank 1" in str(error) else 3)
    os._exit(4)


def timeline():
    assert "LOCKSTEP_TIMELINE" not in os.environ and "LOCKSTEP_TIMELINE_PARTS" not in os.environ
    rank, tensor = dist.get_rank(), torch.ones(1000)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.broadcast(tensor, src=1, group=dist.new_group([0, 1]))
    dist.recv(tensor, 0) if rank else dist.send(tensor, 1)
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    wrapped(torch.ones(4, 100)).sum().backward()


def timeline_of_two_threads():
    other = 1 - dist.get_rank()

    def talk(tag):
        for n in range(2000):
            work = dist.isend(torch.full((40,), float(n)), other, tag=tag)
            received = torch.empty(40)
            dist.recv(received, other, tag=tag)
            work.wait()
            assert received[0] == n

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(talk, (1, 2)))


def futures_and_threads():
    """A thread that asks for a future waits, and the others of its process go on meanwhile."""
    limit = datetime.timedelta(seconds=20)
    first, second = dist.new_group([0, 1], timeout=limit), dist.new_group([0, 1], timeout=limit)

    def later():
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1), group=second)

    if dist.get_rank() == 0:
        thread = threading.Thread(target=later)
        thread.start()
        dist.all_reduce(torch.ones(1), group=first, async_op=True).get_future().wait()
        thread.join()
    else:
        dist.all_reduce(torch.ones(1), group=second)
        dist.all_reduce(torch.ones(1), group=first)
    dist.barrier()


def unwaited():
    """Operations that nobody waits for: their results are there once a later one has ended, whatever lies between."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def column():
        return torch.full((5, 2), -1.0)[:, 0]

    def start():
        swapped, gathered = [column() for _ in range(size)], [column() for _ in range(size)]
        inputs = [values(rank) + 100 * r for r in range(size)]
        into, part = torch.full((size * 5,), -1.0), column()
        lists = [column() for _ in range(size)] if rank == 0 else None
        works = [
            dist.all_to_all(swapped, inputs, async_op=True),
            dist.all_gather(gathered, values(rank), async_op=True),
            dist.all_to_all_single(into, torch.cat(inputs), async_op=True),
            dist.gather(values(rank), lists, dst=0, async_op=True),
            dist.scatter(part, each(values) if rank == 0 else None, src=0, async_op=True),
        ]
        expected = [values(r) + 100 * rank for r in range(size)], each(values)
        outputs = [(swapped, expected[0]), (gathered, expected[1]), (into.chunk(size), expected[0]), ([part], [values(rank)])]
        return works, outputs + ([(lists, expected[1])] if rank == 0 else [])

    def look(outputs, what):
        for number, (got, wanted) in enumerate(outputs):
            check(torch.stack(list(got)), torch.stack(wanted), f"operation {number} {what}")

    for _ in range(20):
        works, outputs = start()
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        look(outputs, "before the last, which is waited for")
        for work in works:
            work.wait()
        look(outputs, "that is waited for late")
        _, outputs = start()
        dist.barrier()
        look(outputs, "that is dropped before a barrier")
        _, outputs = start()
        last = dist.barrier(async_op=True)
        while not last.is_completed():
            pass
        look(outputs, "before one that has been seen to end")
        with torch.inference_mode():
            _, outputs = start()
        dist.barrier()
        with torch.inference_mode():
            look(outputs, "of an inference mode that has ended")

    # Threads that start, wait and let go of tensors hold the interpreter in turns.
    groups = [dist.new_group(list(range(size))) for _ in range(2)]

    def talk(group):
        for _ in range(100):
            gathered = [column() for _ in range(size)]
            dist.all_gather(gathered, values(rank), group=group, async_op=True)
            last = dist.all_reduce(torch.ones(3), group=group, async_op=True)
            while not last.is_completed():
                time.sleep(0)
            check(torch.stack(gathered), torch.stack(each(values)), "all_gather of a thread")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(talk, groups))
    dist.barrier()


def group_after_a_world_that_is_held():
    """A tensor keeps the memory of a job that is over; a later job's groups have nothing to do with it."""
    cpu, rank = torch.device("cpu"), dist.get_rank()
    kept = dist.group.WORLD._get_backend(cpu).allocate_tensor(10, dtype=torch.float32, device=cpu) if rank == 0 else None
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1], backend="lockstep", timeout=datetime.timedelta(seconds=20))
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [2.0] * 3 and (rank == 1 or kept.numel() == 10)
    dist.barrier()
    starts.passed("group_after_a_world_that_is_held")
    os._exit(0)  # Gloo's tear-down aborts now and then


def other_members_in_a_later_job():
    """Only some ranks were in the first job's group, so they have counted other things."""
    limit, rank = datetime.timedelta(seconds=20), dist.get_rank()
    dist.new_group([0, 1], timeout=limit)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    group = dist.new_group([1, 2], backend="lockstep", timeout=limit)
    if rank > 0:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2
    dist.barrier()
    starts.passed("other_members_in_a_later_job")
    os._exit(0)  # Gloo's tear-down aborts now and then


def world_after_a_group_of_some():
    """Only the ranks of a group, in a job on Gloo, have asked for Lockstep's memory before all do."""
    kept = dist.group.WORLD  # Gloo's tear-down aborts now and then
    dist.new_group([0, 1], backend="lockstep")
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("lockstep", timeout=datetime.timedelta(seconds=20))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 3 and kept is not None
    dist.barrier()
    starts.passed("world_after_a_group_of_some")
    os._exit(0)


def trained_on(backend):
    """train_script.py as a user runs it; what it has trained lies in the folder TRAINED. It makes its own group."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_script.py")
    dist.destroy_process_group()
    with mock.patch.object(sys, "argv", [script, "--backend", backend, "--out", os.path.join(os.environ["TRAINED"], backend)]):
        runpy.run_path(script, run_name="__main__")


def trained():
    trained_on("lockstep")
    dist.init_process_group("lockstep")


def trained_on_gloo():
    trained_on("gloo")
    starts.passed("trained_on_gloo")
    os._exit(0)  # Gloo's tear-down aborts now and then


if __name__ == "__main__":
    first = "gloo" if sys.argv[1] == "world_after_a_group_of_some" else "lockstep"
    starts.run_cases(globals(), lambda: dist.init_process_group(first), dist.destroy_process_group)
