"""init_process_group("lockstep") over several machines, which lockruns with memory of their own play."""

import os
import subprocess
import sys
import tempfile
import unittest

from ports import free_port

LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
CPP_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "cpp_rank")

PROGRAM = """
import os, torch, torch.distributed as dist, lockstep
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("lockstep")
rank, size = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "lockstep"

tensor = torch.full((1000,), float(rank + 1))
dist.all_reduce(tensor)
assert tensor.tolist() == [size * (size + 1) / 2] * 1000
gathered = [torch.empty(3) for _ in range(size)]
dist.all_gather(gathered, torch.full((3,), float(rank)))
assert [one[0].item() for one in gathered] == list(range(size))
tensor = torch.full((5,), float(rank))
dist.broadcast(tensor, src=size - 1)
assert tensor.tolist() == [size - 1.0] * 5
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert [one["rank"] for one in objects] == list(range(size))
received = torch.empty(4)
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % size),
                                dist.P2POp(dist.irecv, received, (rank - 1) % size)])
for work in works:
    work.wait()
assert received.tolist() == [float((rank - 1) % size)] * 4

# Groups across the machines and inside one, made again, and one without rank 0.
for members in ([0, size - 1], [0, 1], [0, size - 1], list(range(1, size)), [size - 1]):
    group = dist.new_group(members)
    if rank in members:
        tensor = torch.full((70000,), float(rank + 1))
        dist.all_reduce(tensor, group=group)
        assert tensor.eq(sum(members) + len(members)).all(), (members, tensor)
        dist.barrier(group)

# DDP: each rank's gradient is its own number, so the averages are known.
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(300, 200))
first = [None] * size
dist.all_gather_object(first, model.module.weight.detach().sum().item())
assert len(set(first)) == 1
for _ in range(3):
    model.zero_grad()
    model(torch.full((1, 300), float(rank))).sum().backward()
    assert torch.allclose(model.module.weight.grad, torch.full((200, 300), (size - 1) / 2))
print(f"rank {rank} has passed", flush=True)
if os.environ.get("TEST_DESTROYS") == "1":
    dist.destroy_process_group()
"""

MIXED = """
import torch, torch.distributed as dist, lockstep
dist.init_process_group("lockstep")
tensor = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert tensor.tolist() == [6.0] * 1000
dist.broadcast(tensor, src=0)
assert tensor.tolist() == [0.5] * 1000
dist.destroy_process_group()
"""


class Machines(unittest.TestCase):
    def run_on(self, machines, *command, **environment):
        """What lockrun prints on each."""
        port = free_port()
        processes = [
            subprocess.Popen(
                [
                    LOCKRUN,
                    "--nnodes",
                    str(len(machines)),
                    "--node-rank",
                    str(node),
                    "--master-addr",
                    "127.0.0.1",
                    "--master-port",
                    str(port),
                    "--nproc-per-node",
                    str(ranks),
                    *command,
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for node, ranks in enumerate(machines)
        ]
        try:
            outputs = [process.communicate(timeout=300)[0] for process in processes]
        finally:
            for process in processes:
                process.terminate()
                process.wait()
        for process, output in zip(processes, outputs):
            self.assertEqual(process.returncode, 0, "\n".join(outputs))
        return "\n".join(outputs)

    def test_collectives_groups_and_ddp_with_and_without_an_end(self):
        for machines, destroys in (((2, 1), "1"), ((2, 2), "0")):
            with self.subTest(machines=machines), tempfile.NamedTemporaryFile("w", suffix=".py") as program:
                program.write(PROGRAM)
                program.flush()
                output = self.run_on(machines, program.name, PYTHON_EXEC=sys.executable, TEST_DESTROYS=destroys)
                for rank in range(sum(machines)):
                    self.assertIn(f"rank {rank} has passed", output)
                self.assertNotIn("lost", output)

    def test_ranks_of_cpp_and_python(self):
        program = f'if [ $RANK = 0 ]; then exec {CPP_RANK}; else exec {sys.executable} -c "$PROGRAM"; fi'
        self.run_on((2, 1), "bash", "-c", program, PROGRAM=MIXED)


if __name__ == "__main__":
    unittest.main()
