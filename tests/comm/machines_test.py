"""Machines that fail, played by processes of this one: ranks without a launcher, with shared memory for each machine."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from namespaces import in_namespaces
from ports import free_port

CASES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "ending_cases")
COLLECTIVES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "collective_cases")
MACHINE_CASES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "machine_cases")


def run_ranks(case, machines, program=CASES, within=(), **variables):
    """What each rank prints, and its exit code. machines: how many ranks each has. within: a command that each rank runs in.
    variables: of each rank's environment; a list has a value for each machine, a tuple for each rank, None for none."""
    port = free_port()
    ranks = [(group, local) for group, count in enumerate(machines) for local in range(count)]
    processes = []
    for rank, (group, local) in enumerate(ranks):
        place = {
            "RANK": rank,
            "WORLD_SIZE": len(ranks),
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": machines[group],
            "GROUP_RANK": group,
            "GROUP_WORLD_SIZE": len(machines),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        own = {
            name: value[group] if isinstance(value, list) else value[rank] if isinstance(value, tuple) else value for name, value in variables.items()
        }
        environment = {
            **os.environ,
            **{name: value for name, value in own.items() if value is not None},
            **{name: str(value) for name, value in place.items()},
        }
        processes.append(
            subprocess.Popen(
                [*within, program, f"--gtest_filter={case}"],
                env=environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    try:
        return [(process.communicate(timeout=60)[0], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


class DefaultTest(unittest.TestCase):
    """Nobody chooses a backend."""

    def place_ranks(self, backend, machines, **options):
        """Each rank finds itself on that backend. Returns what they print."""
        results = run_ranks("Joining.Place:Collectives.AllReduce", machines, program=COLLECTIVES, LOCKSTEP_LOG_LEVEL="info", **options)
        places = [(group, local) for group, count in enumerate(machines) for local in range(count)]
        for rank, ((output, code), (group, local)) in enumerate(zip(results, places)):
            self.assertEqual(code, 0, output)
            self.assertIn(f"rank {rank} of {len(places)}, local {local} of {machines[group]}, node {group}, {backend}\n", output)
        return [output for output, _ in results]

    def test_ranks_share_the_memory_of_their_machine(self):
        for uplink in ({}, {"LOCKSTEP_UPLINK": "gloo"}):
            with self.subTest(uplink):
                outputs = self.place_ranks("lockstep", [2, 1], **uplink)
                for rank, output in enumerate(outputs):
                    said = "3 ranks on 2 machines: shared memory inside, " + ("Gloo (" if uplink else "")
                    self.assertEqual(output.count(said), 1 if rank == 0 else 0, output)

    def test_ranks_of_a_machine_that_share_no_memory_take_gloo_on_all_machines(self):
        apart = in_namespaces("-p", "-m", "--fork", "--mount-proc", "--kill-child")
        for rank, output in enumerate(self.place_ranks("gloo", [1, 2], within=apart)):
            self.assertEqual(
                output.count("so the backend is gloo; LOCKSTEP_BACKEND=gloo chooses it without this line"), 1 if rank == 0 else 0, output
            )
            if rank == 0:
                self.assertRegex(output, r"rank [12] cannot join the ranks of its machine: ")
        for output, code in run_ranks("Joining.Place", [1, 2], program=COLLECTIVES, within=apart, LOCKSTEP_BACKEND="lockstep"):
            self.assertNotEqual(code, 0)
            self.assertRegex(output, r"rank [12] cannot join the ranks of its machine: ")

    def test_machines_that_choose_other_backends_get_an_error(self):
        for output, code in run_ranks("Joining.Place", [1, 2], program=COLLECTIVES, LOCKSTEP_BACKEND=["gloo", None]):
            self.assertNotEqual(code, 0)
            self.assertIn("the backend is gloo on rank 0 and lockstep on rank 1: set LOCKSTEP_BACKEND", output)

    def test_flat_gloo_can_be_chosen(self):
        for output in self.place_ranks("gloo", [2, 1], LOCKSTEP_BACKEND="gloo"):
            self.assertNotIn("the backend is gloo", output)


class MachinesTest(unittest.TestCase):
    def check(self, results, dead, *wanted):
        for rank, (output, code) in enumerate(results):
            if rank == dead:
                continue
            self.assertEqual(code, 0, output)
            self.assertTrue(any(text in output for text in wanted), f"rank {rank}:\n{output}")

    def test_every_rank_names_a_rank_that_died(self):
        for dead in (1, 2, 3):  # beside a leader, a leader, beside the leader of the other machine
            with self.subTest(dead=dead):
                self.check(run_ranks("Ending.TheOthersNameTheDead", [2, 2], TEST_DEAD=str(dead)), dead, f"PeerLostError of rank {dead}:")

    def test_a_machine_that_died_is_named_by_its_rank(self):
        self.check(
            run_ranks("Ending.TheOthersNameTheDead", [2, 1], TEST_DEAD="2"),
            2,
            "PeerLostError of rank 2: rank 2 on machine 1 (127.0.0.1, rank 2) has ended: ",
        )

    def test_every_rank_names_the_ranks_that_are_late(self):
        self.check(
            run_ranks("Ending.TheOthersNameTheLate", [2, 1], TEST_DEAD="2"),
            2,
            "TimeoutError of rank 2: all_reduce (float32[10], SUM) #2 waited 700 ms for the machine of rank 2",
        )

    def test_different_calls_are_quoted_on_all_machines(self):
        self.check(run_ranks("Ending.DifferentCalls", [2, 2]), None, "MismatchError")

    def test_another_engine_is_refused(self):
        for output, code in run_ranks("Ending.TenOperationsThenExit", [1, 1], LOCKSTEP_UPLINK="mpi"):
            self.assertIn("LOCKSTEP_UPLINK=mpi: choose ucx or gloo, or leave it out", output)
            self.assertNotEqual(code, 0)

    def test_the_machine_that_chooses_an_engine_chooses_for_all(self):
        for chosen in ["gloo", None], [None, "gloo"]:
            results = run_ranks("Joining.Place:Collectives.AllReduce", [1, 2], program=COLLECTIVES, LOCKSTEP_UPLINK=chosen, LOCKSTEP_LOG_LEVEL="info")
            for rank, (output, code) in enumerate(results):
                self.assertEqual(code, 0, output)
                said = re.findall(r"3 ranks on 2 machines: shared memory inside, Gloo \(\S+\) between\n", output)
                self.assertEqual(len(said), 1 if rank == 0 else 0, output)
        for output, code in run_ranks("Ending.TenOperationsThenExit", [1, 1], LOCKSTEP_UPLINK=["gloo", "ucx"]):
            self.assertNotEqual(code, 0)
            self.assertRegex(output, r"LOCKSTEP_UPLINK is gloo on machine 0 \(127\.0\.0\.1.*\) and ucx on machine 1 \(.*\): set it to the same value")

    def test_a_rank_without_ucx_that_leads_only_a_smaller_group(self):
        """Rank 1: of the ranks of machine 0 the first in the group of the ranks 1 to 3."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        pathlib.Path(folder.name, "libucp.so.0").touch()  # which nobody can load
        paths = ":".join(path for path in (folder.name, os.environ.get("LD_LIBRARY_PATH")) if path)
        kept = os.environ.get("LD_LIBRARY_PATH")
        case = "Machines.AHierarchicalSumOfSomeRanksIsRight"
        variables = {"program": MACHINE_CASES, "LD_LIBRARY_PATH": (kept, paths, kept, kept)}
        for rank, (output, code) in enumerate(run_ranks(case, [2, 2], LOCKSTEP_LOG_LEVEL="info", **variables)):
            self.assertEqual(code, 0, output)
            self.assertEqual(output.count("4 ranks on 2 machines: shared memory inside, Gloo ("), 1 if rank == 0 else 0, output)
        for output, code in run_ranks(case, [2, 2], LOCKSTEP_UPLINK="ucx", **variables):
            self.assertNotEqual(code, 0)
            self.assertRegex(output, r"LOCKSTEP_UPLINK=ucx, but .*machine 0 \(.*\) cannot use UCX: ")

    def test_ucx_names_the_dead_or_every_rank_says_why_there_is_none(self):
        results = run_ranks("Ending.TheOthersNameTheDead", [2, 2], TEST_DEAD="2", LOCKSTEP_UPLINK="ucx")
        if "cannot use UCX" not in results[0][0]:
            return self.check(results, 2, "PeerLostError of rank 2:")
        for output, code in results:
            self.assertRegex(output, r"LOCKSTEP_UPLINK=ucx, but machine 0 \(.*\) cannot use UCX: ")
            self.assertNotEqual(code, 0)


def run_in_containers(*containers):
    """What ranks of Open MPI print that see no processes of other containers. containers: how many ranks each has."""
    within = in_namespaces("-p", "-m", "--fork", "--mount-proc", "--kill-child")
    port = free_port()
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LOCKSTEP_BACKEND": "gloo",
        "OMPI_COMM_WORLD_SIZE": str(sum(containers)),
    }
    processes, first = [], 0
    for count in containers:
        ranks = "".join(
            f"OMPI_COMM_WORLD_RANK={first + i} OMPI_COMM_WORLD_LOCAL_RANK={i} OMPI_COMM_WORLD_LOCAL_SIZE={count} "
            f"{MACHINE_CASES} --gtest_filter='Machines.*' & "
            for i in range(count)
        )
        processes.append(
            subprocess.Popen(
                [*within, "sh", "-c", ranks + "wait"],
                env=environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        first += count
    try:
        return [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


class UnequalMachinesTest(unittest.TestCase):
    def test_mpirun_tells_no_machine_so_the_ranks_find_out(self):
        first, second = run_in_containers(1, 2)
        self.assertIn("rank 0: machine 0 of 2", first)
        for rank in 1, 2:
            self.assertIn(f"rank {rank}: machine 1 of 2", second)
        self.assertNotIn("FAILED", first + second)


if __name__ == "__main__":
    unittest.main()
