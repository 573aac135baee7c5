"""Ranks started by torchrun, which hands down no segment, find each other's memory through its store."""

import os
import subprocess
import sys
import unittest

CASES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "collective_cases")


class TorchrunTest(unittest.TestCase):
    def run_case(self, case, ranks=2, **environment):
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(ranks),
                "--no-python",
                CASES,
                f"--gtest_filter=Collectives.{case}",
            ],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def test_shared_memory(self):
        for case in ("AllReduce", "GatherAndBytes"):
            result = self.run_case(case, ranks=3)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_gloo_by_name(self):
        result = self.run_case("Layouts", LOCKSTEP_BACKEND="gloo")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_ranks_of_several_machines_need_a_place_to_meet(self):
        by_hand = subprocess.run(
            [CASES, "--gtest_filter=Collectives.AllReduce"],
            env={**os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "LOCKSTEP_BACKEND": "lockstep"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(by_hand.returncode, 2)
        self.assertIn("MASTER_ADDR and MASTER_PORT are missing: the ranks have no place to meet", by_hand.stderr)


if __name__ == "__main__":
    unittest.main()
