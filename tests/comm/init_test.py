"""Ranks that no launcher of ours starts: by URLs, and in the environments of Open MPI, SLURM and MPICH."""

import os
import socket
import subprocess
import tempfile
import time
import unittest

from namespaces import become_root, in_namespaces
from ports import free_port

CASES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "collective_cases")
ENDING_CASES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "ending_cases")
LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
CLEAN = {
    name: value for name, value in os.environ.items() if not name.startswith(("OMPI", "PMI", "SLURM", "MPI_")) and name not in ("RANK", "WORLD_SIZE")
}


def run(environments, *cases, within=()):
    """One process for each environment, by the command `within`; returns [(exit code, output)]."""
    ranks = [
        subprocess.Popen(
            [*within, CASES, "--gtest_filter=" + ":".join(cases)],
            env={**CLEAN, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for environment in environments
    ]
    results = []
    for process in ranks:
        output, _ = process.communicate(timeout=120)
        results.append((process.returncode, output))
    return results


class InitTest(unittest.TestCase):
    def check(self, environments, cases=("Collectives.AllReduce", "Collectives.GatherAndBytes"), expect=None):
        for rank, (code, output) in enumerate(run(environments, *cases)):
            self.assertEqual(code, 0, output)
            if expect:
                self.assertIn(expect.format(rank=rank), output)

    def test_tcp(self):
        method = f"tcp://127.0.0.1:{free_port()}"
        self.check(
            [{"TEST_INIT_METHOD": method, "TEST_RANK": str(r), "TEST_WORLD_SIZE": "3"} for r in range(3)],
            ("Joining.Place", "Collectives.AllReduce"),
            "rank {rank} of 3, local {rank} of 3, node 0, lockstep",
        )

    def test_tcp_with_the_place_in_the_url(self):
        method = f"tcp://localhost:{free_port()}"
        self.check(
            [{"TEST_INIT_METHOD": f"{method}?rank={r}&world_size=2", "LOCKSTEP_BACKEND": "gloo"} for r in range(2)],
            ("Joining.Place",),
            "rank {rank} of 2, local {rank} of 2, node 0, gloo",
        )

    def test_file(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(
                [{"TEST_INIT_METHOD": f"file://{folder}/meet", "TEST_RANK": str(r), "TEST_WORLD_SIZE": "2"} for r in range(2)],
                ("Joining.Place", "Collectives.AllReduce"),
            )
            self.assertEqual(os.listdir(folder), [])

    def test_a_store_of_the_programs_own(self):
        for backend in "lockstep", "gloo":
            with self.subTest(backend), tempfile.TemporaryDirectory() as folder:
                self.check(
                    [
                        {"TEST_STORE_FILE": f"{folder}/store", "TEST_RANK": str(r), "TEST_WORLD_SIZE": "3", "LOCKSTEP_BACKEND": backend}
                        for r in range(3)
                    ],
                    ("Joining.Place", "Collectives.AllReduce"),
                    f"rank {{rank}} of 3, local {{rank}} of 3, node 0, {backend}",
                )

    def test_env_by_hand(self):
        port = str(free_port())
        self.check([{"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} for r in range(2)], ("Joining.Place",))

    def test_ranks_that_share_no_memory_take_gloo_unless_a_backend_was_chosen(self):
        apart = in_namespaces("-p", "-m", "--fork", "--mount-proc", "--kill-child")

        def results(**environment):
            port = str(free_port())
            return run(
                [{"RANK": str(r), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environment} for r in range(3)],
                "Joining.Place",
                "Collectives.AllReduce",
                within=apart,
            )

        for rank, (code, output) in enumerate(results()):
            self.assertEqual(code, 0, output)
            self.assertIn(f"rank {rank} of 3, local {rank} of 3, node 0, gloo", output)
            self.assertEqual(output.count("so the backend is gloo"), 1 if rank == 0 else 0, output)
        for code, output in results(LOCKSTEP_BACKEND="lockstep"):
            self.assertEqual(code, 1, output)
            self.assertIn("ranks on other machines or in other containers need the backend gloo", output)

    def test_host_names_are_never_compared(self):
        apart = (*in_namespaces("-u"), "sh", "-c", 'hostname "$TEST_HOST"; exec "$@"', "sh")
        port = str(free_port())
        ranks = [{"RANK": str(r), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TEST_HOST": f"host{r}"} for r in range(3)]
        for rank, (code, output) in enumerate(run(ranks, "Joining.Place", "Collectives.AllReduce", within=apart)):
            self.assertEqual(code, 0, output)
            self.assertIn(f"rank {rank} of 3, local {rank} of 3, node 0, lockstep", output)

    def test_open_mpi(self):
        self.check(
            [
                {
                    "OMPI_COMM_WORLD_RANK": str(r),
                    "OMPI_COMM_WORLD_SIZE": "3",
                    "OMPI_COMM_WORLD_LOCAL_RANK": str(r),
                    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
                    "PMIX_NAMESPACE": f"prterun-test-{os.getpid()}@1",
                }
                for r in range(3)
            ]
        )

    def test_open_mpi_with_a_store(self):
        port = str(free_port())
        self.check(
            [
                {
                    "OMPI_COMM_WORLD_RANK": str(r),
                    "OMPI_COMM_WORLD_SIZE": "2",
                    "OMPI_COMM_WORLD_LOCAL_RANK": str(r),
                    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                }
                for r in range(2)
            ],
            ("Joining.Place",),
            "rank {rank} of 2, local {rank} of 2, node 0, lockstep",
        )

    def test_mpich(self):
        self.check([{"PMI_RANK": str(r), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(r), "MPI_LOCALNRANKS": "2"} for r in range(2)])

    def test_srun(self):
        step = {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_NODEID": "0",
            "SLURM_STEP_NODELIST": "gpu[07-09]",
        }
        self.check([{**step, "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)} for r in range(2)])
        # In a batch script that srun did not start: a job of one.
        self.check(
            [{"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}],
            ("Joining.Place",),
            "rank 0 of 1, local 0 of 1, node 0, lockstep",
        )

    def test_a_wrapper_that_closes_the_descriptor_or_uses_its_number(self):
        for redirection in (">&-", "</dev/null"):
            with self.subTest(redirection):
                result = subprocess.run(
                    [
                        LOCKRUN,
                        "--standalone",
                        "--nproc-per-node",
                        "2",
                        "--no-python",
                        "bash",
                        "-c",
                        f'eval "exec $LOCKSTEP_SEGMENT_FD{redirection}"; {CASES} --gtest_filter=Collectives.AllReduce; exit $?',
                    ],
                    env=CLEAN,
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_joining_again(self):
        method = f"tcp://127.0.0.1:{free_port()}"
        self.check([{"TEST_INIT_METHOD": method, "TEST_RANK": str(r), "TEST_WORLD_SIZE": "2"} for r in range(2)], ("Joining.JoinedAgain",))
        with tempfile.TemporaryDirectory() as folder:
            self.check(
                [{"TEST_INIT_METHOD": f"file://{folder}/meet", "TEST_RANK": str(r), "TEST_WORLD_SIZE": "2"} for r in range(2)],
                ("Joining.JoinedAgain",),
            )

    def start_ending(self, folder, exit_code):
        """Two ranks on Gloo, of which the first has come to its end; the other one waits for the file folder/go."""
        method = f"tcp://127.0.0.1:{free_port()}"
        ranks = []
        for rank in range(2):
            environment = {
                "TEST_INIT_METHOD": f"{method}?rank={rank}&world_size=2",
                "LOCKSTEP_BACKEND": "gloo",
                "TEST_GO": f"{folder}/go",
                "TEST_EXIT_CODE": str(exit_code),
            }
            ranks.append(
                subprocess.Popen(
                    [ENDING_CASES, "--gtest_filter=Ending.RankZeroEndsFirst"],
                    env={**CLEAN, **environment},
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
            self.addCleanup(ranks[-1].stdout.close)
            self.addCleanup(ranks[-1].kill)
        while "rank 0 ends" not in (line := ranks[0].stdout.readline()):
            self.assertTrue(line, "rank 0 has ended")
        return ranks

    def test_ranks_on_gloo_end_together(self):
        # Else the sockets of the first one could be reset while another one reads what it has sent.
        with tempfile.TemporaryDirectory() as folder:
            first, other = self.start_ending(folder, 0)
            self.assertRaises(subprocess.TimeoutExpired, first.wait, 1)
            open(f"{folder}/go", "w").close()
            self.assertEqual((first.wait(60), other.wait(60)), (0, 0))
            self.assertEqual(first.stdout.read(), "")
            self.assertNotIn("rror", other.stdout.read())

    def test_a_rank_on_gloo_does_not_wait_for_ever_nor_after_a_failure(self):
        for exit_code in (0, 3):
            with self.subTest(exit_code), tempfile.TemporaryDirectory() as folder:
                first, other = self.start_ending(folder, exit_code)
                self.assertEqual(first.wait(60), exit_code)
                self.assertIsNone(other.poll())
                open(f"{folder}/go", "w").close()
                self.assertEqual(other.wait(60), 0)
                self.assertNotIn("TCPStore", other.stdout.read())  # LibTorch's stack trace of a store that is gone

    def test_wrong_addresses_end_at_the_deadline(self):
        second = {"TEST_RANK": "1", "TEST_WORLD_SIZE": "2", "TEST_TIMEOUT_MS": "1500"}
        nobody = free_port()
        self.refused(
            {**second, "TEST_INIT_METHOD": f"tcp://127.0.0.1:{nobody}"},
            f"no store at 127.0.0.1:{nobody} (MASTER_ADDR:MASTER_PORT or the init_method) within 1500 ms: Connection refused",
            1,
        )
        self.refused({**second, "TEST_INIT_METHOD": "tcp://no-such-host.invalid:29500"}, "no store at no-such-host.invalid:29500", 1)
        with tempfile.TemporaryDirectory() as folder:
            self.refused({**second, "TEST_INIT_METHOD": f"file://{folder}/meet"}, "local rank 0 did not answer", 1, alone=False)
            self.refused({**second, "TEST_INIT_METHOD": f"file://{folder}/none/meet"}, f"file://{folder}/none/meet: there is no folder {folder}/none")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            first = {"TEST_RANK": "0", "TEST_WORLD_SIZE": "2", "TEST_TIMEOUT_MS": "1500"}
            self.refused({**first, "TEST_INIT_METHOD": f"tcp://127.0.0.1:{port}"}, f"no store at 127.0.0.1:{port}", 1, alone=False)

    def refused(self, environment, message, code=2, alone=True):
        """alone: nothing else is printed; c10d's stores have a lot to say when they find nobody."""
        ((found, output),) = run([environment], "Collectives.AllReduce")
        self.assertIn(message, output.strip().splitlines()[-1])
        if alone:
            self.assertEqual(output.strip().count("\n"), 0, output)
        self.assertEqual(found, code)

    def test_refusals(self):
        self.refused({"TEST_INIT_METHOD": "tcp://127.0.0.1:29500"}, "needs to know who this is")
        self.refused({"TEST_INIT_METHOD": "tcp://127.0.0.1"}, "needs a host and a port")
        self.refused({"TEST_INIT_METHOD": "tcp://x:99999"}, "a port is 1 to 65535")
        self.refused({"TEST_INIT_METHOD": "file://relative"}, "needs an absolute path")
        self.refused({"TEST_INIT_METHOD": "mpi://"}, "is none of env://")
        self.refused({"TEST_INIT_METHOD": "tcp://x:1?ranks=2"}, '"ranks" is neither rank nor world_size')
        self.refused({"TEST_RANK": "2", "TEST_WORLD_SIZE": "2"}, "rank 2 must be 0 to 1")
        self.refused({"TEST_RANK": "0"}, "must be given together")
        self.refused({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is missing")
        self.refused({"LOCKSTEP_BACKEND": "nccl"}, 'no backend "nccl" in this build; choose lockstep')
        self.refused({"LOCKSTEP_BACKEND": "mpi"}, 'no backend "mpi" in this build; choose lockstep')

    def test_a_rank_that_never_comes(self):
        alone = {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": f"alone-{os.getpid()}",
            "TEST_TIMEOUT_MS": "500",
        }
        self.refused(alone, "local ranks 1 have not called init() within 500 ms", 1)
        second = {**alone, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        self.refused(second, "the first rank of this node has not called init() within 500 ms", 1)

    def test_waiting_opens_no_address_that_others_could_take_first(self):
        first = {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": f"waits-{os.getpid()}",
            "TEST_TIMEOUT_MS": "60000",
        }
        second = {**first, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        waiting = subprocess.Popen([CASES, "--gtest_filter=Collectives.AllReduce"], env={**CLEAN, **first})
        try:
            deadline = time.monotonic() + 60
            while "/memfd:lockstep" not in os.popen(f"ls -l /proc/{waiting.pid}/fd").read():
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            with open("/proc/net/unix") as sockets:
                self.assertNotIn(f"waits-{os.getpid()}", sockets.read())
            self.check([second], ("Collectives.AllReduce",))
            self.assertEqual(waiting.wait(60), 0)
        finally:
            waiting.kill()
            waiting.wait()


if __name__ == "__main__":
    become_root()
    unittest.main()
