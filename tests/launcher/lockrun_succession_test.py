"""The machine that serves the rendezvous is lost: another one serves, and the job goes on."""

import contextlib
import os
import pathlib
import random
import signal
import time
import unittest

from nodes_support import LOOP, OnHosts
from two_hosts import FourHosts, ThreeHosts, TwoHosts, become_root

# Rank 0 of a world holds a lock as long as it lives: two of them are two worlds at once.
WORLD = """
import fcntl, os, pathlib, time
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
if rank == "0":
    lock = open("world.lock", "w")
    for attempt in range(2000):  # one that was killed may live for a moment, on a busy machine for seconds
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            time.sleep(0.01)
    else:
        pathlib.Path("world.split").touch()
pathlib.Path(f"up{rank}.{size}").touch()
while not pathlib.Path("release").exists():
    time.sleep(0.02)
"""


class SuccessionTest(OnHosts):
    def elastic(self, host, nnodes, *flags):
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6"
        return self.on(
            host,
            "--nnodes",
            nnodes,
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "10.77.0.1:29400",
            "--rdzv-conf",
            conf,
            "--prefix",
            "off",
            *(flags or ["--max-restarts", 1]),
            "sh",
            "-c",
            LOOP,
        )

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

    def test_killed_in_any_phase(self):
        """A long random run by scripts/soak succession: LOCKSTEP_TEST_RUNS, LOCKSTEP_TEST_SEED."""
        draw = random.Random(int(os.environ.get("LOCKSTEP_TEST_SEED", "1")))
        self.hosts(ThreeHosts)
        phases = []
        for number in range(int(os.environ.get("LOCKSTEP_TEST_RUNS", "3"))):
            phases.append(draw.choice(["meeting", "running", "restarting"]) if number else "restarting")
            print(phases[-1], end=" ", flush=True)
            self.kill_the_one_that_serves(draw, phases[-1])
        print("survived:", ", ".join(f"{phases.count(phase)} {phase}" for phase in sorted(set(phases))))

    def kill_the_one_that_serves(self, draw, phase):
        for file in [*self.directory.glob("up*"), *self.directory.glob("release"), *self.directory.glob("world*")]:
            file.unlink()
        (self.directory / "world.py").write_text(WORLD)
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6,last_call_timeout=3"
        flags = [
            "--nnodes",
            "1:3",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "10.77.0.1:29400",
            "--rdzv-conf",
            conf,
            "--max-restarts",
            9,
            "--restart-delay",
            0,
            "world.py",
        ]
        machines = {host: self.on(host, *flags) for host in "abc"}
        if phase != "meeting":
            self.wait_for_ranks(3)
        if phase == "restarting":
            # Its ranks die, and while all start again the one that serves does.
            for pid in self.those(self.processes_of("b"), self.is_rank):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(draw.uniform(0, 0.4))
        self.signal_lockrun("a", signal.SIGKILL)
        machines["a"].communicate()
        if phase != "meeting":
            self.wait_for_ranks(2)
        machines["a"] = self.on("a", *flags)
        self.wait_for_ranks(3)
        (self.directory / "release").touch()
        results = self.finish(*machines.values())
        self.assertEqual([code for code, _, _ in results], [0, 0, 0], results)
        self.assertEqual(list(self.directory.glob("world.split*")), [], "two worlds at once")

    @staticmethod
    def is_rank(pid):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().startswith("python")

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

    def test_two_parts_of_a_cut_network_that_no_endpoint_joins_find_each_other(self):
        """The machine of the endpoint is lost for good, and then the cable of the one that serves in its place is cut for a while."""
        self.hosts(FourHosts)
        machines = {host: self.elastic(host, "1:4", "--max-restarts", 3) for host in "abcd"}
        self.wait_for_ranks(4)
        self.signal_lockrun("a", signal.SIGKILL)
        machines.pop("a").communicate()
        self.wait_for_ranks(3)
        (successor,) = [host for host in machines if self.called("lockrun-rdzv", self.processes_of(host))]
        self.two.cut_the_cable_of(successor)
        self.wait_for_ranks(2)
        self.two.mend_the_cable_of(successor)
        self.wait_for_ranks(3)
        results = self.release(*machines.values())[1]
        self.assertTrue(any(f"the one at {self.two.address_of(successor)}:29400 answers again" in err for err in results), results)


if __name__ == "__main__":
    become_root()
    unittest.main()
