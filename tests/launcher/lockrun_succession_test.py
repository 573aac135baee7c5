"""The machine that serves the rendezvous is lost: another one serves, and the job goes on."""

import os
import signal
import unittest

from nodes_support import LOOP, OnHosts
from two_hosts import ThreeHosts, TwoHosts, become_root


class SuccessionTest(OnHosts):
    def elastic(self, host, nnodes, *flags):
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6"
        return self.on(host, "--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400", "--rdzv-conf", conf,
                       "--prefix", "off", *(flags or ["--max-restarts", 1]), "sh", "-c", LOOP)

    def wait_for_ranks(self, count):
        for rank in range(count):
            self.wait_for_file(f"up{rank}.{count}")
            (self.directory / f"up{rank}.{count}").unlink()

    def hosts(self, kind):
        self.two = kind()
        self.addCleanup(self.two.stop)

    def release(self, *processes):
        (self.directory / "release").touch()
        results = self.finish(*processes)
        self.assertEqual([code for code, _, _ in results], [0] * len(processes), results)
        return [out.replace("started ", "").splitlines() for _, out, _ in results], [err for _, _, err in results]

    def test_another_one_serves_and_the_endpoint_does_again(self):
        self.hosts(TwoHosts)
        a = self.elastic("a", "1:2")
        b = self.elastic("b", "1:2")
        self.wait_for_ranks(2)
        self.signal_lockrun("a", signal.SIGKILL)
        a.communicate()
        self.wait_for_ranks(1)
        again = self.elastic("a", "1:2")  # it knows the endpoint only
        self.wait_for_ranks(2)
        (out_b, out_again), (err_b, _) = self.release(b, again)
        self.assertEqual((out_b[1], len(out_b)), ("0 of 1 in 1", 3))
        self.assertEqual(sorted([out_b[2], *out_again]), ["0 of 2 in 1", "1 of 2 in 1"])
        self.assertIn("the rendezvous is served here now, at 10.77.0.2:29400", err_b)
        self.assertIn("the one at 10.77.0.1:29400 answers again", err_b)
        self.assertRegex(err_b, r"2 restarts:\n")

    def signal_lockrun(self, host, number):
        for pid in self.called("lockrun", self.processes_of(host)):
            os.kill(pid, number)

    def test_the_one_that_serves_is_killed_and_so_is_its_successor(self):
        self.hosts(ThreeHosts)
        machines = {host: self.elastic(host, "1:3", "--max-restarts", 2) for host in "abc"}
        self.wait_for_ranks(3)
        self.signal_lockrun("a", signal.SIGKILL)
        self.wait_for_ranks(2)
        successor, last = sorted("bc", key=lambda host: not self.called("lockrun-rdzv", self.processes_of(host)))
        self.signal_lockrun(successor, signal.SIGKILL)
        self.wait_for_ranks(1)
        machines.pop("a").communicate()
        lines = machines.pop(successor).communicate()[0].splitlines()
        ((out,), (err,)) = self.release(machines[last])
        self.assertEqual(sorted([lines[1].replace("started ", ""), out[1]]), ["0 of 2 in 1", "1 of 2 in 1"])
        self.assertEqual(out[2:], ["0 of 1 in 2"])
        self.assertRegex(err, r"2 restarts:\n")

    def test_the_one_that_serves_leaves(self):
        self.hosts(ThreeHosts)
        a, b, c = [self.elastic(host, "1:3") for host in "abc"]
        self.wait_for_ranks(3)
        self.signal_lockrun("a", signal.SIGTERM)
        ((code, _, err),) = self.finish(a)
        self.assertEqual(code, 128 + signal.SIGTERM, err)
        self.wait_for_ranks(2)
        (out_b, out_c), errs = self.release(b, c)
        self.assertEqual(sorted([*out_b[1:], *out_c[1:]]), ["0 of 2 in 0", "1 of 2 in 0"])
        for err in errs:
            self.assertIn("a, which serves it, leaves the job", err)

    def test_only_the_larger_part_of_a_cut_network_goes_on(self):
        self.hosts(ThreeHosts)
        machines = [self.elastic(host, "1:3") for host in "abc"]
        self.wait_for_ranks(3)
        self.two.cut_the_cable_of("a")
        self.wait_for_ranks(2)
        self.assertEqual(list(self.directory.glob("up0.1")), [])
        self.two.mend_the_cable_of("a")
        self.wait_for_ranks(3)
        (out_a, out_b, out_c), (err_a, *_) = self.release(*machines)
        self.assertEqual([len(out_a), len(out_b), len(out_c)], [2, 3, 3])
        self.assertEqual(sorted([out_b[1], out_c[1]]), ["0 of 2 in 1", "1 of 2 in 1"])
        self.assertEqual(sorted([out_a[1], out_b[2], out_c[2]]), ["0 of 3 in 1", "1 of 3 in 1", "2 of 3 in 1"])


if __name__ == "__main__":
    become_root()
    unittest.main()
