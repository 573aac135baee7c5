"""Ranks that hang in a job on several machines."""

import os
import signal
import socket
import unittest

from nodes_support import LATE_RANK, AgentsTest


class OneMachineTest(AgentsTest):
    def test_a_hang_on_one_machine_ends_all(self):
        ends = ["--hang-timeout", "0.5", "--hang-action", "end", "--shutdown-timeout", 600]
        # They do not end when they are asked to: the other machine learns of it before.
        first = self.static(0, f"trap '' TERM; exec {LATE_RANK} 600", *ends, "--nproc-per-node", 2)
        second = self.static(1, "trap 'touch told; exit' TERM; while :; do sleep 0.02; done", *ends)
        self.wait_for_file("told")
        for pid in self.called("late_rank", self.processes()):
            os.kill(pid, signal.SIGKILL)
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        what = (r"no collective was started for \d s: rank 0 waits in the 3rd operation \(barrier of 0 bytes\) for rank 1, "
                r"which has started 2 \(the last: barrier of 0 bytes\)")
        self.assertRegex(err_a, "warning: " + what + r"; ending the job \(--hang-action end\)")
        self.assertRegex(err_b, rf"lockrun: on {socket.gethostname()}: {what}; ending the ranks here\n")
        self.assertRegex(err_a, f"the job has failed: on {socket.gethostname()}: {what}\n")


if __name__ == "__main__":
    unittest.main()
