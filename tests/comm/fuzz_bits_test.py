"""Random collectives of floating-point numbers have the same bits on one machine and on several with as many ranks."""

import os
import subprocess
import sys
import tempfile
import unittest

from extent import first_of
from ports import free_port

LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
CASES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "fuzz_cases")
LAYOUTS = [tuple(int(ranks) for ranks in layout.split("x")) for layout in sys.argv[1:]] or [(2, 3)]


def run_on(machines, seed):
    """What each rank's results were."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        environment = {**os.environ, "LOCKSTEP_BACKEND": "lockstep", "LOCKSTEP_FUZZ_RESULTS": folder, "LOCKSTEP_FUZZ_SEED": str(seed)}
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
                    CASES,
                    "--gtest_filter=Fuzz.Bits*",
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for node, ranks in enumerate(machines)
        ]
        try:
            outputs = [process.communicate(timeout=200)[0] for process in processes]
        finally:
            for process in processes:
                process.terminate()
                process.wait()
        assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
        results = []
        for rank in range(sum(machines)):
            with open(os.path.join(folder, str(rank)), "rb") as file:
                results.append(file.read())
        return results


class FuzzBits(unittest.TestCase):
    def test_the_bits_of_one_machine(self):
        for number, machines in first_of(enumerate(LAYOUTS), 2):
            with self.subTest(machines=machines):
                seed = 100 + 10 * number
                alone, several = run_on((sum(machines),), seed), run_on(machines, seed)
                self.assertGreater(sum(map(len, alone)), 1000000)
                for rank, (ones, others) in enumerate(zip(alone, several)):
                    self.assertTrue(ones == others, f"rank {rank}: {len(ones)} and {len(others)} bytes differ")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
