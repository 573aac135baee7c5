"""Ranks that hang in a job on several machines."""

import os
import signal
import socket
import unittest

from lockrun_support import UNHURRIED
from nodes_support import ALL_REDUCE_RANK, LATE_RANK, AgentsTest, OnHosts
from two_hosts import TwoHosts, become_root


class OneMachineTest(AgentsTest):
    def test_a_hang_on_one_machine_ends_all(self):
        ends = ["--hang-timeout", 4, "--hang-action", "end", "--shutdown-timeout", 600]
        # They do not end when they are asked to: the other machine learns of it before.
        first = self.static(0, f"trap '' TERM; exec {LATE_RANK} 600", *ends, "--nproc-per-node", 2)
        second = self.static(1, "trap 'touch told; exit' TERM; while :; do sleep 0.02; done", *ends)
        self.wait_for_file("told")
        for pid in self.called("late_rank", self.processes()):
            os.kill(pid, signal.SIGKILL)
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        what = (
            r"no collective was started for \d+ s: rank 0 waits in the 3rd operation \(barrier of 0 bytes\) for rank 1, "
            r"which has started 2 \(the last: barrier of 0 bytes\)"
        )
        self.assertRegex(err_a, "warning: " + what + r"; ending the job \(--hang-action end\)")
        self.assertRegex(err_b, rf"lockrun: on {socket.gethostname()}: {what}; ending the ranks here\n")
        self.assertIn("lockrun: the job has failed\n", err_a)


class OneRankPerMachineTest(OnHosts):
    """No machine sees a hang by itself: the rendezvous compares their ranks."""

    WHAT = (
        r"no collective was started for \d+ s: rank 0 waits in the 1st operation \(all_reduce of 4000 bytes\) "
        r"for rank 1, which has started none; rank 1 is on b"
    )

    def setUp(self):
        super().setUp()
        self.two = TwoHosts()
        self.addCleanup(self.two.stop)
        for name in "late", "release":
            (self.directory / name).touch()
        # The real one needs seconds for LibTorch's symbols.
        (self.directory / "eu-stack").write_text("#!/bin/sh\n")
        (self.directory / "eu-stack").chmod(0o755)
        self.environment["PATH"] = f"{self.directory}:{os.environ['PATH']}"

    def start_both(self, *flags, within=()):
        return [
            self.on(
                host,
                "--nnodes",
                2,
                "--master-addr",
                "10.77.0.1",
                "--node-rank",
                node,
                "--rdzv-conf",
                self.token,
                "--prefix",
                "off",
                "--hang-timeout",
                3,
                *flags,
                *within,
                ALL_REDUCE_RANK,
            )
            for node, host in enumerate("ab")
        ]

    def read_until(self, process, text):
        err = ""
        while text not in err:
            self.assertTrue(line := process.stderr.readline(), err)
            err += line
        return err

    def test_the_late_rank_and_its_machine_are_named_on_all(self):
        machines = self.start_both()
        for rank, process in enumerate(machines):
            # On a busy machine the ranks may have waited for each other in init(), and been told of.
            err = self.read_until(process, "for rank 1, which has started none")
            err += self.read_until(process, f"\nrank {rank} (pid")
            self.assertRegex(err, rf"lockrun: warning: {self.WHAT}\n")
            self.assertIn("lockrun: where the ranks are:\n", err)
        (self.directory / "late").unlink()
        for rank, (code, out, err) in enumerate(self.finish(*machines)):
            self.assertEqual((code, out), (0, f"rank {rank} of 2 sum 3\n"), err)

    def test_the_job_ends_if_asked(self):
        for code, _, err in self.finish(*self.start_both("--hang-action", "end", "--hang-timeout", UNHURRIED)):
            self.assertEqual(code, 1, err)
            self.assertRegex(err, rf"lockrun: warning: {self.WHAT}; ending the job \(--hang-action end\)\n")
            self.assertIn("lockrun: the job has failed\n", err)

    def test_a_rank_that_has_not_called_init_is_named(self):
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", self.token, "--hang-timeout", 1, "--hang-action", "end"]
        a = self.on("a", *flags, "--node-rank", 0, ALL_REDUCE_RANK)
        b = self.on("b", *flags, "--node-rank", 1, "sleep", 600)
        for code, _, err in self.finish(a, b):
            self.assertEqual(code, 1, err)
            self.assertRegex(err, r"rank 0 waits in init\(\) for rank 1, which has not called it for \d+ s; rank 1 is on b; ending the job")


class SharedMemoryTest(OneRankPerMachineTest):
    """The same with shared memory inside each machine: its operations there are not counted."""

    def setUp(self):
        super().setUp()
        self.environment["LOCKSTEP_BACKEND"] = "lockstep"

    def test_a_late_rank_beside_the_first_of_its_machine(self):
        machines = self.start_both("--nproc-per-node", 2, "--hang-action", "end", "--hang-timeout", UNHURRIED)
        errors = [err for _, _, err in self.finish(*machines)]
        for err in errors:
            self.assertIn("rank 0 waits in the 1st operation (all_reduce of 4000 bytes) for rank 1, which has started none", err)

    def test_ranks_that_have_fallen_back_to_gloo_are_watched_too(self):
        """They have joined the memory of their machine, and then hear that another rank is wrong there."""
        del self.environment["LOCKSTEP_BACKEND"]
        results = self.finish(*self.start_both("--hang-action", "end", "--hang-timeout", UNHURRIED, within=("env", "GROUP_RANK=0")))
        self.assertRegex(results[0][2], "rank 0 has local rank 0 of 1 on its machine, expected 0 of 2: .*, so the backend is gloo; ")
        for code, _, err in results:
            self.assertEqual(code, 1, err)
            self.assertRegex(err, rf"lockrun: warning: {self.WHAT}; ending the job \(--hang-action end\)\n")


if __name__ == "__main__":
    become_root()
    unittest.main()
