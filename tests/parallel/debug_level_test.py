"""TORCH_DISTRIBUTED_DEBUG: what OFF, INFO and DETAIL say and compare, on both backends."""

import os
import subprocess
import unittest

LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
TESTS = os.environ["LOCKSTEP_TEST_BIN_DIR"]


def run(level, *cases, backend="lockstep", program="ddp_by_hand", suite="DdpDebug"):
    environment = dict(os.environ, LOCKSTEP_BACKEND=backend, TORCH_DISTRIBUTED_DEBUG=level)
    done = subprocess.run(
        [
            LOCKRUN,
            "--standalone",
            "--prefix",
            "off",
            "--nproc-per-node",
            "2",
            os.path.join(TESTS, program),
            "--gtest_filter=" + ":".join(f"{suite}.{case}" for case in cases),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stderr


class DebugLevelTest(unittest.TestCase):
    def test_an_unknown_level_is_refused(self):
        code, errors = run("LOUD", "DifferentShapesOfOneSizePass")
        self.assertNotEqual(code, 0)
        self.assertIn("TORCH_DISTRIBUTED_DEBUG=LOUD: it must be OFF, INFO or DETAIL", errors)

    def test_off_is_silent(self):
        for level in ("OFF", ""):
            code, errors = run(level, "DifferentShapesOfOneSizePass", "TrainsWithAnUnusedHead")
            self.assertEqual(code, 0, errors)
            self.assertNotIn("[lockstep]", errors)

    def test_info_tells_what_was_decided_and_seen(self):
        code, errors = run("info", "DifferentShapesOfOneSizePass", "TrainsWithAnUnusedHead")
        self.assertEqual(code, 0, errors)
        self.assertRegex(
            errors,
            r"DistributedDataParallel of \S+: 2 ranks, backend lockstep, 6 parameters \(120 bytes, "
            r"Float\), buckets of \d+ bytes .*find_unused_parameters true",
        )
        for rank in (0, 1):
            self.assertIn(f"rank {rank}: no gradient in backward pass 3 for right.weight, right.bias", errors)
        self.assertRegex(errors, r"10 passes, on average forward [\d.]+ ms, backward [\d.]+ ms, communication")

    def test_detail_compares_what_the_ranks_call(self):
        for backend in ("lockstep", "gloo"):
            code, errors = run("DETAIL", "TrainsWithAnUnusedHead", "AFailureWithTwoModules", backend=backend)
            self.assertEqual(code, 0, errors)
            code, errors = run("DETAIL", "DifferentShapesAreTold", backend=backend)
            self.assertEqual(code, 0, errors)
            code, errors = run("DETAIL", "EveryDifferenceIsTold", backend=backend)
            self.assertEqual(code, 0, errors)

    def test_detail_does_not_hide_a_rank_that_a_step_waits_for(self):
        for backend in ("lockstep", "gloo"):
            code, errors = run(
                "DETAIL",
                "AnExceptionInTheLoss",
                "ARankThatMakesFewerBackwardsIsNamed",
                "ACollectiveThatOneRankLeavesOutInsideJoinIsNamed",
                backend=backend,
                program="step_cases",
                suite="Steps",
            )
            self.assertEqual(code, 0, errors)

    def test_shared_memory_compares_at_every_level(self):
        for level in ("OFF", "INFO"):
            code, errors = run(level, "EveryDifferenceIsTold")
            self.assertEqual(code, 0, errors)


if __name__ == "__main__":
    unittest.main()
