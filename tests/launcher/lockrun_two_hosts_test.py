"""A job on two hosts made of namespaces: what its ranks share, and a cable that is cut."""

import os
import pathlib
import signal
import subprocess
import unittest

from nodes_support import ALL_REDUCE_RANK, LOOP, OnHosts
from two_hosts import TwoHosts, become_root, shared_memory_of

SCRIPT = pathlib.Path(__file__).with_name("allreduce_script.py")


class HostsTest(OnHosts):
    def setUp(self):
        super().setUp()
        self.two = TwoHosts()
        self.addCleanup(self.two.stop)

    def test_static_all_reduce_in_cpp_shares_memory_inside_each_machine_only(self):
        del self.environment["LOCKSTEP_BACKEND"]  # Nobody chooses.
        self.environment["LOCKSTEP_LOG_LEVEL"] = "info"
        flags = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", self.token, "--prefix", "off"]
        a = self.on("a", *flags, "--node-rank", 0, ALL_REDUCE_RANK)
        b = self.on("b", *flags, "--node-rank", 1, ALL_REDUCE_RANK)
        lines = [a.stdout.readline() for _ in range(2)] + [b.stdout.readline() for _ in range(2)]
        self.assertEqual(sorted(lines), [f"rank {rank} of 4 sum 10\n" for rank in range(4)])
        memory = {host: shared_memory_of(self.processes_of(host)) for host in "ab"}
        self.assertTrue(memory["a"] and memory["b"], "the ranks of a host share a segment")
        self.assertEqual(memory["a"] & memory["b"], set())
        # What is open listens on the agreed address only.
        listening = subprocess.run(self.two.hosts["a"].command("cat", "/proc/net/tcp"), capture_output=True, text=True).stdout
        addresses = {line.split()[1].split(":")[0] for line in listening.splitlines()[1:] if line.split()[3] == "0A"}
        self.assertEqual(addresses, {"01004D0A"})
        (self.directory / "release").touch()
        for node, (code, _, err) in enumerate(self.finish(a, b)):
            self.assertEqual(code, 0, err)
            self.assertEqual(err.count("4 ranks on 2 machines: shared memory inside, "), 1 - node, err)
            self.assertNotIn("the backend is gloo", err)
            self.assertNotIn("MASTER_PORT had a connection", err)  # these machines have no names

    def test_elastic_all_reduce_of_torchruns_script(self):
        flags = [
            "--nnodes",
            "1:2",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "10.77.0.1:29777",
            "--rdzv-id",
            "job",
            "--rdzv-conf",
            self.token,
            "--prefix",
            "off",
            SCRIPT,
        ]
        results = self.finish(self.on("a", *flags), self.on("b", *flags))
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertEqual(sorted(out for _, out, _ in results), [f"rank {rank} of 2 sum 3.0 attempt 0\n" for rank in range(2)])

    def test_a_cut_cable_ends_a_job_that_needs_both(self):
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6"
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", conf]
        a = self.on("a", *flags, "--node-rank", 0, "sh", "-c", LOOP)
        b = self.on("b", *flags, "--node-rank", 1, "sh", "-c", LOOP)
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        self.two.cut_the_cable()
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(a, b)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        self.assertIn("the machine b (10.77.0.2, rank 1) was lost: no heartbeat for ", err_a)
        self.assertRegex(err_b, r"the rendezvous at 10\.77\.0\.1:29500 was lost: no heartbeat for \d+\.\d s")

    def test_a_machine_that_a_cut_cable_lost_comes_back(self):
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6"
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", conf, "--max-restarts", 1]
        a = self.on("a", *flags, "--node-rank", 0, "sh", "-c", LOOP)
        b = self.on("b", *flags, "--node-rank", 1, "sh", "-c", LOOP)
        for name in ("up0.2", "up1.2"):
            self.wait_for_file(name)
            (self.directory / name).unlink()
        self.two.cut_the_cable()
        for process in (a, b):
            while "was lost: no heartbeat for " not in (line := process.stderr.readline()):
                self.assertNotEqual(line, "")
        self.two.mend_the_cable()
        for name in ("up0.2", "up1.2"):
            self.wait_for_file(name)
        (self.directory / "release").touch()
        (code_a, out_a, err_a), (code_b, out_b, err_b) = self.finish(a, b)
        self.assertEqual((code_a, code_b), (0, 0), err_a + err_b)
        self.assertEqual([out_a, out_b], [f"[rank {rank}]: started {rank} of 2 in 0\n[rank {rank}]: started {rank} of 2 in 1\n" for rank in (0, 1)])

    def test_a_machine_that_was_dropped_is_told_why(self):
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6"
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", conf]
        a = self.on("a", *flags, "--node-rank", 0, "sh", "-c", LOOP)
        b = self.on("b", *flags, "--node-rank", 1, "sh", "-c", LOOP)
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        (lockrun,) = self.called("lockrun", self.processes_of("b"))
        os.kill(lockrun, signal.SIGSTOP)
        ((code, _, err),) = self.finish(a)
        self.assertEqual(code, 1, err)
        self.assertIn("the machine b (10.77.0.2, rank 1) was lost: no heartbeat for ", err)
        os.kill(lockrun, signal.SIGCONT)
        b.send_signal(signal.SIGCONT)  # nsenter stops with its child
        ((code, _, err),) = self.finish(b)
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"dropped from the job by the rendezvous at 10\.77\.0\.1:29500: no heartbeat for \d+\.\d s")
        self.assertNotIn("has ended", err)

    def test_a_rank_that_asks_to_be_resumed_ends_all_with_its_code(self):
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", self.token, "--max-restarts", 2]
        a = self.on("a", *flags, "--node-rank", 0, "sh", "-c", LOOP)
        b = self.on("b", *flags, "--node-rank", 1, "sh", "-c", "while [ ! -e up0.2 ]; do sleep 0.02; done; exit 75")
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(a, b)
        self.assertEqual((code_a, code_b), (75, 75), err_a + err_b)
        self.assertIn("a rank on b asked to be resumed later", err_a)
        self.assertNotIn("failed", err_a + err_b)


if __name__ == "__main__":
    become_root()
    unittest.main()
